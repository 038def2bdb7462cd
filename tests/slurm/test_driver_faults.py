"""Drivers that are killed, told to stop, doubled, or that Slurm does not answer or refuses."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from sft.attempts import submitted_jobs
from sft.checkpoint import finished_folder
from tests.slurm.project import occupy_nodes


def kill(driver, number=signal.SIGKILL):
    os.killpg(driver.pid, number)
    driver.communicate(timeout=30)


def shim(folder: Path, text: str) -> Path:
    """A folder for PATH whose sbatch does what the text says; $sbatch is the true one."""
    folder.mkdir()
    path = folder / "sbatch"
    path.write_text(f"#!/bin/bash\nsbatch={shutil.which('sbatch')}\n{text}")
    path.chmod(0o755)
    return folder


def wait_for_job(run) -> str:
    """The id of the run's first job, once it is noted."""
    run.wait(lambda: submitted_jobs(run.checkpoints), "no job was noted")
    return submitted_jobs(run.checkpoints)[0]


# --- drivers that die ----------------------------------------------------------------------------


def test_driver_killed_while_its_job_waits(new_run, undisturbed, table, cluster):
    run = new_run()
    blocker = occupy_nodes(cluster)
    driver = run.start()
    job = wait_for_job(run)
    kill(driver)
    driver = run.start()
    run.wait_to_say(f"attaching to job {job}, which is there already")
    cluster.ask("scancel", blocker)
    run.finish(driver)

    assert driver.returncode == 0
    assert [each["job_id"] for each in run.attempts()] == [job]
    assert run.weights() == undisturbed()
    run.check_traces()
    table("driver killed while its job waits", run, "the next driver attaches to the job")


def test_drivers_killed_and_hung_up_while_their_job_runs(new_run, undisturbed, table):
    run = new_run()
    driver = run.start()
    run.wait_for_step(0)
    kill(driver)
    driver = run.start()
    run.wait_to_say("attaching to job")
    kill(driver, signal.SIGHUP)
    text = run.train()

    assert "attaching to job" in text or "complete" in text
    assert run.endings() == ["completed"]
    assert run.weights() == undisturbed()
    run.check_traces()
    happens = "the job goes on; the next driver attaches to it"
    table("driver killed while its job runs (SIGKILL)", run, happens)
    table("driver's terminal closed (SIGHUP)", run, happens)


def test_driver_killed_while_its_job_ends(new_run, undisturbed, table):
    run = new_run()
    driver = run.start()
    run.wait_for_step(12)
    kill(driver)
    run.wait(lambda: not run.queued(), "the job is in the queue")
    text = run.train(wait_s=30)

    assert "submitted" not in text
    assert run.endings() == ["completed"]
    assert run.weights() == undisturbed()
    run.check_traces()
    table("driver killed while its job ends", run, "the next driver finds the run complete")


def test_driver_killed_between_submission_and_note(new_run, undisturbed, table, tmp_path):
    run = new_run()
    accepted = tmp_path / "accepted"
    slow = shim(tmp_path / "bin", f'"$sbatch" "$@"; code=$?; touch {accepted}; sleep 3; exit $code')
    driver = run.start(slow)
    run.wait(accepted.exists, "nothing was submitted")
    kill(driver)
    text = run.train()

    [job] = [each["job_id"] for each in run.attempts()]
    assert f"attaching to job {job}" in text
    assert job in submitted_jobs(run.checkpoints)
    assert run.weights() == undisturbed()
    run.check_traces()
    table(
        "driver killed between sbatch's success and the note of the job's id",
        run,
        "the id is noted all the same; the next driver attaches to the job",
    )


# --- drivers that are told to stop, and two at once ----------------------------------------------


def test_ctrl_c_leaves_the_job(new_run, undisturbed, table):
    run = new_run()
    driver = run.start()
    run.wait_for_step(0)
    os.kill(driver.pid, signal.SIGINT)
    text = run.finish(driver, 30)
    jobs = " ".join(run.queued())

    assert driver.returncode == 1
    assert f"job {jobs} stays in the queue and goes on by itself" in text
    assert f"stop it with: scancel {jobs}" in text
    run.train()
    assert run.endings() == ["completed"]
    assert run.weights() == undisturbed()
    run.check_traces()
    table("Ctrl-C", run, "the job goes on; it is said which, and how to stop it")


def test_ctrl_c_while_the_job_is_submitted(new_run, table, tmp_path, cluster):
    occupy_nodes(cluster)
    run = new_run()
    called = tmp_path / "called"
    slow = shim(tmp_path / "bin", f'touch {called}; sleep 2; exec "$sbatch" "$@"')
    driver = run.start(slow)
    run.wait(called.exists, "sbatch was not called")
    os.kill(driver.pid, signal.SIGINT)
    text = run.finish(driver, 30)
    [job] = run.queued()

    assert f"stop it with: scancel {job}" in text
    assert submitted_jobs(run.checkpoints) == [job]
    cluster.ask("scancel", job)
    run.check_traces()
    table("Ctrl-C while the job is submitted", run, "submits it first, then says how to stop it")


def test_second_driver_says_who_follows_the_run(new_run, undisturbed, table):
    run = new_run()
    first = run.start()
    wait_for_job(run)
    second = run.start()
    texts = [run.finish(each) for each in (first, second)]

    assert (first.returncode, second.returncode) == (0, 0)
    assert f"process {first.pid} of" in texts[1]
    assert run.endings() == ["completed"]
    assert run.weights() == undisturbed()
    run.check_traces()
    table("two drivers at once", run, "the second says who follows the job, and follows it too")
