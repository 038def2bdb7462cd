"""The preview as one HTML page that loads nothing and runs no script."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from sft.gate.preview.sample import FIRST, VERDICTS, Gap, Sample, Summary
from sft.gate.preview.transcript import (
    LOOK_AT,
    PART,
    Piece,
    Run,
    Turn,
    describe_end,
    describe_finding,
    describe_gap,
    finding_of,
    headline,
    is_plain,
    is_refused,
    name_character,
    split_turns,
    visible,
    worst_first,
)

FOLDED = 200  # untrained tokens in a row; of more, the middle opens on a click
HEAD, TAIL = 80, 40
PLACES = 10  # links to places of faults in one example


@dataclass(frozen=True)
class _Turn:
    num_tokens: int
    num_trained: int
    warning: str
    markup: Markup


@dataclass(frozen=True)
class _View:
    """A sample as the template shows it."""

    anchor: str
    sample: Sample
    fault: bool
    verdict: str
    turns: list[_Turn]
    places: list[str]


def preview_page(title: str, sources: Sequence[Summary], samples: Sequence[Sample]) -> str:
    """The text of the page: what was found, the sources, faults and first examples, in this order.

    It needs nothing beside itself, shows any text as text, and works on a phone and on paper.
    """
    ordered = worst_first(samples, sources)
    views = [_view(f"sample-{number}", each, sources) for number, each in enumerate(ordered, 1)]
    anchors = {
        (view.sample.source, view.sample.why): view.anchor for view in reversed(views)
    }  # of several the first
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=_show,
        trim_blocks=True,
    )
    environment.filters["number"] = "{:,}".format
    return environment.get_template("page.html.j2").render(
        title=title,
        headline=headline(sources),
        refused=is_refused(sources),
        look_at=LOOK_AT,
        findings=_findings(sources, anchors),
        sources=[_source(each, anchors) for each in sources],
        sections=_sections(views),
    )


def _show(value: Any) -> Any:
    """What the template prints: characters that cannot be seen by their names."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else visible(value)


def _findings(sources: Iterable[Summary], anchors: dict) -> list[dict[str, Any]]:
    found = [
        {
            "fault": finding.fault,
            "verdict": finding.verdict,
            "source": source.source,
            "what": describe_finding(finding),
            "remedy": finding.remedy,
            "anchor": anchors.get((source.source, finding.fault)),
        }
        for source in sources
        for finding in source.findings
    ]
    return sorted(found, key=lambda each: VERDICTS.index(each["verdict"]))


def _source(summary: Summary, anchors: dict) -> dict[str, Any]:
    return {
        "summary": summary,
        "counts": (summary.rows_in, summary.rows_out, summary.num_examples, summary.num_tokens),
        "share": f"{summary.trained_share:.1%}",
        "anchor": anchors.get((summary.source, FIRST)),
    }


def _sections(views: Sequence[_View]) -> list[dict[str, Any]]:
    faults = [view for view in views if view.fault]
    first = [view for view in views if not view.fault]
    sections = [
        {"anchor": "faults", "title": "Examples with faults", "views": faults},
        {"anchor": "first", "title": "The first example of each source", "views": first},
    ]
    return [section for section in sections if section["views"]]


def _view(anchor: str, sample: Sample, sources: Sequence[Summary]) -> _View:
    finding = finding_of(sample, sources)
    turns, places = _show_turns(anchor, split_turns(sample.tokens))
    return _View(
        anchor=anchor,
        sample=sample,
        fault=sample.why != FIRST,
        verdict=finding.verdict if finding else "",
        turns=turns,
        places=places[:PLACES],
    )


def _show_turns(anchor: str, turns: Iterable[Turn]) -> tuple[list[_Turn], list[str]]:
    """The turns with their markup, and the anchors of the places where a fault begins."""
    shown, places, marked = [], [], False
    for turn in turns:
        markup = []
        for part in turn.parts:
            place = ""
            if isinstance(part, Run) and part.marked and not marked:
                place = f"{anchor}-place-{len(places) + 1}"
                places.append(place)
            marked = isinstance(part, Run) and part.marked
            markup.append(_gap(part) if isinstance(part, Gap) else _run(part, place))
        warning = describe_end(turn)
        shown.append(_Turn(turn.num_tokens, turn.num_trained, warning, Markup("").join(markup)))
    return shown, places


def _gap(gap: Gap) -> Markup:
    return Markup('<span class="gap">{}</span>').format(describe_gap(gap))


def _run(run: Run, place: str) -> Markup:
    names = [
        *(["t"] if run.trained else []),
        *(["c"] if run.control else []),
        *(["m"] if run.marked else []),
        *(["flag"] if place else []),
    ]
    if not names:
        return _folded(run.pieces)
    anchor = Markup(' id="{}"').format(place) if place else ""
    return Markup('<span class="{}"{}>{}</span>').format(
        " ".join(names), anchor, _pieces(run.pieces)
    )


def _folded(pieces: Sequence[Piece]) -> Markup:
    """What a model only reads, open at both ends, the middle of a long one behind a click."""
    if len(pieces) <= FOLDED:
        return _pieces(pieces)
    start, stop = _middle(pieces)
    return Markup("").join(
        [
            _pieces(pieces[:start]),
            Markup("<details><summary>{:,} tokens more, not trained</summary>{}</details>").format(
                sum(len(piece.ids) for piece in pieces[start:stop]), _pieces(pieces[start:stop])
            ),
            _pieces(pieces[stop:]),
        ]
    )


def _middle(pieces: Sequence[Piece]) -> tuple[int, int]:
    """Where the folded part begins and stops: between lines, if lines are short enough."""
    lines = [index for index, piece in enumerate(pieces, 1) if "\n" in piece.text]
    tail = len(pieces) - TAIL
    start = max((each for each in lines if HEAD // 2 < each <= HEAD), default=HEAD)
    stop = min((each for each in lines if tail <= each < tail + TAIL // 2), default=tail)
    return start, stop


def _pieces(pieces: Iterable[Piece]) -> Markup:
    return Markup("").join(_piece(piece) for piece in pieces)


def _piece(piece: Piece) -> Markup:
    label = "id" if len(piece.ids) == 1 else "ids"
    ids = " ".join(map(str, piece.ids))
    text = _text(piece.text) if piece.text else Markup(f'<b class="name">{PART}</b>')
    return Markup(f'<i title="{label} {ids}">{text}</i>')


def _text(text: str) -> Markup:
    if is_plain(text):
        return escape(text)
    return Markup("").join(map(_character, text))


def _character(character: str) -> Markup:
    if character == "\n":
        return Markup("<b>\n</b>")
    if character == "\t":
        return Markup('<b class="tab">\t</b>')
    if is_plain(character):
        return escape(character)
    return Markup(f'<b class="name">{name_character(character)}</b>')
