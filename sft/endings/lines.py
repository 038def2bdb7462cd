"""The lines of a log: what they say without labels, colours and progress bars, and who wrote them.

`srun --label` puts the number of a task before each line, torch that of a rank.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LABEL = re.compile(r" *(\d+): ?")
_RANK = re.compile(r"\[rank(\d+)\]: ?")
_BAR = re.compile(r"^.*?\d+%\|[^\[]*\[[^\]]*\]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Line:
    """A line of a log without labels and progress bars, and the task and rank that it is of."""

    text: str
    task: int | None = None
    rank: int | None = None

    @property
    def process(self) -> tuple[int | None, int | None]:
        """What tells its process from others, as far as the log does."""
        return self.task, self.rank


def read_lines(log: str, tasks: int) -> Iterator[Line]:
    """The lines of a log of so many tasks that are not empty."""
    for text in log.split("\n"):
        task = None
        if (label := _LABEL.match(text)) and int(label[1]) < tasks:
            task, text = int(label[1]), text[label.end() :]
        # Progress bars write over themselves.
        for piece in text.split("\r"):
            yield from _read_piece(piece, task)


def _read_piece(text: str, task: int | None) -> Iterator[Line]:
    text = _COLOUR.sub("", text)
    if "%|" in text:  # the pattern alone is slow
        text = _BAR.sub("", text)
    rank = _RANK.match(text)
    text = text[rank.end() :] if rank else text
    if text.strip():
        yield Line(text.rstrip(), task, int(rank[1]) if rank else None)


def following(lines: Sequence[Line], place: int) -> list[str]:
    """The next lines of the process that wrote the line at `place`."""
    near = lines[place + 1 : place + 40]
    return [line.text for line in near if line.process == lines[place].process]
