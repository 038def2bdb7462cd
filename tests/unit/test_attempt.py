"""The supervisor of an attempt: what it sees while a training runs, and what it ends."""

from pathlib import Path

import pytest

from sft import attempt, slurm
from sft.attempt import Attempt, Place, Run
from sft.attempts import is_newest, take_over
from tests.unit.killing import wait_until


@pytest.fixture
def supervisor(tmp_path, monkeypatch):
    monkeypatch.setattr(attempt, "LOOK_S", 0.05)
    monkeypatch.setattr(slurm, "end_time", lambda job: None)
    take_over(tmp_path, "7")
    run = Run(tmp_path, tmp_path / "train.yaml", tmp_path / "log", 1, 0, 1, stuck_minutes=60)
    return Attempt(run, Place("7", "7", ("n1",)))


def test_exit_code_is_the_commands(supervisor):
    assert supervisor._watch(["bash", "-c", "exit 3"]) == 3


def test_attempt_that_another_one_replaced_is_ended_at_once(supervisor, tmp_path):
    take_over(tmp_path, "8")

    assert supervisor._watch(["sleep", "60"]) == -9
    assert not is_newest(tmp_path, "7")


def test_what_goes_on_after_srun_is_ended(supervisor, tmp_path):
    supervisor._watch(["bash", "-c", f"setsid sleep 60 & echo $! > {tmp_path}/pid"])
    pid = int((tmp_path / "pid").read_text())

    wait_until(lambda: not Path(f"/proc/{pid}").exists())
