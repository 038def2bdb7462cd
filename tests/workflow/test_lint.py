"""The workflow and its shell scripts are clean by their own tools."""

import shutil
import subprocess

import pytest

from tests.workflow.conftest import CHECKOUT

# Sites bring the environments, by their profile.
ACCEPTED = {"Specify a conda environment or container for each rule.:"}


def test_snakemake_lint_has_no_other_complaint(shared_project):
    ran = shared_project.snakemake("--lint")
    titles = [line[6:] for line in ran.text.splitlines() if line.startswith("    * ")]

    assert titles
    assert [title for title in titles if title not in ACCEPTED] == []


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_is_silent_on_each_script():
    scripts = sorted((CHECKOUT / "tests" / "golden").rglob("*.sh"))

    assert scripts
    ran = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True)
    assert ran.stdout == ""
