"""The private Slurm behaves as a site's does, and leaves nothing behind."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm import cluster as cluster_module
from tests.slurm.cluster import Cluster
from tests.slurm.config import JUPITER, LEONARDO, SUSPENDED_ACCOUNT, VISTA
from tests.unit.killing import wait_until

Faults = tuple[Cluster, dict[str, str]]
QUIET = ("--output=/dev/null", "--mem=100")
SLEEP = (*QUIET, "--wrap=sleep 600")


def processes(folder: Path) -> list[str]:
    """The command lines of all processes whose environment or arguments name a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            text = command.encode() + (process / "environ").read_bytes()
        except OSError:  # it ended
            continue
        if f"{folder}/".encode() in text:
            found.append(command)
    return found


def submit_running(cluster: Cluster, *arguments: str, step: bool = True) -> str:
    """The id of a job that sleeps for long on its nodes, in a step or in its script."""
    started = cluster.folder / "started"
    started.unlink(missing_ok=True)
    script = f"{'srun' if step else 'exec'} sh -c 'touch {started}; exec sleep 600'"
    job = cluster.submit(*arguments, *QUIET, f"--wrap={script}")
    wait_until(started.exists)
    return job


def command_line(*arguments: object) -> str:
    command = [sys.executable, "-m", "tests.slurm.cluster", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.fixture(scope="module", autouse=True)
def slow_faults() -> Iterator[Faults]:
    """A second cluster, and its jobs by the fault that will end each in about half a minute.

    They are brought about before the first test and looked at in the last ones.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as folder:
        cluster = Cluster.start(Path(folder), accounting=False)
        try:
            yield cluster, bring_about_faults(cluster)
        finally:
            cluster.stop()


def bring_about_faults(cluster: Cluster) -> dict[str, str]:
    # A step would end in the grace time of a preemption, and its job as FAILED.
    requeued = submit_running(cluster, "--partition=low", f"--nodelist={JUPITER[0]}", step=False)
    cancelled = submit_running(
        cluster, "--partition=low_cancel", f"--nodelist={JUPITER[1]}", step=False
    )
    on_dead_node = submit_running(cluster, "--no-requeue", f"--nodelist={LEONARDO[0]}")
    cluster.kill_slurmd(LEONARDO[0])
    cluster.submit("--partition=high", "--nodes=2", "--exclusive", *SLEEP)
    return {"requeue": requeued, "cancel": cancelled, "killed slurmd": on_dead_node}


def test_two_nodes_of_a_job_have_host_names_of_their_own(cluster: Cluster) -> None:
    names = cluster.ask("srun", "--nodes=2", "--nodelist=lrdn0002,lrdn0003", "hostname")
    assert sorted(names.split()) == ["lrdn0002", "lrdn0003"]


def test_a_node_knows_the_others_by_name(cluster: Cluster) -> None:
    line = cluster.ask("srun", "--partition=booster", "getent", "hosts", JUPITER[1])
    assert line.startswith("127.0.1.")


def test_gpus_of_a_job_can_be_counted(cluster: Cluster) -> None:
    names = ("SLURM_GPUS_ON_NODE", "CUDA_VISIBLE_DEVICES")
    text = cluster.ask("srun", "--partition=booster", "--gres=gpu:2", "printenv", *names)
    assert text.split() == ["2", "0,1"]


def test_a_node_without_gres_is_given_whole(cluster: Cluster) -> None:
    text = cluster.ask(
        "srun", "--partition=gh", "--nodelist=c601-001", "printenv", "SLURM_CPUS_ON_NODE"
    )
    assert text == "72"


def test_a_job_over_the_wall_of_its_qos_waits_for_ever(cluster: Cluster) -> None:
    job = cluster.submit("--qos=boost_qos_dbg", "--time=45", *SLEEP)
    assert cluster.wait_for_reason(job) == "QOSMaxWallDurationPerJobLimit"


def test_a_job_over_the_nodes_of_its_qos_waits_for_ever(cluster: Cluster) -> None:
    job = cluster.submit("--qos=boost_qos_dbg", "--time=5", "--nodes=3", *SLEEP)
    assert cluster.wait_for_reason(job) == "QOSMaxNodePerJobLimit"


def test_a_job_of_a_suspended_account_waits_for_ever(cluster: Cluster) -> None:
    job = cluster.submit(f"--account={SUSPENDED_ACCOUNT}", *SLEEP)
    assert cluster.wait_for_reason(job) == "QOSGrpJobsLimit"


@pytest.mark.parametrize("option", ["--account=none", "--qos=none", "--partition=none"])
def test_what_does_not_exist_is_refused_at_submission(cluster: Cluster, option: str) -> None:
    done = cluster.run("sbatch", option, *SLEEP)
    assert done.returncode == 1
    assert "Batch job submission failed: Invalid" in done.stderr


def test_a_cancelled_job_is_accounted_as_cancelled(cluster: Cluster) -> None:
    job = submit_running(cluster)
    cluster.ask("scancel", job)
    wait_until(lambda: cluster.accounted(job).state == "CANCELLED by 0")


def test_what_a_job_leaves_running_is_killed_when_it_ends(cluster: Cluster) -> None:
    marked = "exec -a left-by-a-job sleep 600"
    job = cluster.submit("--output=/dev/null", f"--wrap=setsid bash -c '{marked}' & sleep 1")
    cluster.wait_for_job(job, "COMPLETED")
    cluster.wait_idle()
    assert not [line for line in processes(cluster.folder) if "left-by-a-job" in line]


def test_a_node_that_is_set_down_fails_its_job_at_once(cluster: Cluster) -> None:
    job = submit_running(cluster, "--no-requeue", "--partition=gh", f"--nodelist={VISTA[0]}")
    cluster.set_node(VISTA[0], "down")
    cluster.wait_for_job(job, "NODE_FAIL", wait_s=10)


def test_a_job_outlives_the_daemons(cluster: Cluster) -> None:
    job = submit_running(cluster)
    cluster.stop_controller()
    cluster.stop_accounting()
    cluster.start_accounting()
    cluster.start_controller()
    assert cluster.queue()[job].state == "RUNNING"


def test_cleaning_brings_back_a_node_that_lost_its_power(cluster: Cluster) -> None:
    submit_running(cluster, f"--nodelist={LEONARDO[1]}")
    cluster.kill_node(LEONARDO[1])
    cluster.set_node(LEONARDO[2], "drain")
    cluster.clean()
    assert set(cluster.nodes().values()) == {"idle"}


def test_down_ends_all_that_another_process_started(short_folder: Path) -> None:
    exported = command_line("up", short_folder, "--no-accounting")
    assert exported == f"export SLURM_CONF={short_folder}/etc/slurm.conf\n"
    cluster = Cluster(short_folder)
    submit_running(cluster, "--nodes=2")
    cluster.kill_slurmd(LEONARDO[0])  # the job's processes are on their own
    assert any("sleep 600" in line for line in processes(short_folder))
    command_line("down", short_folder)
    assert processes(short_folder) == []


def test_leftovers_of_a_job_are_killed_where_cgroups_cannot_be_made(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "can_make_cgroups", lambda: False)
    cluster = Cluster.start(short_folder, accounting=False)
    try:
        test_what_a_job_leaves_running_is_killed_when_it_ends(cluster)
    finally:
        cluster.stop()


def test_a_start_that_fails_leaves_nothing_running(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "wait_idle", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Cluster.start(short_folder, accounting=False)
    assert processes(short_folder) == []


def test_a_daemon_that_ends_at_once_is_named_with_its_last_words(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = cluster_module.config_files
    wrong = {"slurm.conf": "ClusterName=wrong\n"}
    monkeypatch.setattr(cluster_module, "config_files", lambda *given: files(*given) | wrong)
    with pytest.raises(RuntimeError, match=r"slurmctld ended at once(.|\n)*fatal"):
        Cluster.start(short_folder, accounting=False)


def test_a_folder_too_deep_for_sockets_is_refused(short_folder: Path) -> None:
    deep = short_folder / ("x" * 60)
    with pytest.raises(ValueError, match="take a shorter folder"):
        Cluster.start(deep)


def test_preemption_requeues_in_one_partition(slow_faults: Faults) -> None:
    cluster, jobs = slow_faults
    wait_until(lambda: "Restarts=1" in cluster.ask("scontrol", "show", "job", jobs["requeue"]))


def test_preemption_cancels_in_another(slow_faults: Faults) -> None:
    cluster, jobs = slow_faults
    cluster.wait_for_job(jobs["cancel"], "PREEMPTED")


def test_a_killed_slurmd_fails_the_node_of_its_job(
    slow_faults: Faults,
) -> None:
    cluster, jobs = slow_faults
    assert cluster.wait_for_job(jobs["killed slurmd"], "NODE_FAIL").reason == "NodeDown"
