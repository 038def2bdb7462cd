"""How attempts ended is found out once, by Slurm's word for their jobs."""

import pytest

from sft import slurm
from sft.attempts import begin, end, list_attempts
from sft.endings import Ending, Kind
from sft.settle import settle
from tests.unit.test_attempts import note

REQUEUED = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-12-01T00:00:09 DUE TO JOB REQUEUE"


@pytest.fixture
def states(tmp_path, monkeypatch):
    """What Slurm says of each job, for a test to fill; the run's jobs are 7, 8 and 9."""
    told: dict[str, str] = {}
    monkeypatch.setattr(slurm, "ask_end", lambda job: slurm.End(told[job], 1))
    (tmp_path / "jobs").write_text("7\n8\n9\n")
    return told


def endings(folder, own):
    settle(folder, folder / "logs", own)
    return {each["id"]: each["ending"] for each in list_attempts(folder)}


def test_attempt_whose_job_runs_is_not_over(tmp_path, states):
    begin(tmp_path, note("7", next_job="8", log=str(tmp_path / "7.log")))
    states |= {"7": "RUNNING", "8": "PENDING", "9": "PENDING"}

    assert endings(tmp_path, "") == {"7": None}


def test_attempt_is_over_when_its_job_runs_once_more(tmp_path, states):
    log = tmp_path / "7.log"
    log.write_text(f"{REQUEUED} ***\n")
    begin(tmp_path, note("7", next_job="8", log=str(log)))
    states |= {"7": "RUNNING", "8": "PENDING", "9": "PENDING"}

    assert endings(tmp_path, "7-restart1") == {"7": "preempted"}


def test_job_that_failed_before_its_attempt_began_is_seen_by_the_next(tmp_path, states):
    states |= {"8": "FAILED", "9": "RUNNING"}

    assert endings(tmp_path, "9") == {"8": "failed_start"}


def test_job_that_left_is_no_attempt(tmp_path, states):
    states |= {"8": "COMPLETED", "9": "RUNNING"}

    assert endings(tmp_path, "9") == {}


def test_link_that_its_attempt_took_out_of_the_queue_is_no_attempt(tmp_path, states):
    begin(tmp_path, note("8", next_job="9"))
    end(tmp_path, "8", Ending(Kind.EXCEPTION, "a fault"), to_step=0)
    states |= {"9": "CANCELLED"}

    assert endings(tmp_path, "") == {"8": "exception"}


def test_link_that_a_person_took_out_of_the_queue_ends_the_chain(tmp_path, states):
    begin(tmp_path, note("8", next_job="9"))
    end(tmp_path, "8", Ending(Kind.TIMEOUT, "killed at the time limit"), to_step=0)
    states |= {"9": "CANCELLED"}

    assert endings(tmp_path, "") == {"8": "timeout", "9": "cancelled"}


def test_room_is_told_where_a_disk_was_full(tmp_path, states):
    log = tmp_path / "9.log"
    log.write_text("OSError: [Errno 28] No space left on device\n")
    begin(tmp_path, note("9", next_job=None, log=str(log)))
    states |= {"9": "FAILED"}
    [attempt] = settle(tmp_path, tmp_path / "logs")

    assert attempt["ending"] == "disk_full"
    assert attempt["text"].endswith(f" GB are free in {tmp_path}")
