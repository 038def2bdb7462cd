"""What a trainer writes of its steps: the events of steps.jsonl, and what they come to.

Each event has `time` (seconds since 1970), `event`, `step` (done by then) and `max_steps`: `begin`
(of a training process group, at the step that it goes on from), `log`, `save`, `stop` (unfinished,
with its `reason`) and `end`. A trainer that goes on from step 100 does again what an earlier one
did after it: events that were undone in this way count for nothing.
"""

import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from sft.step import log

EVENTS = "steps.jsonl"
RECENT = 20  # logged steps whose seconds are taken together
BLOCK_BYTES = 64 << 10


@dataclass(frozen=True)
class Progress:
    """How far a run is; what nobody wrote is None.

    `step_s` is the median of recent steps, `pace_s` the seconds that went by for each step of this
    attempt, saves and all. Seconds since 1970 are `begun_s`, when the newest process group began,
    `saved_at_s` and `last_sign_s`, when it was last seen to live. `device` is the name of its
    GPUs, `world_size` their number, `attempt_step_s` is `step_s` of its own steps alone.
    `stopped` is the reason of a trainer that left unfinished, or "end" after the last step.
    """

    step: int
    max_steps: int
    last_sign_s: float
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    step_s: float | None = None
    pace_s: float | None = None
    save_s: float | None = None
    saved_step: int | None = None
    saved_at_s: float | None = None
    begun_step: int | None = None
    begun_s: float | None = None
    device: str | None = None
    world_size: int | None = None
    attempt_step_s: float | None = None
    stopped: str | None = None

    @property
    def eta_s(self) -> float | None:
        """Seconds to the last step at the pace of this attempt."""
        pace_s = self.pace_s or self.step_s
        return (self.max_steps - self.step) * pace_s if pace_s else None


def read_events(checkpoints: Path, since: float = 0.0) -> list[dict[str, Any]]:
    """The events of a run from the time `since` on, oldest first, without those that were undone.

    The file is read from its end, and no further back than to `since`.
    """
    events: list[dict[str, Any]] = []
    last = math.inf
    for line in _newest_first(checkpoints / EVENTS):
        event = _parse(line)
        if event and event["time"] < since:
            break
        if event and event["step"] <= last:
            events.append(event)
            last = event["step"] if event["event"] == "begin" else last
    return events[::-1]


def read_progress(checkpoints: Path) -> Progress | None:
    """How far a run is; None before its trainer wrote anything.

    The file is read from its end, and of what is older than the recent steps only the lines that
    may matter are parsed: 200,000 lines take a moment.
    """
    try:
        last_sign_s = (checkpoints / EVENTS).stat().st_mtime
    except FileNotFoundError:
        return None
    tail = _read_tail(checkpoints / EVENTS)
    if tail.newest is None:
        return None
    log, save, begin = tail.logs[0] if tail.logs else {}, tail.save or {}, tail.begin or {}
    seconds = _step_seconds(tail.logs)
    own = _step_seconds(tail.logs[: tail.own])
    return Progress(
        step=tail.newest["step"],
        max_steps=tail.newest["max_steps"],
        last_sign_s=last_sign_s,
        loss=log.get("loss"),
        grad_norm=log.get("grad_norm"),
        learning_rate=log.get("learning_rate"),
        step_s=median(seconds) if seconds else None,
        pace_s=_pace(tail),
        save_s=save.get("save_s"),
        saved_step=save.get("step"),
        saved_at_s=save.get("time"),
        begun_step=begin.get("step"),
        begun_s=begin.get("time"),
        device=begin.get("device"),
        world_size=begin.get("world_size"),
        attempt_step_s=median(own) if own else None,
        stopped=_stop_reason(tail.newest),
    )


@dataclass
class _Tail:
    """The events of a run that tell how far it is: recent logs, newest first, and single ones.

    `first` is the line of the first log after `begin`, `own` the number of `logs` after it.
    """

    logs: list[dict[str, Any]]
    newest: dict[str, Any] | None = None
    save: dict[str, Any] | None = None
    begin: dict[str, Any] | None = None
    first: bytes = b""
    own: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing that is older can matter."""
        return bool(self.begin and (self.begin["step"] == 0 or (self.save and self.logs)))


def _read_tail(path: Path) -> _Tail:
    tail = _Tail([])
    last = math.inf
    for line in _newest_first(path):
        if len(tail.logs) == RECENT and b'"save"' not in line and b'"begin"' not in line:
            tail.first = tail.first if tail.begin else line
            continue
        event = _parse(line)
        if event is None or event["step"] > last:
            continue
        tail.newest = tail.newest or event
        if event["event"] == "log" and len(tail.logs) < RECENT:
            tail.logs.append(event)
            tail.first = tail.first if tail.begin else line
        elif event["event"] == "save":
            tail.save = tail.save or event
        elif event["event"] == "begin":
            tail.own = tail.own if tail.begin else len(tail.logs)
            tail.begin = tail.begin or event
            last = event["step"]
        if tail.is_whole:
            break
    return tail


def _step_seconds(logs: list[dict[str, Any]]) -> list[float]:
    return [each["step_s"] for each in logs if "step_s" in each]


def _pace(tail: _Tail) -> float | None:
    """Seconds that went by for each step between the first and the last log of this attempt."""
    first = _parse(tail.first)
    if not first:
        return None
    steps = tail.logs[0]["step"] - first["step"]
    return (tail.logs[0]["time"] - first["time"]) / steps if steps > 0 else None


def _stop_reason(newest: dict[str, Any]) -> str | None:
    if newest["event"] == "stop":
        return newest["reason"]
    return "end" if newest["event"] == "end" else None


def _newest_first(path: Path) -> Iterator[bytes]:
    """The whole lines of a file from its end on, none where it is missing.

    What follows the last line's end is being written, or was when the trainer was killed.
    """
    with suppress(FileNotFoundError), open(path, "rb") as file:
        position = file.seek(0, os.SEEK_END)
        pieces, seen_end = [b""], False
        while position:
            size = min(BLOCK_BYTES, position)
            position -= size
            file.seek(position)
            pieces = (file.read(size) + pieces[0]).split(b"\n")
            if len(pieces) > 1 and not seen_end:
                pieces.pop()
                seen_end = True
            yield from reversed(pieces[1:])
        if seen_end:
            yield pieces[0]


def _parse(line: bytes) -> dict[str, Any] | None:
    """The event of a line, the last where half a one of a killed trainer stands before it."""
    try:
        return json.loads(line[line.rindex(b"{") :])
    except ValueError:
        return None


class StepLines:
    """The logged steps of a run as they are written; what is there already is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = path.stat().st_size if path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """The `log` events that were written since the last call."""
        if not self.path.exists():
            return []
        if self.path.stat().st_size < self._position:  # the folder was moved away
            self._position = 0
        events = []
        with open(self.path, "rb") as file:
            file.seek(self._position)
            while (line := file.readline()).endswith(b"\n"):
                self._position = file.tell()
                events.append(_parse(line))
        return [each for each in events if each and each["event"] == "log"]


def say_steps(lines: StepLines) -> None:
    """Say each step that was logged since the last call."""
    for event in lines.new():
        loss, pace = event.get("loss", math.nan), event.get("step_s")
        left = f", {pace:.3g} s a step" if pace else ""
        log.info("step %d of %d, loss %.4f%s", event["step"], event["max_steps"], loss, left)
