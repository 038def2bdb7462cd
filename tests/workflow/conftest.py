"""A project of its own for each test: the checkout's files, copied, with a model to start from."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.workflow import stub_trainer

CHECKOUT = Path(__file__).resolve().parents[2]
PARTS = ("Snakefile", "workflow", "config", "profiles", "demo", "sft")


@dataclass(frozen=True)
class Ran:
    """A finished snakemake: its exit code and what it printed."""

    code: int
    text: str

    def count(self, rule: str) -> int:
        """How many jobs of a rule the table of job stats names."""
        for line in self.text.splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == rule and words[1].isdigit():
                return int(words[1])
        return 0

    def rules(self) -> set[str]:
        """The rules whose jobs are listed."""
        lines = (line.strip() for line in self.text.splitlines())
        starts = ("rule ", "localrule ", "checkpoint ", "localcheckpoint ")
        return {line.split()[1].rstrip(":") for line in lines if line.startswith(starts)}


@dataclass(frozen=True)
class Project:
    """A copy of the checkout in which a test may change everything."""

    root: Path

    def snakemake(self, *arguments: str, site: str = "localhost", timeout_s: float = 300) -> Ran:
        """Run snakemake as a user does and wait for it."""
        return self._run(self.command(*arguments, site=site), timeout_s)

    def run_cli(self, *arguments: str, site: str = "localhost") -> Ran:
        """Run `python -m sft` with a site's profile."""
        command = [sys.executable, "-m", "sft", *arguments, "--profile", f"profiles/{site}"]
        return self._run(command, timeout_s=60)

    def _run(self, command: list[str], timeout_s: float) -> Ran:
        done = subprocess.run(
            command,
            cwd=self.root,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Ran(done.returncode, done.stdout)

    def command(self, *arguments: str, site: str = "localhost") -> list[str]:
        """The command line of snakemake with a site's profile."""
        return [sys.executable, "-m", "snakemake", "--profile", f"profiles/{site}", *arguments]

    def environment(self) -> dict[str, str]:
        """The environment with the project's own copy of `sft` in front of the installed one."""
        return os.environ | {"PYTHONPATH": str(self.root)}

    def replace(self, path: str, old: str, new: str) -> None:
        """Replace a text that stands exactly once in one of the project's files."""
        file = self.root / path
        text = file.read_text()
        assert text.count(old) == 1, f"{path}: {old!r} stands {text.count(old)} times"
        file.write_text(text.replace(old, new))

    def append(self, path: str, text: str) -> None:
        """Add text to the end of one of the project's files."""
        with open(self.root / path, "a") as file:
            file.write(text)


def copy_checkout(root: Path) -> Project:
    """A project with the checkout's files and a folder in place of the demo's model."""
    ignored = shutil.ignore_patterns("__pycache__", "smollm2-135m", ".*")
    for part in PARTS:
        source = CHECKOUT / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=ignored)
        else:
            shutil.copy2(source, root / part)
    model = root / "demo" / "smollm2-135m"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return Project(root)


def install_stub(project: Project) -> None:
    """Put the stub trainer in the trainer's place, and a tiny model in the demo's.

    Its tokens are bytes, which are more than the demo's cutoff allows.
    """
    stub_trainer.write_weights(project.root / "demo" / "smollm2-135m", step=0)
    project.replace("sft/lf_configs/smoke.yaml", "cutoff_len: 512", "cutoff_len: 4096")
    environment = project.root / ".venv-llamafactory" / "bin"
    environment.mkdir(parents=True)
    (environment / "activate").write_text(f'PATH="{environment}:$PATH"\n')
    python = environment / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stub_trainer.__file__}" "$@"\n')
    python.chmod(0o755)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return copy_checkout(tmp_path)


@pytest.fixture(scope="module")
def shared_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project for tests that only look."""
    return copy_checkout(tmp_path_factory.mktemp("project"))
