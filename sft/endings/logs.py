"""A log as evidence: its lines since the last signs of progress, and what of them explains an end.

It is read for the first real error of each rank: what follows on other ranks, and in the summaries
of launchers, tells only that they lost a peer.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from sft.endings.ending import Kind
from sft.endings.lines import Line, read_lines
from sft.endings.signs import HINTS, NOISE, SIGNS, UNKNOWN, Sign, Weight
from sft.endings.tracebacks import Failure, read_tracebacks

SUPERVISOR = "[sft "  # how lines of sft.attempt begin; it may tell of earlier endings
LAST = 5  # lines that are shown where nothing explains an end

_LOSS = re.compile(r"\{'loss': ")
_LISTENS = re.compile(r"([\w.-]+):\d+:\d+ .*NCCL INFO Bootstrap.*?:([\d.]+)<")


@dataclass(frozen=True)
class Found:
    """A line or failure of a known class."""

    sign: Sign
    match: re.Match[str]
    line: Line
    place: int
    failure: Failure | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All that it says."""
        return self.failure.texts if self.failure else (self.line.text,)

    @property
    def order(self) -> tuple[int, bool, int]:
        """What explains more comes first."""
        return self.sign.weight, self.failure is None, self.place


@dataclass(frozen=True)
class Log:
    """What was read of a log: its lines since the last signs of progress.

    `begun` tells whether steps were made, `addresses` which node said to have which.
    """

    lines: tuple[Line, ...]
    nodes: tuple[str, ...]
    begun: bool
    addresses: Mapping[str, str]

    @cached_property
    def _tracebacks(self) -> tuple[list[Failure], set[int]]:
        return read_tracebacks(self.lines)

    @cached_property
    def found(self) -> tuple[Found, ...]:
        """All of it that is of a known class, the best explanation first."""
        failures, inside = self._tracebacks
        found = [_classify_failure(each) for each in failures]
        for place in self._suspects():
            if place not in inside:
                found += _classify_line(self.lines[place], place)
        if self.begun:
            found = [each for each in found if each.sign.weight is not Weight.SHELL]
        return tuple(sorted(found, key=lambda each: each.order))

    def _suspects(self) -> list[int]:
        """The places of the lines that a sign may know."""
        texts = [line.text.lower() for line in self.lines]
        whole = "\n".join(texts)
        hints = [hint for hint in HINTS if hint in whole]
        return [n for n, text in enumerate(texts) if any(hint in text for hint in hints)]

    def of_kind(self, kind: Kind) -> list[Found]:
        """All that is of a kind, in the order of `found`."""
        return [each for each in self.found if each.sign.kind is kind]

    def last(self) -> list[str]:
        """The last lines that are neither noise nor a traceback."""
        _, inside = self._tracebacks
        outside = (
            self.lines[place].text
            for place in reversed(range(len(self.lines)))
            if place not in inside
        )
        return [*islice((text for text in outside if not NOISE.search(text)), LAST)][::-1]

    def writer(self, line: Line) -> str | None:
        """The node whose task wrote a line; None where the log does not tell."""
        if line.task is not None:
            return self.nodes[line.task]
        return self.nodes[0] if len(self.nodes) == 1 else None

    def concerned(self, line: Line) -> str | None:
        """The one node that a line names, or the one that wrote it where it names none."""
        words = {_short(word) for word in re.findall(r"[\w.-]+", line.text)}
        named = [node for node in self.nodes if _short(node) in words]
        return named[0] if len(named) == 1 else None if named else self.writer(line)

    def node_at(self, address: str) -> str | None:
        """The node that a name or an address in a line of NCCL's stands for."""
        name = _short(self.addresses.get(address, address))
        return next((node for node in self.nodes if _short(node) == name), None)


def read_log(log: str, nodes: Sequence[str], begun: bool = False) -> Log:
    """What a log says since its last signs of progress: what came before did no harm.

    Progress are steps that were logged. A progress bar is none: `srun --label` holds it back until
    its line ends. Another process may be one step ahead, so the last logged steps do not count.
    """
    lines = tuple(read_lines(log, len(nodes)))
    logged = [place for place, line in enumerate(lines) if _LOSS.search(line.text)]
    start = logged[-3] if len(logged) > 2 else 0
    return Log(lines[start:], tuple(nodes), begun or bool(logged), _read_addresses(lines))


def _read_addresses(lines: Sequence[Line]) -> dict[str, str]:
    """The names of nodes by the addresses at which NCCL says to listen."""
    said = (_LISTENS.search(line.text) for line in lines if "NCCL INFO Bootstrap" in line.text)
    return {match[2]: match[1] for match in said if match}


def first_error(log: str, nodes: Sequence[str] = ()) -> Failure | None:
    """The exception that explains most of a log; None where no process shows one.

    Where several ranks failed, those that only lost a peer come last.
    """
    found = read_log(log, nodes).found
    return next((each.failure for each in found if each.failure), None)


def _classify_failure(failure: Failure) -> Found:
    for sign in SIGNS:
        for text in failure.texts:
            if match := sign.pattern.search(text):
                return Found(sign, match, failure.line, failure.place, failure)
    match = UNKNOWN.pattern.search(failure.line.text)
    return Found(UNKNOWN, match, failure.line, failure.place, failure)


def _classify_line(line: Line, place: int) -> Iterator[Found]:
    """A line as it is known by the first sign that does; nothing for noise."""
    if line.text.startswith(SUPERVISOR) or NOISE.search(line.text):
        return
    for sign in SIGNS:
        if match := sign.pattern.search(line.text):
            yield Found(sign, match, line, place)
            return


def _short(node: str) -> str:
    return node.split(".")[0]
