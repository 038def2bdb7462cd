"""One thing that the doctor looked at, and how a person reads it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

MOST = 400  # characters of what was found; what programs say can be longer than a screen


class Verdict(StrEnum):
    """How serious a finding is. With a fault a run fails; a warning may be meant so."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"
    UNCHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    """What was found of a subject, and what to do about it; `area` groups subjects."""

    area: str
    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """The check in one line."""
        text = ": ".join(filter(None, map(one_line, (self.subject, self.found))))
        return f"{self.verdict:<11}  {text}{f'; {one_line(self.remedy)}' if self.remedy else ''}"


def one_line(text: str) -> str:
    """A text without line breaks, cut where it is very long."""
    joined = " ".join(text.split())
    return joined if len(joined) <= MOST else f"{joined[:MOST]}…"


class Printer:
    """Prints checks as they come, one a line, below the name of their area."""

    def __init__(self) -> None:
        self.area = ""

    def __call__(self, check: Check) -> None:
        """Print a check at once: on some login nodes this process does not live long."""
        if check.area != self.area:
            print(f"{check.area}", flush=True)
            self.area = check.area
        print(f"  {check.line}", flush=True)


def has_fault(checks: Iterable[Check]) -> bool:
    """Whether anything would make a run fail."""
    return any(check.verdict == Verdict.FAULT for check in checks)


def sum_up(checks: Iterable[Check]) -> str:
    """How many checks of each verdict there are."""
    counts = Counter(check.verdict for check in checks)
    words = {
        Verdict.FAULT: "faults" if counts[Verdict.FAULT] != 1 else "fault",
        Verdict.WARNING: "warnings" if counts[Verdict.WARNING] != 1 else "warning",
        Verdict.UNCHECKED: "not checked",
        Verdict.OK: "ok",
    }
    return ", ".join(f"{counts[each]} {word}" for each, word in words.items())
