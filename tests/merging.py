"""Merge what a tiny run's adapter is, in the environment of the trainer that made it."""

import subprocess
import sys
from pathlib import Path

from sft.adapter import merge_faults, read_scales


def merge_and_judge(base: Path, adapter: Path, merged: Path) -> list[str]:
    """The faults of a merging by `sft.trainers.merge`."""
    command = [sys.executable, "-m", "sft.trainers.merge", base, adapter, merged]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1])
    return list(merge_faults(base, adapter, merged, read_scales(adapter)))
