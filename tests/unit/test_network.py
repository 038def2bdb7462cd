"""A step that needs the network is started again behind the site's prefix, once."""

import subprocess
import sys
from pathlib import Path

import pytest

from sft.errors import SftError
from sft.network import enter_network
from sft.site import Site

SCRIPT = """
import os, sys
from sft.network import enter_network
from sft.site import Site
print("started", flush=True)
enter_network(Site("here", network_prefix=sys.argv[1]))
print("behind", os.environ.get("PROXY"))
"""


def lines(folder: Path, prefix: str) -> list[str]:
    """What a step prints that is a script file, as Snakemake makes one."""
    (folder / "step.py").write_text(SCRIPT)
    command = [sys.executable, folder / "step.py", prefix]
    return subprocess.run(command, capture_output=True, text=True).stdout.splitlines()


def test_step_without_a_prefix_goes_on_where_it_is(tmp_path):
    assert lines(tmp_path, "") == ["started", "behind None"]


def test_step_is_started_again_behind_the_prefix(tmp_path):
    assert lines(tmp_path, "env PROXY=tunnel") == ["started", "started", "behind tunnel"]


def test_prefix_that_is_no_command_is_named(monkeypatch):
    monkeypatch.delenv("SFT_BEHIND_PREFIX", raising=False)
    monkeypatch.setattr("os.environ", {"PATH": "/nowhere"})
    with pytest.raises(SftError, match=r"network_prefix: 'proxychains9' does not start"):
        enter_network(Site("here", network_prefix="proxychains9 -q"))
