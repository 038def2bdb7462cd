"""The structure of tokens on disk: which carry a loss, against which should; no source is read.

All of it is array arithmetic over many examples at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

IGNORED = -100  # torch's cross entropy leaves these labels out

Found = dict[str, tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Anatomy:
    """What turns are made of, in tokens.

    An answer follows `header` and ends in `end`; `tail` may follow that, with a loss or without.
    One of `empty_blocks` at the beginning of an answer may have no loss. `vocabulary` counts the
    embedding rows, `cutoff` the tokens that an example may have. With `last_turn_only` no earlier
    answer has a loss. `padded` examples are packs of others, and end in tokens that do not count.
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

    @cached_property
    def trained(self) -> np.ndarray:
        """True where a token has a loss."""
        return self.labels != IGNORED

    def count_in_each(self, chosen: np.ndarray) -> np.ndarray:
        """How many of the chosen tokens each example has."""
        return np.diff(np.searchsorted(np.flatnonzero(chosen), self.offsets))

    def examples_of(self, places: np.ndarray) -> np.ndarray:
        """The numbers of the examples that the tokens at these places belong to."""
        return np.searchsorted(self.offsets, places, side="right") - 1

    def first_in_each(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples that have a chosen token, and where in them the first one is."""
        places = np.flatnonzero(chosen)
        examples, first = np.unique(self.examples_of(places), return_index=True)
        return examples, places[first] - self.offsets[examples]


def find_faults(examples: Examples, anatomy: Anatomy) -> Found:
    """For each fault the examples that have it, and the place in them where it begins.

    Faults: broken_tokens, no_loss, prompt_in_loss, answer_not_in_loss, end_not_in_loss, no_end,
    truncated_answer, truncated_question.
    """
    trained, stops = examples.trained, _find_stops(examples, anatomy)
    cut = stops - examples.offsets[:-1] >= anatomy.cutoff
    answers = _find_answers(examples, anatomy, stops, cut)
    asked, ends = answers.asked, np.zeros(len(trained), dtype=bool)
    ends[answers.stop[answers.ended] - 1] = True
    expected = _cover(len(trained), answers.loss_start[asked], answers.stop[asked])
    stray = trained & ~expected & ~_cover(len(trained), answers.stop, answers.tail_stop)
    missing = expected & ~trained
    headless = stray & _after_cut_question(examples, answers, stops, cut)
    unended = asked & ~answers.ended
    at_cutoff = cut[answers.example] & (answers.stop == stops[answers.example])
    silent = np.flatnonzero(examples.count_in_each(trained) == 0)
    found = {
        "broken_tokens": examples.first_in_each(_find_broken(examples, anatomy, stops)),
        "no_loss": (silent, np.zeros_like(silent)),
        "prompt_in_loss": examples.first_in_each(stray & ~headless),
        "truncated_question": examples.first_in_each(headless),
        "answer_not_in_loss": examples.first_in_each(missing & ~ends),
        "end_not_in_loss": examples.first_in_each(missing & ends),
        "truncated_answer": answers.first_in_each(
            unended & at_cutoff & (answers.stop > answers.start)
        ),
        "no_end": answers.first_in_each(unended & ~at_cutoff),
    }
    return {fault: places for fault, places in found.items() if len(places[0])}


def find_runs(ids: np.ndarray, run: Sequence[int]) -> np.ndarray:
    """Where in `ids` the tokens `run` begin, one after the other."""
    places = np.flatnonzero(ids[: max(len(ids) - len(run) + 1, 0)] == run[0])
    for distance, wanted in enumerate(run[1:], start=1):
        places = places[ids[places + distance] == wanted]
    return places


def _find_stops(examples: Examples, anatomy: Anatomy) -> np.ndarray:
    """Where each example stops; a padded one after its last token with a loss."""
    if not anatomy.padded:
        return examples.offsets[1:]
    return _last_before(np.flatnonzero(examples.trained), examples.offsets[1:]) + 1


def _last_before(places: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """The last of the places before each limit; -1 where there is none."""
    return np.append(places, -1)[np.searchsorted(places, limits) - 1]


@dataclass(frozen=True)
class _Answers:
    """All answers in order: the example of each, and places in the arrays; stops are exclusive.

    `loss_start` is behind an empty block without a loss, `stop` behind the end token, `tail_stop`
    behind the tail too. `asked` answers should have a loss; `place` is `loss_start` in the example.
    """

    example: np.ndarray
    place: np.ndarray
    start: np.ndarray
    loss_start: np.ndarray
    stop: np.ndarray
    tail_stop: np.ndarray
    ended: np.ndarray
    asked: np.ndarray

    def first_in_each(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The examples that have a chosen answer, and the place of the first one."""
        examples, first = np.unique(self.example[chosen], return_index=True)
        return examples, self.place[chosen][first]


def _find_answers(
    examples: Examples, anatomy: Anatomy, stops: np.ndarray, cut: np.ndarray
) -> _Answers:
    ids = examples.ids
    example, start, loss_start = _find_starts(examples, anatomy, stops, cut)
    next_header = np.append(start[1:] - len(anatomy.header), len(ids))[: len(start)]
    limit = np.minimum(next_header, stops[example])
    ends = np.append(np.flatnonzero(ids == anatomy.end), len(ids))
    end = ends[np.searchsorted(ends, start)]
    ended = end < limit
    stop = np.where(ended, end + 1, limit)
    tailed = ended & _follows(ids, stop, stops[example], anatomy.tail)
    asked = np.ones(len(start), dtype=bool)
    if anatomy.last_turn_only and anatomy.padded:
        asked = examples.trained[stop - 1]  # where in a pack an example ends is not known
    elif anatomy.last_turn_only:
        asked = _is_last(example)
    return _Answers(
        example=example,
        place=loss_start - examples.offsets[example],
        start=start,
        loss_start=loss_start,
        stop=stop,
        tail_stop=np.where(tailed, stop + len(anatomy.tail), stop),
        ended=ended,
        asked=asked,
    )


def _find_starts(
    examples: Examples, anatomy: Anatomy, stops: np.ndarray, cut: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The example of each answer, where the answer starts, and where its loss should."""
    start = find_runs(examples.ids, anatomy.header) + len(anatomy.header)
    example = examples.examples_of(start - 1)
    whole = (start <= stops[example]) & (start - len(anatomy.header) >= examples.offsets[example])
    start, example = start[whole], example[whole]
    # No answer starts behind a header that only an answer's first token makes whole, nor behind a
    # part of an empty block without a loss (LLaMA-Factory has it in the question): a cutoff leaves
    # such things.
    trained = np.append(np.flatnonzero(examples.trained), len(examples.ids))
    silence = trained[np.searchsorted(trained, start)] - start
    may_be_part, loss_start = cut[example] & _is_last(example), start.copy()
    is_part = may_be_part & examples.trained[start - 1]
    for block in anatomy.empty_blocks:
        skipped = (silence >= len(block)) & _follows(examples.ids, start, stops[example], block)
        loss_start[skipped] += len(block)
        for length in range(1, len(block)):
            is_part |= (
                may_be_part
                & (silence == length)
                & _follows(examples.ids, start, stops[example], block[:length])
            )
    return example[~is_part], start[~is_part], loss_start[~is_part]


def _is_last(example: np.ndarray) -> np.ndarray:
    """True where the next answer is one of another example, or there is none."""
    return np.append(example[1:] != example[:-1], True)[: len(example)]


def _follows(
    ids: np.ndarray, start: np.ndarray, stop: np.ndarray, run: Sequence[int]
) -> np.ndarray:
    """For each place of `start` whether the tokens `run` stand there, all before its `stop`."""
    fits = start + len(run) <= stop
    for distance, wanted in enumerate(run):
        fits[fits] = ids[start[fits] + distance] == wanted
    return fits


def _after_cut_question(
    examples: Examples, answers: _Answers, stops: np.ndarray, cut: np.ndarray
) -> np.ndarray:
    """True for the last tokens of a cut example, as far as they have a loss, behind a question.

    Where a question and its answer do not fit, LLaMA-Factory 0.9.5 (`infer_seqlen` in
    data/processor/processor_utils.py) may cut the question: the answer follows without a header.
    """
    question = examples.offsets[:-1].astype(np.int64)
    np.maximum.at(question, answers.example, answers.tail_stop)
    last_silent = _last_before(np.flatnonzero(~examples.trained), stops)
    headless = cut & (last_silent >= question)
    return _cover(len(examples.ids), last_silent[headless] + 1, stops[headless])


def _cover(length: int, start: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """True inside of the spans, which do not overlap."""
    edges = np.zeros(length + 1, dtype=np.int8)
    np.add.at(edges, start, 1)
    np.add.at(edges, stop, -1)
    return np.cumsum(edges[:-1], dtype=np.int8).astype(bool)


def _find_broken(examples: Examples, anatomy: Anatomy, stops: np.ndarray) -> np.ndarray:
    """True at tokens that no trainer can mean."""
    ids, trained = examples.ids, examples.trained
    broken = (ids < 0) | (ids >= anatomy.vocabulary)
    broken |= trained & (examples.labels != ids)
    if anatomy.padded:  # the attention of a pack may number its examples
        broken |= trained & (examples.attention < 1)
    else:
        broken |= examples.attention != 1
    start = examples.offsets[:-1]
    broken[start[stops - start > anatomy.cutoff] + anatomy.cutoff] = True
    return broken
