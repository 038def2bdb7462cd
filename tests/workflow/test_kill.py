"""Killed in every stage, by SIGKILL, and run again: the end is that of an undisturbed run."""

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from sft.files import manifest, read_json
from sft.process import process_id
from tests.workflow.conftest import Project, copy_checkout, install_stub

TABLE = (
    "name\tbase_config\tmodel\tmix\tnum_nodes\tregister\n"
    "killed\tsmoke\tsmollm2-135m\tdemo\t1\ttrue\n"
)
# Where each stage is killed: in the stub trainer, or after a function has done its work.
PLACES = {
    "fetch_model": ["sft.fetch:fetch_model"],
    "fetch_dataset": ["sft.fetch:fetch_dataset"],
    "pretokenize": ["pretokenize", "sft.receipt:write_receipt"],
    "inspect_tokens": ["sft.gate.gate:inspect"],
    "check_tokens": ["sft.gate.gate:preview_page"],
    "render": ["check", "sft.render:launch_text"],
    "train": ["train:2", "train:3"],
    "detect_layout": ["sft.checkpoint:detect_layout"],
    "check_template": ["sft.served:check_served"],
    "assemble_release": ["sft.release:write_card"],
    "upload": ["sft.folder_upload:write_json"],
    "register": ["sft.registry:_write_rows", "sft.receipt:write_receipt"],
}
# There only snakemake is killed, and neither its stage nor the training that this started.
SNAKEMAKE_ALONE = "train:3"
TIMES = ("README.md", "provenance.json")  # files of a release that say when it was trained
WAIT_S = 60
SITECUSTOMIZE = """
import importlib.abc, importlib.util, os, sys, time
from pathlib import Path

place, _, function = os.environ.get("PAUSE_AT", "").partition(":")


class Pause(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != place:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            original = getattr(module, function)

            def pausing(*arguments, **keywords):
                original(*arguments, **keywords)
                Path(os.environ["PAUSE_REACHED"]).touch()
                time.sleep(3600)

            setattr(module, function, pausing)

        spec.loader.exec_module = exec_module
        return spec


if place.startswith("sft."):
    sys.meta_path.insert(0, Pause())
"""


@dataclass(frozen=True)
class Stub(Project):
    """A project with one experiment, whose trainer is the stub."""

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def logs(self) -> Path:
        return self.results / "runs" / "killed" / "logs"

    @contextmanager
    def paused(self, place: str, *arguments: str) -> Iterator[psutil.Process]:
        """A snakemake whose stage waits at a place; when the block ends, both are killed."""
        reached, unseen = self.reached(place), self.reached(SNAKEMAKE_ALONE)
        log = self.root / "snakemake.log"
        with open(log, "w") as output:
            child = subprocess.Popen(
                self.command("--cores", "1", *arguments),
                cwd=self.root,
                env=self.environment() | {"PAUSE_AT": place, "PAUSE_REACHED": str(reached)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            while not reached.exists() and child.poll() is None:
                time.sleep(0.05)
                if unseen.exists() and self.attached():
                    unseen.unlink()  # the training that was left goes on
            assert reached.exists(), f"{place} was not reached:\n{log.read_text()}"
            yield psutil.Process(child.pid)
        finally:
            if child.poll() is None:
                kill_tree(psutil.Process(child.pid))
            child.wait()

    def reached(self, place: str) -> Path:
        """The file that says that a snakemake waits at a place."""
        return self.root / f"reached-{place.replace(':', '-')}"

    def attached(self) -> bool:
        """Whether the latest stage that trains found a training to attach to."""
        log = self.logs / "train.log"
        return log.exists() and "attaching" in log.read_text()

    def starts(self) -> list[str]:
        """A line for each start of the trainer."""
        lines = (self.logs / "trainer.log").read_text().splitlines()
        return [line for line in lines if line.startswith("the stub starts")]


def kill_tree(process: psutil.Process) -> None:
    """Kill a process and all that it started, in whatever session, at one moment."""
    tree = [process_id(each.pid) for each in (process, *process.children(recursive=True))]
    for signal_number in (signal.SIGSTOP, signal.SIGKILL):
        for each in tree:
            if each.runs():
                os.kill(each.pid, signal_number)
    wait_until(lambda: not any(each.runs() for each in tree))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def make_stub(root: Path) -> Stub:
    project = Stub(copy_checkout(root).root)
    install_stub(project)
    (root / "config" / "experiments.tsv").write_text(TABLE)
    (root / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return project


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Stub:
    project = make_stub(tmp_path_factory.mktemp("undisturbed"))
    ran = project.snakemake("--cores", "1")
    assert ran.code == 0, ran.text
    return project


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Stub:
    """Each snakemake goes on from where the one before was killed."""
    project = make_stub(tmp_path_factory.mktemp("killed"))
    for stage, places in PLACES.items():
        # Snakemake may fetch models and datasets in any order.
        until = ["--until", stage] if stage.startswith("fetch") else []
        for place in places:
            with project.paused(place, *until) as snakemake:
                if place == SNAKEMAKE_ALONE:
                    [script] = [process_id(each.pid) for each in snakemake.children()]
                    snakemake.kill()
                    wait_until(lambda script=script: not script.runs())
    ran = project.snakemake("--cores", "1")
    assert ran.code == 0, ran.text
    return project


def files(folder: Path) -> set[str]:
    """All files below a folder, hidden ones too."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_every_stage_is_killed(undisturbed):
    ran = undisturbed.snakemake("--dry-run", "--forceall")
    assert ran.rules() == {*PLACES, "all"}


def test_release_is_that_of_an_undisturbed_run(killed, undisturbed):
    def release(project: Stub) -> list[dict]:
        folder = project.results / "runs" / "killed" / "release"
        return [each for each in manifest(folder) if each["path"] not in TIMES]

    assert release(killed) == release(undisturbed)


def test_what_is_uploaded_is_the_release(killed):
    uploaded = manifest(killed.results / "hub" / "laion" / "killed")
    assert uploaded == manifest(killed.results / "runs" / "killed" / "release")


def test_registry_has_the_rows_of_an_undisturbed_run(killed, undisturbed):
    def rows(project: Stub) -> list[tuple]:
        with closing(sqlite3.connect(project.results / "registry.db")) as registry:
            return [
                sorted(registry.execute(f"SELECT name, created_by FROM {table}"))
                for table in ("models", "datasets")
            ] + sorted(registry.execute("SELECT name FROM agents"))

    assert rows(killed) == rows(undisturbed)


def test_no_file_is_left_over(killed, undisturbed):
    def without_attempts(project: Stub) -> set[str]:  # which are named by processes
        return {each for each in files(project.results) if "/attempts/" not in each}

    assert without_attempts(killed) == without_attempts(undisturbed)


def test_snakemake_has_no_lock_and_no_incomplete_file(killed):
    folder = killed.root / ".snakemake"
    assert not files(folder / "locks") | files(folder / "incomplete") | files(folder / "drivers")


def test_training_starts_again_where_it_was_killed_and_never_twice(killed):
    assert killed.starts() == [
        "the stub starts from step 0",
        "the stub starts from step 2",
    ]


def test_attempts_tell_what_happened(killed):
    [checkpoints] = (killed.results / "runs" / "killed" / "checkpoints").iterdir()
    assert [each["ending"] for each in read_json(checkpoints / "attempts.json")] == [
        "lost",
        "completed",
    ]


def test_living_snakemake_keeps_its_lock(tmp_path):
    project = make_stub(tmp_path)
    with project.paused("sft.fetch:fetch_model"):
        second = project.snakemake("--cores", "1")
        assert second.code != 0
        assert "cannot be locked" in second.text
        assert files(project.root / ".snakemake" / "locks")
