"""Trainings that fail by themselves: what they write, what they find, and what ends them."""

import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from sft.attempts import submitted_jobs
from sft.checkpoint import newest_complete_checkpoint, resume_fault, step_of
from sft.files import read_json, read_yaml, write_json
from sft.progress import read_events
from tests.slurm.project import WAIT_S


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
            os.kill(trainer, 0)
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
    config = {"save_steps": None, "max_steps": 60}
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
    assert saved == sorted({*saved, 60})
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
def test_wrong_environment(new_run, table, line, said, fault):
    run = new_run(environments={"otagent": line})
    text = fail(run)

    assert said in text
    assert "in the site's profile (docs/add_a_site.md, Environments)" in text
    assert run.endings() == ["failed_start"]
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
        text = run.train(wait_s=240)

    assert run.endings() == ["communication", "completed"]
    assert "the port of the rendezvous is taken" in run.attempts()[0]["text"]
    assert run.weights() == undisturbed(num_nodes=2)
    run.check_traces()
    table("port of the rendezvous is taken", run, "the next job has another port")


# --- processes that die or hang ------------------------------------------------------------------


def test_one_of_two_trainers_is_killed(new_run, undisturbed, table):
    run = new_run(num_nodes=2)
    driver = run.start()
    run.wait_for_step(5)
    os.kill(run.trainers()[1], signal.SIGKILL)
    run.finish(driver)
    print(run.attempts())

    assert driver.returncode == 0
    assert run.endings() == ["killed", "completed"]
    assert run.attempts()[1]["resumed"] == "checkpoint-4"
    assert run.weights() == undisturbed(num_nodes=2)
    run.check_traces()
    table("one of two training processes killed (SIGKILL)", run, "the next job goes on")


def test_one_of_two_trainers_crashes(new_run, table):
    run = new_run(num_nodes=2)
    driver = run.start()
    run.wait_for_step(5)
    os.kill(run.trainers()[1], signal.SIGSEGV)
    text = run.finish(driver)
    print(text)

    assert driver.returncode == 1
    assert run.endings() == ["exception"]
    run.check_traces()


def test_diverged(new_run, table):
    run = new_run(config={"learning_rate": 1e30, "warmup_steps": 0, "save_steps": 2})
    text = fail(run)

    assert "loss or gradients were not finite" in text and "lower learning_rate" in text
    assert run.endings() == ["diverged"]
    assert not list(run.checkpoints.glob("checkpoint-*"))
    run.check_traces()
    table("training diverges", run, "it stops within steps and saves nothing of that state")


def test_stuck(new_run, undisturbed_run, table, cluster, tmp_path):
    other = undisturbed_run()
    model = tmp_path / "model"
    shutil.copytree(read_yaml(other.folder / "train.yaml")["model_name_or_path"], model)
    weights = (model / "model.safetensors").rename(tmp_path / "weights")
    os.mkfifo(model / "model.safetensors")  # who opens it waits for ever
    run = new_run(config={"model_name_or_path": str(model)})
    cluster.submit(str(run.folder / "train.sbatch"), "--stuck-minutes=0.3")
    run.wait(run.endings, "no attempt began")
    driver = run.start()
    run.wait(lambda: run.endings()[0], "it goes on")
    shutil.move(weights, model / "model.safetensors")
    text = run.finish(driver)

    assert driver.returncode == 0, text
    assert run.endings() == ["stuck", "completed"]
    print(run.attempts()[0])
    print(run.logs())
    assert run.weights() == other.weights()
    run.check_traces()


def test_no_progress(new_run, table):
    run = new_run()
    driver = run.start()
    killed = set()
    while driver.poll() is None:
        for trainer in set(run.trainers()) - killed:
            os.kill(trainer, signal.SIGKILL)
            killed.add(trainer)
        time.sleep(0.2)
    text = run.finish(driver)
    print(text)
