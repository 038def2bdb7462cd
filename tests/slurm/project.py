"""A project on the private Slurm: the real workflow and LLaMA-Factory, and a model of few weights.

`Project` is a copy of the checkout with a site of its own, whose tokens are made once. `Run` is one
more run of the same experiment under another name: it is rendered as the workflow does it, and
driven by what the rule `train` calls.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from sft.attempts import list_attempts, submitted_jobs
from sft.files import hash_file, read_json, write_yaml
from sft.progress import EVENTS, read_events
from sft.slurm import job_name
from tests.slurm.cluster import Cluster

CHECKOUT = Path(__file__).resolve().parents[2]
PARTS = ("Snakefile", "workflow", "config", "demo", "profiles", "sft")
TRAINER, AXOLOTL = CHECKOUT / ".venv-llamafactory", CHECKOUT / ".venv-axolotl"
STEPS = 12
WAIT_S = 120.0

PROFILE = """\
executor: slurm
jobs: 20
cores: 64
latency-wait: 20
slurm-status-command: squeue
slurm-no-requeue: true
slurm-keep-successful-logs: true
slurm-logdir: results/slurm_logs
slurm-init-seconds-before-status-checks: 3
default-resources:
  slurm_account: lab_leonardo
  slurm_partition: lrd_all_serial
  runtime: 30
  mem_mb: 2000
set-resources:
  train: {slurm_partition: boost_usr_prod, runtime: 20, mem_mb: 0}
config:
  site: tiny
  launcher: slurm
  gpus_per_node: 0
  cpus_per_node: 1
  max_nodes: 4
  max_minutes: 1440
  attn: sdpa
  environments:
    otagent: source {repository}/.venv-llamafactory/bin/activate
    sft-axolotl: source {repository}/.venv-axolotl/bin/activate
  variables:
    OMP_WAIT_POLICY: passive
    GLOO_SOCKET_IFNAME: lo  # the nodes of the tests share the host's network
"""
BASE_CONFIG = {
    **{"environment": "otagent", "stage": "sft", "finetuning_type": "full"},
    **{"template": "chatml_tools", "cutoff_len": 512, "max_samples": 16},
    **{"global_batch_size": 4, "per_device_train_batch_size": 2},
    **{"num_train_epochs": 2, "max_steps": STEPS, "learning_rate": 1e-3},
    **{"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},
    **{"bf16": True, "seed": 42, "disable_gradient_checkpointing": True},
    **{"save_strategy": "steps", "save_steps": 4, "save_total_limit": 2, "logging_steps": 1},
}
ROWS = """\
name\tbase_config\tmodel\tmix\tnum_nodes\tsites\tregister
one\ttiny\ttiny\tdemo\t1\ttiny\ttrue
two\ttiny\ttiny\tdemo\t2\ttiny\ttrue
"""
# What the workflow does where a row is rendered, in the project's own copy of the package.
RENDER = """
import json, sys
from dataclasses import replace
from pathlib import Path
from sft.batch import derive_batch
from sft.catalog import read_catalog
from sft.config import read_config
from sft.files import read_yaml, write_json, write_text, write_yaml
from sft.launch import kept_checkpoints, launch_text, write_script
from sft.request import Request

changes = json.loads(sys.argv[1])
catalog = read_catalog(read_config(Path("profiles/tiny")), ["tiny"])
facts = changes["site"]
variables = dict(catalog.site.variables) | facts.pop("variables", {})
site = replace(catalog.site, variables=variables, **facts)
row = catalog.experiments["one"]
experiment = replace(
    row,
    name=changes["name"],
    num_nodes=changes["num_nodes"],
    config={k: v for k, v in (row.config | changes["config"]).items() if v is not None},
)
runs = Path("results/runs").resolve()
folder = runs / changes["name"]
checkpoints = folder / "checkpoints" / changes["fingerprint"]
checkpoints.mkdir(parents=True, exist_ok=True)
(folder / "logs").mkdir(exist_ok=True)
batch = derive_batch(experiment, site)
config = read_yaml(runs / "one" / "train.yaml") | changes["config"]
config |= {"output_dir": str(checkpoints), "gradient_accumulation_steps": batch.accumulation}
if "deepspeed" in config:
    config["deepspeed"] = str(Path("sft/deepspeed", config["deepspeed"]).resolve())
    del config["use_cpu"]
path = folder / "train.yaml"
write_yaml(path, {key: each for key, each in config.items() if each is not None})
write_text(folder / "launch.sh", launch_text(experiment, site, path))
write_script(experiment, site, Request(**changes["request"]), path)
facts = {"world_size": batch.world_size, "keep": kept_checkpoints(experiment)}
write_json(folder / "driver.json", facts)
"""
DRIVER = """
import json, sys
from pathlib import Path
from sft import links, slurm
from sft.files import read_json
from sft.site import Site
from sft.step import step_log
from sft.train import train

run = Path(sys.argv[1])
for module in (links, slurm):
    vars(module).update(json.loads(sys.argv[2]))
facts = read_json(run / "driver.json")
with step_log(f"{run}/logs/train.log", "train"):
    train(Site("tiny", launcher="slurm"), run, facts["world_size"], facts["keep"])
"""
REQUEST = {"minutes": 20, "account": "lab_leonardo", "partition": "boost_usr_prod"}


@dataclass(frozen=True)
class Project:
    """The project's folder, and the cluster that it runs on."""

    root: Path
    cluster: Cluster

    def environment(self) -> dict[str, str]:
        """The environment of a shell on the cluster's login node."""
        return os.environ | self.cluster.environment() | {"PYTHONPATH": str(self.root)}

    def snakemake(self, *arguments: str) -> subprocess.Popen:
        """Start snakemake as a user does."""
        command = [sys.executable, "-m", "snakemake", "--profile", "profiles/tiny", *arguments]
        return self.start(command)

    def cli(self, *arguments: str) -> subprocess.Popen:
        """Start `python -m sft`."""
        return self.start([sys.executable, "-m", "sft", *arguments, "--profile", "profiles/tiny"])

    def start(self, command: list[str], path: Path | None = None) -> subprocess.Popen:
        """Start a command; what lies in the folder `path` goes before commands of that name."""
        variables = self.environment()
        if path:
            variables["PATH"] = f"{path}:{variables['PATH']}"
        return subprocess.Popen(
            ["env", "--default-signal=INT", *command],  # tests in the background ignore Ctrl-C
            cwd=self.root,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def make_project(root: Path, cluster: Cluster) -> Project:
    """Copy the checkout to `root`, with the site, the model and the table of the tests."""
    root.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__", "smollm2-135m", ".*")
    for part in PARTS:
        source = CHECKOUT / part
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, root / part, **({"ignore": ignored} if source.is_dir() else {}))
    for trainer in (TRAINER, AXOLOTL):
        (root / trainer.name).symlink_to(trainer)
    (root / "profiles" / "tiny").mkdir()
    (root / "profiles" / "tiny" / "config.yaml").write_text(PROFILE)
    write_yaml(root / "sft" / "lf_configs" / "tiny.yaml", BASE_CONFIG)
    (root / "config" / "experiments.tsv").write_text(ROWS)
    add_model(root, "tiny")
    return Project(root, cluster)


def add_model(root: Path, name: str, *options: str) -> None:
    """Make a model of few weights, and let rows name it."""
    with open(root / "config" / "models.yaml", "a") as file:
        entry = f"folder: demo/{name}\n  registry_name: org/{name}\n  declare: true\n"
        file.write(f"\n{name}:\n  {entry}")
    program = [TRAINER / "bin" / "python", "-m", "tests.slurm.tiny_model"]
    subprocess.run(
        [*program, root / "demo" / name, *options], cwd=CHECKOUT, check=True, capture_output=True
    )


@dataclass(frozen=True)
class Run:
    """A run that shares the tokens of the project's rows, and what a driver of it does."""

    project: Project
    name: str
    fingerprint: str = "0123abcd"
    drivers: list[subprocess.Popen] = field(default_factory=list)
    temporary: set[str] = field(default_factory=set)

    @property
    def folder(self) -> Path:
        return self.project.root / "results" / "runs" / self.name

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints" / self.fingerprint

    @property
    def job_name(self) -> str:
        return job_name(self.checkpoints)

    def render(
        self,
        request: Mapping[str, Any] | None = None,
        num_nodes: int = 1,
        config: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> "Run":
        """Render the run as a row of the table, with changes of its config and the site's facts.

        `request` changes what its jobs ask Slurm for; `variables` are more of the site's. A key of
        `config` that is None is left out.
        """
        changes = {
            **{"name": self.name, "num_nodes": num_nodes, "config": config or {}, "site": facts},
            **{"request": REQUEST | (request or {}), "fingerprint": self.fingerprint},
        }
        done = subprocess.run(
            [sys.executable, "-c", RENDER, json.dumps(changes)],
            cwd=self.project.root,
            env=self.project.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return self

    def start(self, path: Path | None = None, **constants: float) -> subprocess.Popen:
        """Start a driver, with other constants of `links` and `slurm`; `path` as for a project."""
        command = [sys.executable, "-c", DRIVER, str(self.folder), json.dumps(constants)]
        driver = self.project.start(command, path)
        self.drivers.append(driver)
        return driver

    def finish(self, driver: subprocess.Popen, wait_s: float = WAIT_S) -> str:
        """What a driver printed until its end."""
        return driver.communicate(timeout=wait_s)[0]

    def train(self, wait_s: float = WAIT_S) -> str:
        """What a driver prints that trains the run to its end; the run must be complete then."""
        driver = self.start()
        text = self.finish(driver, wait_s)
        assert driver.returncode == 0, text
        return text

    def wait(self, condition: Callable[[], Any], what: str, wait_s: float = WAIT_S) -> None:
        """Wait until something of the run is so."""
        deadline = time.monotonic() + wait_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{self.logs()}"
            time.sleep(0.2)

    def wait_for_step(self, step: int) -> None:
        """Wait until the trainer has done a step."""
        self.wait(lambda: self.last_step() >= step, f"step {step} was not reached")
        self.temporary.update(_temporary_folders(self.job_name))

    def wait_to_say(self, text: str, times: int = 1, wait_s: float = WAIT_S) -> None:
        """Wait until the drivers have said something so often."""
        log = self.folder / "logs" / "train.log"

        def has_said() -> bool:
            return log.exists() and log.read_text().count(text) >= times

        self.wait(has_said, f"no driver said {text!r}", wait_s)

    def trainers(self) -> list[int]:
        """The numbers of the run's training processes, by rank; those of all nodes are seen."""
        found = {}
        for pid, variables in _processes(self.job_name).items():
            with suppress(OSError, ValueError):  # it has ended, or is no Python module
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if words[words.index("-m") + 1] == "sft.trainers.llamafactory":
                    found[int(variables.get("RANK", "0"))] = pid
        return [found[rank] for rank in sorted(found)]

    def queued(self, *states: str) -> list[str]:
        """The ids of the run's jobs in the queue, of those in the states where any are given."""
        command = ["squeue", "--noheader", f"--name={self.job_name}", "--format=%i|%T"]
        rows = [line.split("|") for line in self.project.cluster.ask(*command).splitlines()]
        return [job for job, state in rows if not states or state in states]

    def check_traces(self) -> None:
        """Assert what holds after every fault, once the run is at rest.

        Attempts came one after the other, each job's id was kept, and nothing is left behind.
        """
        self.wait(lambda: not self.queued(), f"{self.name} has jobs in the queue")
        attempts = self.attempts()
        for before, after in pairwise(attempts):
            assert before["finished"] <= after["started"], (before, after)
        for before, after in pairwise(self._all_events()):  # two at once would mix theirs
            assert after["event"] == "begin" or after["step"] >= before["step"], (before, after)
        known = {*submitted_jobs(self.checkpoints), *(each["job_id"] for each in attempts)}
        jobs = self._accepted()
        assert {job for *_, job, _ in jobs} <= known
        for (_, end, *_), (start, *_) in pairwise(sorted(job for job in jobs if job[-1])):
            assert end <= start, jobs
        left = [folder for folder in self.temporary if Path(folder).exists()]
        assert not left, left

    def _accepted(self) -> list[tuple[str, str, str, str]]:
        """Start, end, id and nodes of the run's jobs; one that never ran has no nodes.

        Slurm remembers also such as it never accepted.
        """
        command = ["squeue", "--noheader", "--states=all", f"--name={self.job_name}"]
        text = self.project.cluster.ask(*command, "--format=%r|%S|%e|%i|%N")
        jobs = (line.rsplit("|", 4) for line in text.splitlines())
        return [tuple(job) for reason, *job in jobs if reason != "BadConstraints"]

    def _all_events(self) -> list[dict[str, Any]]:
        path = self.checkpoints / EVENTS
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def last_step(self) -> int:
        """The highest step that the trainer has done."""
        return max((each["step"] for each in read_events(self.checkpoints)), default=-1)

    def logs(self) -> str:
        """All that was written to the run's logs."""
        return "\n".join(path.read_text(errors="replace") for path in self._logs())

    def _logs(self) -> list[Path]:
        return sorted((self.folder / "logs").glob("*.log"))

    def attempts(self) -> list[dict[str, Any]]:
        return list_attempts(self.checkpoints)

    def endings(self) -> list[str]:
        """How each attempt ended."""
        return [each["ending"] for each in self.attempts()]

    def weights(self) -> str:
        """The hash of the trained weights."""
        return hash_file(self.checkpoints / "model.safetensors")

    def losses(self) -> list[tuple[int, float]]:
        """The loss at each step."""
        history = read_json(self.checkpoints / "trainer_state.json")["log_history"]
        return [(each["step"], each["loss"]) for each in history if "loss" in each]

    def stop(self) -> None:
        """End what is left of the drivers."""
        for driver in self.drivers:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.communicate()


def rendered_run(project: Project, name: str) -> Run:
    """The run of a row of the table, once snakemake has rendered it."""
    run = Run(project, name)
    run.wait(lambda: [*run.folder.glob("checkpoints/*")], f"{name} was not rendered")
    [checkpoints] = run.folder.glob("checkpoints/*")
    return Run(project, name, checkpoints.name)


def _temporary_folders(job_name: str) -> set[str]:
    """The TMPDIR of each process of the jobs of that name."""
    folders = {variables.get("TMPDIR", "") for variables in _processes(job_name).values()}
    return {folder for folder in folders if folder.startswith("/tmp/sft.")}


def _processes(job_name: str) -> dict[int, dict[str, str]]:
    """The processes of the jobs of that name: their numbers and environment variables."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended
            lines = path.read_text(errors="replace").split("\0")
            variables = dict(line.split("=", 1) for line in lines if "=" in line)
            if variables.get("SLURM_JOB_NAME") == job_name:
                found[int(path.parent.name)] = variables
    return found


def occupy_nodes(cluster: Cluster) -> str:
    """The id of a job that has all nodes of the trainings' partition for itself."""
    nodes = ("--partition=boost_usr_prod", "--nodes=4", "--exclusive", "--time=60")
    job = cluster.submit("--job-name=blocker", *nodes, "--output=/dev/null", "--wrap=sleep 3600")
    cluster.wait_for_job(job, "RUNNING")
    return job
