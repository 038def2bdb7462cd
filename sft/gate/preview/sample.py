"""Examples and sources as the previews show them, and as JSON in a receipt."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from typing import Any

FIRST = "first"  # why the first example of a source is shown; else a fault's name
VERDICTS = ("refused", "accepted", "note")  # from the worst
STATES = ("trained", "control", "marked", "ends_turn")
CONTEXT = 40  # tokens kept before and after a fault's place


@dataclass(frozen=True)
class Token:
    """One token of an example.

    `text` is its own piece of the decoded text. Where several tokens spell one character, the last
    of them has the character and the ones before it have "". `control` tokens are special tokens
    of the tokenizer, `marked` ones the place of a fault, and after one that `ends_turn` a model
    stops writing.
    """

    id: int
    text: str
    trained: bool
    control: bool
    marked: bool
    ends_turn: bool


@dataclass(frozen=True)
class Gap:
    """Tokens that were left out of a long example."""

    num_tokens: int
    num_trained: int


@dataclass(frozen=True)
class Sample:
    """An example to look at: row `row` of `source`, from 0 as `datasets` counts.

    `why` is FIRST or a fault's name, `note` a sentence on what was found and expected. The counts
    are those of the whole example, `tokens` what `shorten` left of it.
    """

    source: str
    row: int
    why: str
    note: str
    num_tokens: int
    num_trained: int
    tokens: tuple[Token | Gap, ...]

    def to_json(self) -> dict[str, Any]:
        """The sample as plain JSON, tokens in runs of the same state."""
        return {
            "source": _writable(self.source),
            "row": self.row,
            "why": self.why,
            "note": _writable(self.note),
            "num_tokens": self.num_tokens,
            "num_trained": self.num_trained,
            "tokens": list(_runs_to_json(self.tokens)),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Sample":
        """The sample that `to_json` wrote."""
        return cls(**{**content, "tokens": tuple(_tokens_from_json(content["tokens"]))})


@dataclass(frozen=True)
class Finding:
    """A fault counted for one source: in how many rows.

    `meaning` completes "12 rows: they …", as in sft/gate/checks.py; `remedy` is what a person
    can do.
    """

    fault: str
    count: int
    verdict: str
    meaning: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.fault}: verdict {self.verdict!r}, expected one of {VERDICTS}")


@dataclass(frozen=True)
class Summary:
    """What came of one source of a mix; `longest` is in tokens."""

    source: str
    rows_in: int
    rows_out: int
    num_examples: int
    num_tokens: int
    num_trained: int
    longest: int
    num_truncated: int
    findings: tuple[Finding, ...] = ()

    @property
    def trained_share(self) -> float:
        """Trained tokens of all tokens, 0 to 1; 0 for a source without any."""
        return self.num_trained / self.num_tokens if self.num_tokens else 0.0

    def to_json(self) -> dict[str, Any]:
        """The summary as plain JSON."""
        return asdict(self) | {"findings": [asdict(each) for each in self.findings]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Summary":
        """The summary that `to_json` wrote."""
        findings = tuple(Finding(**each) for each in content["findings"])
        return cls(**{**content, "findings": findings})


def _runs_to_json(tokens: Sequence[Token | Gap]) -> Iterator[dict[str, Any]]:
    for state, run in groupby(tokens, key=_state):
        if state is None:
            yield from (asdict(gap) for gap in run)
        else:
            members = list(run)
            yield {
                "state": [name for name, holds in zip(STATES, state, strict=True) if holds],
                "ids": [token.id for token in members],
                "texts": [_writable(token.text) for token in members],
            }


def _tokens_from_json(runs: Sequence[Mapping[str, Any]]) -> Iterator[Token | Gap]:
    for run in runs:
        if "num_tokens" in run:
            yield Gap(**run)
        else:
            state = {name: name in run["state"] for name in STATES}
            for number, text in zip(run["ids"], run["texts"], strict=True):
                yield Token(number, text, **state)


def _state(token: Token | Gap) -> tuple[bool, ...] | None:
    return None if isinstance(token, Gap) else tuple(getattr(token, name) for name in STATES)


def _writable(text: str) -> str:
    """The text with lone surrogates spelled out: JSON may hold them, no UTF-8 file can."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shorten(tokens: Sequence[Token], most: int) -> tuple[Token | Gap, ...]:
    """At most `most` of the tokens: the beginning, the marked places, the end; Gaps between them.

    Where the marked places are more than fit, the first ones stay.
    """
    if len(tokens) <= most:
        return tuple(tokens)
    kept = _kept(tokens, most)
    shown: list[Token | Gap] = []
    for keep, run in groupby(range(len(tokens)), key=kept.__contains__):
        members = [tokens[index] for index in run]
        trained = sum(token.trained for token in members)
        shown += members if keep else [Gap(len(members), trained)]
    return tuple(shown)


def _kept(tokens: Sequence[Token], most: int) -> set[int]:
    """The indexes of the tokens that stay, `most` of them."""
    count, edge = len(tokens), most // 4
    kept = {*range(edge), *range(count - edge, count)}
    marked = [index for index, token in enumerate(tokens) if token.marked]
    nearby = (
        index
        for place in marked
        for index in (place, *range(max(0, place - CONTEXT), min(count, place + CONTEXT + 1)))
    )
    for index in chain(nearby, range(count)):
        if len(kept) >= most:
            break
        kept.add(index)
    return kept
