"""Our reading of rows against LLaMA-Factory's: what it trains, what it drops, where it dies."""

import copy
import json
import random
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.make_model import load_tokenizer
from sft.gate.conversation import DROPPED, FAILS, KINDS, TRAINED, read_conversation
from sft.gate.rows import list_source_files, read_rows
from sft.trainers.text_only import allow_text_only

TAGS = {
    **{"role_tag": "role", "content_tag": "content"},
    **{"user_tag": "user", "assistant_tag": "assistant"},
}
OPTIONS = {
    "sharegpt": {
        "formatting": "sharegpt",
        "columns": {"messages": "conversations", "tools": "tools", "system": "system"},
    },
    "few tags": {
        "formatting": "sharegpt",
        "columns": {"messages": "conversations"},
        "tags": TAGS,
    },
    "all tags": {
        "formatting": "sharegpt",
        "columns": {"messages": "conversations", "tools": "tools"},
        "tags": TAGS | {"system_tag": "system", "observation_tag": "tool", "function_tag": "call"},
    },
    "alpaca": {
        "columns": {
            **{"prompt": "instruction", "query": "input", "response": "output"},
            **{"history": "history", "system": "system", "tools": "tools"},
        }
    },
}
# Under which role and content a row of turns is written, by the tags that are in force.
WORDS = {
    "sharegpt": ("from", "value", "human", "gpt", "function_call", "observation", "system"),
    "few tags": ("role", "content", "user", "assistant", None, None, None),
    "all tags": ("role", "content", "user", "assistant", "call", "tool", "system"),
}
CALL = '{"name": "f", "arguments": {}}'
TOOLS = '[{"name": "f", "parameters": {}}]'
NO_TEXT = [None, 5, ["x"], {"a": 1}, []]
# Not among them is text on a line before a call: its own templates take none, ours do.
CONTENTS = [
    *("", " ", "text", "[]", '{"name": "f"}', '{"arguments": {}}', f"text {CALL}"),
    *('{"name": "f", "arguments": "{}"}', f"<think>\na\n</think>\n\n{CALL}", "<think>a", "a\ufffd"),
    f"[{CALL}, {CALL}]",
]
TOOL_TEXTS = [None, "", "[]", [], TOOLS, "text", " ", ["x"], 5, '{"name": "f"}', '["f"]']


def make_row(form: str, draw: random.Random) -> dict:
    """A good row."""
    system, tools = draw.choice([None, "", "Be brief."]), draw.choice([None, "", TOOLS])
    if form == "alpaca":
        query, history = draw.choice(["", "x"]), draw.choice([None, [], [["q", "a"]]])
        row = {"instruction": "q", "input": query, "output": "a", "history": history}
        return row | {"system": system, "tools": tools}
    role, content, user, assistant, call, result, first = WORDS[form]
    turns = [(first, "Be brief.")] if first and draw.random() < 0.4 else []
    for _ in range(draw.randint(1, 3)):
        turns.append((user, "q"))
        if call and draw.random() < 0.4:
            turns += [(call, CALL), (result, "r")]
        turns.append((assistant, "a"))
    messages = [{role: tag, content: text} for tag, text in turns]
    return {"conversations": messages, "system": system, "tools": tools}


def spoil(row: dict, form: str, draw: random.Random) -> dict:
    """The row with one thing changed; it may still be good."""
    row = copy.deepcopy(row)
    if form == "alpaca":
        values = [*NO_TEXT, *CONTENTS, [["q", None]], [["q"]], [["q", "a"], None], *TOOL_TEXTS]
        row[draw.choice(list(row))] = draw.choice(values)
        return row
    role, content, *tags = WORDS[form]
    turns = row["conversations"]
    way = draw.randrange(9)
    if way == 0:
        row["conversations"] = draw.choice([*NO_TEXT, "", "text", {}, [None], ["x"]])
    elif way == 1:
        row["tools"] = draw.choice(TOOL_TEXTS)
    elif way == 2:
        row["system"] = draw.choice([*NO_TEXT, *CONTENTS])
    elif isinstance(turns, list) and turns and all(isinstance(turn, dict) for turn in turns):
        place = draw.randrange(len(turns))
        if way == 3:
            del turns[place]
        elif way == 4:
            turns.insert(place, dict(turns[place]))
        elif way == 5:
            turns[place][role] = draw.choice([None, "nobody", 5, ["x"], *tags])
        elif way == 6:
            turns[place][content] = draw.choice([*NO_TEXT, *CONTENTS])
        elif way == 7:
            draw.shuffle(turns)
        else:
            turns.insert(place, {role: tags[-1] or "system", content: "late"})
    return row


@pytest.fixture(scope="module")
def trainer() -> SimpleNamespace:
    """LLaMA-Factory: `fate(row, options)`, and `fates(rows, options)` of what it has loaded."""
    allow_text_only()
    from llamafactory.data.converter import get_dataset_converter
    from llamafactory.data.parser import get_dataset_list
    from llamafactory.data.processor import SupervisedDatasetProcessor
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments

    arguments = DataArguments(template="qwen", cutoff_len=8192)
    tokenizer = load_tokenizer()
    template = get_template_and_fix_tokenizer(tokenizer, arguments)
    processor = SupervisedDatasetProcessor(template, tokenizer, None, arguments)

    def fate(row: dict, options: dict) -> str:
        [attributes] = get_dataset_list(["rows"], {"rows": {"file_name": "rows", **options}})
        convert = get_dataset_converter(attributes.formatting, attributes, arguments)
        try:
            made = processor.preprocess_dataset({k: [v] for k, v in convert(row).items()})
        # What LLaMA-Factory 0.9.5 was seen to die of in these rows; any other error is a surprise.
        except (AttributeError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
            return FAILS
        return TRAINED if made.get("input_ids") else DROPPED

    return SimpleNamespace(fate=fate)


def our_fate(row: dict, options: dict) -> str:
    conversation, faults = read_conversation(row, options)
    if any(fault.drops for fault in faults):
        return DROPPED
    return TRAINED if conversation else FAILS


@pytest.mark.parametrize("form", OPTIONS)
def test_good_rows_are_trained_and_have_no_fault(trainer, form):
    draw, options = random.Random(form), OPTIONS[form]
    rows = [make_row(form, draw) for _ in range(50)]
    assert {trainer.fate(row, options) for row in rows} == {TRAINED}
    # A system turn beside a system column is one text too much.
    faults = [fault for row in rows for fault in read_conversation(row, options)[1]]
    assert {fault.kind for fault in faults} <= {"unread_column", "unknown_tool"}


@pytest.mark.parametrize("form", OPTIONS)
def test_rows_are_dropped_where_we_say_so_and_nowhere_else(trainer, form):
    draw, options = random.Random(form), OPTIONS[form]
    differ, fates = [], []
    for number in range(600):
        row = spoil(make_row(form, draw), form, draw)
        if number % 3 == 0:
            row = spoil(row, form, draw)
        theirs, ours = trainer.fate(row, options), our_fate(row, options)
        fates.append(theirs)
        if (theirs == DROPPED) != (ours == DROPPED) or (theirs == FAILS and ours == TRAINED):
            differ.append((theirs, ours, row, read_conversation(row, options)[1]))
    assert differ == []
    assert min(fates.count(fate) for fate in (DROPPED, FAILS, TRAINED)) > 20


# What is not a variation of one good row above; with what LLaMA-Factory does.
def chat(*turns: tuple[str, object], **columns: object) -> dict:
    messages = [{"from": role, "value": value} for role, value in turns]
    return {"conversations": messages, "system": None, "tools": None} | columns


def called(call: str, tools: str = TOOLS) -> dict:
    turns = (("human", "q"), ("function_call", call), ("observation", "r"), ("gpt", "a"))
    return chat(*turns, tools=tools)


PADDED = '[{"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}]'
SMALLEST = {
    "missing_column": {"conversations": None, "system": None, "tools": None},
    "broken_messages": {"conversations": "text", "system": None, "tools": None},
    "wrong_roles": chat(("user", "q"), ("gpt", "a")),
    "late_system": chat(("human", "q"), ("gpt", "a"), ("system", "s"), ("gpt", "a")),
    "turn_order": chat(("human", "q"), ("gpt", "a"), ("human", "q")),
    "no_answer": chat(("human", "q")),
    "not_text": chat(("human", None), ("gpt", "a")),
    "broken_tools": chat(("human", "q"), ("gpt", "a"), tools="text"),
    "broken_call": called("text"),
    "empty_question": chat(("human", ""), ("gpt", "a")),
    "empty_answer": chat(("human", "q"), ("gpt", "")),
    "unknown_tool": called('{"name": "g", "arguments": {}}'),
    "unanswered_call": chat(
        *(("human", "q"), ("function_call", CALL), ("human", "q"), ("gpt", "a")), tools=TOOLS
    ),
    "looping_answer": chat(("human", "q"), ("gpt", "Once more. " * 300)),
    "padded_arguments": called('{"name": "f", "arguments": {"b": null}}', PADDED),
    "ignored_fields": {
        **chat(("human", "q")),
        "conversations": [
            {"from": "human", "value": "q", "tool_calls": None},
            {"from": "gpt", "value": "a", "tool_calls": [{"function": CALL}]},
        ],
    },
    "unread_column": chat(("system", "s"), ("human", "q"), ("gpt", "a"), system="lost"),
    "broken_reasoning": chat(("human", "q"), ("gpt", "<think>a")),
    "reasoning_only": chat(("human", "q"), ("gpt", "<think>a</think>")),
    "damaged_text": chat(("human", "caf\ufffd"), ("gpt", "a")),
}


@pytest.mark.parametrize("kind", KINDS.keys() - {"foreign_markers"})
def test_what_becomes_of_a_row_is_what_its_kind_says(trainer, kind):
    row, options = SMALLEST[kind], OPTIONS["sharegpt"]
    assert [fault.kind for fault in read_conversation(row, options)[1]] == [kind]
    assert trainer.fate(row, options) == KINDS[kind]


# The order of rows, as datasets loads them in the trainer's environment

LAYOUTS = {
    "splits by name": ["train.jsonl", "test.jsonl"],
    "many files": ["b.jsonl", "a.jsonl", "part-10.jsonl", "part-9.jsonl"],
    "shards": [f"data/train-0000{n}-of-00003.parquet" for n in (2, 0, 1)],
    "splits in folders": ["train/b.parquet", "train/a.parquet", "test/c.parquet"],
    "words in names": ["my_train_set.jsonl", "dev.jsonl"],
    "subfolders": ["x/b.json", "a/z.json", "c.json"],
    "hidden and other files": [".cache/a.jsonl", "a.jsonl", "b.jsonl"],
    "tables": ["b.csv", "a.csv"],
}


def write(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        path.write_text("a\n" + "".join(f"{row['a']}\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n\n" for row in rows))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("split", ["train", "train[1:50%]"])
def test_rows_of_a_repository_come_in_the_trainers_order(tmp_path, layout, split):
    from datasets import load_dataset

    folder = tmp_path / "snapshot"
    for name in LAYOUTS[layout]:
        write(folder / name, [{"a": f"{name} {row}"} for row in range(4)])
    (folder / "README.md").write_text("A card.\n")
    made = load_dataset(str(folder), split=split, cache_dir=str(tmp_path / "cache"))
    fetched = {"name": "d", "path": str(folder), "source": "hub:org/d"}
    files = list_source_files(fetched, {"split": split})
    assert [row["a"] for row in read_rows(files)] == list(made["a"])


# What the trainer's loading makes of values: why a source of dates alone is refused


@pytest.mark.parametrize(("name", "fate"), [("d.jsonl", DROPPED), ("d.json", TRAINED)])
def test_answers_that_are_all_dates_are_lost_in_json_lines(trainer, tmp_path, name, fate):
    from datasets import load_dataset

    write(tmp_path / name, [{"instruction": "When?", "input": "", "output": "2024-02-29"}] * 2)
    made = load_dataset(
        "json", data_files=[str(tmp_path / name)], split="train", cache_dir=str(tmp_path / "cache")
    )
    assert {trainer.fate(row, {}) for row in made} == {fate}
