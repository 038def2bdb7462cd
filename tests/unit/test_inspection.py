"""What an inspection is made of: rows found again, tokens read, texts cut, parts counted."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Features, Value
from datasets import Sequence as List

from sft.errors import SftError
from sft.files import write_text
from sft.gate.checks import PACKS
from sft.gate.conversation import Conversation
from sft.gate.inspection import (
    Request,
    RowIndex,
    Spot,
    anatomy_of,
    find_control,
    inspect,
    read_examples,
)
from sft.gate.preview import FIRST, Sample
from sft.gate.serving import Serving, load_serving
from sft.gate.structure import Examples
from sft.gate.tally import SHOWN_ROWS, SHOWN_SAMPLES, Source, Tally
from tests.unit.served import CHATML, IM, write_served

OPTIONS = {"formatting": "sharegpt", "columns": {"messages": "conversations"}}
TYPES = {"input_ids": "int32", "labels": "int32", "attention_mask": "int8"}


def source(name: str, rows: int = 10, file: Path = Path("rows.jsonl")) -> Source:
    return Source(name, (file,), OPTIONS, rows_in=rows, rows_out=rows)


def request(folder: Path, *sources: Source, **other) -> Request:
    return Request(
        tokens=folder / "tokens",
        rows=folder / "rows.parquet",
        serving=folder / "tokenizer",
        sources=sources,
        cutoff=other.pop("cutoff", 500),
        vocabulary=other.pop("vocabulary", 259),
        **other,
    )


@pytest.fixture(scope="module")
def serving(tmp_path_factory) -> Serving:
    folder = tmp_path_factory.mktemp("tokenizer")
    return load_serving(write_served(folder, CHATML, IM, added=["<think>", "</think>"]))


# Where rows are.


def write_origins(folder: Path, drawn: Iterable[tuple[str, int]]) -> None:
    """Write which source and row each example of the mix is of."""
    names, rows = zip(*drawn, strict=True)
    named = pa.array(names).dictionary_encode().cast(pa.dictionary(pa.int16(), pa.string()))
    table = pa.table({"source": named, "row": pa.array(rows, pa.int32())})
    pq.write_table(table, folder / "rows.parquet")


DRAWN = [("b", 3), ("a", 0), ("b", 0), ("a", 5), ("b", 3), ("a", 2), ("b", 3)]


@pytest.mark.parametrize(
    ("number", "row", "positions"),
    [
        (0, 0, [1]),
        (0, 5, [3]),
        (1, 3, [0, 4, 6]),
        (1, 0, [2]),
        (0, 1, []),
        (0, 3, []),
        (1, 9, []),
    ],
)
def test_row_is_found_at_all_its_positions_in_the_mix(tmp_path, number, row, positions):
    write_origins(tmp_path, DRAWN)
    index = RowIndex(request(tmp_path, source("a"), source("b")))

    assert index.positions_of(number, row).tolist() == positions


def test_sources_are_numbered_as_the_request_has_them(tmp_path):
    write_origins(tmp_path, DRAWN)
    index = RowIndex(request(tmp_path, source("b"), source("a")))

    assert index.sources.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert index.rows.tolist() == [3, 0, 0, 5, 3, 2, 3]


def test_source_of_which_nothing_was_drawn_has_no_positions(tmp_path):
    write_origins(tmp_path, DRAWN)
    index = RowIndex(request(tmp_path, source("a"), source("none"), source("b")))

    assert [len(each) for each in index.positions] == [3, 0, 4]
    assert index.positions_of(1, 0).tolist() == []


# Examples of a table.


def table(**columns: list[list[int]]) -> pa.Table:
    types = {"input_ids": pa.int32(), "labels": pa.int32(), "attention_mask": pa.int8()}
    return pa.table({name: pa.array(columns[name], pa.list_(types[name])) for name in types})


def examples_of(ids: list[list[int]], **other: list[list[int]]) -> Examples:
    ones = [[1] * len(each) for each in ids]
    return read_examples(table(**{"input_ids": ids, "labels": ids, "attention_mask": ones} | other))


def test_examples_lie_behind_one_another():
    made = examples_of([[1, 2], [], [3]], labels=[[-100, 2], [], [3]])

    assert made.ids.tolist() == [1, 2, 3]
    assert made.labels.tolist() == [-100, 2, 3]
    assert made.attention.tolist() == [1, 1, 1]
    assert made.offsets.tolist() == [0, 2, 2, 3]


def test_examples_from_the_middle_of_a_table_begin_at_zero():
    ids = [[9] * 5, [1, 2], [3]]
    made = read_examples(
        table(input_ids=ids, labels=ids, attention_mask=[[1] * len(each) for each in ids])[1:]
    )

    assert (made.ids.tolist(), made.offsets.tolist()) == ([1, 2, 3], [0, 2, 3])


def test_examples_of_several_chunks_are_one():
    ids = [[1, 2], [3]]
    ones = [[1, 1], [1]]
    part = table(input_ids=ids, labels=ids, attention_mask=ones)
    made = read_examples(pa.concat_tables([part, part]))

    assert (made.ids.tolist(), made.offsets.tolist()) == ([1, 2, 3, 1, 2, 3], [0, 2, 3, 5, 6])


def test_no_examples_have_no_tokens():
    made = examples_of([])

    assert (made.ids.tolist(), made.offsets.tolist()) == ([], [0])


@pytest.mark.parametrize(
    ("labels", "fitted"),
    [
        ([[1], [3]], [1, -1, 3]),
        ([[], [3]], [-1, -1, 3]),
        ([[1, 2, 7], [3]], [1, 2, 3]),
        ([[1, 2, 3], []], [1, 2, -1]),
    ],
    ids=["shorter", "none", "longer", "at_another_place"],
)
def test_labels_of_another_length_stay_with_their_example(labels, fitted):
    assert examples_of([[1, 2], [3]], labels=labels).labels.tolist() == fitted


def test_attention_that_is_too_short_is_none():
    made = examples_of([[1, 2], [3]], attention_mask=[[1], [1]])

    assert made.attention.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("labels", "equal"), [([[1, 2], [1, 2]], True), ([[1, 2], [-100, 2]], False)]
)
def test_spots_are_equal_where_ids_and_labels_are(labels, equal):
    made = examples_of([[1, 2], [1, 2]], labels=labels)

    assert Spot(made, 0).equals(Spot(made, 1)) == equal


def test_spots_of_other_lengths_are_not_equal():
    made = examples_of([[1, 2], [1]])

    assert not Spot(made, 0).equals(Spot(made, 1))


def test_anatomy_is_that_of_the_served_template(serving, tmp_path):
    made = anatomy_of(serving, request(tmp_path, cutoff=77, vocabulary=400, last_turn_only=True))

    assert serving.decode(made.header) == "<|im_start|>assistant\n"
    assert (made.end, serving.decode(made.tail)) == (serving.end_id, "\n")
    assert serving.decode(made.empty_blocks[0]) == "<think>\n\n</think>\n\n"
    assert (made.cutoff, made.vocabulary, made.last_turn_only) == (77, 400, True)


# Control strings in texts.


def talk(question: str = "Hi.", answer: str = "Yes.", tools: Sequence = (), **more) -> Conversation:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    turns[1] |= more
    return Conversation(tuple(turns), tuple(tools))


def call(arguments: dict) -> list[dict]:
    return [{"type": "function", "function": {"name": "look", "arguments": arguments}}]


@pytest.mark.parametrize(
    ("conversation", "found"),
    [
        (talk("Say <|im_end|> now."), "turn 0 (user): 'Say <|im_end|> now.'"),
        (talk(answer="<|endoftext|>"), "turn 1 (assistant): '<|endoftext|>'"),
        (talk(tool_calls=call({"at": "<|im_start|>"})), "turn 1 (assistant): "),
        (talk(tools=[{"name": "look", "description": "<|im_end|>"}]), "tools: <|im_end|>"),
    ],
    ids=["question", "answer", "call", "tool"],
)
def test_control_string_is_found_with_its_turn(serving, conversation, found):
    assert find_control(conversation, serving).startswith(found)


@pytest.mark.parametrize(
    "conversation",
    [talk(), talk("<|im_en|> <im_end> < |im_end|>"), talk("<think>"), talk("", "")],
    ids=["plain", "nearly", "added_but_not_special", "empty"],
)
def test_text_without_control_strings_has_none(serving, conversation):
    assert find_control(conversation, serving) is None


def test_control_string_far_in_a_text_is_shown_with_what_is_before_it(serving):
    found = find_control(talk("a" * 100_000 + "<|im_end|>"), serving)

    assert found == f"turn 0 (user): '{'a' * 20}<|im_end|>'"


@pytest.mark.parametrize(
    ("role", "is_found"), [("assistant", False), ("user", True), ("tool", True), ("system", True)]
)
def test_special_markers_of_reasoning_may_stand_in_answers_alone(tmp_path, role, is_found):
    serving = load_serving(write_served(tmp_path, CHATML, (*IM, "<think>", "</think>")))
    said = {"role": role, "content": "<think>\nHm.\n</think>\n\nYes."}

    assert bool(find_control(Conversation((said,), ()), serving)) == is_found


# Counts of several parts.


def tally(*rows: int, source: str = "a", fault: str = "no_loss") -> Tally:
    made = Tally()
    for row in rows:
        made.add_fault(source, fault, row, f"row {row}", "a loss")
    return made


def sample(row: int, why: str) -> Sample:
    return Sample("a", row, why, "", 0, 0, ())


def test_all_faults_are_counted_and_the_first_rows_kept():
    made = tally(*range(25))

    assert made.counts["a", "no_loss"] == 25
    assert [each["row"] for each in made.places["a", "no_loss"]] == list(range(SHOWN_ROWS))


def test_parts_are_added_with_the_first_rows_of_both():
    made = tally(4, 8, 12)
    made.add(tally(*range(1, 30, 2)))

    assert made.counts == Counter({("a", "no_loss"): 18})
    assert [each["row"] for each in made.places["a", "no_loss"]] == [
        1,
        3,
        4,
        5,
        7,
        8,
        9,
        11,
        12,
        13,
    ]


def test_parts_of_other_sources_and_faults_stay_apart():
    made = tally(1)
    made.add(tally(2, source="b"))
    made.add(tally(3, fault="no_end"))

    assert set(made.counts) == {("a", "no_loss"), ("b", "no_loss"), ("a", "no_end")}


@pytest.mark.parametrize(("why", "most"), [(FIRST, 1), ("no_loss", SHOWN_SAMPLES)])
def test_first_samples_of_all_parts_are_kept(why, most):
    made = Tally()
    for rows in ((5, 7), (2, 9), (1, 8)):
        made.add(Tally(samples={("a", why): [sample(row, why) for row in rows]}))

    assert [each.row for each in made.samples["a", why]] == [1, 2][:most]


# Whole inspections of small mixes.


def shop(number: int) -> list[dict]:
    """A row of a village shop."""
    answer = f"Lamp {number} costs {number + 2} euros, by the list of this year's prices."
    return [
        {"from": "human", "value": f"What does lamp {number} cost?"},
        {"from": "gpt", "value": answer},
    ]


def tokens_of(serving: Serving, row: list[dict]) -> dict[str, list[int]]:
    """The tokens that a right trainer makes of a row."""
    asked, said = (turn["value"] for turn in row)
    text = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n{said}<|im_end|>\n"
    prompt, answer, _ = serving.encode(serving.split(text))
    ids = prompt + answer
    labels = [-100] * len(prompt) + answer
    return {"input_ids": ids, "labels": labels, "attention_mask": [1] * len(ids)}


def write_tokens(folder: Path, examples: list[dict[str, list[int]]]) -> None:
    features = Features({name: List(Value(kind)) for name, kind in TYPES.items()})
    Dataset.from_list(examples, features).save_to_disk(str(folder))


@dataclass
class Made:
    """A mix on disk: the rows of its source, and the examples that were made of them."""

    request: Request
    rows: list[list[dict]]
    examples: list[dict[str, list[int]]]

    def inspect(self, num_workers: int = 1) -> dict[str, Any]:
        """What is found in the rows and examples as they are now."""
        [only] = self.request.sources
        lines = [json.dumps({"conversations": row}) + "\n" for row in self.rows]
        write_text(only.files[0], "".join(lines))
        write_tokens(self.request.tokens, self.examples)
        return inspect(self.request, num_workers)

    def faults(self) -> dict[str, int]:
        """How often each fault is found."""
        return {each["fault"]: each["count"] for each in self.inspect()["findings"]}


def make(folder: Path, drawn: Sequence[int] = tuple(range(10)), num_rows: int = 10) -> Made:
    """A good mix of one source, of which some rows were drawn."""
    serving = load_serving(write_served(folder / "tokenizer", CHATML, IM))
    rows = [shop(number) for number in range(num_rows)]
    write_origins(folder, [("a", row) for row in drawn])
    made = request(folder, source("a", num_rows, folder / "a.jsonl"))
    return Made(made, rows, [tokens_of(serving, rows[row]) for row in drawn])


@pytest.fixture
def mix(tmp_path: Path) -> Made:
    return make(tmp_path)


def test_good_mix_has_no_findings(mix):
    assert mix.faults() == {}


def test_mix_has_its_counts(mix):
    lengths = [len(each["input_ids"]) for each in mix.examples]
    trained = sum(label != -100 for each in mix.examples for label in each["labels"])

    assert mix.inspect()["sources"]["a"] == {
        "rows_in": 10,
        "rows_out": 10,
        "examples": 10,
        "tokens": sum(lengths),
        "trained_tokens": trained,
        "median_length": int(np.percentile(lengths, 50)),
        "length_of_95_percent": int(np.percentile(lengths, 95)),
        "longest": max(lengths),
        "truncated": 0,
    }


def test_first_example_is_kept_to_be_shown(mix):
    [shown] = map(Sample.from_json, mix.inspect()["samples"])

    assert (shown.source, shown.row, shown.why) == ("a", 0, FIRST)
    assert "".join(token.text for token in shown.tokens if token.trained) == (
        shop(0)[1]["value"] + "<|im_end|>\n"
    )


def test_character_of_several_tokens_is_shown_with_the_last_of_them(mix):
    mix.rows[0][1]["value"] = "日 is sun."
    mix.examples[0] = tokens_of(load_serving(mix.request.serving), mix.rows[0])

    [shown] = map(Sample.from_json, mix.inspect()["samples"])

    trained = [token.text for token in shown.tokens if token.trained]
    assert trained[:5] == ["", "", "日", " ", "i"]


def test_place_of_a_fault_is_marked_in_its_example(mix):
    labels = mix.examples[6]["labels"]
    place = len(labels) - 3  # before the end and its newline
    labels[place] = -100

    shown, _ = map(Sample.from_json, mix.inspect()["samples"])

    assert (shown.row, shown.why) == (6, "answer_not_in_loss")
    assert [number for number, token in enumerate(shown.tokens) if token.marked] == [place]


@pytest.mark.parametrize(("number", "shown"), [(3, 3), (14, SHOWN_ROWS)])
def test_all_examples_with_a_fault_are_counted_and_the_first_shown(tmp_path, number, shown):
    mix = make(tmp_path, drawn=tuple(range(20)), num_rows=20)
    for each in mix.examples[2 : 2 + number]:
        each["labels"][-2] = -100

    [finding] = mix.inspect()["findings"]

    assert (finding["fault"], finding["count"]) == ("end_not_in_loss", number)
    assert [each["row"] for each in finding["places"]] == list(range(2, 2 + shown))


def test_finding_names_its_row_of_a_mix_in_another_order(tmp_path):
    mix = make(tmp_path, drawn=(7, 2, 9, 4))
    mix.examples[2]["labels"] = [-100] * len(mix.examples[2]["labels"])

    findings = {each["fault"]: each for each in mix.inspect()["findings"]}

    assert findings["no_loss"]["count"] == 1
    assert findings["no_loss"]["of"] == 4
    assert findings["no_loss"]["places"][0]["row"] == 9


def test_example_of_another_row_is_found(mix):
    mix.examples[3], mix.examples[4] = mix.examples[4], mix.examples[3]

    assert mix.faults() == {"other_prompt": 2, "other_answer": 2}


def test_row_that_was_drawn_twice_is_the_same_twice(tmp_path):
    assert make(tmp_path, drawn=(1, 2, 1)).faults() == {}


def test_row_that_was_drawn_twice_and_is_not_the_same_is_broken(tmp_path):
    mix = make(tmp_path, drawn=(1, 2, 1))
    mix.examples[2] = mix.examples[1]

    assert mix.faults() == {"broken_tokens": 1}


def test_control_string_of_a_question_is_found(tmp_path):
    mix = make(tmp_path)
    mix.rows[5][0]["value"] = "What is <|endoftext|>?"

    assert mix.faults() == {"control_in_text": 1}


def test_last_reasoning_that_trainer_and_template_leave_out_is_found(mix):
    keeps = "message['content'].split('</think>')[-1].lstrip()"
    write_served(mix.request.serving, CHATML.replace("message['content']", keeps), IM)
    mix.rows[4][1]["value"] = "<think>\nA lamp.\n</think>\n\n" + mix.rows[4][1]["value"]

    assert mix.faults() == {"stripped_reasoning": 1}


def test_same_rows_are_found(mix):
    mix.rows[6], mix.examples[6] = mix.rows[1], mix.examples[1]

    assert mix.faults() == {"duplicate_rows": 1}


def test_rows_that_no_cause_explains_are_lost(mix):
    [only] = mix.request.sources
    mix.request = replace(mix.request, sources=(replace(only, rows_out=8),))

    assert mix.faults() == {"lost_rows": 2}


def test_source_of_which_hardly_a_token_is_trained_is_found(mix):
    for each in mix.examples:
        each["labels"] = [-100] * len(each["labels"])

    assert mix.faults()["low_trained_share"] == 10


def test_answer_that_many_rows_share_is_found(mix):
    serving = load_serving(mix.request.serving)
    for number in (2, 3, 5):
        mix.rows[number][1]["value"] = "I am sorry, of that I know nothing at all today."
        mix.examples[number] = tokens_of(serving, mix.rows[number])

    assert mix.faults() == {"repeated_answer": 3}


def test_short_answer_may_be_that_of_many_rows(mix):
    serving = load_serving(mix.request.serving)
    for number in (2, 3, 5):
        mix.rows[number][1]["value"] = "I do not know."
        mix.examples[number] = tokens_of(serving, mix.rows[number])

    assert mix.faults() == {}


def test_answers_of_the_same_rows_count_once(mix):
    for number in (2, 3, 5):
        mix.rows[number], mix.examples[number] = mix.rows[1], mix.examples[1]

    assert mix.faults() == {"duplicate_rows": 3}


def test_number_of_processes_changes_nothing(tmp_path):
    mix = make(tmp_path, drawn=tuple(range(1500)), num_rows=1500)
    mix.examples[1200]["labels"] = [-100] * len(mix.examples[1200]["labels"])

    assert mix.inspect(num_workers=1) == mix.inspect(num_workers=3)


def test_packs_with_a_loss_that_the_examples_lack_are_broken(tmp_path):
    mix = make(tmp_path)
    write_tokens(tmp_path / "packs", mix.examples[:9])
    mix.request = replace(mix.request, packed=tmp_path / "packs", num_packs=9)

    [finding] = mix.inspect()["findings"]

    assert (finding["source"], finding["fault"]) == (PACKS, "broken_tokens")


def test_packs_of_all_examples_have_no_findings(tmp_path):
    mix = make(tmp_path)
    packs = [
        {key: one[key] + two[key] for key in TYPES}
        for one, two in zip(mix.examples[::2], mix.examples[1::2], strict=True)
    ]
    write_tokens(tmp_path / "packs", packs)
    mix.request = replace(mix.request, packed=tmp_path / "packs", num_packs=5)

    assert mix.faults() == {}


def test_tokens_of_another_number_of_examples_are_refused(mix):
    mix.examples = mix.examples[:7]

    with pytest.raises(SftError, match=r"found 7 examples, expected 10 as rows.parquet"):
        mix.inspect()
