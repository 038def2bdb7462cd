"""What an inspection counts: by fault and source, with the first rows and some examples of each."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sft.gate.checks import PACKS, ROW_CHECKS
from sft.gate.preview import FIRST, Sample
from sft.gate.rows import Part

SHOWN_ROWS = 10  # of one fault and source
SHOWN_SAMPLES = 2  # of one fault and source
FEWEST_ANSWERS = 3
FEW_TRAINED = 0.005  # of a source's tokens


@dataclass(frozen=True)
class Source:
    """A source of the mix: its files in order, the registry's words, how many rows were taken."""

    name: str
    files: tuple[Path | Part, ...]
    options: Mapping[str, Any]
    rows_in: int
    rows_out: int


@dataclass
class Tally:
    """What was found in a part of the mix, or in all of it."""

    counts: Counter = field(default_factory=Counter)  # (source, fault): examples or rows
    places: dict[tuple, list[dict]] = field(default_factory=dict)
    samples: dict[tuple, list[Sample]] = field(default_factory=dict)
    lengths: dict[str, list[np.ndarray]] = field(default_factory=dict)
    trained: Counter = field(default_factory=Counter)
    dropped: Counter = field(default_factory=Counter)
    digests: dict[str, list[np.ndarray]] = field(default_factory=dict)  # (row's, answer's, row)

    def add_fault(self, source: str, fault: str, row: int, found: str, expected: str) -> None:
        """Count a fault of one row or example."""
        self.counts[source, fault] += 1
        places = self.places.setdefault((source, fault), [])
        if len(places) < SHOWN_ROWS:
            places.append({"row": int(row), "found": found, "expected": expected})

    def add(self, other: "Tally") -> None:
        """Take over what another tally counted."""
        for name in ("counts", "trained", "dropped"):
            getattr(self, name).update(getattr(other, name))
        for name in ("lengths", "digests"):
            for key, arrays in getattr(other, name).items():
                getattr(self, name).setdefault(key, []).extend(arrays)
        for key, places in other.places.items():
            mine = self.places.setdefault(key, [])
            self.places[key] = sorted(mine + places, key=lambda each: each["row"])[:SHOWN_ROWS]
        for key, samples in other.samples.items():
            mine = self.samples.setdefault(key, [])
            most = 1 if key[1] == FIRST else SHOWN_SAMPLES
            self.samples[key] = sorted(mine + samples, key=lambda each: each.row)[:most]


def sum_up(tally: Tally, sources: Sequence[Source], packs: Source | None) -> dict[str, Any]:
    """`{"sources", "findings", "samples"}` of a whole mix, as plain JSON; see `inspection.inspect`.

    `packs` stands for the packed examples, where there are any, as one source more.
    """
    _judge_repetitions(tally)
    _judge_sources(sources, tally)
    if packs:
        _judge_packs(sources, tally)
    counted = [*sources, packs] if packs else sources
    return {
        "sources": {each.name: _source_counts(each, tally) for each in counted},
        "findings": list(_findings(counted, tally)),
        "samples": [
            sample.to_json()
            for source in counted
            for key in sorted(key for key in tally.samples if key[0] == source.name)
            for sample in tally.samples[key]
        ],
    }


def _judge_repetitions(tally: Tally) -> None:
    for source, parts in tally.digests.items():
        digests, answers, rows = np.concatenate(parts).T
        _, first, counts = np.unique(digests, return_index=True, return_counts=True)
        for row, count in zip(rows[first[counts > 1]], counts[counts > 1], strict=True):
            tally.add_fault(source, "duplicate_rows", row, f"{count} times the same row", "once")
            tally.counts[source, "duplicate_rows"] += int(count) - 2
        answers, rows = answers[first], rows[first]
        same, counts = np.unique(answers[answers > 0], return_counts=True)
        if counts.max(initial=0) >= FEWEST_ANSWERS:
            most = counts.argmax()
            row, count = rows[answers == same[most]].min(), int(counts[most])
            tally.add_fault(
                source, "repeated_answer", row, f"the answer of {count} rows", "one row"
            )
            tally.counts[source, "repeated_answer"] = count


def _judge_packs(sources: Sequence[Source], tally: Tally) -> None:
    expected = sum(tally.trained[each.name] for each in sources)
    if tally.trained[PACKS] != expected:
        found = f"{tally.trained[PACKS]} tokens with a loss in all packs"
        tally.add_fault(PACKS, "broken_tokens", 0, found, f"{expected} as in the examples")


def _judge_sources(sources: Sequence[Source], tally: Tally) -> None:
    for source in sources:
        lost = source.rows_in - source.rows_out - tally.dropped[source.name]
        if lost > 0:
            tally.counts[source.name, "lost_rows"] = lost
        tokens = sum(int(each.sum()) for each in tally.lengths.get(source.name, []))
        if tokens and tally.trained[source.name] < FEW_TRAINED * tokens:
            tally.counts[source.name, "low_trained_share"] = _num_examples(source.name, tally)


def _num_examples(source: str, tally: Tally) -> int:
    return sum(map(len, tally.lengths.get(source, [])))


def _source_counts(source: Source, tally: Tally) -> dict[str, Any]:
    lengths = np.concatenate([*tally.lengths.get(source.name, []), np.zeros(0, dtype=np.int32)])
    shares = np.percentile(lengths, [50, 95]).astype(int).tolist() if len(lengths) else [0, 0]
    return {
        "rows_in": source.rows_in,
        "rows_out": source.rows_out,
        "examples": len(lengths),
        "tokens": int(lengths.sum()),
        "trained_tokens": tally.trained[source.name],
        "median_length": shares[0],
        "length_of_95_percent": shares[1],
        "longest": int(lengths.max(initial=0)),
        "truncated": tally.counts[source.name, "truncated_answer"],
    }


def _findings(sources: Sequence[Source], tally: Tally) -> Iterable[dict[str, Any]]:
    rows = {each.name: each.rows_in for each in sources}
    for (source, fault), count in sorted(tally.counts.items()):
        of = rows[source] if fault in ROW_CHECKS else _num_examples(source, tally)
        yield {
            "source": source,
            "fault": fault,
            "count": count,
            "of": of,
            "places": tally.places.get((source, fault), []),
        }
