"""The workflow and its shell scripts are clean by their own tools."""

import json
import shutil
import subprocess

import pytest

from tests.workflow.conftest import CHECKOUT

# Sites bring the environments, by their profile.
ACCEPTED = {"Specify a conda environment or container for each rule."}


def test_snakemake_lint_has_no_other_complaint(shared_project):
    ran = shared_project.snakemake("--lint", "json")
    found = json.loads(ran.text[ran.text.index("{") : ran.text.rindex("}") + 1])
    files = [lints for file in found["snakefiles"] for lints in file["lints"]]
    rules = [lint for rule in found["rules"] for lint in rule["lints"]]

    assert [lint for lint in files + rules if lint["title"] not in ACCEPTED] == []


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_is_silent_on_each_script():
    scripts = sorted((CHECKOUT / "tests" / "golden").rglob("*.sh"))

    assert scripts
    ran = subprocess.run(["shellcheck", "-x", *scripts], capture_output=True, text=True)
    assert ran.stdout == ""
