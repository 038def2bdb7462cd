"""Train a run to its end: start or attach, follow, and judge by what lies on disk."""

import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from sft import local
from sft.attempt import CONFIG
from sft.attempts import Beginnings, begin, end, list_attempts, newest_series
from sft.checkpoint import finished_folder, weights_folder
from sft.cleaned import refuse_cleaned
from sft.endings import Ending, Kind
from sft.errors import SftError
from sft.files import read_json, read_yaml, write_text
from sft.links import Links
from sft.progress import EVENTS, StepLines, say_steps
from sft.receipt import utc
from sft.settle import refuse_other_world_size, settle
from sft.site import Site
from sft.step import log

POLL_S = 1.0
SMOOTHED = 3  # logged losses that are averaged for the loss at the start and at the end


def train(site: Site, run: Path, world_size: int, keep: int) -> dict[str, Any]:
    """Train what the folder of a run says, and return what came of it (see `summarize`).

    A complete run is left as it is; a training that a killed driver left is attached to, never
    doubled; a broken checkpoint is put aside, and the trainer goes on from the newest whole one.
    `keep` is how many whole checkpoints stay, 0 for all. Raises SftError where training fails,
    where this process is told to stop, and where the run was cleaned up.
    """
    run = run.resolve()
    checkpoints = Path(read_yaml(run / CONFIG)["output_dir"])
    if not finished_folder(checkpoints):
        refuse_cleaned(checkpoints)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        if site.launcher == "local":
            _train_here(run, checkpoints, world_size, keep)
        else:
            Links(run, checkpoints, world_size).follow()
    finally:
        signal.signal(signal.SIGTERM, before)
    _note_completion(run, checkpoints, world_size)
    return summarize(checkpoints)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def summarize(checkpoints: Path) -> dict[str, Any]:
    """What came of a complete run: where its weights are, steps, losses and attempts.

    `loss_start` and `loss_end` are means of the first and the last few logged losses.
    """
    finished = finished_folder(checkpoints)
    state = read_json(finished / "trainer_state.json")
    losses = [[each["step"], each["loss"]] for each in state["log_history"] if "loss" in each]
    values = [loss for _, loss in losses]
    first, last = values[:SMOOTHED], values[-SMOOTHED:]
    attempts = list_attempts(checkpoints)
    return {
        "checkpoints": str(checkpoints),
        "config": str(checkpoints / CONFIG),
        "weights": str(weights_folder(finished)),
        "fingerprint": checkpoints.name,
        "global_step": state["global_step"],
        "max_steps": state["max_steps"],
        "loss_start": sum(first) / len(first) if first else None,
        "loss_end": sum(last) / len(last) if last else None,
        "losses": losses,
        "started": attempts[0]["started"],
        "finished": attempts[-1]["finished"],
        "attempts": attempts,
    }


def _train_here(run: Path, checkpoints: Path, world_size: int, keep: int) -> None:
    process = _find_or_start(run, checkpoints, world_size, keep)
    if process is None:
        log.info("the run is complete already: %s", checkpoints)
        return
    try:
        _follow(process, checkpoints)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would leave it half stopped
        log.info("stopping process %d", process.id.pid)
        process.stop()
        settle(checkpoints, run / "logs")
        raise SftError("stopped; run again to go on from the newest checkpoint") from None
    process.stop()  # what the launch script left behind would write into the next attempt
    attempts = settle(checkpoints, run / "logs")
    log_file = run / "logs" / "trainer.log"
    if not attempts:
        raise SftError(f"{log_file}: the training ended before it began; see there")
    last = attempts[-1]
    if not finished_folder(checkpoints):
        lines = [
            f"{checkpoints}: training ended before its last step: {last['text']}",
            *(f"  | {line}" for line in last["lines"]),
            f"the whole output: {log_file}",
            "run again to go on from the newest checkpoint",
        ]
        raise SftError("\n".join(lines))
    if last["exit_code"]:
        log.warning(
            "the run is complete, though its training ended with exit code %s; see %s",
            *(last["exit_code"], log_file),
        )


def _find_or_start(
    run: Path, checkpoints: Path, world_size: int, keep: int
) -> local.Process | None:
    """The process that trains this run, started if need be; None where the run is complete."""
    record, logs = checkpoints / "process", run / "logs"
    if finished_folder(checkpoints) and not local.find(record):
        return None
    with local.claim(checkpoints) as claimed:
        if process := local.find(record):
            log.info("attaching to process %d, which trains this run already", process.id.pid)
            return process
        if finished_folder(checkpoints):
            return None
        local.end_leftovers(record)
        attempts = settle(checkpoints, logs)
        refuse_other_world_size(checkpoints, attempts, world_size)
        series = newest_series(attempts) + bool(attempts)
        command = [
            *(sys.executable, "-m", "sft.attempt", "--checkpoints", str(checkpoints)),
            *("--config", str(run / CONFIG), "--log", str(logs / "trainer.log")),
            *("--world-size", str(world_size), "--keep", str(keep), "--series", str(series)),
            *("--", "bash", str(run / "launch.sh")),
        ]
        return local.start(command, record, logs / "trainer.log", claimed)


def _follow(process: local.Process, checkpoints: Path) -> None:
    """Wait for the end of a training, saying each logged step.

    Raises KeyboardInterrupt where this driver is told to stop (Ctrl-C or SIGTERM).
    """
    steps, beginnings = StepLines(checkpoints / EVENTS), Beginnings(checkpoints)
    while process.poll() is None:
        beginnings.say_new()
        say_steps(steps)
        time.sleep(POLL_S)
    beginnings.say_new()
    say_steps(steps)


def _note_completion(run: Path, checkpoints: Path, world_size: int) -> None:
    """Write down that the run is complete, be it by one of our attempts or a launch.sh by hand."""
    state = finished_folder(checkpoints) / "trainer_state.json"
    finished_s = state.stat().st_mtime
    attempts = list_attempts(checkpoints)
    completed = Ending(Kind.COMPLETED, "training reached its last step")
    if not attempts:
        taken_s = read_json(state)["log_history"][-1].get("train_runtime", 0)
        attempt = {
            **{"id": "by-hand", "launcher": "local", "job_id": None, "series": 1},
            **{"started": utc(finished_s - taken_s), "world_size": world_size},
            **{"num_nodes": None, "nodes": [], "resumed": None, "from_step": 0},
            **{"put_aside": [], "next_job": None},
            **{"log": str(run / "logs" / "trainer.log"), "log_start": 0},
        }
        begin(checkpoints, attempt)
        write_text(checkpoints / CONFIG, (run / CONFIG).read_text(encoding="utf-8"))
        attempts = list_attempts(checkpoints)
    step = read_json(state)["global_step"]
    end(checkpoints, attempts[-1]["id"], completed, step, finished_s=finished_s)
