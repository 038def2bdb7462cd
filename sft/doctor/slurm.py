"""Whether Slurm answers, what it lets this user do, and what stands in the way of jobs."""

import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from getpass import getuser
from pathlib import Path
from typing import Any

from sft.catalog import Catalog
from sft.commands import Answer
from sft.doctor.check import Check, Verdict
from sft.doctor.cluster import (
    SHOW_NODES,
    SHOW_PARTITIONS,
    SHOW_QOS,
    Partition,
    least,
    read_partitions,
    read_qos,
)
from sft.doctor.submission import Job, Rights, check_jobs, count_nodes, list_jobs
from sft.errors import first_few, nearest
from sft.rejection import (
    SHOW_RESERVATIONS,
    Reservation,
    explain_rejection,
    is_silence,
    read_associations,
    read_reservations,
)
from sft.request import Request
from sft.site import PLACEHOLDER
from sft.slurm import ask_slurm, associations_command
from sft.slurm_text import read_settings, read_table

COMMANDS = ("sbatch", "squeue", "scontrol", "sinfo", "scancel")
JOBS_OF_A_RUN = 2  # the attempt that runs, and its next link
REMEMBERED_S = 300  # Snakemake asks every 180 s; what Slurm forgets sooner is not seen to end
ENFORCED = {"associations", "limits", "qos", "safe"}  # what lets accounts decide (slurm.conf(5))
# Reasons for which a job waits until somebody changes it (squeue(1), job reason codes).
STUCK = re.compile(
    r"Invalid(QOS|Account)|PartitionTimeLimit|PartitionNodeLimit|PartitionConfig|not permitted"
    r"|(QOS|Assoc)(Max|Min)\w*PerJob|(QOS|Assoc)MaxWall|BadConstraints|DependencyNeverSatisfied"
    r"|(QOS|Assoc)Grp\w*Minutes|JobHeld|QOSNotAllowed|AccountNotAllowed"
)

slurm_check = partial(Check, "slurm")


def check_slurm(
    profile: Mapping[str, Any], catalog: Catalog, requests: Mapping[str, Request], results: Path
) -> Iterator[Check]:
    """All that Slurm can be asked without submitting a job; nothing more where it is silent."""
    absent = [name for name in COMMANDS if not shutil.which(name)]
    if absent:
        yield slurm_check(
            "commands",
            Verdict.FAULT,
            f"not found: {', '.join(absent)}",
            "run this on a login node, or load the module that has them",
        )
        return
    answering, check = _check_answers()
    yield check
    if not answering:
        return
    shown, nodes = ask_slurm(*SHOW_PARTITIONS), ask_slurm(*SHOW_NODES)
    partitions = read_partitions(shown.output, nodes.output)
    if shown.code or nodes.code or not partitions:
        said = f"no list of partitions: {shown.said if shown.code else nodes.said}"
        yield slurm_check("partitions", Verdict.UNCHECKED, said, "try again later")
        return
    jobs = list_jobs(profile, catalog, requests, results)
    settings = read_settings(ask_slurm("scontrol", "show", "config").output)
    rights, associations = Rights(partitions, None, None), ""
    if ENFORCED & set(settings.get("AccountingStorageEnforce", "").split(",")):
        known, check = _ask_accounts(settings["ClusterName"])
        yield check
        associations = known.output
        rights = Rights(
            partitions, read_associations(associations), read_qos(ask_slurm(*SHOW_QOS).output)
        )
    yield from _check_number_of_jobs(profile, catalog, jobs, rights, results)
    yield from _check_jobs(jobs, rights, associations)
    yield from _check_bad_nodes(catalog.site.bad_nodes)
    yield from _check_queue()
    yield from _check_memory(settings)


def _check_jobs(jobs: list[Job], rights: Rights, associations: str) -> Iterator[Check]:
    """The partitions that jobs go to, what takes nodes away from them, and then the jobs."""
    named = dict.fromkeys(name for job in jobs for name in rights.partitions_of(job.request))
    partitions = [rights.partitions[name] for name in named if name in rights.partitions]
    yield from (check for name in named for check in _check_partition(name, rights.partitions))
    reservations = ask_slurm(*SHOW_RESERVATIONS).output
    longest = max((job.request.minutes or 0 for job in jobs), default=0)
    warned = list(_check_maintenance(read_reservations(reservations), partitions, longest))
    yield from warned
    disturbed = bool(warned) or any(each.usable_nodes < each.total_nodes for each in partitions)
    yield from check_jobs(jobs, rights, reservations, associations, disturbed)


def _check_answers() -> tuple[bool, Check]:
    """Whether the controller answers with more than silence."""
    ping = ask_slurm("scontrol", "ping")
    if " is UP" not in ping.output:
        return False, slurm_check(
            "controller",
            Verdict.FAULT,
            (ping.output.strip() or ping.said).splitlines()[0],
            explain_rejection(ping.errors, "", "")
            if is_silence(ping.errors)
            else "no job is lost: wait, or try another login node; a long downtime is announced on "
            "the site's status page",
        )
    listing = ask_slurm(*SHOW_NODES)
    if listing.code or not listing.output.startswith("PARTITION|"):
        return False, slurm_check(
            "controller",
            Verdict.FAULT,
            f"sinfo gives no list: {listing.said}",
            "an empty answer means nothing: this node may be out of processes, try another one",
        )
    version = ask_slurm("sbatch", "--version").output.strip()
    return True, slurm_check("controller", Verdict.OK, f"{version or 'Slurm'} answers")


def _ask_accounts(cluster: str) -> tuple[Answer, Check]:
    """What accounting says of this user on this cluster, and a check of it."""
    answer = ask_slurm(*associations_command(cluster))
    associations = read_associations(answer.output)
    if associations is None:
        return answer, slurm_check(
            "accounts",
            Verdict.UNCHECKED,
            f"no answer: {answer.said}",
            "limits of accounts and QOS are not compared; the rehearsals below still tell whether "
            "an account is accepted",
        )
    if not associations:
        return answer, slurm_check(
            "accounts",
            Verdict.FAULT,
            f"none for {getuser()} on {cluster}",
            "ask the project's leader to add you; a project that has ended leaves none",
        )
    names = dict.fromkeys(each.account for each in associations)
    return answer, slurm_check("accounts", Verdict.OK, f"yours are {', '.join(names)}")


def _check_partition(name: str, partitions: Mapping[str, Partition]) -> Iterator[Check]:
    if PLACEHOLDER in name:
        return
    subject = f"partition {name}"
    if name not in partitions:
        yield slurm_check(subject, Verdict.FAULT, "there is none", nearest(name, partitions.keys()))
        return
    partition = partitions[name]
    states = ", ".join(f"{count} {state}" for state, count in partition.states.most_common())
    found = f"{partition.state}; {count_nodes(partition.total_nodes)}: {states}"
    if partition.state != "UP":
        remedy = "jobs wait or are refused until it is opened again"
        yield slurm_check(subject, Verdict.FAULT, found, remedy)
    elif not partition.usable_nodes:
        remedy = "none of them runs jobs now; jobs wait"
        yield slurm_check(subject, Verdict.WARNING, found, remedy)
    else:
        yield slurm_check(subject, Verdict.OK, found)


def _check_maintenance(
    reservations: Iterable[Reservation], partitions: Iterable[Partition], minutes: float
) -> Iterator[Check]:
    """A line for each maintenance that a job of so many minutes would meet if it started now."""
    now = datetime.now()
    end = now + timedelta(minutes=minutes)
    for each in reservations:
        if not each.is_maintenance or not each.meets(now, end):
            continue
        reserved = expand(each.nodes)
        shares = [
            f"{len(common)} of {partition.total_nodes} nodes of {partition.name}"
            for partition in partitions
            if (common := expand(partition.nodes) & reserved)
        ]
        if not shares:
            continue
        if each.start > now:
            left = int((each.start - now).total_seconds() // 60)
            remedy = f"jobs that are to start before it ask for less than {left} minutes"
        else:
            remedy = "wait until it is over; a refusal for the account may come of it, too"
        yield slurm_check(
            "maintenance",
            Verdict.WARNING,
            f"{each.name} takes {', '.join(shares)} from {each.start:%Y-%m-%d %H:%M} to "
            f"{each.end:%Y-%m-%d %H:%M}",
            remedy,
        )


def expand(notation: str) -> set[str]:
    """The names that a notation such as n[01-03,7] stands for; empty where it is none."""
    answer = ask_slurm("scontrol", "show", "hostnames", notation)
    return set(answer.output.split()) if answer.code == 0 else set()


def _check_number_of_jobs(
    profile: Mapping[str, Any], catalog: Catalog, jobs: Iterable[Job], rights: Rights, results: Path
) -> Iterator[Check]:
    """Whether as many jobs may be submitted as the runs that are not complete may want."""
    training = next((job.request for job in jobs if job.script), None)
    if training is None:
        return
    association = rights.association_of(training)
    limits = [each.max_submit for each in rights.qos_of(training)]
    most = least(*limits, association.max_submit if association else None)
    names = catalog.experiments
    waiting = [each for each in names if not (results / "runs" / each / "trained.json").exists()]
    runs = min(len(waiting), profile.get("jobs", len(waiting)))
    if most and runs * JOBS_OF_A_RUN > most:
        yield slurm_check(
            "number of jobs",
            Verdict.WARNING,
            f"at most {most} of yours are let into the queue, and {runs} runs want "
            f"{runs * JOBS_OF_A_RUN}, {JOBS_OF_A_RUN} each",
            f"set jobs to at most {max(1, int(most) // JOBS_OF_A_RUN)} in the profile",
        )


def _check_bad_nodes(bad_nodes: Mapping[str, str]) -> Iterator[Check]:
    """Whether Slurm knows each node to stay away from: with one wrong name it refuses all jobs."""
    if not bad_nodes:
        return
    listing = ask_slurm("sinfo", "--all", "--noheader", "--Node", "--format=%N")
    if listing.code:
        yield slurm_check("bad_nodes", Verdict.UNCHECKED, listing.said, "try again later")
        return
    known = set(listing.output.split())
    wrong = {
        notation: sorted(names - known) or [notation]
        for notation in bad_nodes
        if not (names := expand(notation)) or names - known
    }
    for notation, names in wrong.items():
        yield slurm_check(
            "bad_nodes",
            Verdict.FAULT,
            f"{notation}: no such nodes here: {first_few(names)}",
            "correct or remove it; Slurm refuses every job that excludes a name it does not know",
        )
    if not wrong:
        yield slurm_check("bad_nodes", Verdict.OK, "Slurm knows them all")


def _check_queue() -> Iterator[Check]:
    """Jobs of this user that wait for what will not come."""
    answer = ask_slurm("squeue", f"--user={getuser()}", "--states=PENDING", "--format=%i|%a|%q|%r")
    lines = read_table(answer.output, "JOBID|")
    if answer.code or lines is None:
        yield slurm_check("your jobs", Verdict.UNCHECKED, f"squeue gives no list: {answer.said}")
        return
    reasons: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        _, account, qos, reason = line.split("|", 3)
        if STUCK.search(reason):
            reasons[account, qos, reason] += 1
    for (account, qos, reason), count in reasons.items():
        yield slurm_check(
            "your jobs",
            Verdict.WARNING,
            f"{count} of account {account}, qos {qos} will never start as they are: {reason}",
            "cancel or change them; InvalidQOS or InvalidAccount: the project is suspended or has "
            "ended; …Minutes: its budget is used up",
        )


def _check_memory(settings: Mapping[str, str]) -> Iterator[Check]:
    """Whether Slurm remembers ended jobs until Snakemake has asked for them."""
    remembered_s = int(settings.get("MinJobAge", f"{REMEMBERED_S} sec").split()[0])
    if remembered_s < REMEMBERED_S:
        yield slurm_check(
            "MinJobAge",
            Verdict.WARNING,
            f"Slurm forgets ended jobs after {remembered_s} s, expected at least {REMEMBERED_S}",
            "Snakemake may miss an end and wait for ever: start it again then",
        )
