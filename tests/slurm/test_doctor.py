"""The doctor and a real Slurm: what it refuses, what it takes and never starts, when it is away."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sft.doctor import Check, Verdict
from sft.rejection import SHOW_ASSOCIATIONS, SHOW_RESERVATIONS, explain_rejection
from tests.slurm.cluster import Cluster
from tests.unit.doctoring import SLURM, DoctorSite

TRAIN = "train on 1 node (run)"


@pytest.fixture
def site(tmp_path, monkeypatch, cluster: Cluster) -> DoctorSite:
    """A site that is right for the cluster; its environments are not entered here."""
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sft.doctor.check_environments", lambda catalog: iter(()))
    site = DoctorSite(SLURM)
    site.profile["default-resources"] |= {
        "slurm_account": "lab_leonardo",
        "slurm_partition": "lrd_all_serial",
    }
    site.profile["set-resources"]["train"] |= {"slurm_partition": "boost_usr_prod", "mem_mb": 0}
    site.facts["cpus_per_node"] = 32
    return site


def checks(site: DoctorSite) -> list[Check]:
    """The checks of Slurm."""
    return [check for check in site.check() if check.area == "slurm"]


def of_training(site: DoctorSite) -> Check:
    (check,) = (check for check in checks(site) if check.subject.startswith("train"))
    return check


@contextmanager
def maintenance(cluster: Cluster, start: str, nodes: str) -> Iterator[None]:
    """A maintenance of two hours."""
    facts = {"starttime": start, "duration": "120", "flags": "maint,ignore_jobs", "nodes": nodes}
    facts |= {"reservationname": "doctor", "users": "root"}
    cluster.ask("scontrol", "create", "reservation", *(f"{k}={v}" for k, v in facts.items()))
    try:
        yield
    finally:
        cluster.ask("scontrol", "delete", "reservation=doctor")


def test_good_site_has_no_fault(site):
    found = {check.subject: check for check in checks(site)}

    assert [c.line for c in found.values() if c.verdict == Verdict.FAULT] == []
    assert found["partition boost_usr_prod"].found == "UP; 4 nodes: 4 idle"
    assert "lab_leonardo" in found["accounts"].found
    for label in ("default-resources", TRAIN):
        assert found[label].found.startswith("Slurm takes it, and would start it at 20")


def test_doctor_submits_nothing(site, cluster):
    before = cluster.queue()
    checks(site)

    assert cluster.queue() == before


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"slurm_account": "nosuch"}, "account nosuch is not among yours"),
        ({"qos": "nosuch"}, "account lab_leonardo does not have the qos nosuch"),
        ({"runtime": 1441}, "runtime of 1441 minutes, partition boost_usr_prod gives 1440"),
        ({"qos": "boost_qos_dbg", "runtime": 31}, "qos boost_qos_dbg gives 30"),
        ({"slurm_account": "lab_suspended", "qos": "suspended"}, "qos suspended starts no job"),
        ({"gres": "'gpu:5'"}, "Requested node configuration is not available"),
        ({"gres": "'gpu:h100:4'"}, "Requested node configuration is not available"),
        ({"gres": "'gppu:4'"}, "Invalid generic resource (gres) specification"),
        ({"mem_mb": 999999}, "Requested node configuration is not available"),
        ({"constraint": "nosuch"}, "Invalid feature specification"),
        ({"slurm_extra": "'--frob'"}, "unrecognized option '--frob'"),
    ],
)
def test_request_that_never_runs_is_a_fault(site, asked, found):
    site.profile["set-resources"]["train"] |= asked
    lines = [check.line for check in checks(site) if check.verdict == Verdict.FAULT]

    assert any(TRAIN in line and found in line for line in lines), lines


def test_partition_that_is_not_there_is_a_fault(site):
    site.profile["set-resources"]["train"]["slurm_partition"] = "boost_usr"

    assert "did you mean 'boost_usr_prod'?" in site.only("partition boost_usr").remedy


def test_more_nodes_than_a_qos_gives_are_a_fault(site):
    site.rows[0]["num_nodes"] = "3"
    site.profile["set-resources"]["train"] |= {"qos": "boost_qos_dbg", "runtime": 30}

    assert "3 nodes, qos boost_qos_dbg gives 2" in of_training(site).found


def test_job_that_slurm_takes_and_never_starts_is_told(site, cluster):
    job = cluster.submit(
        *("--account=lab_leonardo", "--partition=boost_usr_prod", "--qos=boost_qos_dbg"),
        *("--time=31", "--output=/dev/null", "--wrap=true"),
    )
    try:
        cluster.wait_for_job(job, "PENDING")
        (check,) = (check for check in checks(site) if check.subject == "your jobs")
    finally:
        cluster.ask("scancel", job)

    assert "QOSMaxWallDurationPerJobLimit" in check.found


def test_wrong_name_among_bad_nodes_is_a_fault_as_slurm_refuses_it(site):
    site.facts["bad_nodes"] = {"lrdn[0004-0005]": "2026-01-01: no reason"}

    assert "no such nodes here: lrdn0005" in site.only("bad_nodes").found
    assert "Invalid node name specified" in of_training(site).found


def test_maintenance_that_begins_soon_is_no_fault_of_the_profile(site, cluster):
    site.rows[0]["num_nodes"] = "4"
    with maintenance(cluster, "now+1hour", "lrdn[0001-0002]"):
        found = checks(site)

    (warned,) = (check for check in found if check.subject == "maintenance")
    (train,) = (check for check in found if check.subject.startswith("train"))
    assert "doctor takes 2 of 4 nodes of boost_usr_prod from" in warned.found
    assert train.verdict == Verdict.WARNING
    assert train.remedy.startswith("there is a maintenance from ")


def test_maintenance_that_runs_is_a_warning_and_jobs_are_taken(site, cluster):
    with maintenance(cluster, "now", "ALL"):
        found = checks(site)

    assert [check.line for check in found if check.verdict == Verdict.FAULT] == []
    assert any(check.subject == "maintenance" for check in found)


def test_account_refused_in_a_maintenance_is_explained_by_it(site, cluster):
    with maintenance(cluster, "now", "ALL"):
        refused = cluster.run("sbatch", "--account=nosuch", "--wrap=true")
        meaning = explain_rejection(
            refused.stderr,
            cluster.ask(*SHOW_RESERVATIONS),
            cluster.ask(*SHOW_ASSOCIATIONS, "user=root"),
        )

    assert "Invalid account or account/partition combination specified" in refused.stderr
    assert meaning.startswith("there is a maintenance from ")


def test_too_many_jobs_are_told_from_other_limits(site, cluster):
    qos = ("sacctmgr", "--immediate", "modify", "qos", "boost_qos_bprod", "set")
    cluster.ask(*qos, "MaxSubmitJobsPerUser=1")
    try:
        ask = ("--qos=boost_qos_bprod", "--hold", "--output=/dev/null", "--wrap=true")
        job = cluster.submit("--account=lab_leonardo", *ask)
        refused = cluster.run("sbatch", "--account=lab_leonardo", *ask)
        site.profile["set-resources"]["train"]["qos"] = "boost_qos_bprod"
        (check,) = (check for check in checks(site) if check.subject == "number of jobs")
    finally:
        cluster.ask(*qos, "MaxSubmitJobsPerUser=-1")
        cluster.ask("scancel", job)

    assert "as many jobs as are allowed" in explain_rejection(refused.stderr, "", "")
    assert "at most 1 of yours are let into the queue" in check.found


def test_drained_nodes_are_a_warning(site, cluster):
    for node in ("lrdn0001", "lrdn0002", "lrdn0003", "lrdn0004"):
        cluster.set_node(node, "drain")
    try:
        found = {check.subject: check for check in checks(site)}
    finally:
        cluster.clean()

    assert found["partition boost_usr_prod"].verdict == Verdict.WARNING
    assert found[TRAIN].verdict == Verdict.WARNING


def test_accounting_that_is_away_leaves_the_rest(site, cluster):
    cluster.stop_accounting()
    try:
        found = {check.subject: check for check in checks(site)}
    finally:
        cluster.start_accounting()

    assert found["accounts"].verdict == Verdict.UNCHECKED
    assert found[TRAIN].verdict == Verdict.OK


def test_controller_that_is_away_is_one_fault_and_nothing_more(site, cluster):
    cluster.stop_controller()
    try:
        (check,) = checks(site)
    finally:
        cluster.clean()

    assert check.line.startswith("fault        controller: Slurmctld(primary) at ")
