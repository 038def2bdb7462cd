"""Why Slurm refused a job, and what to do: the same words stand for several causes.

The words are those of Slurm 22.05, from its own sources (slurm_errno.c) and from a real cluster
that refused. The doctor says what they mean before anything runs, a submission where it fails.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sft.slurm_text import read_facts, read_table

SHOW_RESERVATIONS = ("scontrol", "--oneliner", "show", "reservation")
# To be followed by user=<name>. The line of titles tells an empty answer from none.
SHOW_ASSOCIATIONS = (
    *("sacctmgr", "--parsable2", "show", "associations"),
    "format=Account,Partition,QOS,DefaultQOS,MaxSubmit,MaxJobs,GrpJobs,GrpSubmit",
)
SOON = timedelta(days=14)  # a maintenance that is further away explains no refusal

# The first pattern that is found decides: specific words come before those that always follow them.
_SILENCE = (
    r"Unable to contact slurm controller|Socket timed out|Connection (?:refused|timed out)"
    r"|Zero Bytes were transmitted|temporarily unable to accept job|in standby mode"
    r"|Connection reset|Transport endpoint is not connected|DNS SRV lookup failed"
    r"|Resource temporarily unavailable|Cannot allocate memory|Too many open files"
    r"|Problem talking to the database"
    r"|Unable to open .*dbd|Communication connection failure"
)
_STRANGER = r"authentication error|[Mm]unge|Invalid authentication credential"
_MEANINGS = (
    (
        _STRANGER,
        "Slurm does not know who asks, since munge does not run or the clocks of two hosts differ: "
        "try another login node, then tell the site's support",
    ),
    (
        _SILENCE,
        "Slurm does not answer, and nothing was refused: wait and try again; a job may be in the "
        "queue all the same, so look with squeue first",
    ),
    (
        r"MaxSubmit|GrpSubmit",
        "as many jobs as are allowed are in the queue already: wait until some have ended, or run "
        "fewer experiments at once (jobs in the profile)",
    ),
    (
        r"MaxWallDuration|time limit is invalid|PartitionTimeLimit",
        "it asks for more time than its QOS or partition gives: lower runtime, or choose another "
        "qos (sacctmgr show qos format=name,maxwall)",
    ),
    (
        r"(?:Max|Min)Node\w*Limit|Node count specification invalid|PartitionNodeLimit",
        "it asks for more nodes than its QOS or partition gives one job: lower num_nodes, or "
        "choose another qos or partition (sacctmgr show qos format=name,maxtres)",
    ),
    (
        r"Max(?:Cpu|Mem|GRES)\w*PerJob",
        "it asks for more CPUs, memory or GPUs than its QOS gives one job: ask for less, or choose "
        "another qos (sacctmgr show qos format=name,maxtres)",
    ),
    (r"accounting/QOS policy", "a limit of its QOS or account says no: sacctmgr show qos shows it"),
    (
        r"not permitted to use this partition \(\S+ allows",
        "the partition is closed to this account or QOS: choose one of those that it allows",
    ),
    (
        r"group not permitted|User's group|Access/permission denied",
        "the partition is closed to your group: choose another partition, or ask for access",
    ),
    (
        r"Required partition not available",
        "the partition is closed at present: see sinfo, and try again or choose another",
    ),
    (
        r"partition configuration not available|PartitionConfig",
        "the partition does not give what is asked for: compare with scontrol show partition",
    ),
    (r"[Ii]nvalid partition", "there is no such partition: sinfo --all lists them"),
    (r"generic resource|\bgres\b", "no node has such a resource: sinfo -o '%P %G' lists them"),
    (r"feature specification", "no node has such a feature: sinfo -o '%P %f' lists them"),
    (r"license", "there is no such licence: scontrol show licenses lists them"),
    (
        r"Invalid node name",
        "no node has that name: correct bad_nodes in the profile; one wrong name there refuses "
        "every training job",
    ),
    (
        r"requested reservation|reservation is invalid",
        "the reservation that is asked for is not there or not yours: scontrol show reservation",
    ),
    (
        r"unrecognized option|invalid option|Invalid --",
        "sbatch does not know an option: correct sbatch_options or slurm_extra in the profile",
    ),
)
_ACCOUNT = re.compile(r"[Ii]nvalid account")
_QOS = re.compile(r"[Ii]nvalid qos")
_NODES = re.compile(r"node configuration is not available|CPU count|Memory specification")


@dataclass(frozen=True)
class Reservation:
    """Nodes that are set aside for a while; `nodes` in Slurm's notation."""

    name: str
    start: datetime
    end: datetime
    nodes: str
    is_maintenance: bool

    def meets(self, start: datetime, end: datetime) -> bool:
        """Whether it falls into a time."""
        return self.start < end and start < self.end


@dataclass(frozen=True)
class Association:
    """What one account lets a user do; limits are 0 only where nothing is allowed, or None."""

    account: str
    partition: str
    qos: tuple[str, ...]
    default_qos: str
    max_submit: int | None = None
    max_jobs: int | None = None


def explain_rejection(text: str, reservations: str, associations: str) -> str:
    """What Slurm's refusal `text` means, and what to do, in one sentence.

    `reservations` and `associations` are what SHOW_RESERVATIONS and SHOW_ASSOCIATIONS print, ""
    where they are not known.
    """
    maintenance = _coming_maintenance(read_reservations(reservations))
    if _ACCOUNT.search(text):
        return _explain_account(maintenance, read_associations(associations))
    if _QOS.search(text):
        return _explain_qos(read_associations(associations))
    if _NODES.search(text):
        return _explain_nodes(maintenance)
    for pattern, meaning in _MEANINGS:
        if re.search(pattern, text):
            return meaning
    return "a rule of the site's own says no: its documentation or support knows the words"


def is_silence(text: str) -> bool:
    """Whether Slurm's commands failed because it did not answer, so that nothing was refused."""
    return bool(re.search(f"{_STRANGER}|{_SILENCE}", text))


def _explain_account(maintenance: list[Reservation], associations: list[Association] | None) -> str:
    if associations is None:
        own = "sacctmgr show associations user=$USER lists yours"
    elif associations:
        own = f"yours are {', '.join(dict.fromkeys(each.account for each in associations))}"
    else:
        own = "none is listed for you: the project has ended, or you are no member of it"
    if maintenance and associations != []:
        return (
            f"{_tell(maintenance[0])}, and sites refuse jobs with these words then: wait until it "
            f"is over, or ask for less time; only after it suspect the account ({own})"
        )
    return f"write an account of yours as slurm_account, and one that the partition takes; {own}"


def _explain_qos(associations: list[Association] | None) -> str:
    if not associations:
        return "write a qos that your account has: sacctmgr show associations user=$USER lists them"
    known = (f"{each.account}: {', '.join(each.qos) or 'none'}" for each in associations)
    return (
        "write a qos that your account has, and one that the partition takes; yours by account: "
        f"{'; '.join(known)}; a suspended project keeps a qos that starts nothing"
    )


def _explain_nodes(maintenance: list[Reservation]) -> str:
    reasons = (
        "no node, or not so many of them, has the CPUs, memory and GPUs that are asked for, or "
        "they are down: compare with sinfo -o '%P %D %T %c %m %G'"
    )
    if maintenance:
        return f"{_tell(maintenance[0])}: ask for less time, or wait until it is over; or {reasons}"
    return reasons


def _coming_maintenance(reservations: Iterable[Reservation]) -> list[Reservation]:
    """The maintenance that is running or near, the next one first."""
    now = datetime.now()
    near = (each for each in reservations if each.is_maintenance and each.meets(now, now + SOON))
    return sorted(near, key=lambda each: each.start)


def _tell(maintenance: Reservation) -> str:
    span = f"from {maintenance.start:%Y-%m-%d %H:%M} to {maintenance.end:%Y-%m-%d %H:%M}"
    return f"there is a maintenance {span} ({maintenance.name} on {maintenance.nodes})"


def read_reservations(text: str) -> list[Reservation]:
    """The reservations that scontrol shows."""
    found = []
    for entry in re.split(r"(?=^ReservationName=)", text, flags=re.MULTILINE):
        facts = read_facts(entry)
        if "ReservationName" in facts:
            found.append(
                Reservation(
                    name=facts["ReservationName"],
                    start=datetime.fromisoformat(facts["StartTime"]),
                    end=datetime.fromisoformat(facts["EndTime"]),
                    nodes=facts.get("Nodes", ""),
                    is_maintenance="MAINT" in facts.get("Flags", "").split(","),
                )
            )
    return found


def read_associations(text: str) -> list[Association] | None:
    """The associations that sacctmgr shows; None where the line of titles is missing."""
    lines = read_table(text, "Account|")
    return None if lines is None else [_read_association(line.split("|")) for line in lines]


def _read_association(values: list[str]) -> Association:
    account, partition, qos, default, *limits = values
    submit, jobs, group_jobs, group_submit = (int(each) if each else None for each in limits)
    return Association(
        account=account,
        partition=partition,
        qos=tuple(filter(None, qos.split(","))),
        default_qos=default,
        max_submit=_least(submit, group_submit),
        max_jobs=_least(jobs, group_jobs),
    )


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)
