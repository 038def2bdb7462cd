"""`python -m sft drive`: snakemake as a Slurm job that renews itself."""

import re
import sys
from pathlib import Path

import pytest

from sft.files import read_json
from tests.slurm.project import PROFILE, ROWS, Project, rendered_run


@pytest.fixture
def table_of(project, tmp_path):
    """A function that writes a table of one row, and a config that names it."""

    def write(name: str, max_steps: int) -> Path:
        table, config = tmp_path / "experiments.tsv", tmp_path / "config.yaml"
        titles, row, _ = ROWS.splitlines()
        changed = row.replace("one", name, 1)
        table.write_text(f"{titles}\tmax_steps\tsave_steps\n{changed}\t{max_steps}\t20\n")
        config.write_text(f"experiments: {table}\n")
        return config

    return write


def sft(project: Project, profile: str, config: Path, command: str, *arguments: str) -> str:
    """What `python -m sft` prints."""
    common = ("--profile", f"profiles/{profile}", "--configfile", str(config))
    process = project.start([sys.executable, "-m", "sft", command, *common, *arguments])
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    return text


def drivers(project: Project, name: str, *options: str) -> list[str]:
    """The ids of the drivers in the queue."""
    command = ("squeue", "--noheader", f"--name={name}", "--format=%i", *options)
    return project.cluster.ask(*command).split()


def test_driver_renews_itself_at_its_time_limit_until_all_is_trained(project, table_of, table):
    brief = project.root / "profiles" / "brief" / "config.yaml"
    brief.parent.mkdir(exist_ok=True)
    text = PROFILE.replace("runtime: 30\n", "runtime: 1\n")
    own = "set-resources:\n"
    brief.write_text(text.replace(own, f"{own}  render: {{runtime: 20}}\n"))
    config, receipt = table_of("brief", 120), "results/runs/brief/trained.json"
    told = sft(project, "brief", config, "drive", "--", receipt)
    first, stop = re.search(r"job (\d+): submitted.*--name=(\S+)", told, re.DOTALL).groups()
    again = sft(project, "brief", config, "drive", "--", receipt)
    log = project.root / "results" / "drive" / f"{first}.log"

    assert re.search(rf"job {first}: (pending|running) already", again)
    assert f"results/drive/{first}.log" in told
    project.cluster.wait_for_job(first, "COMPLETED", wait_s=120)
    assert "this job is about to end" in log.read_text()
    run = rendered_run(project, "brief")
    run.wait((project.root / receipt).exists, "no driver saw the end", 200)
    run.wait(lambda: not drivers(project, stop), "a driver is in the queue")
    assert run.endings() == ["completed"]
    assert read_json(run.checkpoints / "trainer_state.json")["global_step"] == 120
    run.check_traces()
    happens = "it ends snakemake before; the next job of the driver attaches to all that runs"
    table("time limit of a driver that is a job (`sft drive`)", run, happens)


def test_driver_is_stopped_by_the_command_that_it_names(project, table_of):
    config = table_of("stopped", 1000)
    receipt = "results/runs/stopped/trained.json"
    told = sft(project, "tiny", config, "drive", "--", receipt)
    first, name = re.search(r"job (\d+): submitted.*--name=(\S+)", told, re.DOTALL).groups()
    run = rendered_run(project, "stopped")
    run.wait_for_step(1)
    project.cluster.ask("scancel", first)
    run.wait_to_say("attaching to job")
    assert first not in drivers(project, name, "--states=RUNNING")
    project.cluster.ask("scancel", f"--name={name}")
    run.wait(lambda: not drivers(project, name), "a driver is in the queue")

    [job] = run.queued("RUNNING")
    status = sft(project, "tiny", config, "status")
    assert re.search(rf"stopped .*training .*{job}", status), status
    assert re.search(r"\b\d+/1000\b", status), status
