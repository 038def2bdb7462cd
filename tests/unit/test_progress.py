"""What the lines of steps.jsonl come to, whoever was killed while they were written."""

import json
import logging
import os
import time

import pytest

from sft.progress import EVENTS, StepLines, read_events, read_progress, say_steps

LINES = 200_000


def event(kind: str, step: int, time_s: float, **more) -> dict:
    return {"time": time_s, "event": kind, "step": step, "max_steps": 100, **more}


def log(step: int, time_s: float, **more) -> dict:
    numbers = {"loss": 2.0 - step / 100, "grad_norm": 0.5, "learning_rate": 1e-5, "step_s": 10.0}
    return event("log", step, time_s, **numbers | more)


def write(folder, *events: dict, end: str = "") -> None:
    text = "".join(json.dumps(each) + "\n" for each in events)
    (folder / EVENTS).write_text(text + end)


def steps(events: list[dict], kind: str = "log") -> list[int]:
    return [each["step"] for each in events if each["event"] == kind]


RUN = [
    event("begin", 0, 1000.0, world_size=4),
    *(log(step, 1000.0 + 10 * step) for step in range(1, 9)),
    event("save", 8, 1090.0, save_s=9.0),
    *(log(step, 1010.0 + 10 * step) for step in range(9, 13)),
]
RESUMED = [
    *RUN,
    event("begin", 8, 2000.0, world_size=4),
    *(log(step, 2000.0 + 20 * (step - 8), step_s=20.0) for step in range(9, 11)),
]


def test_nothing_is_known_before_the_trainer_writes(tmp_path):
    assert read_progress(tmp_path) is None
    assert read_events(tmp_path) == []


def test_nothing_is_known_of_half_a_line(tmp_path):
    write(tmp_path, end='{"time": 1')

    assert read_progress(tmp_path) is None


def test_events_come_in_the_order_of_time(tmp_path):
    write(tmp_path, *RUN)

    assert read_events(tmp_path) == RUN


def test_steps_that_a_resumed_run_does_again_count_once(tmp_path):
    write(tmp_path, *RESUMED)

    events = read_events(tmp_path)

    assert steps(events) == list(range(1, 11))
    assert [each["step_s"] for each in events if each["step"] in (9, 10)] == [20.0, 20.0]


def test_checkpoint_that_a_resumed_run_did_not_take_does_not_count(tmp_path):
    write(tmp_path, *RUN, event("begin", 4, 2000.0), log(5, 2010.0))

    assert steps(read_events(tmp_path), "save") == []
    assert read_progress(tmp_path).saved_step is None


def test_events_since_a_time_leave_out_earlier_ones(tmp_path):
    write(tmp_path, *RESUMED)

    assert steps(read_events(tmp_path, since=2000.0)) == [9, 10]


def test_half_line_at_the_end_is_left_out(tmp_path):
    write(tmp_path, *RUN, end='{"time": 2000.0, "event": "log", "ste')

    assert read_events(tmp_path) == RUN
    assert read_progress(tmp_path).step == 12


def test_half_line_of_a_killed_trainer_does_not_hide_the_beginning_of_the_next(tmp_path):
    write(tmp_path, *RUN, end='{"time": 1200.0, "event": "log", "ste')
    with open(tmp_path / EVENTS, "a") as file:
        file.write(json.dumps(event("begin", 8, 2000.0)) + "\n")

    assert read_progress(tmp_path).begun_step == 8


def test_zeros_that_a_dead_node_leaves_hide_nothing(tmp_path):
    write(tmp_path, *RUN, end="\0" * 5000)
    with open(tmp_path / EVENTS, "a") as file:
        file.write(json.dumps(event("begin", 8, 2000.0)) + "\n")

    assert read_progress(tmp_path).begun_step == 8


def test_progress_is_of_the_newest_step(tmp_path):
    write(tmp_path, *RUN)

    progress = read_progress(tmp_path)

    assert (progress.step, progress.max_steps, progress.loss) == (12, 100, 1.88)
    assert (progress.grad_norm, progress.learning_rate) == (0.5, 1e-5)


def test_resumed_run_stands_at_its_checkpoint_until_it_makes_a_step(tmp_path):
    write(tmp_path, *RUN, event("begin", 8, 2000.0))

    progress = read_progress(tmp_path)

    assert (progress.step, progress.begun_step, progress.begun_s) == (8, 8, 2000.0)
    assert progress.loss == 1.92


def test_newest_checkpoint_is_found_behind_a_later_beginning(tmp_path):
    write(tmp_path, *RESUMED)

    progress = read_progress(tmp_path)

    assert (progress.saved_step, progress.saved_at_s, progress.save_s) == (8, 1090.0, 9.0)


def test_seconds_of_a_step_are_the_median_of_recent_ones(tmp_path):
    slow = [log(step, 5000.0 + step, step_s=1.0) for step in range(1, 50)]
    write(tmp_path, *slow, *(log(50 + n, 6000.0 + n, step_s=float(n)) for n in range(1, 21)))

    assert read_progress(tmp_path).step_s == 10.5


def test_time_left_counts_what_saves_take(tmp_path):
    write(tmp_path, *RUN)  # 11 steps of 10 s and a save of 10 s between the first log and the last

    progress = read_progress(tmp_path)

    assert progress.step_s == 10.0
    assert progress.eta_s == pytest.approx(88 * 120 / 11)


def test_time_left_is_at_the_pace_of_the_newest_attempt(tmp_path):
    write(tmp_path, *RESUMED)

    assert read_progress(tmp_path).eta_s == 90 * 20.0


def test_time_left_after_one_logged_step_is_by_what_that_took(tmp_path):
    write(tmp_path, event("begin", 0, 1000.0), log(1, 1030.0, step_s=30.0))

    assert read_progress(tmp_path).eta_s == 99 * 30.0


def test_time_left_is_not_known_before_a_step(tmp_path):
    write(tmp_path, event("begin", 0, 1000.0))

    assert read_progress(tmp_path).eta_s is None


def test_numbers_that_are_not_finite_are_read(tmp_path):
    write(tmp_path, log(1, 1010.0, loss=float("nan")))

    assert read_progress(tmp_path).loss != read_progress(tmp_path).loss


def test_log_without_a_loss_is_read(tmp_path):
    write(tmp_path, event("log", 1, 1010.0))

    assert read_progress(tmp_path).loss is None


@pytest.mark.parametrize("reason", ["job_end", "told", "diverged"])
def test_stop_says_its_reason(tmp_path, reason):
    write(tmp_path, *RUN, event("stop", 12, 1200.0, reason=reason))

    assert read_progress(tmp_path).stopped == reason


def test_end_is_a_stop_too(tmp_path):
    write(tmp_path, *RUN, event("end", 100, 1200.0))

    assert read_progress(tmp_path).stopped == "end"


def test_run_that_goes_on_is_not_stopped(tmp_path):
    write(tmp_path, *RUN, event("stop", 12, 1200.0, reason="told"), event("begin", 8, 2000.0))

    assert read_progress(tmp_path).stopped is None


def test_last_sign_of_life_is_the_time_of_the_file(tmp_path):
    write(tmp_path, *RUN)
    os.utime(tmp_path / EVENTS, (3000.0, 3000.0))

    assert read_progress(tmp_path).last_sign_s == 3000.0


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """A run of 200,000 logged steps without any checkpoint, the hardest to read."""
    folder = tmp_path_factory.mktemp("long")
    write(folder, event("begin", 0, 0.0), *(log(step, float(step)) for step in range(1, LINES)))
    return folder


def test_progress_of_200_000_lines_takes_a_moment(long_run):
    start_s = time.process_time()
    progress = read_progress(long_run)

    assert time.process_time() - start_s < 2
    assert (progress.step, progress.begun_step) == (LINES - 1, 0)


def test_newest_events_of_200_000_lines_are_read_at_once(long_run):
    start_s = time.process_time()
    events = read_events(long_run, since=LINES - 100.0)

    assert time.process_time() - start_s < 1
    assert len(events) == 100


def test_step_lines_leave_out_what_was_there(tmp_path):
    write(tmp_path, *RUN)
    lines = StepLines(tmp_path / EVENTS)

    assert lines.new() == []


def test_step_lines_give_each_new_step_once(tmp_path):
    lines = StepLines(tmp_path / EVENTS)
    write(tmp_path, *RUN)

    assert steps(lines.new()) == list(range(1, 13))
    assert lines.new() == []


def test_step_lines_wait_for_the_end_of_a_line(tmp_path):
    lines = StepLines(tmp_path / EVENTS)
    text = json.dumps(log(1, 1010.0)) + "\n"
    (tmp_path / EVENTS).write_text(text[:30])

    assert lines.new() == []

    (tmp_path / EVENTS).write_text(text)
    assert steps(lines.new()) == [1]


def test_step_lines_begin_anew_with_a_new_file(tmp_path):
    write(tmp_path, *RUN)
    lines = StepLines(tmp_path / EVENTS)
    write(tmp_path, event("begin", 0, 5000.0), log(1, 5010.0))

    assert steps(lines.new()) == [1]


def test_new_steps_are_said_in_a_line_each(tmp_path, caplog):
    lines = StepLines(tmp_path / EVENTS)
    write(tmp_path, log(1, 1010.0), log(2, 1020.0))

    with caplog.at_level(logging.INFO, logger="sft"):
        say_steps(lines)

    assert caplog.messages == [
        "step 1 of 100, loss 1.9900, 10 s a step",
        "step 2 of 100, loss 1.9800, 10 s a step",
    ]


def test_seconds_of_the_newest_attempt_are_its_own(tmp_path):
    write(tmp_path, *(each for each in RESUMED if each["event"] != "save"))

    progress = read_progress(tmp_path)

    assert (progress.attempt_step_s, progress.step_s, progress.world_size) == (20.0, 10.0, 4)


def test_attempt_without_a_step_has_no_seconds(tmp_path):
    write(tmp_path, *RUN, event("begin", 8, 2000.0, world_size=8))

    progress = read_progress(tmp_path)

    assert (progress.attempt_step_s, progress.step_s, progress.world_size) == (None, 10.0, 8)
