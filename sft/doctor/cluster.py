"""What Slurm says of its partitions, nodes and QOS, read from the words of its commands."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sft.slurm_text import read_facts, read_table

SHOW_PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
SHOW_NODES = ("sinfo", "--all", "--format=%R|%T|%D")
SHOW_QOS = (
    *("sacctmgr", "--parsable2", "show", "qos"),
    "format=Name,MaxWall,MaxTRES,MaxSubmitPU,MaxJobsPU,GrpJobs,GrpSubmit",
)
# States of nodes that run jobs now or after what they run (sinfo(1), node state codes).
USABLE = ("idle", "mixed", "allocated", "completing", "planned", "powered", "powering", "blocked")
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


@dataclass(frozen=True)
class Partition:
    """A partition's limits; None where there is none. `allow_*` are None where all may use it."""

    name: str
    state: str
    is_default: bool
    max_minutes: float | None
    max_nodes: int | None
    total_nodes: int
    nodes: str
    qos: str
    allow_qos: tuple[str, ...] | None
    allow_accounts: tuple[str, ...] | None
    deny_qos: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    states: Counter[str] = field(default_factory=Counter)

    @property
    def usable_nodes(self) -> int:
        """How many of its nodes run jobs, now or later."""
        return sum(
            count
            for state, count in self.states.items()
            if state.startswith(USABLE) and not state.endswith("*")
        )

    def admits(self, account: str, qos: str) -> bool:
        """Whether jobs of the account and QOS may run there; "" stands for what is not known."""
        return _admits(account, self.allow_accounts, self.deny_accounts) and _admits(
            qos, self.allow_qos, self.deny_qos
        )


def _admits(name: str, allowed: tuple[str, ...] | None, denied: tuple[str, ...]) -> bool:
    name = name.casefold()  # as Slurm compares accounts and QOS
    return not name or (name in allowed if allowed is not None else name not in denied)


@dataclass(frozen=True)
class Qos:
    """The limits of a QOS; None where there is none."""

    name: str
    max_minutes: float | None
    max_nodes: int | None
    max_submit: int | None
    max_jobs: int | None

    @property
    def starts_nothing(self) -> bool:
        """Whether it lets no job start, as that of a suspended project does."""
        return 0 in (self.max_submit, self.max_jobs)


def read_partitions(shown: str, nodes: str) -> dict[str, Partition]:
    """The partitions by name, from the words of SHOW_PARTITIONS and SHOW_NODES."""
    states = _read_states(nodes.splitlines()[1:])
    found = {}
    for line in shown.splitlines():
        facts = read_facts(line)
        if name := facts.get("PartitionName"):
            found[name] = _read_partition(name, facts, states.get(name, Counter()))
    return found


def _read_partition(name: str, facts: dict[str, str], states: Counter[str]) -> Partition:
    most = facts["MaxNodes"]
    return Partition(
        name=name,
        state=facts["State"],
        is_default=facts["Default"] == "YES",
        max_minutes=parse_wall(facts["MaxTime"]),
        max_nodes=int(most) if most.isdigit() else None,
        total_nodes=int(facts["TotalNodes"]),
        nodes=facts["Nodes"],
        qos="" if facts["QoS"] == "N/A" else facts["QoS"],
        allow_qos=_listed(facts.get("AllowQos", "ALL")),
        allow_accounts=_listed(facts.get("AllowAccounts", "ALL")),
        deny_qos=_listed(facts.get("DenyQos", "")) or (),
        deny_accounts=_listed(facts.get("DenyAccounts", "")) or (),
        states=states,
    )


def _listed(text: str) -> tuple[str, ...] | None:
    return None if text == "ALL" else tuple(filter(None, text.casefold().split(",")))


def _read_states(lines: Iterable[str]) -> dict[str, Counter[str]]:
    """How many nodes of each partition are in each state."""
    states: dict[str, Counter[str]] = {}
    for line in lines:
        name, state, count = line.split("|")
        states.setdefault(name, Counter())[state] += int(count)
    return states


def read_qos(text: str) -> dict[str, Qos] | None:
    """The QOS by name, from the words of SHOW_QOS; None where the line of titles is missing."""
    lines = read_table(text, "Name|")
    return None if lines is None else {each.name: each for each in map(_read_qos, lines)}


def _read_qos(line: str) -> Qos:
    name, wall, tres, *limits = line.split("|")
    submit, jobs, group_jobs, group_submit = (int(each) if each else None for each in limits)
    nodes = re.search(r"\bnode=(\d+)", tres)
    return Qos(
        name=name,
        max_minutes=parse_wall(wall),
        max_nodes=int(nodes[1]) if nodes else None,
        max_submit=least(submit, group_submit),
        max_jobs=least(jobs, group_jobs),
    )


def parse_wall(text: str) -> float | None:
    """The minutes of a time in Slurm's notation, 1-00:00:00 or 30:00; None for no limit."""
    match = _TIME.fullmatch(text)
    if not match:
        return None
    days, *clock = match.groups()
    numbers = [int(each) for each in clock if each]
    if len(numbers) == 3 or days:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        hours, minutes, seconds = [0, *numbers, 0][:3]
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60


def least(*limits: float | None) -> float | None:
    """The strictest of some limits, None where there is none."""
    return min((limit for limit in limits if limit is not None), default=None)
