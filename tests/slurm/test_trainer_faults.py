"""Trainings that fail by themselves: what they write, what they find, and what ends them."""

import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from sft.checkpoint import newest_complete_checkpoint, resume_fault, step_of
from tests.slurm.project import occupy_nodes


def fail(run) -> str:
    """What a driver says whose run fails."""
    driver = run.start()
    text = run.finish(driver)
    assert driver.returncode == 1, text
    return text


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


def test_saves_by_time_and_prunes_while_it_runs(new_run):
    variables = {"SFT_NODE_MTBF_HOURS": "0.0001", "SFT_SAVE_GUESS_S": "0.1"}
    run = new_run(config={"save_steps": None, "max_steps": 60}, variables=variables)
    driver = run.start()
    run.wait(lambda: saved_steps(run), "nothing was saved by time")
    steps = set()
    while driver.poll() is None:
        steps.update(step_of(each) for each in run.checkpoints.glob("checkpoint-*"))
        assert newest_complete_checkpoint(run.checkpoints)
        time.sleep(0.2)

    assert driver.returncode == 0
    log = Path(run.attempts()[0]["log"]).read_text()
    assert log.index("deleted checkpoint-") < log.index("'train_runtime'")
    assert len(list(run.checkpoints.glob("checkpoint-*"))) == 2
    assert len(saved_steps(run)) > 3 


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
