"""How attempts ended, also those that were killed before they could say it."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sft import slurm
from sft.attempts import begin, end, list_attempts, newest_series, of_series, submitted_jobs
from sft.chain import may_go_on
from sft.checkpoint import finished_folder, newest_complete_checkpoint, step_of
from sft.endings import Ending, Kind, judge_ending
from sft.errors import SftError
from sft.process import parse_process_id
from sft.progress import read_events
from sft.receipt import now, utc

READ_BYTES = 8 << 20  # of a log, from its end


def judge_attempt(
    checkpoints: Path,
    attempt: Mapping[str, Any],
    told: slurm.End | None = None,
    exit_code: int | None = None,
    cause: Kind | None = None,
) -> Ending:
    """How an attempt ended, by what lies on disk, by its log and by what Slurm told of its job.

    `cause` is given where it was ended on purpose.
    """
    started_s = _seconds(attempt["started"])
    log = Path(attempt["log"])
    events = read_events(checkpoints, since=started_s)
    ended_s = log.stat().st_mtime if log.exists() else started_s
    ending = judge_ending(
        slurm_state=told.state if told else None,
        exit_code=told.exit_code if told and exit_code is None else exit_code,
        log=read_log(log, attempt["log_start"]),
        steps=events,
        nodes=attempt["nodes"],
        cause=cause,
        complete=finished_folder(checkpoints) is not None,
        seconds=max(0.0, ended_s - started_s),
        failed_nodes=slurm.down_nodes(told.nodes) if told and told.state == "NODE_FAIL" else [],
    )
    if ending.kind not in (Kind.DISK_FULL, Kind.QUOTA):
        return ending
    disk = shutil.disk_usage(checkpoints)
    room = f"{disk.free / 1e9:.1f} of {disk.total / 1e9:.1f} GB are free"
    return replace(ending, text=f"{ending.text}; {room} in {checkpoints}")


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def read_log(log: Path, start: int) -> str:
    """The output of an attempt, of a long one the last megabytes; "" where no log was made."""
    if not log.exists():
        return ""
    with open(log, "rb") as file:
        file.seek(max(start, log.stat().st_size - READ_BYTES))
        return file.read().decode(errors="replace")


def reached_step(checkpoints: Path, attempt: Mapping[str, Any]) -> int:
    """The last step that an attempt made."""
    events = read_events(checkpoints, since=_seconds(attempt["started"]))
    return max((each["step"] for each in events), default=attempt["from_step"])


def settle(checkpoints: Path, logs: Path, own: str = "") -> list[dict[str, Any]]:
    """All attempts of a run, after finding out how each ended that is over.

    The attempt `own`, which asks, is left as it is. The newest job counts as an attempt also if it
    ended before it could begin. Raises SlurmAway where Slurm does not answer.
    """
    for attempt in list_attempts(checkpoints):
        if attempt["ending"] or attempt["id"] == own:
            continue
        is_restarted = own.startswith(f"{attempt['job_id']}-restart")
        is_asked = attempt["job_id"] and not is_restarted
        told = slurm.ask_end(attempt["job_id"]) if is_asked else None
        if is_restarted or not _goes_on(attempt, told):
            _end(checkpoints, attempt, told)
    _count_job_without_attempt(checkpoints, logs, own)
    return list_attempts(checkpoints)


def refuse_other_world_size(
    checkpoints: Path, attempts: Iterable[Mapping[str, Any]], world_size: int
) -> None:
    """Raise SftError where a run would go on from checkpoints of another number of processes.

    Data order and shards belong to a number of processes.
    """
    sizes = [each["world_size"] for each in attempts if each["world_size"]]
    if sizes and sizes[-1] != world_size and newest_complete_checkpoint(checkpoints):
        raise SftError(
            f"{checkpoints}: holds checkpoints of {sizes[-1]} processes, and the row asks for "
            f"{world_size}; go back to the nodes of before, or move the folder away to start over"
        )


def _goes_on(attempt: Mapping[str, Any], told: slurm.End | None) -> bool:
    if attempt["job_id"]:
        return told is not None and told.state.split()[0] not in slurm.ENDED
    process = parse_process_id(attempt["id"])
    return process is not None and (not process.is_here or process.runs())


def _end(checkpoints: Path, attempt: Mapping[str, Any], told: slurm.End | None) -> None:
    log = Path(attempt["log"])
    ending = judge_attempt(checkpoints, attempt, told)
    finished_s = log.stat().st_mtime if log.exists() else None
    code = told.exit_code if told else None
    end(checkpoints, attempt["id"], ending, reached_step(checkpoints, attempt), code, finished_s)


def _count_job_without_attempt(checkpoints: Path, logs: Path, own: str) -> None:
    """Make an attempt of the newest other job if it failed before its attempt could begin."""
    attempts = list_attempts(checkpoints)
    known = {each["job_id"] for each in attempts}
    others = (each for each in reversed(submitted_jobs(checkpoints)) if each != own)
    job_id = next(others, None)
    if not job_id or job_id in known:
        return
    newest = newest_complete_checkpoint(checkpoints)
    if attempts and job_id == attempts[-1]["next_job"]:
        chain = of_series(attempts, newest_series(attempts))
        if not may_go_on(chain, False, step_of(newest)).go:
            return  # that attempt cancelled it
    told = slurm.ask_end(job_id)
    if told is None or told.state.split()[0] not in slurm.ENDED - {"COMPLETED"}:
        return  # it waits, or it began, saw that nothing was to be done, and left
    log = logs / f"slurm-{job_id}.log"
    attempt = {
        **{"id": job_id, "launcher": "slurm", "job_id": job_id},
        "series": newest_series(attempts),
        "started": utc(log.stat().st_mtime) if log.exists() else now(),
        **{"world_size": None, "num_nodes": None, "nodes": slurm.list_nodes(told.nodes)},
        **{"resumed": newest.name if newest else None, "from_step": step_of(newest)},
        **{"put_aside": [], "next_job": None},
        **{"log": str(log), "log_start": 0},
    }
    begin(checkpoints, attempt)
    _end(checkpoints, attempt, told)
