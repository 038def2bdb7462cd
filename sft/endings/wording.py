"""How an ending is told: the lines that are shown of a log, and parts of its sentence."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sft.endings.lines import following
from sft.endings.logs import Found, Log
from sft.endings.signs import Weight

SHOWN = 8  # telling lines of an ending
WIDTH = 300  # characters of one of them
QUOTED = 200  # characters of a line within a sentence

_STACK = re.compile(r"^Current thread .*most recent call first")


def shown(lines: Iterable[str]) -> tuple[str, ...]:
    """The first of some lines, each once, and long ones cut."""
    return tuple(dict.fromkeys(_cut(line, WIDTH) for line in lines))[:SHOWN]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def telling(log: Log) -> tuple[str, ...]:
    """The lines that say why: the first error of all, and others of its kind."""
    first = log.found[0]
    alike = [each for each in log.found[1:] if each.sign is first.sign]
    own = first.failure.shown if first.failure else first.texts
    more = []
    if first.sign.weight in (Weight.CRASH, Weight.ABORT):
        more = [*stacks(log), *log.last()]
    return shown([*own, *(each.line.text for each in alike[:3]), *more])


def stacks(log: Log) -> list[str]:
    """Where processes were, by the stacks that faulthandler writes, each place with its count."""
    starts = [place for place, line in enumerate(log.lines) if _STACK.match(line.text)]
    below = ([text.strip() for text in following(log.lines, start)] for start in starts)
    frames = ([text for text in stack if text.startswith("File ")] for stack in below)
    places = Counter(place for stack in frames for place in stack[:1])
    return [f"{count} × {place}" for place, count in places.most_common(4)]


def what(found: Found) -> str:
    """What happened, with what the line says of it."""
    said = [group for group in found.match.groups() if group] or [found.match[0]]
    return found.sign.what.format(*(_cut(text.strip(), QUOTED) for text in said), "")


def who(found: Found, log: Log) -> str:
    """The rank and node that a line comes from, as far as it is known."""
    rank = None if found.line.rank is None else f"rank {found.line.rank}"
    return " on ".join(filter(None, [rank, log.writer(found.line)]))


def where(steps: Sequence[Mapping[str, Any]], begun: bool) -> str:
    """How far an attempt came."""
    if not begun:
        return "before its first step"
    if not steps:
        return "in training"
    return f"after step {max(each['step'] for each in steps)} of {steps[-1]['max_steps']}"


def lasting(seconds: float) -> str:
    """A time in words."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
