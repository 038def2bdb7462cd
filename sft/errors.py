"""The one exception that a user is meant to read: it names the place, the value and the remedy."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

SHOWN = 10  # faults at once; more would scroll away


class SftError(Exception):
    """A refusal, one argument a fault. Shown without a traceback; everything else is a bug.

    Its text shows the first faults and the number of the others.
    """

    def __str__(self) -> str:
        rest = len(self.args) - SHOWN
        lines = [str(line) for line in self.args[:SHOWN]]
        return "\n".join([*lines, f"… and {rest} more"] if rest > 0 else lines)


def raise_faults(lines: Iterable[str]) -> None:
    """Raise SftError with the lines, each once; nothing where there is none."""
    if found := list(dict.fromkeys(lines)):
        raise SftError(*found)


@contextmanager
def gathered(lines: list[str]) -> Iterator[None]:
    """Add the faults of a refusal inside the block to `lines`; what follows the block goes on."""
    try:
        yield
    except SftError as error:
        lines += error.args


def nearest(word: object, choices: Iterable[str]) -> str:
    """The remedy for an unknown word: the closest choices, or all of them where none is close."""
    text, known = str(word).lower(), sorted(choices)
    close = [
        *get_close_matches(text, known, n=1),
        *(choice for choice in known if text == _initials(choice)),  # lr: learning_rate
        *(choice for choice in known if len(text) > 2 and text in choice.lower()),
    ]
    if close:
        return f"did you mean {' or '.join(map(repr, list(dict.fromkeys(close))[:3]))}?"
    if not known:
        return "none is known"
    return "known: " + ", ".join(known[:20]) + (", …" if len(known) > 20 else "")


def _initials(name: str) -> str:
    return "".join(part[:1] for part in name.lower().split("_"))


def first_few(items: Iterable[object]) -> str:
    """The first items, and how many more there are."""
    listed = [str(item) for item in items]
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
