"""The rows of a mix, written as conversations for a trainer that tokenizes those."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sft.conversations import write_conversations
from sft.errors import SftError

OPTIONS = {"formatting": "sharegpt"}
ASK, ANSWER = {"from": "human", "value": "Ask"}, {"from": "gpt", "value": "Say"}


def rows_file(folder: Path, *rows: dict) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write(folder: Path, *rows: dict, max_samples: int | None = None) -> list[dict]:
    """The lines that were written, the conversations parsed."""
    path = rows_file(folder, *rows)
    write_conversations({"talk": ([path], OPTIONS)}, max_samples, folder)
    lines = pq.read_table(folder / "sources" / "talk.parquet").to_pylist()
    return [each | {"conversation": json.loads(each["conversation"])} for each in lines]


def test_conversation_has_the_messages_of_transformers(tmp_path):
    [line] = write(tmp_path, {"conversations": [ASK, ANSWER]})

    assert line == {
        "row": 0,
        "conversation": {
            "messages": [
                {"role": "user", "content": "Ask"},
                {"role": "assistant", "content": "Say"},
            ]
        },
    }


def test_row_that_llamafactory_leaves_out_is_left_out(tmp_path):
    lines = write(tmp_path, {"conversations": [ASK, ASK]}, {"conversations": [ASK, ANSWER]})

    assert [line["row"] for line in lines] == [1]


def test_rows_are_counted_that_are_left_out(tmp_path):
    write(tmp_path, {"conversations": [ASK, ASK]}, {"conversations": [ASK, ANSWER]})

    assert json.loads((tmp_path / "sources.json").read_text()) == {"talk": 2}


def test_no_more_rows_are_read_than_asked_for(tmp_path):
    lines = write(tmp_path, *[{"conversations": [ASK, ANSWER]}] * 3, max_samples=2)

    assert [line["row"] for line in lines] == [0, 1]
    assert json.loads((tmp_path / "sources.json").read_text()) == {"talk": 2}


def test_tools_come_as_they_are_listed(tmp_path):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    row = {"conversations": [ASK, ANSWER], "tools": json.dumps(tools)}
    path = rows_file(tmp_path, row)
    options = OPTIONS | {"columns": {"messages": "conversations", "tools": "tools"}}
    write_conversations({"talk": ([path], options)}, None, tmp_path)
    [text] = pq.read_table(tmp_path / "sources" / "talk.parquet")["conversation"].to_pylist()

    assert json.loads(text)["tools"][0]["function"]["name"] == "f"


def test_row_that_trainers_die_of_is_named(tmp_path):
    broken = {"conversations": [ASK, {"from": "gpt", "value": 7}]}

    with pytest.raises(SftError, match="talk, row 1"):
        write(tmp_path, {"conversations": [ASK, ANSWER]}, broken)
