"""Drivers that are killed, told to stop, doubled, or that Slurm does not answer or refuses."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from sft.attempts import submitted_jobs
from sft.checkpoint import finished_folder
from tests.slurm.cluster import Cluster
from tests.slurm.project import ROWS, Project, Run, occupy_nodes, rendered_run


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
    jobs = " ".join(sorted(run.queued()))

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


# --- what happens while no driver lives ----------------------------------------------------------


def test_failure_without_a_driver_is_reported_once(new_run, undisturbed, table):
    run = new_run()
    launch = run.folder / "launch.sh"
    whole = launch.read_text()
    launch.write_text(whole.replace("pipefail\n", "pipefail\ncd /no/such/folder\n"))
    driver = run.start()
    wait_for_job(run)
    kill(driver)
    run.wait(lambda: not run.queued(), "the job is in the queue")
    jobs = submitted_jobs(run.checkpoints)
    driver = run.start()
    text = run.finish(driver)

    assert driver.returncode == 1
    assert "/no/such/folder" in text and "run again to try once more" in text
    assert submitted_jobs(run.checkpoints) == jobs
    launch.write_text(whole)
    assert "trying again, after: " in run.train()
    assert run.weights() == undisturbed()
    run.check_traces()
    happens = "the next driver says why, and submits nothing; the one after it tries again"
    table("training failed while no driver lived", run, happens)


def test_chain_goes_on_without_a_driver(new_run, undisturbed, table, cluster):
    run = new_run()
    driver = run.start()
    run.wait_for_step(5)
    kill(driver)
    [node] = run.attempts()[0]["nodes"]
    cluster.set_node(node, "down")
    run.wait(lambda: not run.queued(), "a job is in the queue")
    text = run.train(wait_s=30)

    assert "submitted" not in text
    assert run.endings() == ["node_fail", "completed"]
    assert run.weights() == undisturbed()
    run.check_traces()
    table("node lost while no driver lives", run, "the next link, which waits already, goes on")


# --- Slurm does not answer -----------------------------------------------------------------------

AWAY = "Slurm does not answer; its jobs go on, and this waits"
BACK = "Slurm answers again"


def test_controller_away_at_submission_and_while_the_job_waits(
    new_run, undisturbed, table, tmp_path, cluster
):
    run = new_run()
    called, go = tmp_path / "called", tmp_path / "go"
    wait = f'touch {called}; until [ -e {go} ]; do sleep 0.1; done; exec "$sbatch" "$@"'
    driver = run.start(shim(tmp_path / "bin", wait), AWAY_S=1, QUEUE_AGE_S=1)
    run.wait(called.exists, "sbatch was not called")
    cluster.stop_controller()
    go.touch()
    run.wait_to_say(AWAY)
    cluster.start_controller()
    blocker = occupy_nodes(cluster)
    run.wait_to_say(" waits (")
    cluster.stop_controller()
    run.wait_to_say(AWAY, times=2)
    cluster.start_controller()
    run.wait_to_say(BACK, times=2)
    cluster.ask("scancel", blocker)
    text = run.finish(driver)

    assert driver.returncode == 0
    assert (text.count(AWAY), text.count("submitted job")) == (2, 1)
    assert run.endings() == ["completed"]
    assert run.weights() == undisturbed()
    run.check_traces()
    happens = "the driver says so once, waits, and goes on when Slurm answers"
    table("slurmctld away at submission", run, happens)
    table("slurmctld away while a job waits", run, happens)


def test_controller_away_while_the_job_runs_and_ends(new_run, undisturbed, table, cluster):
    run = new_run()
    driver = run.start(AWAY_S=1, QUEUE_AGE_S=1)
    run.wait_for_step(1)
    cluster.stop_controller()
    run.wait(lambda: finished_folder(run.checkpoints), "the training did not end")
    run.wait_to_say(AWAY)
    cluster.start_controller()
    text = run.finish(driver)

    assert driver.returncode == 0
    assert (text.count(AWAY), text.count(BACK)) == (1, 1)
    assert run.endings() == ["completed"]
    assert run.weights() == undisturbed()
    run.check_traces()
    happens = "the driver says so once and waits; what ended meanwhile is seen afterwards"
    table("slurmctld away while a job runs and ends", run, happens)


def test_answer_to_a_submission_that_is_lost_doubles_no_job(new_run, undisturbed, table, tmp_path):
    run = new_run()
    lost = tmp_path / "lost"
    words = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    deaf = f'[ -e {lost} ] && exec "$sbatch" "$@"\ntouch {lost}; "$sbatch" "$@" >/dev/null\n'
    driver = run.start(shim(tmp_path / "bin", f'{deaf}echo "{words}" >&2; exit 1'), AWAY_S=1)
    text = run.finish(driver)

    assert driver.returncode == 0
    assert AWAY in text and "submitted job" not in text
    assert run.endings() == ["completed"]
    assert run.weights() == undisturbed()
    run.check_traces()
    table("Slurm's answer to a submission is lost", run, "the driver attaches to the job")


def test_accounting_away_for_the_whole_run(new_run, undisturbed, table, cluster):
    run = new_run()
    cluster.stop_accounting()
    run.train()
    run.check_traces()
    cluster.start_accounting()

    assert run.endings() == ["completed"]
    assert run.weights() == undisturbed()
    table("slurmdbd away for the whole run", run, "nobody notices")


def test_cluster_without_accounting(project, undisturbed, table, short_folder):
    alone = Cluster.start(short_folder, accounting=False)
    try:
        run = Run(Project(project.root, alone), "without_accounting").render()
        driver = run.start()
        run.wait_for_step(5)
        [node] = run.attempts()[0]["nodes"]
        alone.set_node(node, "down")
        text = run.finish(driver)
        run.check_traces()
    finally:
        alone.stop()

    assert driver.returncode == 0, text
    assert run.endings() == ["node_fail", "completed"]
    assert run.weights() == undisturbed()
    table("no accounting at all, and a node lost", run, "as with accounting")


# --- Slurm refuses -------------------------------------------------------------------------------

REFUSED = {
    "account": "write an account of yours as slurm_account",
    "partition": "sinfo --all lists them",
    "qos": "write a qos that your account has",
}


@pytest.mark.parametrize("what", REFUSED)
def test_job_that_slurm_refuses(what, new_run, table):
    run = new_run(request={what: "nobody"})
    driver = run.start()
    text = run.finish(driver)

    assert driver.returncode == 1
    assert "Slurm refuses the job: " in text and REFUSED[what] in text
    assert "Traceback" not in text
    assert submitted_jobs(run.checkpoints) == []
    run.check_traces()
    table(f"{what} that Slurm refuses", run, "one message, with the remedy")


def test_refused_run_trains_after_the_correction(new_run, undisturbed):
    run = new_run(request={"account": "nobody"})
    run.finish(run.start())
    run.render()
    run.train()

    assert run.endings() == ["completed"]
    assert run.weights() == undisturbed()
    run.check_traces()


def test_reason_is_said_of_a_job_that_waits_for_ever(new_run, table, cluster):
    run = new_run(request={"qos": "boost_qos_dbg", "minutes": 60})
    run.start(QUEUE_AGE_S=2)
    run.wait_to_say("waits (QOSMaxWallDurationPerJobLimit)")
    cluster.ask("scancel", *run.queued())
    run.wait_to_say("run again to try once more")

    assert run.endings() == ["cancelled"]
    run.check_traces()
    happens = "Slurm's reason is said while it waits; a limit in the profile refuses it before"
    table("wall time over that of the QOS", run, happens)


def test_wall_time_over_the_profiles_limit_is_refused_before_submission(project, tmp_path):
    limits = tmp_path / "limits.yaml"
    limits.write_text("max_minutes_by_qos: {boost_qos_dbg: 10}\n")
    asked = ("--set-resources", "train:qos=boost_qos_dbg")
    snakemake = project.snakemake("--configfile", str(limits), *asked)
    text = snakemake.communicate(timeout=60)[0]

    assert snakemake.returncode == 1
    assert "found 30 minutes, expected at most 10 for qos boost_qos_dbg" in text


def test_driver_waits_where_no_more_jobs_may_be_submitted(new_run, undisturbed, table, cluster):
    run = new_run()
    limit = ("sacctmgr", "-i", "modify", "user", "root", "where", "account=lab_leonardo", "set")
    blocker = occupy_nodes(cluster)
    cluster.ask(*limit, "MaxSubmitJobs=1")
    try:
        driver = run.start(FULL_S=2, QUEUE_AGE_S=2)
        run.wait_to_say("Slurm takes no more jobs of yours now; this waits")
        cluster.ask("scancel", blocker)
        run.wait_for_step(5)
        cluster.set_node(run.attempts()[0]["nodes"][0], "down")
        text = run.finish(driver)
    finally:
        cluster.ask(*limit, "MaxSubmitJobs=-1")

    assert driver.returncode == 0, text
    assert "no job could be queued from here" in run.logs()
    assert run.endings() == ["node_fail", "completed"]
    assert len(submitted_jobs(run.checkpoints)) == 2
    assert run.weights() == undisturbed()
    run.check_traces()
    table(
        "as many jobs as may be submitted are in the queue already",
        run,
        "the driver says so and waits; where no next link can be queued, it submits it later",
    )


# --- a row that is changed -----------------------------------------------------------------------


def test_changed_row_leaves_the_old_job_and_its_chain_ends(new_run, table, cluster):
    old = new_run(config={"max_steps": 200})
    driver = old.start()
    old.wait_for_step(1)
    kill(driver)
    [job] = old.queued("RUNNING")
    new = replace(old, fingerprint="89abcdef", temporary=set()).render(config={"max_steps": 6})
    text = new.train()

    assert f"job {job} still trains what this row said before; stop it with: scancel" in text
    assert new.endings() == ["completed"]
    assert old.queued("RUNNING") == [job]
    cluster.set_node(old.attempts()[0]["nodes"][0], "down")
    old.check_traces()
    new.check_traces()
    assert "the row was changed" in old.logs()
    assert len(old.attempts()) == 1
    happens = "a warning names the old job; its next link leaves the old checkpoints as they are"
    table("row changed while its job runs", new, happens)


# --- snakemake itself ----------------------------------------------------------------------------


def jobs_of_rule(project: Project, rule: str) -> list[str]:
    """The ids of the jobs that snakemake's executor submitted for a rule, by their logs."""
    logs = (project.root / "results" / "slurm_logs" / f"rule_{rule}").rglob("*.log")
    return sorted((path.stem for path in logs), key=int)


def test_table_is_trained_and_released_though_snakemake_is_killed(
    project, undisturbed, table, cluster
):
    runs = [rendered_run(project, name) for name in ("one", "two")]
    snakemake = project.snakemake()
    runs[0].wait_for_step(0)
    os.kill(snakemake.pid, signal.SIGKILL)
    snakemake.communicate()
    snakemake = project.snakemake()
    text = snakemake.communicate(timeout=300)[0]

    assert snakemake.returncode == 0, text
    assert "its locks are removed" in text
    for run in runs:
        assert (run.folder / "uploaded.json").exists()
        assert (run.folder / "registered.json").exists()
        assert run.endings() == ["completed"]
        run.check_traces()
    assert runs[0].weights() == undisturbed()
    table("snakemake killed while it trains", runs[0], "the next one attaches to the jobs")


def test_tokens_are_made_by_a_job_on_a_cpu_partition(project, cluster):
    job, *_ = jobs_of_rule(project, "pretokenize")
    told = cluster.ask("sacct", "-X", "-n", "-P", f"--jobs={job}", "--format=Partition,State")

    assert told == "lrd_all_serial|COMPLETED"


def test_snakemake_waits_for_the_jobs_that_a_killed_one_left(project, table, tmp_path, cluster):
    experiments = tmp_path / "experiments.tsv"
    titles, row, _ = ROWS.splitlines()
    experiments.write_text(f"{titles}\tmax_samples\n{row.replace('one', 'three')}\t12\n")
    config = tmp_path / "config.yaml"
    config.write_text(f"experiments: {experiments}\n")
    before = jobs_of_rule(project, "pretokenize")
    target = ("results/runs/three/train.yaml", "--until", "pretokenize")
    command = (*target, "--configfile", str(config))
    snakemake = project.snakemake(*command)
    run = Run(project, "three")
    run.wait(lambda: len(jobs_of_rule(project, "pretokenize")) > len(before), "no job has begun")
    snakemake.kill()
    snakemake.communicate()
    snakemake = project.snakemake(*command)
    text = snakemake.communicate(timeout=200)[0]

    assert snakemake.returncode == 0, text
    [job, *more] = [each for each in jobs_of_rule(project, "pretokenize") if each not in before]
    assert f"waiting for jobs that a snakemake left here when it was killed: {job} (pretok" in text
    assert more == [], text
    happens = "the next one waits for its end, then goes on"
    table("snakemake killed while a job of its executor runs", run, happens)
