"""Carry out one attempt to train a run: what train.sbatch runs on the first node of its job.

    python -m sft.attempt --checkpoints FOLDER --config TRAIN_YAML … -- COMMAND …

It leaves at once where the run is complete or another attempt would be in vain. Else it sees to
the next link of the chain, runs COMMAND, watches it, and writes down how it ended. The exit code is
that of COMMAND.
"""

import argparse
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from sft import slurm
from sft.attempts import (
    begin,
    end,
    is_newest,
    list_attempts,
    newest_series,
    of_series,
    take_over,
)
from sft.chain import excluded_nodes, may_go_on
from sft.checkpoint import (
    count_checkpoints,
    finished_folder,
    newest_complete_checkpoint,
    prune_checkpoints,
    set_aside_broken_checkpoints,
    step_of,
)
from sft.cleaned import refuse_cleaned
from sft.endings import Kind
from sft.environment import REPOSITORY
from sft.errors import SftError
from sft.files import read_yaml, write_text
from sft.local import MARK
from sft.process import marked_processes, parent_of, this_process
from sft.revision import git_state
from sft.settle import judge_attempt, reached_step, refuse_other_world_size, settle
from sft.step import log

CONFIG = "train.yaml"  # beside the checkpoints: what trained them, whatever is rendered since
SCRIPT = "train.sbatch"
POLL_S = 2.0
LOOK_S = 5.0
STACKS_S = 15.0  # time for the trainer's processes to write where they hang
STOP_S = 60.0
TOO_FEW = "Requested node configuration is not available"  # what sbatch says of nodes
AWAY_S = 120.0  # Slurm may be silent for so long before a job goes on without its answer


@dataclass(frozen=True)
class Run:
    """What an attempt trains; paths are absolute.

    `keep` is how many whole checkpoints stay, 0 for all. A `series` of 0 begins a new one, as a
    submission by hand does. After `stuck_minutes` without a step the attempt is ended.
    """

    checkpoints: Path
    config: Path
    log: Path
    world_size: int
    keep: int
    series: int
    stuck_minutes: float


@dataclass(frozen=True)
class Place:
    """Where an attempt runs: a Slurm job, or this computer (`job_id` is then None)."""

    attempt_id: str
    job_id: str | None
    nodes: tuple[str, ...]

    @property
    def launcher(self) -> str:
        """The word for it in attempts.json."""
        return "slurm" if self.job_id else "local"


def main() -> int:
    """Carry out the attempt that the command line describes."""
    parser = argparse.ArgumentParser(prog="python -m sft.attempt")
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--keep", type=int, default=0)
    parser.add_argument("--series", type=int, default=0)
    parser.add_argument("--stuck-minutes", type=float, default=60.0)
    parser.add_argument("command", nargs="+")
    arguments = vars(parser.parse_args())
    command = arguments.pop("command")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("[sft %(asctime)s] %(message)s", "%Y-%m-%d %H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        return Attempt(Run(**arguments), find_place()).carry_out(command)
    except SftError as error:
        log.error("%s", error)
        return 1


def find_place() -> Place:
    """The job that this process belongs to, or this computer."""
    job_id = os.environ.get("SLURM_JOB_ID")
    if not job_id:
        here = this_process()
        return Place(str(here), None, (here.host,))
    restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
    attempt_id = job_id if restarts == "0" else f"{job_id}-restart{restarts}"
    return Place(attempt_id, job_id, tuple(slurm.list_nodes(os.environ["SLURM_JOB_NODELIST"])))


class Attempt:
    """One attempt, from the look at what there is to the note of how it ended."""

    def __init__(self, run: Run, place: Place) -> None:
        self.run, self.place = run, place
        self.next_job: str | None = None
        self.cause: Kind | None = None
        self.child: subprocess.Popen | None = None
        self.was_told = False

    def carry_out(self, command: list[str]) -> int:
        """Run the command if there is something to train; its exit code, or 0."""
        if sentence := self._reason_to_leave():
            log.info("%s", sentence)
            return 0
        self._queue_next()
        self._take_over()
        note = self._begin()
        signal.signal(signal.SIGTERM, self._pass_on)
        code = self._watch(command)
        if is_newest(self.run.checkpoints, self.place.attempt_id):
            self._prune()
            self._end(note, code)
        return code

    # --- before ----------------------------------------------------------------------------------

    def _reason_to_leave(self) -> str | None:
        """Why nothing is to be trained here; None where something is."""
        folder = self.run.checkpoints
        if finished := finished_folder(folder):
            return f"the run is complete ({finished}); nothing to do"
        refuse_cleaned(folder)
        configured = Path(read_yaml(self.run.config)["output_dir"])
        if configured != folder:
            return f"the row was changed: it trains {configured} now; this job leaves {folder} be"
        attempts = self._settled()
        refuse_other_world_size(folder, attempts, self.run.world_size)
        series = self.run.series or newest_series(attempts) + bool(attempts)
        self.series = series
        decision = may_go_on(
            of_series(attempts, series), False, step_of(newest_complete_checkpoint(folder))
        )
        if not decision.go:
            return f"no further attempt: {decision.text}"
        return self._move_away(excluded_nodes(attempts))

    def _settled(self) -> list[dict[str, Any]]:
        """The attempts of before, each with its ending; without, where Slurm stays silent.

        Slurm starts this job as soon as the one before is told to end. Raises SftError where that
        does not end.
        """
        logs, deadline = self.run.log.parent, time.monotonic() + AWAY_S
        while True:
            try:
                attempts = settle(self.run.checkpoints, logs, own=self.place.attempt_id)
                others = [each["id"] for each in attempts if not each["ending"]]
            except slurm.SlurmAway as error:
                attempts, others = list_attempts(self.run.checkpoints), []
                log.warning("Slurm does not answer: %s", error)
                if time.monotonic() > deadline:
                    return attempts
            else:
                if not others:
                    return attempts
                if time.monotonic() > deadline:
                    raise SftError(f"attempt {others[0]} goes on; this one leaves it be")
            time.sleep(POLL_S)

    def _move_away(self, blamed: list[str]) -> str | None:
        """Submit this link anew, without the nodes that failed before, where it got one of them."""
        ours = sorted(set(blamed) & set(self.place.nodes))
        if not ours or not self.place.job_id:
            return None
        script, record = self.run.config.with_name(SCRIPT), self.run.checkpoints / "jobs"
        arguments = ["--series", str(self.series)]
        try:
            moved = slurm.submit(script, record, arguments, exclude_option(script, blamed))
        except (SftError, slurm.SlurmAway) as error:
            log.warning("%s failed before, and this job stays there: %s", ", ".join(ours), error)
            return None
        return f"{', '.join(ours)} failed before; job {moved} goes on without it"

    def _queue_next(self) -> None:
        """See to it that a link waits behind this one, which goes on whatever ends this one."""
        if not self.place.job_id:
            return
        try:
            jobs = slurm.jobs_of_run(self.run.checkpoints, 0)
            waiting = [each.id for each in jobs if each.state == "PENDING"]
        except (SftError, slurm.SlurmAway):
            waiting = []
        self.next_job = waiting[0] if waiting else self._submit_next()
        if self.next_job:
            log.info("job %s waits behind this one, to go on if need be", self.next_job)

    def _submit_next(self) -> str | None:
        folder = self.run.checkpoints
        blamed = excluded_nodes(list_attempts(folder))
        try:
            return submit_link(self.run.config.with_name(SCRIPT), folder, self.series, blamed)
        except (SftError, slurm.SlurmAway) as error:
            log.warning("no job could be queued from here (%s); a driver has to do it", error)
            return None

    def _take_over(self) -> None:
        """Wait until the attempt before has ended also where Slurm only thinks so."""
        take_over(self.run.checkpoints, self.place.attempt_id)
        *_, before = [None, *list_attempts(self.run.checkpoints)]
        unsure = (Kind.NODE_FAIL, Kind.LOST)
        if before and before["ending"] in unsure and before["job_id"]:
            time.sleep(LOOK_S + POLL_S)

    def _begin(self) -> dict[str, Any]:
        run, place = self.run, self.place
        put_aside = set_aside_broken_checkpoints(run.checkpoints)
        for sentence in put_aside:
            log.warning("%s", sentence)
        resumed = newest_complete_checkpoint(run.checkpoints)
        log.info("training from %s", resumed.name if resumed else "the beginning")
        write_text(run.checkpoints / CONFIG, run.config.read_text(encoding="utf-8"))
        note = {
            **{"id": place.attempt_id, "launcher": place.launcher, "job_id": place.job_id},
            **{"series": self.series, "world_size": run.world_size},
            **{"num_nodes": len(place.nodes), "nodes": list(place.nodes)},
            **{"resumed": resumed.name if resumed else None, "from_step": step_of(resumed)},
            **{"put_aside": put_aside, "next_job": self.next_job, "code": git_state(REPOSITORY)},
            **{"log": str(run.log), "log_start": run.log.stat().st_size if run.log.exists() else 0},
        }
        begin(run.checkpoints, note)
        return next(
            each for each in list_attempts(run.checkpoints) if each["id"] == place.attempt_id
        )

    # --- meanwhile -------------------------------------------------------------------------------

    def _watch(self, command: list[str]) -> int:
        """Run the command to its end; its exit code, negative for a signal."""
        mark = {MARK: str(this_process())} if self.place.job_id else {}
        self.child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=os.environ | mark | self._end_of_job()
        )
        began_s = time.time()
        while (code := self._wait()) is None:
            self._prune()
            if not is_newest(self.run.checkpoints, self.place.attempt_id):
                log.error("another attempt has taken this one's place; ending at once")
                self.child.kill()
            elif time.time() - self._last_sign(began_s) > 60 * self.run.stuck_minutes:
                self._stop_stuck()
        if mark and not self.was_told:
            self._kill_leftovers()
        return code

    def _wait(self) -> int | None:
        """The exit code of the command; None where it goes on for now."""
        try:
            return self.child.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            return None

    def _kill_leftovers(self) -> None:
        """End what trains on this node after srun's end.

        Where Slurm takes a node for dead that only lost its daemon, srun ends and the training goes
        on. Slurm has told the next link to begin. The launch script has a moment to end by itself
        when all that it started has ended: it removes its folders.
        """
        mark = f"{MARK}={this_process()}"
        family = marked_processes(mark)
        self._kill([pid for pid in family if parent_of(pid) in family])
        deadline = time.monotonic() + POLL_S
        while marked_processes(mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._kill(marked_processes(mark))

    def _kill(self, pids: Iterable[int]) -> None:
        for pid in pids:
            log.warning("process %d outlived srun; ending it", pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _end_of_job(self) -> dict[str, str]:
        """The variable that tells the trainer when its job ends."""
        if not self.place.job_id:
            return {}
        try:
            end_s = slurm.end_time(self.place.job_id)
        except (SftError, slurm.SlurmAway) as error:
            log.warning("the end of this job is not known: %s", error)
            return {}
        return {"SFT_JOB_END": str(end_s)} if end_s else {}

    def _last_sign(self, began_s: float) -> float:
        steps = self.run.checkpoints / "steps.jsonl"
        return max(began_s, steps.stat().st_mtime) if steps.exists() else began_s

    def _prune(self) -> None:
        """Delete the checkpoints that the config does not want kept."""
        keep = self.run.keep
        if not keep or count_checkpoints(self.run.checkpoints) <= keep:
            return
        try:
            if pruned := prune_checkpoints(self.run.checkpoints, keep):
                log.info("deleted %s; newer ones are whole", ", ".join(pruned))
        except OSError as error:
            log.warning("an old checkpoint could not be deleted: %s", error)

    def _stop_stuck(self) -> None:
        """End a training that makes no step; its processes say first where they hang."""
        log.error("no step for %g minutes; ending this attempt", self.run.stuck_minutes)
        self.cause = Kind.STUCK
        if self.place.job_id:
            subprocess.run(["scancel", "--signal=ABRT", f"{self.place.job_id}.0"], check=False)
            with suppress(subprocess.TimeoutExpired):
                self.child.wait(STACKS_S)
        self.child.terminate()
        try:
            self.child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.child.kill()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Take note of being told to end; in a job, Slurm tells the step by itself."""
        self.was_told = True
        if self.child and not self.place.job_id:
            self.child.terminate()

    # --- after -----------------------------------------------------------------------------------

    def _end(self, note: dict[str, Any], code: int) -> None:
        """Write down how it ended, and take the next link out of the queue if it is of no use.

        Where it was told to end and Slurm does not say why as yet, that is left to whoever asks
        when the job is over.
        """
        folder = self.run.checkpoints
        complete = finished_folder(folder) is not None
        told = None if complete else self._word_of_slurm()
        if told and self.was_told and told.state not in slurm.ENDED:
            log.info("told to end; exit code %d", code)
            return
        was_stopped = self.was_told and not self.place.job_id
        cause = self.cause or (Kind.CANCELLED if was_stopped else None)
        ending = judge_attempt(folder, note, told, exit_code=code, cause=cause)
        end(folder, note["id"], ending, reached_step(folder, note), code)
        log.info("%s: %s", ending.kind.value, ending.text)
        attempts = of_series(list_attempts(folder), self.series)
        next_from = step_of(newest_complete_checkpoint(folder))
        if self.next_job and not may_go_on(attempts, complete, next_from).go:
            try:
                slurm.cancel([self.next_job])
            except (SftError, slurm.SlurmAway) as error:
                log.warning("job %s will see that nothing is to be done: %s", self.next_job, error)

    def _word_of_slurm(self) -> slurm.End | None:
        """What Slurm says of this job now; None on a computer without."""
        if not self.place.job_id:
            return None
        try:
            return slurm.ask_end(self.place.job_id) or slurm.End("UNKNOWN")
        except slurm.SlurmAway:
            return slurm.End("UNKNOWN")


def submit_link(script: Path, checkpoints: Path, series: int, blamed: list[str]) -> str:
    """The id of a new job of a run, away from the nodes that failed it where that leaves enough.

    Raises what `slurm.submit` does.
    """
    record, arguments = checkpoints / "jobs", ["--series", str(series)]
    exclude = exclude_option(script, blamed)
    try:
        return slurm.submit(script, record, arguments, exclude)
    except SftError as error:
        if not exclude or TOO_FEW not in str(error):
            raise
        log.warning("too few nodes are left without %s; taking them again", ", ".join(blamed))
        return slurm.submit(script, record, arguments)


def exclude_option(script: Path, blamed: list[str]) -> str:
    """The value of --exclude: the site's bad nodes as the script names them, and the run's own."""
    mark = "#SBATCH --exclude="
    lines = script.read_text().splitlines()
    bad = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
    return ",".join([*bad, *blamed]) if blamed else ""


if __name__ == "__main__":
    sys.exit(main())
