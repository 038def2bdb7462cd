"""Whether a run goes on by itself, over attempts as attempts.json lists them."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from sft.chain import (
    MOST_ATTEMPTS,
    NODE_FAULTS,
    VAIN_ATTEMPTS,
    Decision,
    excluded_nodes,
    may_go_on,
)
from sft.endings import RETRIED, Kind


def attempt(ending: str | None, from_step: int = 0, **more: Any) -> dict[str, Any]:
    return {
        **{"id": "job-7", "job_id": "7", "series": 1, "from_step": from_step, "ending": ending},
        **{"retry": ending in RETRIED if ending else None, "blamed": []},
        **more,
    }


def go(endings: Iterable[tuple[str | None, int]], next_from: int) -> Decision:
    """The decision after attempts that ended so and began at these steps."""
    attempts = [
        attempt(ending, step, id=f"job-{number}", job_id=str(number))
        for number, (ending, step) in enumerate(endings, start=1)
    ]
    return may_go_on(attempts, False, next_from)


# Beginning and end.


def test_first_attempt_may_begin():
    assert may_go_on([], False, 0).go


def test_run_that_is_complete_does_not_go_on():
    assert not may_go_on([attempt("out_of_time")], True, 60).go


def test_attempt_that_still_runs_is_not_judged():
    assert go([(None, 0)], 0).go


def test_attempt_that_still_runs_tells_where_the_one_before_left_off():
    lost = [("stuck", 0), ("stuck", 0), (None, 60)]

    assert go(lost, 60).go


def test_attempt_of_which_nothing_was_written_down_was_lost():
    assert "(lost)" in go([(None, 0), ("lost", 0)], 0).text


def test_attempt_that_was_lost_may_be_followed_by_another():
    assert go([(None, 0), (None, 60)], 60).go


def test_attempts_of_earlier_series_do_not_count():
    earlier = [attempt("exception"), attempt("stuck"), attempt("stuck")]

    assert may_go_on([*earlier, attempt("stuck", series=2)], False, 0).go


def test_newest_series_is_judged_alone():
    attempts = [attempt("stuck"), attempt("exception", series=2)]

    assert not may_go_on(attempts, False, 60).go


@pytest.mark.parametrize("kind", Kind)
def test_only_what_may_end_otherwise_is_tried_again(kind):
    assert go([(kind.value, 0)], 60).go == (kind in RETRIED)


# Progress.


@pytest.mark.parametrize("kind", sorted(RETRIED))
def test_one_attempt_in_vain_is_forgiven(kind):
    assert go([(kind, 60)], 60).go


@pytest.mark.parametrize("kind", ["out_of_time", "timeout", "communication", "stuck", "lost"])
def test_two_attempts_in_vain_are_the_end(kind):
    assert VAIN_ATTEMPTS == 2
    assert not go([(kind, 60), (kind, 60)], 60).go


def test_attempt_that_lost_its_own_checkpoint_was_in_vain():
    assert not go([("stuck", 60), ("stuck", 60)], 40).go


def test_progress_makes_attempts_in_vain_before_it_forgotten():
    assert go([("stuck", 0), ("stuck", 60), ("stuck", 60)], 90).go


def test_progress_before_two_attempts_in_vain_does_not_save_the_chain():
    assert not go([("stuck", 0), ("stuck", 60), ("stuck", 60)], 60).go


@pytest.mark.parametrize("kind", ["preempted", "node_fail", "killed"])
def test_faults_of_others_are_forgiven_longer(kind):
    assert go([(kind, 60)] * (NODE_FAULTS - 1), 60).go
    assert not go([(kind, 60)] * NODE_FAULTS, 60).go


@pytest.mark.parametrize(("blamed", "goes_on"), [(["n1"], True), ([], False)])
def test_broken_hardware_is_a_fault_of_others_where_its_node_is_known(blamed, goes_on):
    broken = [attempt("hardware", blamed=blamed)] * VAIN_ATTEMPTS

    assert may_go_on(broken, False, 0).go == goes_on


def test_faults_of_others_in_between_forgive_nothing():
    assert not go([("stuck", 0), ("node_fail", 0), ("stuck", 0)], 0).go


def test_series_has_an_end_though_each_attempt_makes_progress():
    endless = [("timeout", step) for step in range(MOST_ATTEMPTS)]

    assert go(endless[:-1], MOST_ATTEMPTS - 1).go
    assert not go(endless, MOST_ATTEMPTS).go


# What is said.


def test_next_start_is_said():
    assert go([("timeout", 0)], 60).text == "attempt 2 may go on from step 60"


def test_jobs_that_time_limits_ended_before_any_checkpoint_are_said_with_the_remedy():
    assert go([("timeout", 60), ("timeout", 60)], 60).text == (
        "2 attempts (job 1, job 2) in a row left no checkpoint after step 60 (timeout): no "
        "checkpoint falls into a job: save more often, or ask for a longer wall time, then start "
        "the workflow again"
    )


def test_different_endings_are_all_named():
    text = go([("stuck", 0), ("communication", 0)], 0).text

    assert "(stuck, communication): look at the network" in text


def test_attempt_without_a_job_is_named_by_its_id():
    attempts = [attempt("stuck", id="host-12-99", job_id=None)] * 2

    assert "host-12-99" in may_go_on(attempts, False, 0).text


def test_final_ending_is_said_with_all_its_attempts():
    text = go([("timeout", 0), ("cuda_out_of_memory", 60)], 60).text

    assert text.startswith("2 attempts (job 1, job 2); the last ended as cuda_out_of_memory")


# Nodes.


def test_blamed_nodes_are_excluded_in_order_each_once_and_over_all_series():
    attempts = [
        attempt("node_fail", blamed=["n2"]),
        attempt("stuck"),
        attempt("hardware", blamed=["n1"], series=2),
        attempt("hardware", blamed=["n2"], series=2),
    ]

    assert excluded_nodes(attempts) == ["n2", "n1"]


# Any sequence of endings.


def lived(seed: int, progress: float) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """The attempts of a chain that runs by itself to its end, after each of them."""
    rng = random.Random(seed)
    attempts, step = [], 0
    while may_go_on(attempts, False, step).go:
        kind = rng.choice([*sorted(RETRIED), None])
        blamed = rng.choice([[], [f"n{rng.randrange(9)}"]])
        attempts.append(attempt(kind, step, blamed=blamed))
        if rng.random() < progress:
            step += rng.randrange(1, 99)
        if kind is None and rng.random() < 0.5:  # found out later
            attempts[-1] |= {"ending": "lost", "retry": True}
        elif kind is None:
            attempts.append(attempt("lost", step))
        yield attempts, step


@pytest.mark.parametrize("seed", range(200))
def test_chain_without_progress_ends_within_the_bound_of_node_faults(seed):
    assert sum(1 for _ in lived(seed, progress=0.0)) <= NODE_FAULTS


@pytest.mark.parametrize("progress", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(10))
def test_chain_never_outlasts_its_last_bound(seed, progress):
    assert sum(1 for _ in lived(seed, progress)) <= MOST_ATTEMPTS


@pytest.mark.parametrize("kind", sorted(RETRIED))
@pytest.mark.parametrize("count", [1, 2, 7, MOST_ATTEMPTS - 1])
def test_chain_with_progress_goes_on(count, kind):
    assert go([(kind, 60 * number) for number in range(count)], 60 * count).go


@pytest.mark.parametrize("seed", range(50))
def test_decision_does_not_change_when_a_job_asks_again(seed):
    for attempts, step in lived(seed, progress=0.5):
        running = [*attempts, attempt(None, step)]
        assert may_go_on(running, False, step).go == may_go_on(attempts, False, step).go
