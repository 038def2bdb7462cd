"""What becomes of the findings of an inspection: refused, accepted by the config, within limits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sft.errors import raise_faults
from sft.gate.checks import CHECKS

SHOWN_PLACES = 10


@dataclass(frozen=True)
class Judged:
    """A finding with its verdict: refused, accepted (`by` what), or note where within the limit."""

    source: str
    fault: str
    count: int
    of: int
    places: tuple[Mapping[str, Any], ...]
    verdict: str
    by: str = ""

    def record(self) -> dict[str, Any]:
        """The finding as a receipt and a release keep it."""
        return {
            "source": self.source,
            "fault": self.fault,
            "count": self.count,
            "of": self.of,
            "by": self.by,
        }


def judge(
    findings: Iterable[Mapping[str, Any]],
    limits: Mapping[str, float],
    accepted: Iterable[str],
    decided: Mapping[str, str],
) -> list[Judged]:
    """Each finding with its verdict.

    `limits` are the config's own, `accepted` entries of `accept` (`source:fault`, or the `fault` of
    a decision), `decided` faults that a key of the config asks for by itself, with that key.
    """
    entries = frozenset(accepted)
    judged = []
    for each in findings:
        fault, share = each["fault"], each["count"] / each["of"] if each["of"] else 1.0
        entry = _find_entry(each["source"], fault, entries)
        verdict, by = "refused", ""
        if fault in decided:
            verdict, by = "accepted", decided[fault]
        elif entry:
            verdict, by = "accepted", f"accept: {entry}"
        elif share <= _limit(fault, limits):
            verdict, by = "note", f"limit {_percent(_limit(fault, limits))}"
        places = tuple(each["places"])
        judged.append(Judged(each["source"], fault, each["count"], each["of"], places, verdict, by))
    return judged


def _find_entry(source: str, fault: str, entries: frozenset[str]) -> str:
    """The entry of `accept` that accepts a fault, "" for none."""
    check = CHECKS[fault]
    named = [f"{source}:{fault}", *([fault] if check.decision else [])]
    return next((name for name in named if name in entries and check.acceptable), "")


def _limit(fault: str, limits: Mapping[str, float]) -> float:
    return limits.get(fault, CHECKS[fault].limit)


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


def refuse(judged: Iterable[Judged], limits: Mapping[str, float]) -> None:
    """Raise SftError with each refused finding: how many, the first rows, the remedy."""
    raise_faults(
        refusal(each, _limit(each.fault, limits)) for each in judged if each.verdict == "refused"
    )


def refusal(finding: Judged, limit: float) -> str:
    """The lines that tell a person of a refused finding."""
    check, shown = CHECKS[finding.fault], finding.places[:SHOWN_PLACES]
    what = f"{finding.source}: {finding.fault}: {finding.count} of {finding.of} {check.meaning}"
    lines = [what + (f" (limit {_percent(limit)})" if limit else "")]
    lines += [
        f"    row {place['row']}: found {place['found']}, expected {place['expected']}"
        for place in shown
    ]
    if shown and finding.count > len(shown):
        lines.append(f"    … and {finding.count - len(shown)} more")
    lines.append(f"    remedy: {check.remedy}")
    if check.acceptable:
        entry = finding.fault if check.decision else f"{finding.source}:{finding.fault}"
        lines.append(f"    or accept it, in the row or the base config: accept: [{entry}]")
    return "\n".join(lines)
