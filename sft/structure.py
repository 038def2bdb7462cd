"""The structure of tokens on disk: which carry a loss, against which should; no source is read.

All of it is array arithmetic over many examples at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

IGNORED = -100  # torch's cross entropy leaves these labels out

Found = dict[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Anatomy:
    """What turns are made of, in tokens.

    An answer follows `header` and ends in `end`; `tail` may follow that, with a loss or without.
    One of `empty_blocks` at the beginning of an answer may have no loss. `vocabulary` counts the
    embedding rows. With `last_turn_only` no earlier answer has a loss. `padded` examples end in
    tokens without attention.
    """

    header: tuple[int, ...]
    end: int
    tail: tuple[int, ...]
    empty_blocks: tuple[tuple[int, ...], ...]
    vocabulary: int
    cutoff: int
    last_turn_only: bool = False
    padded: bool = False


@dataclass(frozen=True)
class Examples:
    """Many examples behind one another: three arrays of one length, and where each example starts.

    `offsets` has one more entry than there are examples.
    """

    ids: np.ndarray
    labels: np.ndarray
    attention: np.ndarray
    offsets: np.ndarray

    @property
    def trained(self) -> np.ndarray:
        """True where a token has a loss."""
        return self.labels != IGNORED

    def count_in_each(self, chosen: np.ndarray) -> np.ndarray:
        """How many of the chosen tokens each example has."""
        before = np.concatenate([[0], np.cumsum(chosen)])
        return before[self.offsets[1:]] - before[self.offsets[:-1]]

    def first_in_each(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples that have a chosen token, and where in them the first one is."""
        places = np.flatnonzero(chosen)
        examples = np.searchsorted(self.offsets, places, side="right") - 1
        examples, first = np.unique(examples, return_index=True)
        return examples, places[first] - self.offsets[examples]


def find_faults(examples: Examples, anatomy: Anatomy) -> Found:
    """For each fault the examples that have it, and the place in them where it begins.

    Faults: broken_tokens, no_loss, prompt_in_loss, answer_not_in_loss, end_not_in_loss, no_end,
    truncated_answer, truncated_question.
    """
    trained = examples.trained
    answers = _find_answers(examples, anatomy)
    expected, ends, free = _mask(examples, answers, anatomy)
    stray = trained & ~expected & ~free
    headless = stray & _after_cut(examples, answers, anatomy)
    found = {
        "broken_tokens": examples.first_in_each(_broken(examples, anatomy)),
        "prompt_in_loss": examples.first_in_each(stray & ~headless),
        "truncated_question": examples.first_in_each(headless),
        "answer_not_in_loss": examples.first_in_each(expected & ~trained & ~ends),
        "end_not_in_loss": examples.first_in_each(ends & expected & ~trained),
    }
    silent = np.flatnonzero(examples.count_in_each(trained) == 0)
    found["no_loss"] = silent, np.zeros_like(silent)
    lengths = np.diff(examples.offsets)
    cut = lengths[answers.example] >= anatomy.cutoff
    last = answers.stop == examples.offsets[answers.example + 1]
    for fault, chosen in (
        ("truncated_answer", ~answers.ended & cut & last),
        ("no_end", ~answers.ended & ~(cut & last)),
    ):
        owners, first = np.unique(answers.example[chosen], return_index=True)
        found[fault] = owners, answers.start[chosen][first] - examples.offsets[owners]
    return {fault: places for fault, places in found.items() if len(places[0])}


@dataclass(frozen=True)
class _Answers:
    """Where answers start and stop (exclusive, the end token included), and if they have an end."""

    start: np.ndarray
    stop: np.ndarray
    ended: np.ndarray
    example: np.ndarray


def _find_answers(examples: Examples, anatomy: Anatomy) -> _Answers:
    ids, offsets = examples.ids, examples.offsets
    headers = find_runs(ids, anatomy.header)
    example = np.searchsorted(offsets, headers, side="right") - 1
    start = headers + len(anatomy.header)
    whole = start <= offsets[example + 1]
    headers, start, example = headers[whole], start[whole], example[whole]
    ends = np.append(np.flatnonzero(ids == anatomy.end), len(ids))
    limit = np.minimum(np.append(headers[1:], len(ids)), offsets[example + 1])
    end = ends[np.searchsorted(ends, start)]
    ended = end < limit
    return _Answers(start, np.where(ended, end + 1, limit), ended, example)


def _after_cut(examples: Examples, answers: _Answers, anatomy: Anatomy) -> np.ndarray:
    """True behind the last whole turn of an example that the cutoff cut.

    Where a question and its answer do not fit, LLaMA-Factory (`infer_seqlen`) cuts the question
    first: what is trained there follows on half a question and no header.
    """
    lengths = np.diff(examples.offsets)
    start = examples.offsets[:-1].copy()
    np.maximum.at(start, answers.example, answers.stop)
    cut = lengths >= anatomy.cutoff
    return _cover(len(examples.ids), start[cut], examples.offsets[1:][cut])


def find_runs(ids: np.ndarray, run: Sequence[int]) -> np.ndarray:
    """Where in `ids` the tokens `run` begin, one after the other."""
    places = np.flatnonzero(ids[: len(ids) - len(run) + 1] == run[0])
    for distance, wanted in enumerate(run[1:], start=1):
        places = places[ids[places + distance] == wanted]
    return places


def _mask(
    examples: Examples, answers: _Answers, anatomy: Anatomy
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What should have a loss; the ends of turns; what may have one or not."""
    length, trained = len(examples.ids), examples.trained
    start, stop = answers.start, answers.stop
    for block in anatomy.empty_blocks:
        masked = _follows(examples.ids, start, stop, block)
        masked[masked] = ~np.any(trained[start[masked, None] + np.arange(len(block))], axis=1)
        start = np.where(masked, start + len(block), start)
    asked = np.ones(len(start), dtype=bool)
    if anatomy.last_turn_only:
        asked = np.append(answers.example[1:] != answers.example[:-1], True)[: len(start)]
    ends = np.zeros(length, dtype=bool)
    ends[stop[answers.ended] - 1] = True
    expected = _cover(length, start[asked], stop[asked])
    limit = examples.offsets[answers.example + 1]
    tails = answers.ended & _follows(examples.ids, stop, limit, anatomy.tail)
    free = _cover(length, stop[tails], stop[tails] + len(anatomy.tail))
    return expected, ends, free


def _follows(
    ids: np.ndarray, start: np.ndarray, stop: np.ndarray, run: Sequence[int]
) -> np.ndarray:
    """For each place of `start` whether the tokens `run` stand there, all before its `stop`."""
    fits = start + len(run) <= stop
    for distance, wanted in enumerate(run):
        fits[fits] = ids[start[fits] + distance] == wanted
    return fits


def _cover(length: int, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """True inside of the spans, which do not overlap."""
    edges = np.zeros(length + 1, dtype=np.int8)
    np.add.at(edges, start, 1)
    np.add.at(edges, stop, -1)
    return np.cumsum(edges[:-1], dtype=np.int8).astype(bool)


def _broken(examples: Examples, anatomy: Anatomy) -> np.ndarray:
    """Tokens that no trainer can mean."""
    ids, labels = examples.ids, examples.labels
    broken = (ids < 0) | (ids >= anatomy.vocabulary)
    broken |= (labels != IGNORED) & (labels != ids)
    unattended = examples.attention != 1
    if anatomy.padded:
        unattended &= labels != IGNORED
    broken |= unattended
    lengths = np.diff(examples.offsets)
    too_long = examples.offsets[:-1][lengths > anatomy.cutoff] + anatomy.cutoff
    broken[too_long] = True
    return broken
