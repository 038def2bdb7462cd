"""A results folder with one experiment, brought as far as a test wants it."""

import json
import os
from dataclasses import replace
from pathlib import Path

from sft.attempts import begin, end
from sft.catalog import tokens_name
from sft.endings import Ending, Kind
from sft.facts import Facts
from sft.files import write_text
from sft.mix import Mix
from sft.progress import EVENTS
from sft.receipt import utc
from sft.slurm import Job, job_name
from sft.status import State, read_states
from tests.unit.planning import (
    BIG,
    EXPERIMENT,
    LEONARDO,
    catalog_of,
    fetch_model,
    tokenize,
    write_receipt,
)

NOW_S = 1_800_000_000.0
MINUTE = 60.0
ROW = replace(EXPERIMENT, mix=Mix("mix", (BIG,)), register=True)
HERE = replace(LEONARDO, launcher="local")


class Results:
    """A results folder with one experiment, brought as far as a test wants it."""

    def __init__(self, folder: Path, experiment=ROW, site=LEONARDO) -> None:
        self.folder, self.experiment, self.site = folder, experiment, site
        self.queue = {}

    @property
    def run(self) -> Path:
        return self.folder / "runs" / self.experiment.name

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens" / tokens_name(self.experiment)

    @property
    def checkpoints(self) -> Path:
        facts = Facts(catalog_of(self.experiment), self.folder)
        return facts.checkpoints(self.experiment).resolve()

    def fetch(self) -> "Results":
        fetch_model(self.folder, {})
        write_receipt(self.folder / "datasets" / BIG.name / "fetched.json", {})
        return self

    def tokenize(self) -> "Results":
        self.fetch()
        tokenize(self.folder, self.experiment, rows=[1600], taken=[1600], mean_tokens=500)
        return self

    def check(self) -> "Results":
        self.tokenize()
        for name in ("inspected", "checked-strict"):
            write_receipt(self.tokens / f"{name}.json", {})
        return self

    def render(self) -> "Results":
        self.check()
        write_text(self.run / "train.yaml", f"stage: sft\noutput_dir: {self.checkpoints}\n")
        write_text(self.run / "train.sbatch", "#!/bin/bash\n")
        (self.run / "logs").mkdir()
        return self

    def submit(self, *jobs: Job) -> "Results":
        """Put jobs of the run into the queue."""
        name = job_name(self.checkpoints)
        self.queue = {name: [replace(job, name=name) for job in jobs]}
        return self

    def attempt(self, name: str, minutes_ago: float, from_step: int = 0, **more) -> "Results":
        """Let an attempt begin."""
        note = {
            **{"id": name, "launcher": "slurm", "job_id": name, "series": 1},
            **{"world_size": 16, "num_nodes": 2, "nodes": ["n1", "n2"]},
            **{"resumed": f"checkpoint-{from_step}" if from_step else None},
            **{"from_step": from_step, "started": utc(NOW_S - minutes_ago * MINUTE)},
            **{"log": str(self.run / "logs" / f"slurm-{name}.log"), "log_start": 0},
        }
        begin(self.checkpoints, note | more)
        return self

    def end(self, job_id: str, kind: Kind, text: str, to_step: int) -> "Results":
        """Let an attempt end, two minutes ago."""
        ending = Ending(kind, text, (f"a line of {kind}",))
        end(self.checkpoints, job_id, ending, to_step, 1, finished_s=NOW_S - 2 * MINUTE)
        return self

    def step(self, minutes_ago: float, steps: int = 120, saved: int = 100, **stop) -> "Results":
        """Let a process group make steps of 30 s, the last one so many minutes ago."""
        last_s = NOW_S - minutes_ago * MINUTE
        events = [self._event("begin", 0, last_s - 30 * steps - 60, world_size=16)]
        for step in range(1, steps + 1):
            time_s = last_s - 30 * (steps - step)
            numbers = {"loss": 2 - step / 100, "grad_norm": 0.5, "learning_rate": 1e-5}
            events.append(self._event("log", step, time_s, step_s=30.0, **numbers))
            if step == saved:
                events.append(self._event("save", step, time_s, save_s=20.0))
        if stop:
            events.append(self._event(time_s=last_s, step=steps, **stop))
        path = self.checkpoints / EVENTS
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in events))
        os.utime(path, (last_s, last_s))
        return self

    @staticmethod
    def _event(event: str, step: int, time_s: float, **more) -> dict:
        return {"time": time_s, "event": event, "step": step, "max_steps": 704, **more}

    def train(self) -> "Results":
        """Leave what a training leaves."""
        self.render()
        made = {
            **{"checkpoints": str(self.checkpoints), "global_step": 704, "max_steps": 704},
            **{"loss_end": 0.8125, "attempts": [{"ending": "timeout"}, {"ending": "completed"}]},
            "losses": [[1, 2.0], [704, 0.8]],
        }
        write_receipt(self.run / "trained.json", made)
        return self

    def publish(self, *stages: str) -> "Results":
        self.train()
        for stage in stages:
            write_receipt(self.run / f"{stage}.json", {"location": "org/run"})
        return self

    def log(self, path: Path, text: str, minutes_ago: float = 3) -> "Results":
        """Leave the log of a stage."""
        write_text(path, text)
        os.utime(path, (NOW_S - minutes_ago * MINUTE,) * 2)
        return self

    def age(self) -> "Results":
        """Make all receipts an hour old."""
        for path in self.folder.rglob("*.json"):
            os.utime(path, (NOW_S - 60 * MINUTE,) * 2)
        return self

    def look(self, silent: bool = False) -> State:
        """The state of the experiment, with or without an answer of Slurm."""
        catalog = catalog_of(self.experiment, site=self.site)
        queue = None if silent else self.queue
        (state,) = read_states(catalog, self.folder, queue, [self.experiment.name], NOW_S)
        return state


RUNNING = Job("7", "", "RUNNING", elapsed="3:12:05", time_limit="1-00:00:00", nodes="n[1-2]")
NEXT = Job("8", "", "PENDING", reason="Dependency")
QUEUED = Job("7", "", "PENDING", reason="Priority", start="2027-01-15T14:05:00")
