"""What Slurm, its nodes and its users do to the jobs of a training."""

import os
import shutil
import signal
from collections.abc import Sequence

import pytest

from sft.attempts import submitted_jobs
from sft.process import ProcessId, process_id
from tests.slurm.cluster import Cluster
from tests.slurm.config import JUPITER, LEONARDO
from tests.slurm.project import Run, occupy_nodes

LONG = {"max_steps": 30, "save_steps": 5}
STEP = 7  # when a fault comes: a checkpoint is behind it, and another one ahead
WAIT_S = 180.0


def pause(run: Run) -> list[ProcessId]:
    """Stop the run's training processes in the middle, so that a fault finds them there."""
    run.wait_for_step(STEP)
    trainers = [process_id(pid) for pid in run.trainers()]
    send(signal.SIGSTOP, trainers)
    return trainers


def send(number: signal.Signals, processes: Sequence[ProcessId]) -> None:
    for each in processes:
        os.kill(each.pid, number)


def reach_time_limit(run: Run, cluster: Cluster) -> None:
    """Let the run's newest job be at its time limit now; Slurm looks each half minute."""
    job = jobs_of(run)[-1]
    steps = ("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i")
    run.wait(lambda: f"{job}.0" in cluster.ask(*steps).split(), f"job {job} starts no step")
    cluster.ask("scontrol", "update", f"JobId={job}", "TimeLimit=0")


def remove_left(run: Run) -> None:
    """Remove the folders that a launch.sh could not which was killed."""
    for folder in run.temporary:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_attempts(run: Run, count: int) -> None:
    run.wait(lambda: len(run.attempts()) == count, f"there are no {count} attempts", WAIT_S)


def jobs_of(run: Run) -> list[str]:
    return [each["job_id"] for each in run.attempts()]


def steps_of(run: Run) -> list[tuple[int, int]]:
    """From which step to which each attempt went."""
    return [(each["from_step"], each["to_step"]) for each in run.attempts()]


# --- time limits ---------------------------------------------------------------------------------


def test_run_goes_on_after_a_job_that_ends_in_time(new_run, undisturbed, table, cluster):
    margins = {"SFT_END_MARGIN_S": "50", "SFT_SAVE_GUESS_S": "1"}
    run = new_run(config=LONG, request={"minutes": 1}, variables=margins)
    driver = run.start()
    wait_for_attempts(run, 1)
    run.wait(lambda: run.queued("PENDING"), "no next link waits")
    for job in run.queued("PENDING"):
        cluster.ask("scontrol", "update", f"JobId={job}", "TimeLimit=20")
    run.finish(driver, WAIT_S)

    assert run.endings() == ["out_of_time", "completed"]
    (_, stopped), (resumed, _) = steps_of(run)
    assert resumed == stopped > 0
    assert run.weights() == undisturbed(config=LONG)
    run.check_traces()
    happens = "the trainer saves in time and leaves; the next link goes on from that step"
    table("time limit in the middle", run, happens)


def test_run_goes_on_after_a_job_that_slurm_ends_at_its_limit(new_run, undisturbed, table, cluster):
    run = new_run(config=LONG, variables={"SFT_END_MARGIN_S": "-1000"})
    driver = run.start()
    pause(run)
    reach_time_limit(run, cluster)
    run.finish(driver, WAIT_S)

    assert run.endings() == ["timeout", "completed"]
    assert "time limit after step" in run.attempts()[0]["text"]
    assert run.attempts()[1]["resumed"] == "checkpoint-5"
    assert run.weights() == undisturbed(config=LONG)
    remove_left(run)
    run.check_traces()
    happens = "Slurm ends the job; the next link goes on from the newest checkpoint"
    table("time limit in a step that takes too long to save after it", run, happens)


def test_two_jobs_that_leave_no_checkpoint_are_enough(new_run, table, cluster):
    run = new_run(setup="sleep 600")
    driver = run.start()
    for count in (1, 2):
        wait_for_attempts(run, count)
        reach_time_limit(run, cluster)
    text = run.finish(driver, WAIT_S)

    assert driver.returncode == 1
    assert run.endings() == ["timeout", "timeout"]
    assert f"2 attempts (job {', job '.join(jobs_of(run))}) in a row left no checkpoint" in text
    assert "save more often, or ask for a longer wall time" in text
    run.check_traces()
    table("time limit before the first checkpoint", run, "stops after two jobs, with the remedy")


# --- nodes ---------------------------------------------------------------------------------------


def test_run_leaves_nodes_that_lose_their_daemon_or_their_power(
    new_run, undisturbed, table, cluster
):
    runs = [new_run(config=LONG), new_run(config=LONG)]
    drivers = [run.start() for run in runs]
    trainers = [pause(run) for run in runs]
    nodes = [run.attempts()[0]["nodes"][0] for run in runs]
    cluster.kill_slurmd(nodes[0])
    cluster.kill_node(nodes[1])
    wait_for_attempts(runs[0], 2)
    assert not any(each.runs() for each in trainers[0])
    cluster.start_slurmd(nodes[0])
    for run, driver, node in zip(runs, drivers, nodes, strict=True):
        run.finish(driver, WAIT_S)
        assert run.endings() == ["node_fail", "completed"]
        assert run.attempts()[0]["blamed"] == [node]
        assert run.attempts()[1]["nodes"] != [node]
        assert run.weights() == undisturbed(config=LONG)
    remove_left(runs[1])
    for run in runs:
        run.check_traces()
    table(
        "slurmd of the node killed",
        runs[0],
        "the attempt, which Slurm no longer sees, ends itself; the next link goes on elsewhere",
    )
    table("node without power", runs[1], "the next link goes on elsewhere")


def test_next_link_keeps_off_the_node_that_failed(new_run, undisturbed, table, cluster):
    first, *others = LEONARDO
    blocker = cluster.submit(
        *("--partition=boost_usr_prod", f"--nodelist={','.join(others)}", "--exclusive"),
        *("--time=60", "--output=/dev/null", "--wrap=exec sleep 3600"),
    )
    cluster.wait_for_job(blocker, "RUNNING")
    run = new_run(config=LONG)
    driver = run.start()
    run.wait_for_step(STEP)
    cluster.set_node(first, "down")
    cluster.wait_for_job(*jobs_of(run), "NODE_FAIL")
    cluster.set_node(first, "resume")
    run.wait(lambda: "goes on without it" in run.logs(), "no link moved away")
    run.wait(lambda: len(run.queued()) == 1, "the link that moved away is still there")
    [moved] = run.queued()
    assert f"ExcNodeList={first}" in cluster.ask("scontrol", "show", "job", moved)
    cluster.ask("scancel", blocker)
    run.finish(driver, WAIT_S)

    assert run.endings() == ["node_fail", "completed"]
    assert run.attempts()[0]["blamed"] == [first]
    assert jobs_of(run)[1] == moved
    assert run.logs().count("goes on without it") == 1
    assert run.weights() == undisturbed(config=LONG)
    run.check_traces()
    happens = "the next link, when it gets that node again, moves to a job that excludes it"
    table("node set down, and up again", run, happens)


def test_two_nodes_go_on_with_one_that_came_back_where_there_is_no_other(
    new_run, undisturbed, table, cluster
):
    run = new_run(num_nodes=2, config=LONG, request={"partition": "booster"})
    driver = run.start()
    run.wait_for_step(STEP)
    lost = JUPITER[1]
    cluster.kill_node(lost)
    cluster.wait_for_job(*jobs_of(run), "NODE_FAIL")
    cluster.start_slurmd(lost)
    run.finish(driver, WAIT_S)

    assert run.endings() == ["node_fail", "completed"]
    assert run.attempts()[0]["blamed"] == [lost]
    assert f"{lost} failed before, and this job stays there" in run.logs()
    assert run.weights() == undisturbed(num_nodes=2, config=LONG)
    remove_left(run)
    run.check_traces()
    happens = "the next link waits for the node, as the partition has too few without it"
    table("one of two nodes without power, and back", run, happens)


# --- users and administrators --------------------------------------------------------------------


def test_scancel_ends_the_chain(new_run, undisturbed, table, cluster):
    run = new_run(config=LONG)
    driver = run.start()
    run.wait_for_step(STEP)
    cluster.ask("scancel", *jobs_of(run))
    text = run.finish(driver)
    run.wait(lambda: not run.queued(), "the next link does not leave")
    jobs = submitted_jobs(run.checkpoints)

    assert driver.returncode == 1
    assert run.endings() == ["cancelled"]
    assert "cancelled after step" in text and "run again to try once more" in text
    assert "no further attempt: " in run.logs()
    assert len(jobs) == 2
    text = run.train(WAIT_S)
    assert "trying again, after: cancelled" in text
    (_, stopped), (resumed, _) = steps_of(run)
    assert resumed == stopped
    assert run.weights() == undisturbed(config=LONG)
    run.check_traces()
    happens = "saves and stops; the next link leaves. Run again, it goes on from that step"
    table("scancel of the running job", run, happens)


def test_scancel_of_the_next_link_leaves_the_training_alone(new_run, undisturbed, table, cluster):
    run = new_run(config=LONG)
    driver = run.start()
    run.wait_for_step(STEP)
    cluster.ask("scancel", *run.queued("PENDING"))
    run.finish(driver)

    assert driver.returncode == 0
    assert run.endings() == ["completed"]
    assert run.weights() == undisturbed(config=LONG)
    run.check_traces()
    table("scancel of the link that waits", run, "the training ends as if nothing had been")


def test_scancel_before_the_job_ran_stops_until_the_next_start(
    new_run, undisturbed, table, cluster
):
    blocker = occupy_nodes(cluster)
    run = new_run(config=LONG)
    driver = run.start(QUEUE_AGE_S=1)
    run.wait_to_say(" waits (")
    cluster.ask("scancel", *run.queued())
    text = run.finish(driver)

    assert driver.returncode == 1
    assert "cancelled before its first step" in text
    assert run.endings() == ["cancelled"]
    cluster.ask("scancel", blocker)
    run.train()
    assert run.weights() == undisturbed(config=LONG)
    run.check_traces()
    table("scancel of a job before it ran", run, "stops; run again, it begins")


def test_job_that_an_administrator_requeues_goes_on_as_another_attempt(
    new_run, undisturbed, table, cluster
):
    run = new_run(config=LONG, sbatch_options="--requeue")
    driver = run.start()
    run.wait_for_step(STEP)
    [job] = jobs_of(run)
    cluster.ask("scontrol", "requeue", job)
    text = run.finish(driver, WAIT_S)

    assert driver.returncode == 0
    assert f"job {job} waits (BeginTime)" in text
    assert [each["id"] for each in run.attempts()] == [job, f"{job}-restart1"]
    assert run.endings() == ["preempted", "completed"]
    assert "Slurm put the job back into the queue" in run.attempts()[0]["text"]
    (_, stopped), (resumed, _) = steps_of(run)
    assert resumed == stopped
    assert len(submitted_jobs(run.checkpoints)) == 2
    assert run.weights() == undisturbed(config=LONG)
    run.check_traces()
    happens = "the trainer saves and leaves; the same job, run again, goes on from that step"
    table("scontrol requeue, where the site's options allow it", run, happens)


# --- preemption ----------------------------------------------------------------------------------


@pytest.fixture
def preempted(new_run, cluster) -> dict[str, Run]:
    """A complete run for each way of preemption, after a job of a higher partition came once."""
    runs = {
        partition: new_run(config=LONG, request={"partition": partition})
        for partition in ("low", "low_cancel")
    }
    drivers = [run.start() for run in runs.values()]
    trainers = [each for run in runs.values() for each in pause(run)]
    jobs = [job for run in runs.values() for job in jobs_of(run)]
    high = ("--partition=high", "--nodes=2", "--exclusive", "--time=60", "--output=/dev/null")
    other = cluster.submit(*high, "--wrap=exec sleep 3600")
    shown = [["scontrol", "show", "job", job] for job in jobs]
    run = runs["low"]
    run.wait(lambda: all("PreemptTime=" in cluster.ask(*each) for each in shown), "no preemption")
    send(signal.SIGCONT, trainers)
    cluster.wait_for_job(other, "RUNNING")
    cluster.ask("scancel", other)
    for run, driver in zip(runs.values(), drivers, strict=True):
        run.finish(driver, WAIT_S)
    return runs


def test_preempted_jobs_save_and_the_next_links_go_on(preempted, undisturbed, table):
    for run in preempted.values():
        assert run.endings() == ["preempted", "completed"]
        assert "Slurm gave the nodes to another job" in run.attempts()[0]["text"]
        (_, stopped), (resumed, _) = steps_of(run)
        assert resumed == stopped
        assert run.weights() == undisturbed(config=LONG)
        run.check_traces()
    happens = "the trainer saves and leaves; the next link waits, and goes on from that step"
    table("preemption that requeues", preempted["low"], happens)
    table("preemption that cancels", preempted["low_cancel"], happens)
