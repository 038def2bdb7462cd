"""What becomes of the findings of an inspection: refused, accepted by the config, within limits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sft.checks import CHECKS
from sft.errors import raise_faults

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

    @property
    def share(self) -> float:
        """The count of all rows or examples of the source, 0 to 1."""
        return self.count / self.of if self.of else 1.0

    def record(self) -> dict[str, Any]:
        """The finding as a receipt and a release keep it."""
        return {
            **{"source": self.source, "fault": self.fault, "count": self.count, "of": self.of},
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
    entries = set(accepted)
    judged = []
    for each in findings:
        source, fault = each["source"], each["fault"]
        check, share = CHECKS[fault], each["count"] / each["of"] if each["of"] else 1.0
        verdict, by = "refused", ""
        named = entries & {f"{source}:{fault}", fault if check.decision else ""}
        if fault in decided:
            verdict, by = "accepted", decided[fault]
        elif named and check.acceptable:
            verdict, by = "accepted", f"accept: {min(named)}"
        elif share <= limits.get(fault, check.limit):
            verdict, by = "note", f"limit {limits.get(fault, check.limit):.2%}"
        judged.append(
            Judged(source, fault, each["count"], each["of"], tuple(each["places"]), verdict, by)
        )
    return judged


def refuse(judged: Iterable[Judged], limits: Mapping[str, float]) -> None:
    """Raise SftError with each refused finding: how many, the first rows, the remedy."""
    raise_faults(
        refusal(each, limits.get(each.fault, CHECKS[each.fault].limit))
        for each in judged
        if each.verdict == "refused"
    )


def refusal(finding: Judged, limit: float) -> str:
    """The lines that tell a person of a refused finding."""
    check = CHECKS[finding.fault]
    lines = [
        f"{finding.source}: {finding.fault}: {finding.count} of {finding.of} {check.meaning}"
        + (f" (limit {limit:.2%})" if limit else "")
    ]
    lines += [
        f"    row {place['row']}: found {place['found']}, expected {place['expected']}"
        for place in finding.places[:SHOWN_PLACES]
    ]
    if rest := finding.count - len(finding.places[:SHOWN_PLACES]):
        lines.append(f"    … and {rest} more" if finding.places else f"    {rest} in all")
    lines.append(f"    remedy: {check.remedy}")
    if check.acceptable:
        entry = finding.fault if check.decision else f"{finding.source}:{finding.fault}"
        lines.append(f"    or accept it, in the row or the base config: accept: [{entry}]")
    return "\n".join(lines)
