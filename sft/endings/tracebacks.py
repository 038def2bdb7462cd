"""The exceptions that ended processes, read from the tracebacks that they wrote."""

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sft.endings.lines import Line, following
from sft.endings.signs import NOISE

_BEGINS = "Traceback (most recent call last):"
_CHAINED = ("The above exception was the direct", "During handling of the above", "Original Trace")
_EXCEPTION = re.compile(
    r"(?:(?:[A-Za-z_]\w*\.)*[A-Z]\w*|(?:\w+\.)+[a-z]*(?:error|timeout))(?:: |:?$)"
)
_LIBRARY = re.compile(r'File "(?:[^"]*/(?:site-packages|dist-packages|lib/python3[^/]*|bin)/|<)')


@dataclass(frozen=True)
class Failure:
    """An exception that ended a process.

    `causes` are the last lines of the exceptions that led to it, `details` what follows its own,
    `frames` where it was raised: the innermost place outside of installed packages, and the
    innermost of all. `place` is the number of its line in what was read.
    """

    line: Line
    causes: tuple[str, ...]
    frames: tuple[str, ...]
    details: tuple[str, ...]
    place: int

    @property
    def texts(self) -> tuple[str, ...]:
        """What says of which class it is."""
        return (*self.causes, self.line.text, *self.details)

    @property
    def shown(self) -> tuple[str, ...]:
        """What is worth showing of it."""
        return (*self.causes[:2], self.line.text, *self.details, *self.frames)


def read_tracebacks(lines: Sequence[Line]) -> tuple[list[Failure], set[int]]:
    """The failures of all processes but launchers, and the places of the lines that they fill."""
    ended: dict[tuple, list[Failure]] = defaultdict(list)
    frames: dict[tuple, list[str]] = {}
    chained: set[tuple] = set()
    inside = set()
    for place, line in enumerate(lines):
        process = line.process
        if line.text.startswith(_CHAINED):
            chained.add(process)
        if _BEGINS in line.text:
            frames[process] = []
        elif process not in frames:
            continue
        elif line.text.startswith(" "):
            frames[process].append(line.text.strip())
        elif _EXCEPTION.match(line.text):
            before = ended[process].pop() if process in chained and ended[process] else None
            ended[process].append(_failure(lines, place, frames.pop(process), before))
            chained.discard(process)
        else:
            continue
        inside.add(place)
    failures = sorted(itertools.chain(*ended.values()), key=lambda each: each.place)
    return [each for each in failures if not NOISE.search(each.line.text)], inside


def _failure(
    lines: Sequence[Line], place: int, frames: Sequence[str], before: Failure | None
) -> Failure:
    return Failure(
        line=lines[place],
        causes=(*before.causes, before.line.text) if before else (),
        frames=_telling_frames(frames),
        details=_details(lines, place),
        place=place,
    )


def _telling_frames(frames: Sequence[str]) -> tuple[str, ...]:
    """Of a stack the innermost place of our own code, and the innermost of all."""
    places = [
        f"{text}: {code}" if not code.startswith("File ") else text
        for text, code in itertools.pairwise([*frames, "File "])
        if text.startswith("File ")
    ]
    own = [text for text in places if not _LIBRARY.match(text)]
    return tuple(dict.fromkeys([*own[-1:], *places[-1:]]))


def _details(lines: Sequence[Line], place: int) -> tuple[str, ...]:
    """What the same process says right after the line of an error, such as NCCL's last error."""
    after = following(lines, place)[:3]
    return tuple(itertools.takewhile(lambda text: not NOISE.search(text), after))
