"""Trainings that fail by themselves: what they write, what they find, and what ends them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sft.attempts import submitted_jobs
from sft.chain import NODE_FAULTS
from sft.checkpoint import newest_complete_checkpoint, resume_fault, step_of
from sft.files import read_json, read_yaml, write_json
from sft.progress import read_events
from tests.slurm.project import TRAINER, WAIT_S


def fail(run) -> str:
    """What a driver says whose run fails."""
    driver = run.start()
    text = run.finish(driver)
    assert driver.returncode == 1, text
    return text


def saved_steps(run) -> list[int]:
    """The steps after which a checkpoint was saved."""
    return [each["step"] for each in read_events(run.checkpoints) if each["event"] == "save"]


def adopt(run, other, *names: str) -> None:
    """Give a run checkpoints of another one."""
    for name in names:
        shutil.copytree(other.checkpoints / name, run.checkpoints / name)


# --- checkpoints ---------------------------------------------------------------------------------


def test_half_written_checkpoint(new_run, undisturbed_run, table):
    run, other = new_run(), undisturbed_run()
    adopt(run, other, "checkpoint-8", "checkpoint-12")
    optimizer = run.checkpoints / "checkpoint-12" / "optimizer.pt"
    os.truncate(optimizer, optimizer.stat().st_size // 2)
    text = run.train()

    assert "checkpoint-12 cannot be resumed and is now broken-checkpoint-12" in text
    assert [each["resumed"] for each in run.attempts()] == ["checkpoint-8"]
    assert (run.checkpoints / "broken-checkpoint-12").is_dir()
    assert run.weights() == other.weights()
    run.check_traces()
    table(
        "newest checkpoint half written",
        run,
        "it is renamed to broken-checkpoint-N, and the run goes on from the one before",
    )


def test_trainer_killed_in_a_save(new_run, undisturbed, table):
    run = new_run(config={"save_steps": 1})
    driver = run.start()
    run.wait_for_step(1)
    [trainer] = run.trainers()
    broken = kill_in_save(run, trainer)
    run.finish(driver)

    assert driver.returncode == 0
    assert run.endings() == ["killed", "completed"]
    assert (run.checkpoints / f"broken-{broken}").is_dir()
    assert run.attempts()[1]["from_step"] == step_of(run.checkpoints / broken) - 1
    assert run.weights() == undisturbed()
    run.check_traces()
    table(
        "trainer killed in the middle of a save (SIGKILL)",
        run,
        "the half checkpoint is put aside; the next job goes on from the one before",
    )


def kill_in_save(run, trainer: int) -> str:
    """The name of the checkpoint in whose save the process was killed."""
    while True:
        before = newest_complete_checkpoint(run.checkpoints)
        expected = run.checkpoints / f"checkpoint-{step_of(before) + 1}"
        while not expected.exists():
            os.kill(trainer, 0)  # it goes on
            time.sleep(0.001)
        os.kill(trainer, signal.SIGSTOP)
        if resume_fault(expected):
            os.kill(trainer, signal.SIGKILL)
            return expected.name
        os.kill(trainer, signal.SIGCONT)  # it was too fast


def test_disk_full_in_a_save(new_run, undisturbed, table, cluster):
    run = new_run()
    disk = cluster.small_disk / run.name
    shutil.move(run.folder / "checkpoints", disk)
    (run.folder / "checkpoints").symlink_to(disk)
    run.render()
    cluster.resize_small_disk(60)  # the first checkpoint and half of the second
    text = fail(run)

    assert "the disk is full" in text
    assert f"0.0 of 0.1 GB are free in {run.checkpoints}" in text
    assert "make room, then start the workflow again" in text
    assert newest_complete_checkpoint(run.checkpoints).name == "checkpoint-4"
    assert not run.queued()

    cluster.resize_small_disk(400)
    text = run.train()

    assert "checkpoint-8 cannot be resumed" in text
    assert [each["resumed"] for each in run.attempts()] == [None, "checkpoint-4"]
    assert run.weights() == undisturbed()
    run.check_traces()
    table(
        "disk full in a save",
        run,
        "the message says how much room there is and where; the older checkpoint stays, and after "
        "room is made the same command goes on from it",
    )


def test_old_checkpoints_are_deleted_while_the_run_saves_by_time(new_run):
    config = {"save_steps": None, "max_steps": 40}
    run = new_run(config=config, node_mtbf_hours=1e-4, variables={"SFT_SAVE_GUESS_S": "0.1"})
    driver = run.start()
    deleted = set()
    while driver.poll() is None:
        saved = saved_steps(run)
        kept = {step_of(each) for each in run.checkpoints.glob("checkpoint-*")}
        assert kept.issuperset(saved[-1:])
        if run.trainers():
            deleted |= set(saved) - kept
        time.sleep(0.2)

    assert driver.returncode == 0
    assert deleted
    saved = saved_steps(run)
    assert saved == sorted({*saved, 40})
    assert {step_of(each) for each in run.checkpoints.glob("checkpoint-*")} == {*saved[-2:]}


def test_changed_save_steps_hold_for_a_resumed_run(new_run, undisturbed_run):
    run, other = new_run(config={"save_steps": 1, "save_total_limit": None}), undisturbed_run()
    adopt(run, other, "checkpoint-8")
    run.train()

    assert saved_steps(run) == [9, 10, 11, 12]
    assert run.weights() == other.weights()


def test_other_number_of_processes_is_refused(new_run, undisturbed_run, table):
    run, other = new_run(num_nodes=2), undisturbed_run()
    adopt(run, other, "checkpoint-8", "attempts")
    for path in (run.checkpoints / "attempts").glob("*.ending.json"):
        write_json(path, read_json(path) | {"ending": "timeout", "retry": True})
    text = fail(run)

    assert "holds checkpoints of 1 processes, and the row asks for 2" in text
    assert "go back to the nodes of before, or move the folder away to start over" in text
    assert not submitted_jobs(run.checkpoints)
    table(
        "row asks for another number of processes than its checkpoints",
        run,
        "refused before a job is submitted, with the choices",
    )


# --- starts that fail ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said", "fault"),
    [
        pytest.param(
            "source /nowhere/bin/activate",
            "/nowhere/bin/activate: No such file or directory",
            "line that enters the environment names a missing file",
            id="missing",
        ),
        pytest.param(
            f"source {sys.prefix}/bin/activate",
            "the environment lacks the module omegaconf",
            "environment without the trainer",
            id="foreign",
        ),
    ],
)
def test_wrong_environment(new_run, table, cluster, line, said, fault):
    run = new_run(environments={"otagent": line})
    text = fail(run)

    assert said in text
    assert "in the site's profile (docs/add_a_site.md, Environments)" in text
    [attempt] = run.attempts()
    assert attempt["ending"] == "failed_start"
    assert cluster.queue()[attempt["next_job"]].state == "CANCELLED"
    run.check_traces()
    table(fault, run, "the message names it, and the line of the profile to correct")


def test_python_is_not_seen_by_the_node(new_run, table):
    run = new_run()
    script = run.folder / "train.sbatch"
    script.write_text(script.read_text().replace(f"python={sys.executable}", "python=/nowhere/py"))
    text = fail(run)

    assert "/nowhere/py cannot be read on lrdn0001" in text
    assert (
        "let this repository, its environment and the results lie where compute nodes see" in text
    )
    assert run.endings() == ["failed_start"]
    run.check_traces()
    table(
        "the workflow's python is not seen by the node",
        run,
        "the message says what the node cannot read",
    )


def test_log_cannot_be_written(new_run, table):
    run = new_run()
    script = run.folder / "train.sbatch"
    script.write_text(script.read_text().replace(f"--output={run.folder}/logs", "--output=/proc"))
    text = fail(run)

    assert "Slurm could not make the log's file" in text
    assert "the whole output" not in text
    assert run.endings() == ["quota"]
    run.check_traces()
    table(
        "job's log cannot be written (FAILED 0:53)",
        run,
        "the message says to look at space and number of files",
    )


def test_tokens_are_gone(new_run, undisturbed_run, table, cluster):
    other = undisturbed_run()
    tokens = Path(read_yaml(other.folder / "train.yaml")["tokenized_path"])
    run = new_run(config={"tokenized_path": str(tokens.with_name("gone"))})
    text = fail(run)

    assert f"the tokens at {tokens.with_name('gone')} are gone" in text
    assert run.endings() == ["failed_start"]
    run.check_traces()
    table("tokens folder is gone", run, "the message names it; it is not tried again by itself")

    run.render()
    job = cluster.submit(str(run.folder / "train.sbatch"))
    cluster.wait_for_job(job, "COMPLETED", wait_s=WAIT_S)

    assert run.endings() == ["failed_start", "completed"]
    assert run.weights() == other.weights()
    run.check_traces()
    table(
        "started by hand after a failure (sbatch train.sbatch)",
        run,
        "the job trains the run, and links follow it as with a driver",
    )


def test_exception_at_start(new_run, table):
    run = new_run(config={"optim": "adamw_bnb_8bit"})
    text = fail(run)

    assert "ImportError" in text and "bitsandbytes" in text
    assert run.endings() == ["failed_start"]
    run.check_traces()
    table("Python exception at start", run, "the message shows it; it is not tried again by itself")


def test_port_is_taken(new_run, undisturbed, table, cluster):
    run = new_run(num_nodes=2)
    before = cluster.submit("--output=/dev/null", "--wrap=true")
    port = 16000 + (int(before) + 1) % 16000
    with socket.create_server(("", port)):
        run.train(2 * WAIT_S)

    assert run.endings() == ["communication", "completed"]
    assert "the port of the rendezvous is taken" in run.attempts()[0]["text"]
    assert run.weights() == undisturbed(num_nodes=2)
    run.check_traces()
    table("port of the rendezvous is taken", run, "the next job has another port")


# --- processes that die or hang ------------------------------------------------------------------


def test_one_of_two_trainers_is_killed(new_run, undisturbed, table):
    run = new_run(num_nodes=2)
    driver = run.start()
    run.wait_for_step(1)
    _, second = run.trainers()
    run.wait(lambda: saved_steps(run), "nothing was saved")
    os.kill(second, signal.SIGKILL)
    text = run.finish(driver, 2 * WAIT_S)

    assert driver.returncode == 0, text
    assert run.endings() == ["killed", "completed"]
    first, after = run.attempts()
    assert "a training process was killed (SIGKILL" in first["text"]
    assert "lrdn0002" in first["text"] and "ask for more memory" in first["text"]
    assert after["from_step"] in (4, 8)
    assert run.weights() == undisturbed(num_nodes=2)
    run.check_traces()
    table(
        "one of two training processes killed (SIGKILL)",
        run,
        "the text says on which node; the next job goes on from the newest checkpoint",
    )


def test_one_of_two_trainers_crashes(new_run, table):
    run = new_run(num_nodes=2)
    driver = run.start()
    run.wait_for_step(1)
    _, second = run.trainers()
    run.wait(lambda: saved_steps(run), "nothing was saved")
    os.kill(second, signal.SIGSEGV)
    text = run.finish(driver)

    assert driver.returncode == 1, text
    assert "a training process crashed (segmentation fault) (lrdn0002, after step" in text
    assert '| 1 × File "' in text
    assert run.endings() == ["exception"]
    run.check_traces()
    table(
        "one of two training processes crashes (SIGSEGV)",
        run,
        "the message says on which node and in which line; it is not tried again by itself",
    )


def test_diverged(new_run, table):
    run = new_run(config={"learning_rate": 1e30, "warmup_steps": 0, "save_steps": 2})
    text = fail(run)

    assert "loss or gradients were not finite" in text and "lower learning_rate" in text
    assert run.endings() == ["diverged"]
    assert not list(run.checkpoints.glob("checkpoint-*"))
    run.check_traces()
    table("training diverges", run, "it stops within steps and saves nothing of that state")


def test_stuck(new_run, undisturbed_run, table, cluster, tmp_path):
    other, tokens = undisturbed_run(), tmp_path / "tokens"
    shutil.copytree(read_yaml(other.folder / "train.yaml")["tokenized_path"], tokens)
    [data] = tokens.glob("*.arrow")
    data.rename(tmp_path / "data")
    os.mkfifo(data)  # who opens it waits for ever
    run = new_run(config={"tokenized_path": str(tokens)})
    cluster.submit(str(run.folder / "train.sbatch"), "--stuck-minutes=0.3")
    run.wait(run.endings, "no attempt began")
    driver = run.start()
    run.wait(lambda: run.endings()[0], "it goes on")
    (tmp_path / "data").rename(data)
    text = run.finish(driver)

    assert driver.returncode == 0, text
    assert run.endings() == ["stuck", "completed"]
    [stack, *_] = run.attempts()[0]["lines"]
    assert stack.startswith("1 × File ")
    assert run.weights() == other.weights()
    run.check_traces()
    table(
        "training hangs",
        run,
        "ended after stuck_minutes; the processes write where they hang; the next job goes on",
    )


def test_trainer_is_killed_before_each_first_checkpoint(new_run, table):
    run = new_run()
    driver = run.start()
    killed = set()
    while driver.poll() is None:
        for trainer in set(run.trainers()) - killed:
            os.kill(trainer, signal.SIGKILL)
            killed.add(trainer)
        time.sleep(0.2)
    text = run.finish(driver)

    assert "in a row left no checkpoint after step 0 (killed)" in text
    assert "ask the site's staff who ends it" in text
    assert run.endings() == ["killed"] * NODE_FAULTS
    run.check_traces()
    table("trainer killed again and again before its first checkpoint", run, "given up")


# --- what a job makes on its nodes ---------------------------------------------------------------

WAITING = """\
#!/bin/bash
trap 'exit 75' TERM
spill=${{HF_DATASETS_CACHE%/datasets}}
touch "$TMPDIR/socket" "$spill/large"
echo "$TMPDIR $spill" > "{folder}/$SLURM_NODEID.folders"
while true; do sleep 0.1; done
"""


def test_folders_of_a_job_are_removed_when_it_is_cancelled(new_run, cluster, tmp_path):
    """The trainer of this test only waits to be told to end."""
    path = tmp_path / "bin" / "python"
    path.parent.mkdir()
    path.write_text(WAITING.format(folder=tmp_path))
    path.chmod(0o755)
    run = new_run(
        num_nodes=2,
        environments={"otagent": f"export PATH={path.parent}:$PATH"},
        spill_folder=str(tmp_path / "spill"),
    )
    driver = run.start()
    notes = [tmp_path / f"{node}.folders" for node in (0, 1)]
    run.wait(lambda: all(note.exists() and note.read_text() for note in notes), "no trainer began")
    [job] = run.queued("RUNNING")
    folders = [Path(each) for note in notes for each in note.read_text().split()]
    assert len(set(folders)) == 4
    assert all(each.is_dir() for each in folders)
    assert folders[1::2] == [tmp_path / "spill" / f"{job}-{node}" for node in (0, 1)]
    cluster.ask("scancel", job)
    run.finish(driver)

    assert not any(each.exists() for each in folders)


def test_launch_script_needs_nothing_of_the_shell(new_run, tmp_path):
    """Its prologue; the command is one that shows the environment in which it is started."""
    run = new_run()
    script = run.folder / "launch.sh"
    text = script.read_text()
    command = next(line for line in text.splitlines() if line.startswith("python -m"))
    script.write_text(text.replace(command, "command -v python; env &"))
    done = subprocess.run(
        ["/usr/bin/env", "-i", "/bin/bash", script], capture_output=True, text=True, check=True
    )

    lines = done.stdout.splitlines()
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    assert Path(lines[0]).parent.samefile(TRAINER / "bin")
    assert variables["OMP_WAIT_POLICY"] == "passive"
    assert variables["PYTHONPATH"] == str(run.project.root)
    assert not Path(variables["TMPDIR"]).exists()
