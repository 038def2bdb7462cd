"""The ending of an attempt, by all evidence that there is.

It counts in this order: what lies on disk, the trainer's own last word in steps.jsonl, what the
supervisor did, Slurm's word, the log of the attempt, the exit code.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sft.endings.ending import Ending, Kind
from sft.endings.logs import Found, Log, read_log
from sft.endings.signs import (
    AGAIN,
    ELSEWHERE,
    GRACE,
    HOST_MEMORY,
    NO_GPU,
    NO_GPU_AT_ALL,
    RESUME,
    UNKNOWN,
    Sign,
    Weight,
)
from sft.endings.slurm_words import failed_node, kind_of_line, kind_of_state, who_cancelled
from sft.endings.wording import lasting, shown, stacks, telling, what, where, who

UNSAVED = "no checkpoint was saved in this job: save more often, or ask for a longer wall time"

_PEER = re.compile(r"(?:peer|from|to) ([\w.:-]+)<\d+>")
_OWN_FAULT = re.compile(r"ibv_\w+ failed|Got async event|async fatal event")


@dataclass(frozen=True)
class Evidence:
    """What is known of an attempt that ended; its fields are those of `judge_ending`."""

    slurm_state: str | None
    exit_code: int | None
    log: Log
    steps: Sequence[Mapping[str, Any]]
    seconds: float
    failed_nodes: Sequence[str]

    @property
    def where(self) -> str:
        """How far it came."""
        return where(self.steps, self.log.begun)

    @property
    def failure_kind(self) -> Kind:
        """What a failure is called by the time when it came."""
        return Kind.EXCEPTION if self.log.begun else Kind.FAILED_START

    @cached_property
    def words(self) -> list[str]:
        """The lines of the log in which Slurm says why it ended the job."""
        return [line.text for line in self.log.lines if kind_of_line(line.text)]


def judge_ending(
    *,
    slurm_state: str | None,
    exit_code: int | None,
    log: str,
    steps: Sequence[Mapping[str, Any]],
    nodes: Sequence[str],
    cause: Kind | None,
    complete: bool,
    seconds: float,
    failed_nodes: Sequence[str],
) -> Ending:
    """How an attempt ended.

    `slurm_state` is a state as squeue or sacct write it, None where nothing is known of the job;
    `exit_code` a shell's or, below 0, the number of the signal; `steps` the events that this
    attempt wrote to steps.jsonl; `nodes` the job's nodes in the order of srun's tasks; `cause`
    what its supervisor did; `seconds` how long it lasted; `failed_nodes` those that Slurm names.
    """
    read = read_log(log, nodes, begun=any(each["event"] != "begin" for each in steps))
    known = Evidence(slurm_state, exit_code, read, steps, seconds, failed_nodes)
    stop = next((each["reason"] for each in reversed(steps) if each["event"] == "stop"), None)
    if complete:
        return Ending(Kind.COMPLETED, f"complete {known.where}")
    if stop in ("job_end", "diverged"):
        return _end_by_trainer(stop, known)
    if cause:
        return _end_by_supervisor(cause, known)
    if kind := kind_of_state(slurm_state) or next(map(kind_of_line, known.words), None):
        return _end_by_slurm(kind, known)
    if stop:
        return Ending(Kind.KILLED, f"told to stop {known.where} (SIGTERM){GRACE}; {AGAIN}")
    if read.found:
        return _end_by_log(known)
    return _end_by_exit(known)


def _end_by_trainer(reason: str, known: Evidence) -> Ending:
    if reason == "job_end":
        text = f"stopped by itself {known.where} before the job's end, with a checkpoint; {AGAIN}"
        return Ending(Kind.OUT_OF_TIME, text)
    return Ending(
        Kind.DIVERGED,
        f"loss or gradients were not finite {known.where}, and nothing of that state was saved: "
        "lower learning_rate, or look at max_grad_norm and the data, then start the workflow again",
    )


def _end_by_supervisor(cause: Kind, known: Evidence) -> Ending:
    if cause is not Kind.STUCK:
        return Ending(cause, f"stopped on purpose {known.where}: {RESUME}")
    log, lasted = known.log, lasting(known.seconds)
    if not log.lines:
        text = f"no line of a log in {lasted}: a node hangs before it starts the job (its prolog)"
        return Ending(cause, f"{text}; {AGAIN}", blamed=_only(log.nodes))
    first = _first(log, Weight.EXCEPTION)  # what weighs less are the traces of its being ended
    seen = f"; the log shows: {what(first)}" if first else ""
    return Ending(
        cause,
        f"no progress {known.where}, ended after {lasted}{seen}; {AGAIN}",
        shown([*stacks(log), *(telling(log) if first else log.last())]),
        _blamed(log.of_kind(Kind.HARDWARE), log),
    )


def _first(log: Log, lightest: Weight) -> Found | None:
    """What explains most of a log, if it weighs as much."""
    return next((each for each in log.found if each.sign.weight <= lightest), None)


def _end_by_slurm(kind: Kind, known: Evidence) -> Ending:
    if kind is Kind.NODE_FAIL:
        return _end_by_node(known)
    if kind is Kind.OUT_OF_MEMORY:
        text = f"{HOST_MEMORY.what} ({known.where}): {HOST_MEMORY.remedy}"
        return Ending(kind, text, shown(each.line.text for each in known.log.of_kind(kind)))
    if kind is Kind.PREEMPTED:
        is_requeued = any("JOB REQUEUE" in word for word in known.words)
        did = "put the job back into the queue" if is_requeued else "gave the nodes to another job"
        text = f"Slurm {did} {known.where}; {AGAIN}"
        return Ending(kind, text, shown(known.words))
    earlier = _first(known.log, Weight.CRASH)
    before = f"; before that the log shows: {what(earlier)}" if earlier else ""
    lines = shown([*known.words[:1], *(telling(known.log) if earlier else ())])
    if kind is Kind.TIMEOUT:
        text = f"Slurm ended the job at its time limit {known.where}; {_next_start(known)}{before}"
        return Ending(kind, text, lines)
    text = f"{who_cancelled(known.slurm_state or '')} {known.where}{before}: {RESUME}"
    return Ending(kind, text, lines)


def _next_start(known: Evidence) -> str:
    saved = max((each["step"] for each in known.steps if each["event"] == "save"), default=None)
    return f"the next job goes on from step {saved}" if saved else UNSAVED


def _end_by_node(known: Evidence) -> Ending:
    seen = filter(None, map(failed_node, known.words))
    failed = list(dict.fromkeys(known.failed_nodes or seen))
    nodes = f"{', '.join(failed)} failed" if failed else "a node of the job failed"
    text = f"{nodes} {known.where}; {ELSEWHERE}"
    return Ending(Kind.NODE_FAIL, text, shown(known.words), _only(failed))


def _end_by_log(known: Evidence) -> Ending:
    log, first = known.log, known.log.found[0]
    sign = first.sign
    if sign is NO_GPU and len(log.nodes) > 1 and _is_everywhere(sign, log):
        sign = NO_GPU_AT_ALL
    by_time = sign.kind in (Kind.FAILED_START, Kind.EXCEPTION)
    place = ", ".join(filter(None, [who(first, log), known.where]))
    return Ending(
        known.failure_kind if by_time else sign.kind,
        f"{what(replace(first, sign=sign))} ({place}): {sign.remedy}",
        telling(log),
        _blamed(log.of_kind(sign.kind), log),
    )


def _is_everywhere(sign: Sign, log: Log) -> bool:
    writers = {log.writer(each.line) for each in log.found if each.sign is sign}
    return writers == set(log.nodes)


def _end_by_exit(known: Evidence) -> Ending:
    code = known.exit_code
    if code is None and (known.slurm_state or "").startswith("FAILED"):
        code = 1
    last = shown(known.log.last())
    if code is None:
        text = f"nothing is known of how it ended {known.where} after {lasting(known.seconds)}"
        return Ending(Kind.LOST, f"{text}; {AGAIN}", last)
    if code == 0:
        text = f"ended {known.where} without a fault, yet its last step was not made; {AGAIN}"
        return Ending(Kind.LOST, text, last)
    signal = -code if code < 0 else max(0, code - 128)
    if signal == 53 and not known.log.lines:
        return _end_without_log(known)
    if signal in (9, 15):
        text = f"killed by signal {signal} {known.where}, and nothing says by whom; {AGAIN}"
        return Ending(Kind.KILLED, text, last)
    how = f"signal {signal}" if signal else f"exit code {code}"
    seen = "the log does not say why" if known.log.lines else "there is no line in its log"
    text = f"ended {known.where} after {lasting(known.seconds)} with {how}, and {seen}"
    return Ending(known.failure_kind, f"{text}: {UNKNOWN.remedy}", last)


def _end_without_log(known: Evidence) -> Ending:
    return Ending(
        Kind.QUOTA,
        f"ended after {lasting(known.seconds)} with signal 53 and no log: Slurm could not make the "
        "log's file: look at space and number of files (quota) where the results lie, and whether "
        "you may write there; if a job of `sbatch --wrap hostname` ends so too, it is for the "
        "site's staff",
    )


def _blamed(found: Sequence[Found], log: Log) -> tuple[str, ...]:
    """The node that is the cause, if it is one alone."""
    if not found or found[0].sign.kind not in (Kind.HARDWARE, Kind.NODE_FAIL, Kind.COMMUNICATION):
        return ()
    if found[0].sign.kind is Kind.COMMUNICATION:
        weight = found[0].sign.weight  # ranks that lost such a peer say so of each other
        return _faulty_peer([each for each in found if each.sign.weight is weight], log)
    return _only({log.concerned(each.line) for each in found})


def _faulty_peer(found: Sequence[Found], log: Log) -> tuple[str, ...]:
    """The node that all others lost, or the only one whose own network fails."""
    texts = [text for each in found for text in each.texts]
    peers = {match[1] for text in texts if (match := _PEER.search(text))}
    if peers:
        return _only({log.node_at(peer) for peer in peers})
    return _only({log.writer(each.line) for each in found if _OWN_FAULT.search(each.line.text)})


def _only(nodes: Iterable[str | None]) -> tuple[str, ...]:
    """The node, if there is one alone and it is known."""
    known = set(nodes)
    return tuple(known) if len(known) == 1 and None not in known else ()
