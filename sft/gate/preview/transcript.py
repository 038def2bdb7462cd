"""What the page and the terminal share: an example in turns, visible characters, the headline."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from sft.gate.preview.sample import FIRST, VERDICTS, Finding, Gap, Sample, Summary, Token

LOOK_AT = (
    "Look at the end of each answer: all that the assistant says and the token that ends its turn "
    "must be trained; nothing that the system, the user or a tool says may be."
)
PART = "part"  # for a token whose character is finished by a token of another state, or by none
NEW_LINE, TAB = "↵", "⇥"

# Not seen on a screen although they count as letters, marks or symbols: fillers of scripts, the
# blank Braille cell, and variation selectors that can carry a hidden text.
_BLANK = {*"\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0", *map(chr, range(0xE0100, 0xE01F0))}
_SHORT = {
    **{"\0": "NUL", "\a": "BEL", "\b": "BS", "\v": "VT", "\f": "FF", "\r": "CR", "\x1b": "ESC"},
    **{"\x7f": "DEL", "\xa0": "NBSP", "\xad": "SHY", "\u2060": "WJ", "\ufeff": "BOM"},
    **{"\u200b": "ZWSP", "\u200c": "ZWNJ", "\u200d": "ZWJ", "\u200e": "LRM", "\u200f": "RLM"},
    **{"\u202a": "LRE", "\u202b": "RLE", "\u202c": "PDF", "\u202d": "LRO", "\u202e": "RLO"},
    **{"\u2066": "LRI", "\u2067": "RLI", "\u2068": "FSI", "\u2069": "PDI"},
}


@dataclass(frozen=True)
class Piece:
    """What can be seen as one: a token, or all the tokens that spell a character together."""

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Run:
    """Adjacent pieces of the same state."""

    trained: bool
    control: bool
    marked: bool
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class Turn:
    """A part of an example, up to the token that ends a turn and the white space after it."""

    parts: tuple[Run | Gap, ...]
    num_tokens: int
    num_trained: int
    ended: bool
    end_trained: bool


def split_turns(tokens: Iterable[Token | Gap]) -> list[Turn]:
    """The example in turns; the last one is not `ended` where the example stops without an end."""
    turns: list[list[Token | Gap]] = []
    ended = True
    for token in tokens:
        if ended and (not turns or not _is_space(token)):
            turns.append([])
            ended = False
        turns[-1].append(token)
        ended = ended or (isinstance(token, Token) and token.ends_turn)
    return [_turn(members) for members in turns]


def _is_space(token: Token | Gap) -> bool:
    return isinstance(token, Token) and token.text.isspace()


def _turn(tokens: Sequence[Token | Gap]) -> Turn:
    gaps = [each for each in tokens if isinstance(each, Gap)]
    shown = [each for each in tokens if isinstance(each, Token)]
    return Turn(
        parts=tuple(_parts(tokens)),
        num_tokens=len(shown) + sum(gap.num_tokens for gap in gaps),
        num_trained=sum(each.trained for each in shown) + sum(gap.num_trained for gap in gaps),
        ended=any(each.ends_turn for each in shown),
        end_trained=any(each.ends_turn and each.trained for each in shown),
    )


def _parts(tokens: Sequence[Token | Gap]) -> Iterable[Run | Gap]:
    for state, members in groupby(tokens, key=_state):
        if state is None:
            yield from members
        else:
            yield Run(*state, pieces=tuple(_pieces(members)))


def _state(token: Token | Gap) -> tuple[bool, bool, bool] | None:
    return None if isinstance(token, Gap) else (token.trained, token.control, token.marked)


def _pieces(tokens: Iterable[Token]) -> Iterable[Piece]:
    ids: tuple[int, ...] = ()
    for token in tokens:
        ids += (token.id,)
        if token.text:
            yield Piece(ids, token.text)
            ids = ()
    if ids:
        yield Piece(ids, "")


def describe_finding(finding: Finding) -> str:
    """In how many rows a fault is, and what it is."""
    rows = count_nouns(finding.count, "row")
    return f"{rows}: they {finding.meaning}" if finding.meaning else rows


def describe_end(turn: Turn) -> str:
    """What is odd about the end of a turn; empty where nothing is."""
    if not turn.ended:
        return "The example stops here, without the end of a turn."
    if turn.num_trained and not turn.end_trained:
        return "The token that ends this turn is not trained."
    return ""


def describe_gap(gap: Gap) -> str:
    """What stands where tokens were left out."""
    return (
        f"{count_nouns(gap.num_tokens, 'token')} left out here, {gap.num_trained:,} of them trained"
    )


def is_plain(text: str) -> bool:
    """Whether each character of the text can be seen, spaces included."""
    return text.isprintable() and _BLANK.isdisjoint(text)


def name_character(character: str) -> str:
    """How a character that cannot be seen is written, as in 'U+202E RLO'."""
    return f"U+{ord(character):04X} {_SHORT.get(character, '')}".rstrip()


def visible(text: str) -> str:
    """The text on one line, with each character that cannot be seen by its name."""
    return text if is_plain(text) else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in "\n\t":
        return NEW_LINE if character == "\n" else TAB
    return character if is_plain(character) else f"⟨{name_character(character)}⟩"


def width_of(character: str) -> int:
    """The columns of a terminal that a character takes."""
    if unicodedata.combining(character) or unicodedata.category(character) == "Mn":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def is_refused(sources: Iterable[Summary]) -> bool:
    """Whether a fault of any source keeps the mix from being trained."""
    return any(each.verdict == "refused" for source in sources for each in source.findings)


def headline(sources: Sequence[Summary]) -> str:
    """The result in a line: what is refused, where, and what else was found."""
    found = [finding.verdict for source in sources for finding in source.findings]
    counts = {verdict: found.count(verdict) for verdict in VERDICTS}
    others = [
        f"{counts['accepted']} accepted" if counts["accepted"] else "",
        count_nouns(counts["note"], "note") if counts["note"] else "",
    ]
    rest = "".join(f", {each}" for each in others if each)
    if not counts["refused"]:
        return f"Nothing is refused in {count_nouns(len(sources), 'source')}{rest}"
    refused = [each for each in sources if any(f.verdict == "refused" for f in each.findings)]
    where = f"{len(refused)} of {count_nouns(len(sources), 'source')}"
    return f"Refused: {count_nouns(counts['refused'], 'fault')} in {where}{rest}"


def count_nouns(number: int, noun: str) -> str:
    """A number with its noun, as in '2,100 tokens'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def finding_of(sample: Sample, sources: Iterable[Summary]) -> Finding | None:
    """The finding that a sample shows; None for the first example of a source."""
    for source in sources:
        for finding in source.findings:
            if (source.source, finding.fault) == (sample.source, sample.why):
                return finding
    return None


def worst_first(samples: Iterable[Sample], sources: Sequence[Summary]) -> list[Sample]:
    """Faults before first examples, refused ones before accepted ones; else in their own order."""

    def badness(sample: Sample) -> int:
        finding = finding_of(sample, sources)
        if finding is None:
            return len(VERDICTS) if sample.why == FIRST else 0
        return VERDICTS.index(finding.verdict)

    return sorted(samples, key=badness)
