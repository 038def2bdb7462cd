"""Look at every example of a pretokenized mix, on all cores, whoever made it.

What is found is counted by fault and source, with the first rows of each; what becomes of it is
decided elsewhere (sft/gate/verdict.py).
"""

import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sft.errors import SftError
from sft.gate.checks import PACKS
from sft.gate.comparison import Difference, Example, compare, lost_text, show
from sft.gate.conversation import (
    REASONING_MARKERS,
    Conversation,
    answer_digest,
    foreign_markers,
    read_conversation,
    read_schema,
    row_digest,
)
from sft.gate.preview import FIRST, Sample, Token, shorten
from sft.gate.rows import count_rows, read_rows
from sft.gate.serving import EMPTY_REASONING, REASONING, Serving, load_serving
from sft.gate.structure import Anatomy, Examples, Found, find_faults
from sft.gate.tally import SHOWN_ROWS, SHOWN_SAMPLES, Source, Tally, sum_up
from sft.step import Progress

ROWS_AT_ONCE = 1000
PACKS_AT_ONCE = 100
SAMPLE_TOKENS = 4000
LONG_ANSWER = 40  # characters; shorter ones may well repeat
ANSWER_MARKERS = {marker for pair in REASONING_MARKERS for marker in pair}


@dataclass(frozen=True)
class Request:
    """What to inspect: the folders of tokens and of the tokenizer that will be served.

    `rows` names source and row of each example. `thinking` and `last_turn_only` are the config's
    enable_thinking and mask_history; `vocabulary` counts the model's embedding rows. Where examples
    are packed, `packed` is the folder of the packs, `num_packs` their number, and `tokens` holds
    the same examples one by one.
    """

    tokens: Path
    rows: Path
    serving: Path
    sources: tuple[Source, ...]
    cutoff: int
    vocabulary: int
    thinking: bool | None = None
    last_turn_only: bool = False
    packed: Path | None = None
    num_packs: int = 0

    @property
    def packs(self) -> Source | None:
        """The packed examples as one source more."""
        return Source(PACKS, (), {}, self.num_packs, self.num_packs) if self.packed else None


def inspect(request: Request, num_workers: int) -> dict[str, Any]:
    """Everything that is found: `{"sources", "findings", "samples", "header", "end"}`.

    `sources` has counts by name, `findings` one entry a fault and source: `{"source", "fault",
    "count", "of", "places"}`, the first rows in `places` with what was found and expected. Memory
    does not grow with the tokens; some 40 bytes a row are kept for order, lengths and repetitions.
    Raises SftError where `rows` is not of these tokens.
    """
    serving = load_serving(request.serving, request.thinking)
    index = RowIndex(request)
    _check_number(request, index)
    tasks = [*_row_tasks(request), *_token_tasks(request, index)]
    for source in request.sources:
        count_rows(source.files)  # the workers then know where the rows begin
    tally = Tally()
    progress = Progress("inspect", len(tasks), "parts")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each worker has a core
    # Not "spawn": that runs the main module again, which here is a step of the workflow.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(num_workers, context, _start, (request, index)) as pool:
        for part in pool.map(_run, tasks):
            tally.add(part)
            progress.add(1)
    found = sum_up(tally, request.sources, request.packs)
    return {"header": serving.header, "end": serving.end, **found}


class RowIndex:
    """Where in the mix the examples of each source's rows are."""

    def __init__(self, request: Request) -> None:
        # Without threads: the workers are forked, and a thread's locks would be copied locked.
        table = pq.read_table(request.rows, use_threads=False, memory_map=True)
        names = {each.name: number for number, each in enumerate(request.sources)}
        sources = table["source"].combine_chunks()
        known = np.array([names[name] for name in sources.dictionary.to_pylist()], dtype=np.int16)
        self.sources = known[sources.indices.to_numpy()]
        self.rows = table["row"].to_numpy()
        order = np.lexsort((self.rows, self.sources))
        bounds = np.searchsorted(self.sources[order], np.arange(len(names) + 1))
        self.positions = [order[start:stop] for start, stop in pairwise(bounds)]

    def positions_of(self, source: int, row: int) -> np.ndarray:
        """The positions in the mix of one row's examples."""
        positions = self.positions[source]
        start, stop = np.searchsorted(self.rows[positions], [row, row + 1])
        return positions[start:stop]


def _check_number(request: Request, index: RowIndex) -> None:
    from datasets import load_from_disk

    found, expected = len(load_from_disk(str(request.tokens))), len(index.rows)
    if found != expected:
        raise SftError(
            f"{request.tokens}: found {found} examples, expected {expected} as {request.rows.name} "
            "beside it says; move the folder away and tokenize again"
        )


def _row_tasks(request: Request) -> Iterator[tuple]:
    for number, source in enumerate(request.sources):
        for start in range(0, source.rows_in, ROWS_AT_ONCE):
            yield "rows", number, start, min(start + ROWS_AT_ONCE, source.rows_in)


def _token_tasks(request: Request, index: RowIndex) -> Iterator[tuple]:
    for start in range(0, len(index.rows), ROWS_AT_ONCE):
        yield "tokens", None, start, min(start + ROWS_AT_ONCE, len(index.rows))
    for start in range(0, request.num_packs, PACKS_AT_ONCE):
        yield "packs", None, start, min(start + PACKS_AT_ONCE, request.num_packs)


_worker: "_Worker"


def _start(request: Request, index: RowIndex) -> None:
    global _worker
    _worker = _Worker(request, index)


def _run(task: tuple) -> Tally:
    kind, source, start, stop = task
    if kind == "rows":
        return _worker.inspect_rows(source, start, stop)
    look = _worker.inspect_tokens if kind == "tokens" else _worker.inspect_packs
    return look(start, stop)


@dataclass(frozen=True)
class Spot:
    """A token of one of several examples, by default its first."""

    examples: Examples
    number: int
    place: int = 0

    @property
    def start(self) -> int:
        return int(self.examples.offsets[self.number])

    @property
    def stop(self) -> int:
        return int(self.examples.offsets[self.number + 1])

    def equals(self, other: "Spot") -> bool:
        """Whether both examples have the same ids and labels."""
        return all(
            np.array_equal(mine[self.start : self.stop], theirs[other.start : other.stop])
            for mine, theirs in (
                (self.examples.ids, other.examples.ids),
                (self.examples.labels, other.examples.labels),
            )
        )


@dataclass(frozen=True)
class Waiting:
    """A row whose examples are to be compared: its rendering in pieces, what is known by now.

    `texts` are those of its own turns.
    """

    row: int
    positions: np.ndarray
    pieces: list[str]
    differences: list[Difference]
    texts: Sequence[str] = ()


class _Worker:
    """One process of an inspection, with a tokenizer of its own."""

    def __init__(self, request: Request, index: RowIndex) -> None:
        from datasets import load_from_disk

        self.request, self.index = request, index
        self.serving = load_serving(request.serving, request.thinking)
        self.anatomy = anatomy_of(self.serving, request)
        self.table = load_from_disk(str(request.tokens)).with_format("arrow")
        if request.packed:
            self.packs = load_from_disk(str(request.packed)).with_format("arrow")
        self.schemas = [read_schema(each.options) for each in request.sources]
        self.foreign = foreign_markers(self.serving.spelled)

    # Tokens, in the order of the mix

    def inspect_tokens(self, start: int, stop: int) -> Tally:
        """The structure of the examples `start` to `stop`."""
        examples = read_examples(self.table[range(start, stop)])
        names = np.array([each.name for each in self.request.sources])
        sources, rows = self.index.sources[start:stop], self.index.rows[start:stop]
        found = find_faults(examples, self.anatomy)
        return self.inspect_structure(examples, names[sources], rows, found)

    def inspect_packs(self, start: int, stop: int) -> Tally:
        """The structure of the packed examples `start` to `stop`; what was cut is judged alone."""
        examples = read_examples(self.packs[range(start, stop)])
        anatomy = replace(self.anatomy, padded=True)
        found = find_faults(examples, anatomy)
        whole = {name: each for name, each in found.items() if not name.startswith("truncated")}
        names = np.full(stop - start, PACKS)
        return self.inspect_structure(examples, names, np.arange(start, stop), whole)

    def inspect_structure(
        self, examples: Examples, names: np.ndarray, rows: np.ndarray, found: Found
    ) -> Tally:
        """The faults of examples, each of which is of the source and row at its place."""
        tally = Tally()
        lengths = np.diff(examples.offsets).astype(np.int32)
        trained = examples.count_in_each(examples.trained)
        for name in np.unique(names):
            mine = names == name
            tally.lengths[str(name)] = [lengths[mine]]
            tally.trained[str(name)] += int(trained[mine].sum())
        for fault, (which, places) in found.items():
            for name in np.unique(names[which]):
                mine = np.flatnonzero(names[which] == name)
                for each in mine[:SHOWN_ROWS]:
                    spot = Spot(examples, which[each], int(places[each]))
                    self.add(
                        tally, str(name), int(rows[which[each]]), spot, self.judge(fault, spot)
                    )
                tally.counts[str(name), fault] = len(mine)
        return tally

    def judge(self, fault: str, spot: "Spot") -> Difference:
        """What was found at a spot that has a fault of structure, and what was expected there."""
        examples, at = spot.examples, spot.start + spot.place
        if fault == "broken_tokens":
            found = f"id {examples.ids[at]} with label {examples.labels[at]} at token {spot.place}"
            return Difference(
                fault,
                found,
                f"an id below {self.anatomy.vocabulary}, its label the same or -100, attention 1, "
                f"at most {self.anatomy.cutoff} tokens",
                spot.place,
            )
        around = show(self.serving.decode(examples.ids[at : min(at + 40, spot.stop)]))
        expected = {
            "no_loss": "a token with a loss",
            "prompt_in_loss": "no loss before the answer",
            "answer_not_in_loss": "a loss on all of the answer",
            "end_not_in_loss": f"a loss on {self.serving.end}",
            "no_end": f"{self.serving.end} after the answer",
            "truncated_question": f"{self.serving.header!r} before the answer",
            "truncated_answer": f"{self.serving.end} within {self.anatomy.cutoff} tokens",
        }[fault]
        return Difference(fault, f"{around} at token {spot.place}", expected, spot.place)

    # Rows, in the order of their source

    def inspect_rows(self, number: int, start: int, stop: int) -> Tally:
        """The rows `start` to `stop` of a source, and the examples that were made of them."""
        tally, source, schema = Tally(), self.request.sources[number], self.schemas[number]
        digests, waiting = [], []
        for row, content in enumerate(read_rows(source.files, start, stop), start=start):
            conversation, faults = read_conversation(content, schema, self.foreign)
            for fault in {each.kind: each for each in faults}.values():
                found = f"{fault.where}: {fault.found}"
                tally.add_fault(source.name, fault.kind, row, found, fault.expected)
            tally.dropped[source.name] += any(each.drops for each in faults)
            positions = self.index.positions_of(number, row)
            if conversation is None:
                continue
            digests.append((_number(row_digest(conversation)), _answer_number(conversation), row))
            if len(positions):
                waiting.append(self.render(row, positions, conversation))
        tally.digests[source.name] = [np.array(digests, dtype=np.uint64).reshape(-1, 3)]
        self.compare_all(tally, number, waiting)
        return tally

    def render(self, row: int, positions: np.ndarray, conversation: Conversation) -> "Waiting":
        """A row with its rendering; without one where its text holds control strings."""
        if control := find_control(conversation, self.serving):
            fault = Difference("control_in_text", control, "text that is no control string")
            return Waiting(row, positions, [], [fault])
        try:
            text = self.serving.render(conversation.messages, conversation.tools)
        except SftError as error:
            fault = Difference("unserved_text", str(error), "a rendering of the row")
            return Waiting(row, positions, [], [fault])
        pieces = self.serving.split(text)
        texts = [each["content"] for each in conversation.messages]
        return Waiting(row, positions, pieces, lost_text(conversation, pieces), texts)

    def compare_all(self, tally: Tally, number: int, waiting: list["Waiting"]) -> None:
        """Hold each row's examples against its conversation as it will be served."""
        if not waiting:
            return
        source = self.request.sources[number].name
        examples = read_examples(self.table[[int(each.positions[0]) for each in waiting]])
        first_row = self.index.rows[self.index.positions[number][0]]
        encoded = iter(self.serving.encode([piece for each in waiting for piece in each.pieces]))
        for which, each in enumerate(waiting):
            spot = Spot(examples, which)
            if each.row == first_row:
                self.keep_sample(tally, source, each.row, FIRST, spot)
            found = self.compare(each, spot, [next(encoded) for _ in each.pieces])
            if each.differences:  # what follows from them is no news
                found = [one for one in found if one.fault == "added_date"]
            copies = self.compare_copies(each.positions, spot)
            for difference in [*copies, *each.differences, *found]:
                place = replace(spot, place=difference.place)
                self.add(tally, source, each.row, place, difference)

    def compare(
        self, waiting: "Waiting", spot: "Spot", encoded: list[list[int]]
    ) -> list[Difference]:
        """The differences of an example from its rendering, where there is one."""
        if not waiting.pieces:
            return []
        example = Example(
            ids=spot.examples.ids[spot.start : spot.stop].tolist(),
            trained=spot.examples.trained[spot.start : spot.stop].tolist(),
            cut=spot.stop - spot.start >= self.anatomy.cutoff,
            last_first=self.anatomy.last_turn_only,
        )
        found = compare(example, waiting.pieces, encoded, self.serving, waiting.texts)
        return found + self.find_reasoning(example)

    def find_reasoning(self, example: Example) -> list[Difference]:
        """Reasoning with a loss, where the config asks for none."""
        if self.serving.thinking is not False:
            return []
        trained = zip(example.ids, example.trained, strict=True)
        text = self.serving.decode([token for token, has_loss in trained if has_loss])
        if not (kept := REASONING.search(EMPTY_REASONING.sub("", text))):
            return []
        place = example.trained.index(True)
        return [Difference("kept_reasoning", show(kept[0]), "no reasoning with a loss", place)]

    def compare_copies(self, positions: np.ndarray, spot: "Spot") -> list[Difference]:
        """A row that was drawn more than once has to be the same each time."""
        if len(positions) == 1:
            return []
        copies = read_examples(self.table[positions[1:].tolist()])
        for number, position in enumerate(positions[1:]):
            if not spot.equals(Spot(copies, number)):
                found = f"other tokens at position {position} than at {positions[0]} of the mix"
                return [Difference("broken_tokens", found, "the same tokens for the same row")]
        return []

    # What is kept to be shown

    def add(self, tally: Tally, source: str, row: int, spot: "Spot", fault: Difference) -> None:
        """Count a fault of an example, and keep the example to show."""
        tally.add_fault(source, fault.fault, row, fault.found, fault.expected)
        note = f"found {fault.found}, expected {fault.expected}"
        self.keep_sample(tally, source, row, fault.fault, spot, note)

    def keep_sample(
        self, tally: Tally, source: str, row: int, why: str, spot: "Spot", note: str = ""
    ) -> None:
        """Keep an example to show, unless there are enough for the same reason."""
        samples = tally.samples.setdefault((source, why), [])
        if len(samples) < SHOWN_SAMPLES:
            tokens = list(self.tokens_of(spot, marked=bool(note)))
            trained = sum(token.trained for token in tokens)
            shown = shorten(tokens, SAMPLE_TOKENS)
            samples.append(Sample(source, int(row), why, note, len(tokens), trained, shown))

    def tokens_of(self, spot: "Spot", marked: bool) -> Iterator[Token]:
        """The tokens of an example, each with its own piece of the text."""
        ids = spot.examples.ids[spot.start : spot.stop].tolist()
        trained = spot.examples.trained[spot.start : spot.stop].tolist()
        controls = set(self.serving.controls.values())
        for position, (number, text) in enumerate(zip(ids, self.pieces_of(ids), strict=True)):
            yield Token(
                id=number,
                text=text,
                trained=trained[position],
                control=number in controls,
                marked=marked and position == spot.place,
                ends_turn=number == self.serving.end_id,
            )

    def pieces_of(self, ids: list[int]) -> Iterator[str]:
        """The text of each token; a character of several tokens comes with the last of them."""
        waiting: list[int] = []
        for number in ids:
            waiting.append(number)
            text = self.serving.decode(waiting)
            if text.endswith("\ufffd") and len(waiting) < 8:
                yield ""
            else:
                waiting = []
                yield text


def anatomy_of(serving: Serving, request: Request) -> Anatomy:
    """The tokens that turns are made of, by the served template."""
    blocks = [f"{first}\n\n{last}\n\n" for first, last in REASONING_MARKERS]
    header, tail, *empty = serving.encode([serving.header, serving.tail, *blocks])
    return Anatomy(
        header=tuple(header),
        end=serving.end_id,
        tail=tuple(tail),
        empty_blocks=tuple(map(tuple, empty)),
        vocabulary=request.vocabulary,
        cutoff=request.cutoff,
        last_turn_only=request.last_turn_only,
    )


def read_examples(table: pa.Table) -> Examples:
    """The examples of a table with lists of input_ids, labels and attention_mask."""
    ids, labels, attention = (
        table[name].combine_chunks() for name in ("input_ids", "labels", "attention_mask")
    )
    offsets = ids.offsets.to_numpy()
    if not (labels.offsets.equals(ids.offsets) and attention.offsets.equals(ids.offsets)):
        labels, attention = _fit(labels, offsets, -1), _fit(attention, offsets, 0)
    else:
        labels, attention = labels.flatten().to_numpy(), attention.flatten().to_numpy()
    return Examples(ids.flatten().to_numpy(), labels, attention, offsets - offsets[0])


def _fit(lists: pa.ListArray, offsets: np.ndarray, filling: int) -> np.ndarray:
    """The lists' values at the places of others; `filling` where a list is too short."""
    rows = zip(lists.to_pylist(), np.diff(offsets), strict=True)
    fitted = [([*row, *[filling] * max(0, length - len(row))])[:length] for row, length in rows]
    return np.array([value for row in fitted for value in row])


def find_control(conversation: Conversation, serving: Serving) -> str | None:
    """The first special string in a text that becomes its token; markers in answers may stand."""
    for number, message in enumerate(conversation.messages):
        for text in (message["content"], *map(json.dumps, message.get("tool_calls", ()))):
            for control in serving.find_controls(text):
                if message["role"] != "assistant" or control[0] not in ANSWER_MARKERS:
                    around = text[max(control.start() - 20, 0) :]
                    return f"turn {number} ({message['role']}): {show(around)}"
    for tool in conversation.tools:
        for control in serving.find_controls(json.dumps(tool)):
            return f"tools: {control[0]}"
    return None


def _number(digest: bytes) -> int:
    return int.from_bytes(digest[:8])


def _answer_number(conversation: Conversation) -> int:
    """The last answer's digest; 0 for a short one, which may well be the same as others."""
    long = len(conversation.messages[-1]["content"]) > LONG_ANSWER
    return _number(answer_digest(conversation)) if long else 0
