"""The chain of Slurm jobs that trains a run: submit or attach, follow, and say what happens.

The jobs look after themselves (`sft.attempt`). A driver only starts the chain, tells a person how
it goes, and may die at any moment.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sft import local, slurm
from sft.attempt import SCRIPT, submit_link
from sft.attempts import Beginnings, newest_series, note_told, of_series, was_told
from sft.chain import excluded_nodes, may_go_on
from sft.checkpoint import finished_folder, newest_complete_checkpoint, step_of
from sft.errors import SftError
from sft.files import write_text
from sft.process import parse_process_id, this_process
from sft.progress import EVENTS, StepLines, say_steps
from sft.settle import refuse_other_world_size, settle
from sft.step import log

TICK_S = 2.0
AWAY_S = 10.0  # between two questions while Slurm is silent
FULL_S = 60.0  # between two tries where a limit of waiting jobs is reached
FULL = ("SubmitJob", "submit limit", "MaxSubmit")  # what sbatch says then


class Links:
    """All Slurm jobs of a run, as one driver sees them."""

    def __init__(self, run: Path, checkpoints: Path, world_size: int) -> None:
        self.run, self.checkpoints, self.world_size = run, checkpoints, world_size
        self.steps = StepLines(checkpoints / EVENTS)
        self.beginnings = Beginnings(checkpoints)
        self.said: dict[str, str] = {}
        self.is_away = self.followed = False

    def follow(self) -> None:
        """Return when the run is complete and none of its jobs runs.

        Raises SftError where the chain has come to an end before, and where this driver is told to
        stop, which leaves the jobs as they are.
        """
        try:
            while not self._advance():
                self.beginnings.say_new()
                say_steps(self.steps)
                time.sleep(TICK_S)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would end the farewell
            raise SftError(self._farewell()) from None
        say_steps(self.steps)

    def _advance(self) -> bool:
        """Do what is to be done now; whether the run is complete and at rest."""
        try:
            jobs = self._active(slurm.QUEUE_AGE_S)
            if self._has_just_ended(jobs):
                jobs = self._active(0)
            if self.is_away:
                log.info("Slurm answers again")
            self.is_away = False
            self._say(jobs)
            if any(job.state != "PENDING" for job in jobs):
                return False
            if finished_folder(self.checkpoints):
                self._cancel_waiting(jobs)
                return True
            if not jobs:
                self._begin_or_end()
        except slurm.SlurmAway as error:
            if not self.is_away:
                log.warning("Slurm does not answer; its jobs go on, and this waits: %s", error)
            self.is_away = True
            time.sleep(AWAY_S)
        return False

    def _active(self, max_age_s: float) -> list[slurm.Job]:
        """The jobs of this run that wait or run; none only by an answer of this moment."""
        jobs = slurm.jobs_of_run(self.checkpoints, max_age_s)
        active = [job for job in jobs if job.is_active]
        return active or (self._active(0) if max_age_s else [])

    def _has_just_ended(self, jobs: list[slurm.Job]) -> bool:
        """Whether a job that the last answer shows as running has written down its end."""
        folder = self.checkpoints / "attempts"
        return any((folder / f"{job.id}.ending.json").exists() for job in jobs)

    def _say(self, jobs: list[slurm.Job]) -> None:
        """Say each job's state, each time that it changes."""
        if jobs and not self.followed:
            self._greet(jobs)
        for job in jobs:
            where = f"runs on {job.nodes} until {job.end}"
            where = where if job.state == "RUNNING" else f"is {job.state.lower()}"
            waits = "dependency" in job.reason.lower() and len(jobs) > 1
            state = f"waits ({job.reason})" if job.state == "PENDING" else where
            if self.said.get(job.id) != state and not waits:
                log.info("job %s %s", job.id, state)
            self.said[job.id] = state

    def _greet(self, jobs: list[slurm.Job]) -> None:
        """Say that there was a job already, and which other driver follows it."""
        self.followed = True
        log.info("attaching to job %s, which is there already", jobs[0].id)
        record = self.checkpoints / "driver"
        other = parse_process_id(record.read_text()) if record.exists() else None
        if other and other != this_process() and (not other.is_here or other.runs()):
            log.info("process %d of %s follows it too, or did", other.pid, other.host)
        write_text(record, f"{this_process()}\n")

    def _begin_or_end(self) -> None:
        """Submit the run's next job, or raise SftError where none may follow.

        A person who runs again after having been told how the last attempt ended wants another.
        """
        with local.claim(self.checkpoints):
            if self._active(0):
                return
            attempts = settle(self.checkpoints, self.run / "logs")
            series = newest_series(attempts)
            chain = of_series(attempts, series)
            next_from = step_of(newest_complete_checkpoint(self.checkpoints))
            decision = may_go_on(chain, False, next_from)
            if not decision.go:
                last = chain[-1]
                if self.followed or not was_told(self.checkpoints, last["id"]):
                    note_told(self.checkpoints, last["id"])
                    raise SftError(self._obituary(last, decision.text))
                series += 1
                log.info("trying again, after: %s", last["text"])
            elif chain and not self.followed:
                log.info("going on; the last attempt ended so: %s", chain[-1]["text"])
            self._submit(series, attempts)

    def _submit(self, series: int, attempts: list[dict[str, Any]]) -> None:
        refuse_other_world_size(self.checkpoints, attempts, self.world_size)
        self._warn_of_other_versions()
        script = self.run / SCRIPT
        (self.run / "logs").mkdir(exist_ok=True)  # Slurm makes no folder for its log
        write_text(self.checkpoints / "driver", f"{this_process()}\n")
        try:
            with uninterrupted():  # a farewell has to name the job
                job = submit_link(script, self.checkpoints, series, excluded_nodes(attempts))
        except SftError as error:
            if not any(word in str(error) for word in FULL):
                raise SftError(
                    f"{script}: Slurm refuses the job: {error}\n{slurm.explain(str(error))}"
                ) from None
            if self.said.get("full") != str(error):
                log.warning("Slurm takes no more jobs of yours now; this waits: %s", error)
            self.said["full"] = str(error)
            time.sleep(FULL_S)
            return
        self.followed = True
        log.info("submitted job %s; its log: %s", job, self.run / "logs" / f"slurm-{job}.log")

    def _warn_of_other_versions(self) -> None:
        """Name the jobs that train what the row said before it was changed."""
        queue = slurm.read_queue()
        for folder in self.checkpoints.parent.iterdir():
            jobs = queue.get(slurm.job_name(folder), []) if folder != self.checkpoints else []
            if active := [job.id for job in jobs if job.is_active]:
                log.warning(
                    "job %s still trains what this row said before; stop it with: scancel %s",
                    *(active[0], " ".join(active)),
                )

    def _cancel_waiting(self, jobs: list[slurm.Job]) -> None:
        """Take out of the queue what would see that the run is complete, and leave."""
        try:
            slurm.cancel([job.id for job in jobs])
        except SftError as error:
            log.warning("%s", error)

    def _obituary(self, last: dict[str, Any], reason: str) -> str:
        told = [f"  | {line}" for line in last["lines"]]
        if Path(last["log"]).exists():
            told.append(f"the whole output: {last['log']}")
        return "\n".join(
            [
                f"{self.run.name}: {last['text'] if last['retry'] is False else reason}",
                *told,
                "run again to try once more from the newest checkpoint",
            ]
        )

    def _farewell(self) -> str:
        try:
            jobs = self._active(TICK_S)
        except slurm.SlurmAway:
            return "stopped following; jobs of this run stay as they are"
        if not jobs:
            return "stopped; no job of this run was in the queue"
        ids = " ".join(job.id for job in jobs)
        return (
            f"stopped following; job {ids} stays in the queue and goes on by itself. "
            f"Run again to follow it, or stop it with: scancel {ids}"
        )


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put Ctrl-C and SIGTERM off until what is done here is done."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, lambda number, _: came.append(number)) for each in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)
