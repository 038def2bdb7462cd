"""The preview for a terminal: in colours, or with marks where there are none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TextIO

from sft.gate.preview.sample import FIRST, Finding, Gap, Sample, Summary
from sft.gate.preview.transcript import (
    LOOK_AT,
    PART,
    Run,
    Turn,
    describe_end,
    describe_finding,
    describe_gap,
    finding_of,
    headline,
    is_refused,
    split_turns,
    visible,
    width_of,
    worst_first,
)

NARROWEST = 40  # columns; a narrower terminal breaks the lines itself
BOLD, DIM, RED, GREEN, CYAN = "1", "2", "31", "32", "36"
VERDICT_COLOURS = {"refused": f"{BOLD};{RED}", "accepted": "33", "note": CYAN}


class Cell(NamedTuple):
    """A character in a terminal, and the run that it belongs to."""

    text: str
    run: Run


class Kind(NamedTuple):
    """What the bar at the left says of a line, and how many such lines stay of a long stretch."""

    bar: str
    colour: str
    words: str
    head: int
    tail: int


FAULTY = Kind("!", f"{BOLD};{RED}", "at the place of a fault", 12, 4)
TRAINED = Kind("┃", GREEN, "with trained tokens", 24, 8)
PLAIN = Kind("│", DIM, "not trained", 6, 4)
LEGEND = (
    (TRAINED, Run(True, False, False), "trained "),
    (TRAINED, Run(True, True, False), "<control>"),
    (PLAIN, Run(False, False, False), "not trained "),
    (PLAIN, Run(False, True, False), "<control>"),
    (FAULTY, Run(False, False, True), "the place of a fault"),
)


@dataclass(frozen=True)
class Screen:
    """How wide a terminal is, and whether it shows colours."""

    width: int
    color: bool

    def paint(self, text: str, code: str) -> str:
        """The text in a colour, where there are colours."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and code and text else text

    def write(self, text: str, code: str = "", indent: int = 0) -> Iterator[str]:
        """The lines of a sentence."""
        cells = [Cell(each, Run(False, False, False)) for each in visible(text)]
        for line in _wrap(cells, self.width - indent):
            yield " " * indent + self.paint("".join(cell.text for cell in line).rstrip(), code)


def wants_color(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether colours are for this stream: a terminal that shows them, and no NO_COLOR."""
    silent = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
    return stream.isatty() and not silent


def preview_text(
    sources: Sequence[Summary], samples: Sequence[Sample], width: int, color: bool
) -> str:
    """The text to print, lines of at most `width` columns: sources, then examples, faults first.

    Long stretches are folded in the middle. The result is said first and again at the end.
    """
    screen = Screen(max(width, NARROWEST), color)
    colour = RED if is_refused(sources) else GREEN
    result = list(screen.write(headline(sources), f"{BOLD};{colour}"))
    lines = [*result, ""]
    for source in sources:
        lines += [*_source(screen, source), ""]
    lines += [*_legend(screen), ""]
    for sample in worst_first(samples, sources):
        lines += [*_sample(screen, sample, finding_of(sample, sources)), ""]
    return "\n".join([*lines, *result]) + "\n"


def _source(screen: Screen, source: Summary) -> Iterator[str]:
    yield from screen.write(source.source, BOLD)
    counts = (
        f"{source.rows_out:,} of {source.rows_in:,} rows, {source.num_examples:,} examples, "
        f"{source.num_tokens:,} tokens, {source.trained_share:.1%} trained, "
        f"longest {source.longest:,}, {source.num_truncated:,} cut off"
    )
    yield from screen.write(counts, indent=2)
    for finding in source.findings:
        yield from _finding(screen, finding)


def _finding(screen: Screen, finding: Finding) -> Iterator[str]:
    title = f"{finding.verdict}: {finding.fault}, {describe_finding(finding)}"
    yield from screen.write(title, VERDICT_COLOURS[finding.verdict], indent=2)
    if finding.remedy:
        yield from screen.write(f"remedy: {finding.remedy}", indent=4)


def _legend(screen: Screen) -> Iterator[str]:
    for kind, entries in groupby(LEGEND, key=itemgetter(0)):
        cells = [Cell(each, run) for _, run, text in entries for each in text]
        yield _line(screen, kind, _bracket(screen, cells))
    yield from screen.write("Rows count from 0.")
    yield from screen.write(LOOK_AT, BOLD)


def _sample(screen: Screen, sample: Sample, finding: Finding | None) -> Iterator[str]:
    why = "first example" if sample.why == FIRST else sample.why
    verdict = f", {finding.verdict}" if finding else ""
    title = f"{sample.source}, row {sample.row}: {why}{verdict}"
    colour = VERDICT_COLOURS[finding.verdict] if finding else BOLD
    yield screen.paint("━" * screen.width, DIM)
    yield from screen.write(title, colour)
    yield from screen.write(sample.note)
    yield f"{sample.num_trained:,} of {sample.num_tokens:,} tokens trained"
    for turn in split_turns(sample.tokens):
        yield from _turn(screen, turn)


def _turn(screen: Screen, turn: Turn) -> Iterator[str]:
    lines = [line for each in _lines(turn) for line in _broken(screen, each)]
    for kind, stretch in groupby(lines, key=_kind):
        yield from _stretch(screen, kind, list(stretch))
    yield screen.paint(f"╰─ {turn.num_trained:,} of {turn.num_tokens:,} tokens trained", DIM)
    yield from screen.write(describe_end(turn), VERDICT_COLOURS["accepted"], indent=3)


def _lines(turn: Turn) -> Iterator[list[Cell] | Gap]:
    """The turn's characters, a list for each line of its text."""
    line: list[Cell] = []
    for part in turn.parts:
        if isinstance(part, Gap):
            yield from ([line, part] if line else [part])
            line = []
            continue
        for character in _characters(part):
            line += [Cell(each, part) for each in visible(character)]
            line += [Cell(" ", part)] * (3 if character == "\t" else 0)
            if character == "\n":
                yield line
                line = []
    if line:
        yield line


def _characters(run: Run) -> Iterator[str]:
    for piece in run.pieces:
        yield from piece.text or f"⟨{PART}⟩"


def _broken(screen: Screen, line: list[Cell] | Gap) -> Iterator[list[Cell] | Gap]:
    """The line in lines that fit beside the bar."""
    if isinstance(line, Gap):
        yield line
    else:
        yield from _wrap(_bracket(screen, line), screen.width - 2)


def _bracket(screen: Screen, line: Iterable[Cell]) -> list[Cell]:
    """Without colours, ⟦ ⟧ around trained text and ► ◄ around the place of a fault."""
    if screen.color:
        return list(line)
    marked: list[Cell] = []
    for (trained, faulty), cells in groupby(line, key=lambda c: (c.run.trained, c.run.marked)):
        members = list(cells)
        before = "⟦" * trained + "►" * faulty
        after = "◄" * faulty + "⟧" * trained
        marked += [Cell(each, members[0].run) for each in before]
        marked += members
        marked += [Cell(each, members[-1].run) for each in after]
    return marked


def _wrap(cells: Sequence[Cell], room: int) -> Iterator[Sequence[Cell]]:
    """Lines of at most `room` columns, broken after a space where there is one."""
    start = used = space = 0
    for index, cell in enumerate(cells):
        width = width_of(cell.text)
        if used + width > room:
            end = space if space > start else index
            yield cells[start:end]
            start, used = end, sum(width_of(each.text) for each in cells[end:index])
        used += width
        if cell.text == " ":
            space = index + 1
    if start < len(cells):
        yield cells[start:]


def _kind(line: Sequence[Cell] | Gap) -> Kind | None:
    if isinstance(line, Gap):
        return None
    if any(cell.run.marked for cell in line):
        return FAULTY
    return TRAINED if any(cell.run.trained for cell in line) else PLAIN


def _stretch(screen: Screen, kind: Kind | None, lines: list[Any]) -> Iterator[str]:
    """Lines of one kind, the middle of many folded."""
    if kind is None:
        yield from (screen.paint(f"⋯ {describe_gap(gap)}", DIM) for gap in lines)
        return
    folded = len(lines) - kind.head - kind.tail
    if folded <= 1:
        yield from (_line(screen, kind, line) for line in lines)
        return
    yield from (_line(screen, kind, line) for line in lines[: kind.head])
    words = f"⋯ {folded:,} more lines, {kind.words}"
    yield f"{screen.paint(kind.bar, kind.colour)} {screen.paint(words, DIM)}"
    yield from (_line(screen, kind, line) for line in lines[-kind.tail :])


def _line(screen: Screen, kind: Kind, cells: Iterable[Cell]) -> str:
    runs = groupby(cells, key=lambda cell: _code(cell.run))
    text = "".join(screen.paint("".join(cell.text for cell in run), code) for code, run in runs)
    return f"{screen.paint(kind.bar, kind.colour)} {text}"


def _code(run: Run) -> str:
    if run.marked:
        return f"{BOLD};{RED};4" if run.trained else f"{BOLD};{RED}"
    if run.control:
        return f"7;{GREEN}" if run.trained else CYAN
    return GREEN if run.trained else ""
