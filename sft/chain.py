"""Whether a run may be tried once more by itself, by how its attempts ended.

Attempts are entries of attempts.json. Only those of the newest series count: a person who starts a
run again after it was stopped begins a new one. An attempt made progress if the next one could
begin at a later step than it did.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from sft.endings import Kind
from sft.errors import first_few

VAIN_ATTEMPTS = 2  # in a row
NODE_FAULTS = 5  # vain attempts in a row where others are at fault: nodes, the scheduler
MOST_ATTEMPTS = 100  # of a series

AGAIN = "then start the workflow again"
REMEDIES = {
    Kind.COMMUNICATION: "look at the network variables of the site's profile and at its bad_nodes",
    Kind.HARDWARE: "report the nodes to the site's staff, or name them in the profile's bad_nodes",
    Kind.KILLED: "look at the memory that the job has, and ask the site's staff who ends it",
    Kind.NODE_FAIL: "fewer nodes fail less often; ask the site's staff about these",
    Kind.PREEMPTED: "ask for a partition or QOS whose jobs are not preempted",
    Kind.STUCK: "the log's end shows where the processes hang",
}


@dataclass(frozen=True)
class Decision:
    """Whether another attempt may begin, and a sentence that says why."""

    go: bool
    text: str


def may_go_on(attempts: Sequence[Mapping[str, Any]], complete: bool, next_from: int) -> Decision:
    """Whether the next attempt of a run may begin.

    `attempts` are in time order, `next_from` is the step of the newest complete checkpoint, 0 for
    none. An attempt without an ending was lost, except for the last, which may still run.
    """
    if complete:
        return Decision(False, "the run is complete")
    series = max((each["series"] for each in attempts), default=None)
    newest = [each for each in attempts if each["series"] == series]
    starts = [*(each["from_step"] for each in newest[1:]), next_from]
    if newest and newest[-1]["ending"] is None:
        newest, starts = newest[:-1], starts[:-1]
    if not newest:
        return Decision(True, "the first attempt may begin")
    if newest[-1]["retry"] is False:
        return Decision(False, _say_final(newest))
    if len(newest) >= MOST_ATTEMPTS:
        return Decision(False, _say_many(newest))
    pairs = zip(reversed(newest), reversed(starts), strict=True)
    vain = [each for each, _ in takewhile(lambda pair: pair[1] <= pair[0]["from_step"], pairs)]
    own = [each for each in vain if not _is_fault_of_others(each)]
    if len(own) >= VAIN_ATTEMPTS or len(vain) >= NODE_FAULTS:
        return Decision(False, _say_vain(vain[::-1]))
    start = f"from step {starts[-1]}" if starts[-1] else "from the beginning"
    return Decision(True, f"attempt {len(newest) + 1} may go on {start}")


def excluded_nodes(attempts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The nodes that made attempts of a run fail, in order, each once."""
    return list(dict.fromkeys(node for each in attempts for node in each["blamed"]))


def _is_fault_of_others(attempt: Mapping[str, Any]) -> bool:
    """Whether an attempt failed by what another job, on other nodes, need not meet again."""
    if attempt["ending"] == Kind.HARDWARE:
        return bool(attempt["blamed"])
    return attempt["ending"] in (Kind.PREEMPTED, Kind.NODE_FAIL, Kind.KILLED)


def _say_final(attempts: Sequence[Mapping[str, Any]]) -> str:
    last = attempts[-1]
    return (
        f"{_count(attempts)}; the last ended as {last['ending']}, and the same run would again: "
        f"do what its text says, {AGAIN}"
    )


def _say_many(attempts: Sequence[Mapping[str, Any]]) -> str:
    return (
        f"{_count(attempts)}, as many as run by themselves, and the run is at step "
        f"{attempts[-1]['from_step']} or a little further: see that it gets on, {AGAIN}"
    )


def _say_vain(vain: Sequence[Mapping[str, Any]]) -> str:
    """What to do about the last attempts, none of which left a newer checkpoint."""
    endings = list(dict.fromkeys(each["ending"] or Kind.LOST.value for each in vain))
    if set(endings) <= {Kind.TIMEOUT, Kind.OUT_OF_TIME}:
        remedy = "no checkpoint falls into a job: save more often, or ask for a longer wall time"
    else:
        remedy = REMEDIES.get(vain[-1]["ending"], "read the last attempt's lines")
    return (
        f"{_count(vain)} in a row left no checkpoint after step {vain[-1]['from_step']} "
        f"({', '.join(endings)}): {remedy}, {AGAIN}"
    )


def _count(attempts: Sequence[Mapping[str, Any]]) -> str:
    """How many attempts, and their jobs."""
    names = [f"job {each['job_id']}" if each["job_id"] else each["id"] for each in attempts]
    word = "attempt" if len(names) == 1 else "attempts"
    return f"{len(names)} {word} ({first_few(names)})"
