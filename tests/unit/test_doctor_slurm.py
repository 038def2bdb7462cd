"""What the doctor makes of Slurm's answers. tests/slurm asks a real one."""

from datetime import datetime, timedelta

import pytest

from sft.doctor import Check, Verdict
from sft.doctor.cluster import parse_wall, read_partitions
from tests.unit.doctoring import SLURM, TITLES, DoctorSite, FakeSlurm, partition


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> FakeSlurm:
    """A Slurm that takes everything."""
    fake = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", fake.path)
    return fake


@pytest.fixture
def site(tmp_path, monkeypatch, slurm) -> DoctorSite:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sft.doctor.check_environments", lambda catalog: iter(()))
    return DoctorSite(SLURM)


def lines(site: DoctorSite, slurm: FakeSlurm) -> list[str]:
    """The lines about Slurm."""
    return [check.line for check in checks(site, slurm)]


def checks(site: DoctorSite, slurm: FakeSlurm) -> list[Check]:
    slurm.write()
    return [check for check in site.check() if check.area == "slurm"]


def faults(site: DoctorSite, slurm: FakeSlurm) -> list[str]:
    return [check.line for check in checks(site, slurm) if check.verdict == Verdict.FAULT]


def reservation(start_hours: float, flags: str = "MAINT", nodes: str = "n[1-4]") -> str:
    start = datetime.now() + timedelta(hours=start_hours)
    return (
        f"ReservationName=maint StartTime={start:%Y-%m-%dT%H:%M:%S} "
        f"EndTime={start + timedelta(hours=2):%Y-%m-%dT%H:%M:%S} Nodes={nodes} Flags={flags}"
    )


def test_slurm_that_takes_everything_has_no_fault(site, slurm):
    found = lines(site, slurm)

    assert not [line for line in found if not line.startswith("ok ")], found
    assert (
        "ok           default-resources: Slurm takes it, and would start it at 2030-01-01 00:00:00"
    ) in found


# Whether it answers


def test_missing_commands_are_named_once(site, slurm, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    (line,) = lines(site, slurm)

    assert "not found: sbatch, squeue, scontrol, sinfo, scancel" in line


def test_controller_that_is_down_ends_the_questions(site, slurm):
    slurm.ping = "Slurmctld(primary) at host is DOWN"
    (line,) = lines(site, slurm)

    assert line.startswith("fault        controller: Slurmctld(primary) at host is DOWN")


def test_backup_controller_is_enough(site, slurm):
    slurm.ping = "Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP"

    assert faults(site, slurm) == []


def test_empty_list_is_no_answer(site, slurm):
    slurm.says("sinfo", "")
    (line,) = lines(site, slurm)

    assert "an empty answer means nothing" in line


def test_host_without_processes_left_is_told(site, slurm):
    slurm.says("sinfo", "", "fork: retry: Resource temporarily unavailable", code=254)
    (line,) = lines(site, slurm)

    assert "Resource temporarily unavailable" in line
    assert "try another one" in line


# Partitions


def test_partition_that_is_not_there_is_named_with_the_nearest(site, slurm):
    site.profile["default-resources"]["slurm_partition"] = "cpus"

    assert "fault        partition cpus: there is none; did you mean 'cpu'?" in faults(site, slurm)


def test_partition_that_is_closed_is_a_fault(site, slurm):
    slurm.partitions[1] = partition("gpu", state="DRAIN")

    assert any(line.startswith("fault        partition gpu: DRAIN") for line in faults(site, slurm))


@pytest.mark.parametrize("state", ["down*", "drained", "idle*", "maint", "unknown"])
def test_partition_without_a_node_that_runs_jobs_is_a_warning(site, slurm, state):
    slurm.nodes("cpu|idle|4", f"gpu|{state}|4")

    assert f"warning      partition gpu: UP; 4 nodes: 4 {state}; none of them runs jobs now; " in (
        "\n".join(lines(site, slurm))
    )


@pytest.mark.parametrize("state", ["mixed", "allocated", "idle~", "idle-", "allocated#"])
def test_busy_or_sleeping_nodes_are_nodes(state):
    nodes = f"{TITLES['sinfo']}\ngpu|{state}|3\ngpu|down|1\n"
    found = read_partitions(partition("gpu"), nodes)

    assert found["gpu"].usable_nodes == 3


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"wall": "12:00:00"}, "runtime of 1439 minutes, partition gpu gives 720"),
        ({"accounts": "other"}, "partition gpu does not admit account lab with qos normal"),
        ({"qos": "long"}, "partition gpu does not admit account lab with qos normal"),
    ],
)
def test_limit_of_a_partition_that_lets_a_job_wait_for_ever_is_a_fault(site, slurm, changed, found):
    slurm.partitions[1] = partition("gpu", **changed)

    assert any(found in line for line in faults(site, slurm))


def test_job_over_a_limit_is_not_rehearsed_beside(site, slurm):
    slurm.partitions[1] = partition("gpu", wall="12:00:00")

    assert len([line for line in lines(site, slurm) if "train on 1 node" in line]) == 1


def test_more_nodes_than_a_partition_has_are_a_fault(site, slurm):
    site.rows[0]["num_nodes"] = "5"
    site.base["global_batch_size"] = 80

    assert any("5 nodes, partition gpu gives 4" in line for line in faults(site, slurm))


def test_partition_with_a_qos_of_its_own_is_limited_by_it(site, slurm):
    slurm.partitions[1] = partition("gpu", own_qos="long")
    slurm.qos[1] = "long|12:00:00|||||"

    assert any("qos long gives 720" in line for line in faults(site, slurm))


def test_default_partition_is_taken_where_none_is_asked_for(site, slurm):
    del site.profile["default-resources"]["slurm_partition"]
    slurm.partitions[0] = partition("cpu", default="YES", state="DOWN")

    assert any(line.startswith("fault        partition cpu: DOWN") for line in faults(site, slurm))


# Accounts and QOS


def test_account_of_somebody_else_is_named_with_the_nearest(site, slurm):
    slurm.associations = ["labs||normal|normal||||"]
    (line,) = faults(site, slurm)

    assert line.startswith("fault        default-resources, train on 1 node (run): account lab ")
    assert "did you mean 'labs'?" in line


def test_user_without_accounts_is_told(site, slurm):
    slurm.associations = []

    assert "a project that has ended leaves none" in faults(site, slurm)[0]


def test_case_of_an_account_counts_nothing_as_for_slurm(site, slurm):
    site.profile["default-resources"]["slurm_account"] = "LAB"
    slurm.partitions[1] = partition("gpu", accounts="Lab", qos="Normal")

    assert faults(site, slurm) == []


@pytest.mark.parametrize("limits", ["0|||", "|0||", "||0|", "|||0"])
def test_account_that_starts_no_job_is_a_fault(site, slurm, limits):
    slurm.associations = [f"lab||normal|normal|{limits}"]

    assert "account lab starts no job" in faults(site, slurm)[0]


def test_qos_that_the_account_does_not_have_is_a_fault(site, slurm):
    slurm.associations = ["lab||long|long||||"]

    assert any("account lab does not have the qos normal" in line for line in faults(site, slurm))


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ("normal|12:00:00|||||", "runtime of 1439 minutes, qos normal gives 720"),
        ("normal||||0||", "qos normal starts no job"),
        ("normal|||||0|", "qos normal starts no job"),
        ("normal|||0|||", "qos normal starts no job"),
    ],
)
def test_limit_of_a_qos_that_lets_a_job_wait_for_ever_is_a_fault(site, slurm, limits, found):
    slurm.qos[0] = limits

    assert any(found in line for line in faults(site, slurm))


def test_nodes_of_a_qos_are_a_limit(site, slurm):
    site.rows[0]["num_nodes"] = "4"
    slurm.qos[0] = "normal||cpu=100,node=2||||"

    assert any("4 nodes, qos normal gives 2" in line for line in faults(site, slurm))


def test_default_qos_of_an_account_limits_jobs_that_name_none(site, slurm):
    del site.profile["set-resources"]["train"]["qos"]
    slurm.associations = ["lab||normal,long|long||||"]
    slurm.qos[1] = "long|00:30:00|||||"

    assert any("qos long gives 30" in line for line in faults(site, slurm))


def test_account_of_another_partition_is_told_so(site, slurm):
    slurm.associations = ["lab|cpu|normal|normal||||"]

    assert [
        "account lab is not among yours for partition gpu" in f for f in faults(site, slurm)
    ] == [True]


def test_accounts_of_a_slurm_that_does_not_enforce_them_are_not_compared(site, slurm):
    slurm.enforced, slurm.associations = "none", []

    assert faults(site, slurm) == []


def test_accounts_that_nobody_tells_are_not_checked(site, slurm):
    slurm.write()
    slurm.says("sacctmgr", "", "sacctmgr: error: Sending PersistInit msg: Connection refused", 1)
    found = [check for check in site.check() if check.area == "slurm"]

    assert [check.found for check in found if check.subject == "accounts"] == [
        "no answer: sacctmgr: error: Sending PersistInit msg: Connection refused"
    ]
    assert not [check for check in found if check.verdict == Verdict.FAULT]


@pytest.mark.parametrize("limit", ["qos", "group", "association"])
def test_fewer_jobs_in_the_queue_than_runs_want_are_a_warning(site, slurm, limit):
    site.rows = [{"name": f"run{number}", "num_nodes": "1"} for number in range(5)]
    if limit == "qos":
        slurm.qos[0] = "normal|||6|||"
    elif limit == "group":
        slurm.qos[0] = "normal||||||6"
    else:
        slurm.associations = ["lab||normal|normal|6|||"]

    assert any(
        "at most 6 of yours are let into the queue, and 5 runs want 10" in line
        and "set jobs to at most 3" in line
        for line in lines(site, slurm)
    )


# Maintenance


def test_maintenance_that_a_job_would_meet_is_a_warning(site, slurm):
    slurm.reservations = reservation(start_hours=5)
    found = [line for line in lines(site, slurm) if "maintenance:" in line]

    assert "maint takes 4 of 4 nodes of cpu, 4 of 4 nodes of gpu from" in found[0]
    assert "ask for less than 299 minutes" in found[0]


@pytest.mark.parametrize(
    "shown",
    [
        reservation(start_hours=30),
        reservation(start_hours=-3),
        reservation(start_hours=5, flags="SPEC_NODES"),
        reservation(start_hours=5, nodes="m[1-4]"),
    ],
)
def test_reservation_that_meets_no_job_is_silent(site, slurm, shown):
    slurm.reservations = shown

    assert not [line for line in lines(site, slurm) if "maintenance" in line]


def test_refusal_for_the_account_in_a_maintenance_names_the_maintenance(site, slurm):
    slurm.reservations = reservation(start_hours=-1)
    slurm.says("sbatch", "", "allocation failure: Invalid account or account/partition", 1)

    assert all("only after it suspect the account" in line for line in faults(site, slurm))
    assert faults(site, slurm)


@pytest.mark.parametrize(
    ("disturbed", "verdict"), [(True, Verdict.WARNING), (False, Verdict.FAULT)]
)
def test_refusal_for_want_of_nodes_is_no_fault_while_nodes_are_away(
    site, slurm, disturbed, verdict
):
    slurm.says("sbatch", "", "allocation failure: Requested node configuration is not available", 1)
    slurm.nodes("cpu|idle|4", f"gpu|{'drained' if disturbed else 'idle'}|1", "gpu|idle|3")
    found = [check for check in checks(site, slurm) if check.subject.startswith("train")]

    assert [check.verdict for check in found] == [verdict]


# Rehearsals


def test_slurm_that_falls_silent_refuses_nothing(site, slurm):
    said = "allocation failure: Unable to contact slurm controller (connect failure)"
    slurm.says("sbatch", "", said, 1)
    found = [check for check in checks(site, slurm) if check.subject.startswith("train")]

    assert [check.verdict for check in found] == [Verdict.UNCHECKED]


def test_each_different_request_is_rehearsed_once(site, slurm, tmp_path):
    slurm.script("sbatch", f'cat >> {tmp_path}/scripts; echo "$*" >> {tmp_path}/asked')
    site.profile["set-threads"] = {"pretokenize": 8}
    site.profile["set-resources"] |= {
        "render": {"slurm_partition": "gpu", "runtime": 30, "mem_mb": 1000},
        "fetch_model": {"transfers": 1, "runtime": 999},
    }
    site.rows += [{"name": "wide", "num_nodes": "4"}, {"name": "too", "num_nodes": "1"}]
    lines(site, slurm)
    asked = (tmp_path / "asked").read_text().splitlines()

    common = "--test-only --account=lab"
    assert [line for line in asked if line != "--version"] == [
        f"{common} --partition=cpu --time=60 --job-name=sft-doctor --wrap=true",
        f"{common} --partition=gpu --time=30 --mem=1000 --job-name=sft-doctor --wrap=true",
        f"{common} --partition=cpu --time=60 --cpus-per-task=8 --job-name=sft-doctor --wrap=true",
        *["--test-only"] * 2,
    ]
    scripts = (tmp_path / "scripts").read_text()
    assert [scripts.count(f"#SBATCH --nodes={number}\n") for number in (1, 4)] == [1, 1]
    assert "#SBATCH --gres=gpu:4" in scripts


def test_job_of_the_network_is_rehearsed_where_it_is_one(site, slurm):
    site.profile["set-resources"]["fetch_model"] = {"runtime": 999}
    site.facts["network_on"] = "batch"

    assert any(line.startswith("ok           fetch_model: ") for line in lines(site, slurm))


def test_placeholder_is_not_sent_to_slurm(site, slurm):
    site.profile["default-resources"]["slurm_account"] = "FILL_IN"
    found = lines(site, slurm)

    assert not [line for line in found if line.startswith("fault")]
    subjects = "default-resources, train on 1 node (run)"
    assert f"not checked  {subjects}: what they ask for is to be filled in" in found


def test_job_of_this_process_gives_nothing_to_a_rehearsal(site, slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("SBATCH_PARTITION", "elsewhere")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    slurm.script("sbatch", f"env >> {tmp_path}/variables")
    lines(site, slurm)

    assert not {"SBATCH_PARTITION", "HF_TOKEN"} & {
        line.partition("=")[0] for line in (tmp_path / "variables").read_text().splitlines()
    }


# Nodes to stay away from, jobs that wait, and what Slurm remembers


def test_wrong_name_among_bad_nodes_is_a_fault(site, slurm):
    site.facts["bad_nodes"] = {"n[3-5]": "2026-01-01: no reason", "n1": "2026-01-01: no reason"}

    assert [line for line in faults(site, slurm) if "bad_nodes" in line] == [
        "fault        bad_nodes: n[3-5]: no such nodes here: n5; correct or remove it; Slurm "
        "refuses every job that excludes a name it does not know"
    ]


def test_known_bad_nodes_are_good(site, slurm):
    site.facts["bad_nodes"] = {"n[1-2]": "2026-01-01: no reason"}

    assert "ok           bad_nodes: Slurm knows them all" in lines(site, slurm)


def test_jobs_that_never_start_are_counted_by_reason(site, slurm):
    waiting = ["1|lab|normal|InvalidQOS", "2|lab|normal|InvalidQOS", "3|lab|normal|Priority"]
    slurm.says("squeue", "\n".join([TITLES["squeue"], *waiting]))
    (line,) = [line for line in lines(site, slurm) if "your jobs" in line]

    assert "2 of account lab, qos normal will never start as they are: InvalidQOS" in line


@pytest.mark.parametrize(
    ("reason", "stuck"),
    [
        ("PartitionConfig", True),
        ("Job's QOS not permitted to use this partition (gpu allows a not b)", True),
        ("QOSMaxWallDurationPerJobLimit", True),
        ("AssocMaxNodePerJobLimit", True),
        ("AssocGrpCPUMinutesLimit", True),
        ("DependencyNeverSatisfied", True),
        ("Priority", False),
        ("Resources", False),
        ("Dependency", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("ReqNodeNotAvail, Reserved for maintenance", False),
    ],
)
def test_reason_that_passes_is_told_from_one_that_does_not(site, slurm, reason, stuck):
    slurm.says("squeue", f"{TITLES['squeue']}\n1|lab|normal|{reason}")

    assert any("will never start" in line for line in lines(site, slurm)) == stuck


def test_empty_queue_without_titles_is_not_an_empty_queue(site, slurm):
    slurm.says("squeue", "")

    assert any(line.startswith("not checked  your jobs") for line in lines(site, slurm))


def test_slurm_that_forgets_jobs_soon_is_a_warning(site, slurm):
    slurm.age_s = 60

    assert any(line.startswith("warning      MinJobAge") for line in lines(site, slurm))


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("1-00:00:00", 1440),
        ("12:00:00", 720),
        ("30:00", 30),
        ("00:30:00", 30),
        ("2-12", 3600),
        ("UNLIMITED", None),
        ("infinite", None),
        ("", None),
    ],
)
def test_time_of_slurm_is_read(text, minutes):
    assert parse_wall(text) == minutes
