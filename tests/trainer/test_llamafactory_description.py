"""The description that the workflow reads is what the installed LLaMA-Factory says of itself."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_shipped_description_equals_the_installed_version():
    # A process of its own: templates that other tests register here are not built in.
    command = [sys.executable, "-m", "sft.trainers.llamafactory_describe"]
    installed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    shipped = ROOT / "sft" / "backends" / "llamafactory.json"
    assert json.loads(shipped.read_text()) == json.loads(installed), (
        f"python -m sft.trainers.llamafactory_describe > {shipped.relative_to(ROOT)}"
    )
