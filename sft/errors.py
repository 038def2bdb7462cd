"""The one exception that a user is meant to read: it names the place, the value and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches


class SftError(Exception):
    """A refusal. Shown without a traceback; everything else is a bug and keeps its traceback."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """The remedy for an unknown word: the closest choice, or all of them where none is close."""
    known = sorted(choices)
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    if not known:
        return "none is known"
    return "known: " + ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
