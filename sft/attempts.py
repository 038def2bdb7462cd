"""The attempts to train a run: one file for the beginning of each, one for its end.

Nobody writes into a file of another: a job that begins, and whoever finds out how one ended. So
jobs and drivers of several hosts need no lock. attempts.json is all of them for people to read.
"""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft.endings import Ending
from sft.files import read_json, write_json, write_text
from sft.receipt import now, utc
from sft.step import log

RESERVE_BYTES = 1 << 20
UNFINISHED = {
    **{"finished": None, "ending": None, "text": None, "lines": []},
    **{"to_step": None, "exit_code": None, "blamed": [], "retry": None},
}


def list_attempts(checkpoints: Path) -> list[dict[str, Any]]:
    """All attempts in the order of their beginnings; the docstring of `begin` says their keys."""
    folder = checkpoints / "attempts"
    paths = [path for path in folder.glob("*.json") if not path.name.endswith(".ending.json")]
    attempts = [
        read_json(path) | UNFINISHED | _ending(path.with_suffix(".ending.json")) for path in paths
    ]
    return sorted(attempts, key=lambda each: (each["started"], _numbers(each["id"])))


def _numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]


def _ending(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def of_series(attempts: list[dict[str, Any]], series: int) -> list[dict[str, Any]]:
    """The attempts of a series: a person who runs again after a failure begins a new one."""
    return [each for each in attempts if each["series"] == series]


def newest_series(attempts: list[dict[str, Any]]) -> int:
    """The number of the last series, 1 before any attempt."""
    return max((each["series"] for each in attempts), default=1)


def begin(checkpoints: Path, attempt: Mapping[str, Any]) -> None:
    """Write down that an attempt begins.

    `attempt` has `id`, `launcher`, `job_id` (None without Slurm), `series`, `world_size`,
    `num_nodes`, `nodes`, `resumed` (the checkpoint's name, or None), `from_step`, `put_aside`
    (sentences about broken checkpoints), `next_job` (the one that waits behind it, or None), `code`
    (the state of the checkout that it runs, see `git_state`), `log` (its path) and `log_start` (the
    byte where its output begins); it gets `started` if it has none.
    """
    path = checkpoints / "attempts" / f"{attempt['id']}.json"
    write_json(path, {"started": now(), **attempt})
    _show(checkpoints)
    reserve = _reserve(checkpoints)
    reserve.mkdir(exist_ok=True)
    (reserve / "room").write_bytes(os.urandom(RESERVE_BYTES))


def take_over(checkpoints: Path, attempt_id: str) -> None:
    """Let an attempt be the one that may write to a run's checkpoints."""
    write_text(checkpoints / "attempts" / "newest", attempt_id)


def is_newest(checkpoints: Path, attempt_id: str) -> bool:
    """Whether no other attempt has taken over since this one did."""
    return (checkpoints / "attempts" / "newest").read_text() == attempt_id


def _reserve(checkpoints: Path) -> Path:
    """A folder of one file: room for the ending on a disk that the attempt fills to its end.

    It also keeps two from a quota of files.
    """
    return checkpoints / "attempts" / "reserve"


def end(
    checkpoints: Path,
    attempt_id: str,
    ending: Ending,
    to_step: int,
    exit_code: int | None = None,
    finished_s: float | None = None,
) -> None:
    """Write down how an attempt ended; what was written first stays."""
    path = checkpoints / "attempts" / f"{attempt_id}.ending.json"
    if path.exists():
        return
    shutil.rmtree(_reserve(checkpoints), ignore_errors=True)
    content = {
        "finished": utc(finished_s) if finished_s else now(),
        "ending": ending.kind.value,
        "text": ending.text,
        "lines": list(ending.lines),
        "to_step": to_step,
        "exit_code": exit_code,
        "blamed": list(ending.blamed),
        "retry": ending.retry,
    }
    write_json(path, content)
    _show(checkpoints)


def _show(checkpoints: Path) -> None:
    write_json(checkpoints / "attempts.json", list_attempts(checkpoints))


class Beginnings:
    """Says of each attempt that begins from now on where it runs, and from which checkpoint."""

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints
        self.seen = self._paths()

    def _paths(self) -> set[Path]:
        paths = (self.checkpoints / "attempts").glob("*.json")
        return {path for path in paths if not path.name.endswith(".ending.json")}

    def say_new(self) -> None:
        """Say what has begun since the last call."""
        new = self._paths() - self.seen
        self.seen |= new
        for attempt in map(read_json, sorted(new)):
            for sentence in attempt["put_aside"]:
                log.warning("%s", sentence)
            where, start = ", ".join(attempt["nodes"]), attempt["resumed"] or "the beginning"
            log.info("training from %s on %s", start, where)


def submitted_jobs(checkpoints: Path) -> list[str]:
    """The ids of all Slurm jobs that were submitted for a run, oldest first."""
    path = checkpoints / "jobs"
    return sorted(path.read_text().split(), key=_numbers) if path.exists() else []


def was_told(checkpoints: Path, attempt_id: str) -> bool:
    """Whether a driver has told a person how that attempt ended."""
    return (checkpoints / "attempts" / f"{attempt_id}.told").exists()


def note_told(checkpoints: Path, attempt_id: str) -> None:
    """Write down that a person has been told how an attempt ended: running again tries again."""
    (checkpoints / "attempts" / f"{attempt_id}.told").touch()
