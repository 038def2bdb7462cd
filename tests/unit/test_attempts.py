"""Attempts are written down by those who begin and end them, and by nobody twice."""

import logging

from sft.attempts import (
    RESERVE_BYTES,
    Beginnings,
    begin,
    end,
    is_newest,
    list_attempts,
    newest_series,
    note_told,
    of_series,
    submitted_jobs,
    take_over,
    was_told,
)
from sft.endings import Ending, Kind
from sft.files import read_json

TIMEOUT = Ending(Kind.TIMEOUT, "killed at the time limit", ("line",), ("n1",))


def note(attempt_id, started="2026-12-01T00:00:00+00:00", series=1, **more):
    return {
        **{"id": attempt_id, "launcher": "slurm", "job_id": attempt_id, "series": series},
        **{"started": started, "world_size": 4, "num_nodes": 1, "nodes": ["n1"]},
        **{"resumed": None, "from_step": 0, "put_aside": [], "log": "/l", "log_start": 0},
        **more,
    }


def test_run_that_was_never_tried_has_no_attempt(tmp_path):
    assert list_attempts(tmp_path) == []
    assert newest_series([]) == 1


def test_attempt_that_has_not_ended_has_no_ending(tmp_path):
    begin(tmp_path, note("7"))

    [attempt] = list_attempts(tmp_path)
    assert (attempt["ending"], attempt["retry"], attempt["finished"]) == (None, None, None)


def test_ending_stands_beside_its_beginning(tmp_path):
    begin(tmp_path, note("7"))
    end(tmp_path, "7", TIMEOUT, to_step=40, exit_code=143)

    [attempt] = list_attempts(tmp_path)
    assert (attempt["ending"], attempt["to_step"], attempt["exit_code"]) == ("timeout", 40, 143)
    assert (attempt["blamed"], attempt["lines"], attempt["retry"]) == (["n1"], ["line"], True)


def test_attempt_keeps_room_for_its_ending(tmp_path):
    begin(tmp_path, note("7"))
    reserve = tmp_path / "attempts" / "reserve"
    kept = sum(each.stat().st_size for each in reserve.iterdir())
    end(tmp_path, "7", TIMEOUT, to_step=40)

    assert kept == RESERVE_BYTES
    assert not reserve.exists()


def test_first_ending_stays(tmp_path):
    begin(tmp_path, note("7"))
    end(tmp_path, "7", TIMEOUT, to_step=40)
    end(tmp_path, "7", Ending(Kind.LOST, "nothing is known"), to_step=0)

    assert list_attempts(tmp_path)[0]["ending"] == "timeout"


def test_attempts_are_in_the_order_of_their_beginnings(tmp_path):
    begin(tmp_path, note("9", "2026-12-01T00:00:01+00:00"))
    begin(tmp_path, note("12", "2026-12-01T00:00:00+00:00"))

    assert [each["id"] for each in list_attempts(tmp_path)] == ["12", "9"]


def test_attempts_of_the_same_second_are_in_the_order_of_their_jobs(tmp_path):
    for attempt_id in ("10", "9", "10-restart1"):
        begin(tmp_path, note(attempt_id))

    assert [each["id"] for each in list_attempts(tmp_path)] == ["9", "10", "10-restart1"]


def test_people_find_all_of_them_in_one_file(tmp_path):
    begin(tmp_path, note("7"))
    end(tmp_path, "7", TIMEOUT, to_step=40)
    begin(tmp_path, note("8", "2026-12-01T00:00:01+00:00"))

    assert read_json(tmp_path / "attempts.json") == list_attempts(tmp_path)


def test_new_series_leaves_the_attempts_of_before_behind(tmp_path):
    begin(tmp_path, note("7"))
    begin(tmp_path, note("8", "2026-12-01T00:00:01+00:00", series=2))
    attempts = list_attempts(tmp_path)

    assert newest_series(attempts) == 2
    assert [each["id"] for each in of_series(attempts, 2)] == ["8"]


def test_only_new_beginnings_are_said(tmp_path, caplog):
    begin(tmp_path, note("7"))
    beginnings = Beginnings(tmp_path)
    begin(tmp_path, note("8", resumed="checkpoint-6", put_aside=["checkpoint-9 is broken"]))
    with caplog.at_level(logging.INFO, "sft"):
        beginnings.say_new()
        beginnings.say_new()

    assert caplog.messages == ["checkpoint-9 is broken", "training from checkpoint-6 on n1"]


def test_submitted_jobs_are_all_kept_in_their_order(tmp_path):
    assert submitted_jobs(tmp_path) == []
    (tmp_path / "jobs").write_text("9\n12\n")

    assert submitted_jobs(tmp_path) == ["9", "12"]


def test_person_is_told_of_an_ending_once(tmp_path):
    begin(tmp_path, note("7"))
    assert not was_told(tmp_path, "7")
    note_told(tmp_path, "7")

    assert was_told(tmp_path, "7") and len(list_attempts(tmp_path)) == 1


def test_attempt_that_another_one_replaced_is_not_the_newest(tmp_path):
    take_over(tmp_path, "7")
    assert is_newest(tmp_path, "7")
    take_over(tmp_path, "7-restart1")
    assert not is_newest(tmp_path, "7")
