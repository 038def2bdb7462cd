"""Our own way, with hashes and with a sample that is read back, as `python -m sft consolidate`."""

from pathlib import Path

from sft.checkpoint import Layout
from sft.consolidation.gather import gather, plan_weights


def consolidate(checkpoint: Path, output: Path) -> None:
    gather(plan_weights(checkpoint, Layout.ZERO3, None, None), output, lambda _: None)
