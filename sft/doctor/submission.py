"""Whether Slurm would take and start the jobs of each stage: their limits, and a rehearsal.

Slurm 22.05 takes many jobs that it never starts: those that are longer than their partition or QOS
allows, or have more nodes, and those whose account or QOS a partition does not admit. So the
limits are compared here; sbatch --test-only then finds what no list shows.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sft.catalog import Catalog
from sft.commands import TIMED_OUT, Answer
from sft.doctor.check import Check, Verdict
from sft.doctor.cluster import Partition, Qos
from sft.errors import nearest
from sft.launch import sbatch_text
from sft.rejection import Association, explain_rejection, is_silence
from sft.request import Request, training_request
from sft.site import PLACEHOLDER
from sft.slurm import ask_slurm

HERE = ("check_tokens", "detect_layout")  # rules that run beside Snakemake
NETWORK = ("fetch_model", "fetch_dataset", "upload", "register")
DEFAULT = "default-resources"
_NODES = re.compile(r"node configuration is not available")

slurm_check = partial(Check, "slurm")


@dataclass(frozen=True)
class Job:
    """A kind of job that will be submitted: its request, and the sbatch that would do so."""

    label: str
    request: Request
    num_nodes: int
    options: tuple[str, ...]
    script: str = ""

    @property
    def is_filled_in(self) -> bool:
        """Whether nothing in it is a placeholder."""
        return PLACEHOLDER not in f"{self.options}{self.script}"


@dataclass(frozen=True)
class Rights:
    """What Slurm lets this user do; `associations` and `qos` are None where nobody says it."""

    partitions: Mapping[str, Partition]
    associations: Sequence[Association] | None
    qos: Mapping[str, Qos] | None

    def partitions_of(self, request: Request) -> list[str]:
        """The names of the partitions that a request means."""
        default = [each.name for each in self.partitions.values() if each.is_default]
        return request.partition.split(",") if request.partition else default

    def association_of(self, request: Request) -> Association | None:
        """The association that its jobs belong to, where that is known."""
        fitting = [
            each
            for each in self.associations or ()
            if _is_among(request.account, [each.account])
            and each.partition in ("", *self.partitions_of(request))
        ]
        return fitting[0] if fitting else None

    def qos_of(self, request: Request) -> list[Qos]:
        """The QOS that limit its jobs: its own or the account's default, and the partition's."""
        association = self.association_of(request)
        own = request.qos or (association.default_qos if association else "")
        partitions = (self.partitions.get(name) for name in self.partitions_of(request))
        names = [own, *(each.qos for each in partitions if each)]
        return [each for each in (self.qos or {}).values() if _is_among(each.name, names)]


def _is_among(name: str, names: Iterable[str]) -> bool:
    """Whether Slurm takes a name of an account or QOS for one of others: case counts nothing."""
    return name.casefold() in map(str.casefold, names)


def list_jobs(
    profile: Mapping[str, Any], catalog: Catalog, requests: Mapping[str, Request], results: Path
) -> list[Job]:
    """Each different job that the stages would submit, those of training by number of nodes."""
    site = catalog.site
    left_out = {*HERE, "train", *(NETWORK if site.network_on == "here" else ())}
    threads = profile.get("set-threads", {})
    alike: dict[tuple[str, ...], list[str]] = {}
    asked: dict[tuple[str, ...], Request] = {}
    for rule in dict.fromkeys([*requests, *threads]):
        if rule not in left_out:
            request = requests.get(rule, requests[""])
            options = plugin_options(request, threads.get(rule, 1))
            alike.setdefault(options, []).append(rule or DEFAULT)
            asked[options] = request
    jobs = [Job(", ".join(rules), asked[options], 1, options) for options, rules in alike.items()]
    return [*jobs, *_training_jobs(catalog, training_request(requests), results)]


def count_nodes(number: int) -> str:
    """A number of nodes in words."""
    return "1 node" if number == 1 else f"{number} nodes"


def plugin_options(request: Request, threads: int) -> tuple[str, ...]:
    """The options of sbatch as Snakemake's executor writes them for a job of one node."""
    asked = {
        "account": request.account,
        "partition": request.partition,
        "qos": request.qos,
        "time": f"{request.minutes:.0f}" if request.minutes else "",
        "constraint": request.constraint,
        "mem": f"{request.memory_mb}" if request.memory_mb else "",
        "gres": request.gres,
        "cpus-per-task": f"{threads}" if threads > 1 else "",
    }
    given = tuple(f"--{option}={value}" for option, value in asked.items() if value)
    return (*given, *shlex.split(request.extra))


def _training_jobs(catalog: Catalog, request: Request, results: Path) -> list[Job]:
    """One job for each number of nodes in the table."""
    by_nodes = {each.num_nodes: each for each in reversed(catalog.experiments.values())}
    jobs = []
    for num_nodes, experiment in sorted(by_nodes.items()):
        run = results.resolve() / "runs" / experiment.name
        script = sbatch_text(
            experiment, catalog.site, request, run / "checkpoints" / "doctor", run / "launch.sh"
        )
        label = f"train on {count_nodes(num_nodes)} ({experiment.name})"
        jobs.append(Job(label, request, num_nodes, (), script))
    return jobs


def check_jobs(
    jobs: Iterable[Job], rights: Rights, reservations: str, associations: str, disturbed: bool
) -> Iterator[Check]:
    """The limits that keep each job waiting for ever; of one that has none, what sbatch says.

    `reservations` and `associations` are Slurm's words. Where the partitions are `disturbed`, by a
    maintenance or by nodes that are down, a refusal for want of nodes is no fault of the profile.
    """
    jobs = list(jobs)
    waiting = [job.label for job in jobs if not job.is_filled_in]
    if waiting:
        yield slurm_check(
            ", ".join(waiting), Verdict.UNCHECKED, "what they ask for is to be filled in"
        )
    ready = [job for job in jobs if job.is_filled_in]
    faults = [check for job in ready for check in limit_faults(job, rights)]
    yield from _merge(faults)
    refused = {check.subject for check in faults}
    for job in ready:
        if job.label not in refused:
            yield rehearse(job, reservations, associations, disturbed)


def _merge(checks: Iterable[Check]) -> list[Check]:
    """The checks, those of several subjects that say the same as one."""
    subjects: dict[tuple[Verdict, str, str], list[str]] = {}
    for each in checks:
        subjects.setdefault((each.verdict, each.found, each.remedy), []).append(each.subject)
    return [slurm_check(", ".join(names), *said) for said, names in subjects.items()]


def limit_faults(job: Job, rights: Rights) -> Iterator[Check]:
    """A fault for each limit of account, partition and QOS that a job exceeds."""
    yield from _account_faults(job, rights)
    for name in rights.partitions_of(job.request):
        if name in rights.partitions:
            yield from _partition_faults(job, rights.partitions[name], rights)
    for qos in rights.qos_of(job.request):
        yield from _qos_faults(job, qos)


def _account_faults(job: Job, rights: Rights) -> Iterator[Check]:
    request, known = job.request, rights.associations
    if known is None or not request.account:
        return
    association = rights.association_of(request)
    if not association:
        accounts = list(dict.fromkeys(each.account for each in known))
        elsewhere = _is_among(request.account, accounts)
        yield slurm_check(
            job.label,
            Verdict.FAULT,
            f"account {request.account} is not among yours"
            + (f" for partition {request.partition}" if elsewhere else ""),
            f"{nearest(request.account, accounts)}; has the project ended?",
        )
    elif 0 in (association.max_submit, association.max_jobs):
        yield slurm_check(
            job.label,
            Verdict.FAULT,
            f"account {request.account} starts no job: its project is suspended, perhaps",
            "ask the project's leader, or take another account",
        )
    elif request.qos and not _is_among(request.qos, association.qos):
        yield slurm_check(
            job.label,
            Verdict.FAULT,
            f"account {request.account} does not have the qos {request.qos}",
            f"it has {', '.join(association.qos) or 'none'}",
        )


def _partition_faults(job: Job, partition: Partition, rights: Rights) -> Iterator[Check]:
    request, where = job.request, f"partition {partition.name}"
    association = rights.association_of(request)
    qos = request.qos or (association.default_qos if association else "")
    if not partition.admits(request.account, qos):
        allowed = {"accounts": partition.allow_accounts, "qos": partition.allow_qos}
        yield slurm_check(
            job.label,
            Verdict.FAULT,
            f"{where} does not admit account {request.account or '(default)'} with qos "
            f"{qos or '(default)'}: the job would wait for ever",
            "; ".join(f"its {key}: {', '.join(names)}" for key, names in allowed.items() if names),
        )
    yield from _minutes_faults(job, partition.max_minutes, where)
    most = min(partition.total_nodes, partition.max_nodes or partition.total_nodes)
    yield from _nodes_faults(job, most, where)


def _qos_faults(job: Job, qos: Qos) -> Iterator[Check]:
    where = f"qos {qos.name}"
    if qos.starts_nothing:
        yield slurm_check(
            job.label,
            Verdict.FAULT,
            f"{where} starts no job: that of a suspended project, perhaps",
            "ask the project's leader, or take another account",
        )
    yield from _minutes_faults(job, qos.max_minutes, where)
    yield from _nodes_faults(job, qos.max_nodes, where)


def _minutes_faults(job: Job, most: float | None, where: str) -> Iterator[Check]:
    if most is not None and (job.request.minutes or 0) > most:
        yield slurm_check(
            job.label,
            Verdict.FAULT,
            f"runtime of {job.request.minutes:g} minutes, {where} gives {most:g}: the job would "
            "wait for ever",
            "lower runtime, or choose another qos or partition",
        )


def _nodes_faults(job: Job, most: int | None, where: str) -> Iterator[Check]:
    if most is not None and job.num_nodes > most:
        yield slurm_check(
            job.label,
            Verdict.FAULT,
            f"{count_nodes(job.num_nodes)}, {where} gives {most}: the job would wait for ever",
            "lower num_nodes, or choose another qos or partition",
        )


def rehearse(job: Job, reservations: str, associations: str, disturbed: bool) -> Check:
    """What sbatch --test-only says to a job."""
    answer = submit_dry(job)
    if answer.code == 0:
        start = re.search(r"to start at (\S+) using", answer.errors)
        when = f", and would start it at {start[1].replace('T', ' ')}" if start else ""
        return slurm_check(job.label, Verdict.OK, f"Slurm takes it{when}")
    if is_silence(answer.said) or answer.code == TIMED_OUT:
        return slurm_check(job.label, Verdict.UNCHECKED, answer.said, "try again later")
    passing = disturbed and _NODES.search(answer.said)
    return slurm_check(
        job.label,
        Verdict.WARNING if passing else Verdict.FAULT,
        answer.said,
        explain_rejection(answer.said, reservations, associations),
    )


def submit_dry(job: Job) -> Answer:
    """The answer of sbatch to a job that it does not submit."""
    wrapped = () if job.script else ("--job-name=sft-doctor", "--wrap=true")
    return ask_slurm("sbatch", "--test-only", *job.options, *wrapped, text=job.script)
