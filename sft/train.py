"""Train a run to its end: start or attach, follow, and judge by what lies on disk."""

import json
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from sft import local
from sft.checkpoint import (
    finished_folder,
    newest_complete_checkpoint,
    set_aside_broken_checkpoints,
    weights_folder,
)
from sft.environment import tail
from sft.errors import SftError
from sft.files import read_json, read_yaml, write_json, write_text
from sft.receipt import now, utc
from sft.site import Site
from sft.step import log

POLL_S = 1.0
CONFIG = "train.yaml"  # beside the checkpoints: what trained them, whatever is rendered since
SMOOTHED = 3  # logged losses that are averaged for the loss at the start and at the end


def train(site: Site, config: Path, launch: Path, world_size: int, output: Path) -> dict[str, Any]:
    """Train what `config` says with `launch`, and return what came of it (see `summarize`).

    A complete run is left as it is; a training that a killed driver left is attached to, never
    doubled; a broken checkpoint is put aside, and the trainer goes on from the newest whole one.
    Raises SftError where training fails, with the last lines of `output`.
    """
    checkpoints = Path(read_yaml(config)["output_dir"])
    attempt = {"world_size": world_size, "num_nodes": world_size // site.processes_per_node}
    if site.launcher == "local":
        _train_here(checkpoints, config, launch, attempt, output)
    elif not finished_folder(checkpoints):
        raise SftError(
            f"site {site.name}: this version cannot submit to Slurm yet; {config} and {launch} are "
            "ready: run launch.sh once on each node of a job of yours, then run this again"
        )
    _note_completion(checkpoints, config, attempt)
    return summarize(checkpoints)


def summarize(checkpoints: Path) -> dict[str, Any]:
    """What came of a complete run: where its weights are, steps, losses and attempts.

    `loss_start` and `loss_end` are means of the first and the last few logged losses.
    """
    finished = finished_folder(checkpoints)
    state = read_json(finished / "trainer_state.json")
    losses = [[each["step"], each["loss"]] for each in state["log_history"] if "loss" in each]
    values = [loss for _, loss in losses]
    first, last = values[:SMOOTHED], values[-SMOOTHED:]
    attempts = _attempts(checkpoints)
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


def _train_here(
    checkpoints: Path, config: Path, launch: Path, attempt: Mapping[str, Any], output: Path
) -> None:
    start = output.stat().st_size if output.exists() else 0
    process = _find_or_start(checkpoints, config, launch, attempt, output)
    if process is None:
        log.info("the run is complete already: %s", checkpoints)
        return
    try:
        code = _follow(process, checkpoints)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would leave it half stopped
        log.info("stopping process %d", process.id.pid)
        process.stop()
        _end_attempt(checkpoints, "stopped by the user")
        raise SftError("stopped; run again to go on from the newest checkpoint") from None
    process.stop()  # what the launch script left behind would write into the next attempt
    how = f"exit code {code}" if process.child else "its exit code went to a driver that was killed"
    if not finished_folder(checkpoints):
        _end_attempt(checkpoints, f"failed: {how}")
        raise SftError(
            f"{checkpoints}: training ended before its last step ({how})\n"
            f"{tail(output, start if process.child else 0)}\n"
            f"the whole output: {output}\nrun again to go on from the newest checkpoint"
        )
    if code:
        log.warning("the run is complete, though its training ended with %s; see %s", how, output)


def _find_or_start(
    checkpoints: Path, config: Path, launch: Path, attempt: Mapping[str, Any], output: Path
) -> local.Process | None:
    """The process that trains this run, started if need be; None where the run is complete."""
    record = checkpoints / "process"
    if finished_folder(checkpoints) and not local.find(record):
        return None
    with local.claim(checkpoints) as claimed:
        if process := local.find(record):
            log.info("attaching to process %d, which trains this run already", process.id.pid)
            return process
        if finished_folder(checkpoints):
            return None
        local.end_leftovers(record)
        _refuse_other_world_size(checkpoints, attempt["world_size"])
        for sentence in set_aside_broken_checkpoints(checkpoints):
            log.warning("%s", sentence)
        resumed = newest_complete_checkpoint(checkpoints)
        log.info("training from %s", resumed.name if resumed else "the beginning")
        _end_attempt(checkpoints, "lost: its driver was killed and it ended unseen")
        _begin_attempt(checkpoints, config, attempt, resumed)
        return local.start(launch, record, output, claimed)


def _follow(process: local.Process, checkpoints: Path) -> int:
    """Wait for the end of a training, saying each logged step; its exit code.

    Raises KeyboardInterrupt where this driver is told to stop (Ctrl-C or SIGTERM).
    """
    steps = _StepLines(checkpoints / "trainer_log.jsonl")
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        while (code := process.poll()) is None:
            steps.say_new()
            time.sleep(POLL_S)
    finally:
        signal.signal(signal.SIGTERM, before)
    steps.say_new()
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _StepLines:
    """The trainer's own log of steps, said line by line as it grows; old lines are left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = path.stat().st_size if path.exists() else 0

    def say_new(self) -> None:
        if not self.path.exists():
            return
        if self.path.stat().st_size < self.position:  # a run from the beginning starts a new one
            self.position = 0
        with open(self.path, "rb") as file:
            file.seek(self.position)
            while (line := file.readline()).endswith(b"\n"):
                self.position = file.tell()
                with suppress(ValueError):  # a killed trainer left half a line
                    self._say(json.loads(line))

    def _say(self, entry: dict[str, Any]) -> None:
        if "loss" in entry:
            log.info(
                "step %d of %d, loss %.4f, %s left",
                *(entry["current_steps"], entry["total_steps"], entry["loss"]),
                entry.get("remaining_time", "?"),
            )


def _attempts(checkpoints: Path) -> list[dict[str, Any]]:
    path = checkpoints / "attempts.json"
    return read_json(path) if path.exists() else []


def _begin_attempt(
    checkpoints: Path,
    config: Path,
    attempt: Mapping[str, Any],
    resumed: Path | None,
    started: str | None = None,
) -> None:
    write_text(checkpoints / CONFIG, config.read_text(encoding="utf-8"))
    begun = {
        "started": started or now(),
        **attempt,
        "resumed": resumed.name if resumed else None,
        "finished": None,
        "ending": None,
    }
    write_json(checkpoints / "attempts.json", [*_attempts(checkpoints), begun])


def _end_attempt(checkpoints: Path, ending: str, finished: str | None = None) -> None:
    """Write down how the newest attempt ended, if that is not known yet."""
    attempts = _attempts(checkpoints)
    if attempts and attempts[-1]["ending"] is None:
        attempts[-1] |= {"finished": finished or now(), "ending": ending}
        write_json(checkpoints / "attempts.json", attempts)


def _note_completion(checkpoints: Path, config: Path, attempt: Mapping[str, Any]) -> None:
    """Write down the attempt that completed the run, be it one of ours or a launch.sh by hand."""
    state = finished_folder(checkpoints) / "trainer_state.json"
    finished_s = state.stat().st_mtime
    if not _attempts(checkpoints):
        taken_s = read_json(state)["log_history"][-1].get("train_runtime", 0)
        started = utc(finished_s - taken_s)
        _begin_attempt(checkpoints, config, attempt, resumed=None, started=started)
    _end_attempt(checkpoints, "completed", utc(finished_s))


def _refuse_other_world_size(checkpoints: Path, world_size: int) -> None:
    """Data order and shards belong to a number of processes; a resume with another one breaks."""
    earlier = [each["world_size"] for each in _attempts(checkpoints)]
    if earlier and earlier[-1] != world_size and newest_complete_checkpoint(checkpoints):
        raise SftError(
            f"{checkpoints}: holds checkpoints of {earlier[-1]} processes, and the row asks for "
            f"{world_size}; go back to the nodes of before, or move the folder away to start over"
        )
