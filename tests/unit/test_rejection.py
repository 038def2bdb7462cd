"""What Slurm's refusals mean. Their words are those of a real Slurm 22.05 that refused."""

from datetime import datetime, timedelta

import pytest

from sft.rejection import (
    Association,
    Reservation,
    explain_rejection,
    is_silence,
    read_associations,
    read_reservations,
)

SUBMITTED = "sbatch: error: Batch job submission failed: "
REHEARSED = "allocation failure: "
ACCOUNT = f"{SUBMITTED}Invalid account or account/partition combination specified"
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
UNAVAILABLE = f"{REHEARSED}Requested node configuration is not available"

TITLES = "Account|Partition|QOS|Def QOS|MaxSubmit|MaxJobs|GrpJobs|GrpSubmit\n"
OWN = f"{TITLES}lab_leonardo||boost_qos_dbg,normal|normal||||\n"
NONE = "No reservations in the system\n"


def reservation(start_hours: float, flags: str = "MAINT,IGNORE_JOBS,SPEC_NODES,ALL_NODES") -> str:
    """What scontrol shows of a reservation of two hours, as it was printed, with other times."""
    start = datetime.now() + timedelta(hours=start_hours)
    end = start + timedelta(hours=2)
    return (
        f"ReservationName=maint StartTime={start:%Y-%m-%dT%H:%M:%S} "
        f"EndTime={end:%Y-%m-%dT%H:%M:%S} Duration=02:00:00 Nodes=lrdn[0001-0004] NodeCnt=4 "
        f"CoreCnt=128 Features=(null) PartitionName=(null) Flags={flags} TRES=cpu=128 Users=root "
        "Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) "
        "Watts=n/a MaxStartDelay=(null)\n"
    )


@pytest.mark.parametrize(
    ("text", "means"),
    [
        (
            f"sbatch: error: invalid partition specified: nosuch\n{SUBMITTED}Invalid partition "
            "name specified",
            "there is no such partition",
        ),
        (f"{SUBMITTED}Invalid qos specification", "write a qos that your account has"),
        (f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{SUBMITTED}{POLICY}", "as many jobs as are"),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{SUBMITTED}{POLICY}", "as many jobs as are"),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{REHEARSED}{POLICY}", "lower runtime"),
        (f"sbatch: error: QOSMaxNodePerJobLimit\n{REHEARSED}{POLICY}", "lower num_nodes"),
        (f"sbatch: error: QOSMaxCpuPerJobLimit\n{REHEARSED}{POLICY}", "ask for less"),
        (f"{SUBMITTED}{POLICY}", "a limit of its QOS or account"),
        (
            f"{SUBMITTED}Requested time limit is invalid (missing or exceeds some limit)",
            "lower runtime",
        ),
        (f"{SUBMITTED}Node count specification invalid", "lower num_nodes"),
        (f"{SUBMITTED}User's group not permitted to use this partition", "ask for access"),
        (
            f"{SUBMITTED}Required partition not available (inactive or drain)",
            "the partition is closed at present",
        ),
        (
            "Job's account not permitted to use this partition (closed allows lab_vista not "
            "lab_leonardo)",
            "choose one of those that it allows",
        ),
        ("sbatch: error: Invalid generic resource (gres) specification", "no node has such a res"),
        (f"{REHEARSED}Invalid feature specification", "no node has such a feature"),
        (f"{REHEARSED}Invalid license specification", "scontrol show licenses"),
        (f"{REHEARSED}Invalid node name specified", "correct bad_nodes"),
        (f"{REHEARSED}Requested reservation is invalid", "not there or not yours"),
        (f"{REHEARSED}Access denied to requested reservation", "not there or not yours"),
        (
            f"sbatch: error: Memory specification can not be satisfied\n{SUBMITTED}Requested node "
            "configuration is not available",
            "compare with sinfo",
        ),
        (UNAVAILABLE, "compare with sinfo"),
        (
            "sbatch: unrecognized option '--frob'\nTry \"sbatch --help\" for more information",
            "correct sbatch_options or slurm_extra",
        ),
        (f"{REHEARSED}Unable to contact slurm controller (connect failure)", "nothing was refused"),
        (
            f"{SUBMITTED}Socket timed out on send/recv operation",
            "look with squeue first",
        ),
        (f"{REHEARSED}Protocol authentication error", "munge"),
        ("sbatch: error: Your project has no budget left", "a rule of the site's own"),
    ],
)
def test_refusal_is_explained(text, means):
    assert means in explain_rejection(text, NONE, OWN)


def test_account_that_is_not_yours_is_told_with_yours():
    meaning = explain_rejection(ACCOUNT, NONE, OWN)

    assert "yours are lab_leonardo" in meaning
    assert "maintenance" not in meaning


def test_user_without_any_account_is_told_so():
    assert "the project has ended" in explain_rejection(ACCOUNT, NONE, TITLES)


def test_unknown_accounts_are_not_taken_for_none():
    meaning = explain_rejection(ACCOUNT, NONE, "")

    assert "sacctmgr show associations" in meaning
    assert "ended" not in meaning


@pytest.mark.parametrize("start_hours", [-1, 5])
def test_refused_account_in_a_maintenance_is_no_revoked_account(start_hours):
    meaning = explain_rejection(ACCOUNT, reservation(start_hours), OWN)

    assert meaning.startswith("there is a maintenance from ")
    assert "only after it suspect the account (yours are lab_leonardo)" in meaning


@pytest.mark.parametrize("start_hours", [-3, 24 * 30])
def test_maintenance_that_is_over_or_far_away_explains_nothing(start_hours):
    assert "maintenance" not in explain_rejection(ACCOUNT, reservation(start_hours), OWN)


def test_reservation_for_a_course_is_no_maintenance():
    assert "maintenance" not in explain_rejection(ACCOUNT, reservation(-1, "SPEC_NODES"), OWN)


def test_maintenance_does_not_excuse_a_user_without_account():
    meaning = explain_rejection(ACCOUNT, reservation(-1), TITLES)

    assert "the project has ended" in meaning
    assert "maintenance" not in meaning


def test_nodes_that_a_maintenance_takes_are_told():
    assert "ask for less time, or wait" in explain_rejection(UNAVAILABLE, reservation(1), OWN)


def test_qos_of_each_account_are_told():
    meaning = explain_rejection(f"{SUBMITTED}Invalid qos specification", NONE, OWN)

    assert "lab_leonardo: boost_qos_dbg, normal" in meaning


@pytest.mark.parametrize(
    ("text", "silent"),
    [
        (f"{SUBMITTED}Unable to contact slurm controller (connect failure)", True),
        ("sacctmgr: error: Sending PersistInit msg: Connection refused", True),
        ("scontrol: error: Munge encode failed: Failed to access", True),
        (ACCOUNT, False),
        (UNAVAILABLE, False),
    ],
)
def test_silence_is_told_from_a_refusal(text, silent):
    assert is_silence(text) == silent


def test_reservations_are_read_in_both_forms_that_scontrol_has():
    one_line = reservation(1)
    many_lines = one_line.replace(" StartTime", "\n   StartTime").replace(" Flags", "\n   Flags")

    assert read_reservations(one_line * 2) == read_reservations(many_lines * 2)


def test_reservation_has_name_times_and_nodes():
    (found,) = read_reservations(reservation(0))

    assert found == Reservation(
        *("maint", found.start, found.start + timedelta(hours=2)),
        *("lrdn[0001-0004]", True),
    )


def test_association_has_its_qos_and_the_strictest_of_its_limits():
    found = read_associations(f"{TITLES}lab|gpu|a,b|a|20|10||5\n")

    assert found == [Association("lab", "gpu", ("a", "b"), "a", max_submit=5, max_jobs=10)]


def test_associations_without_their_titles_are_unknown():
    assert read_associations("") is None
    assert read_associations(TITLES) == []
