"""The rows of a mix as conversations, for a trainer that tokenizes those and reads no rows."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sft.errors import SftError
from sft.files import write_json
from sft.gate.conversation import read_conversation, read_schema
from sft.gate.roles import find_fatal_rows
from sft.gate.rows import Files, read_rows

ROWS_AT_ONCE = 1000
SCHEMA = pa.schema({"row": pa.int32(), "conversation": pa.string()})

Rows = Mapping[str, tuple[Files, Mapping[str, Any]]]


def write_conversations(rows: Rows, max_samples: int | None, folder: Path) -> None:
    """Write folder/sources/<source>.parquet, and sources.json: how many rows were read of each.

    `rows` has the files of each source and the registry's words that read them, of which the first
    `max_samples` rows count. A line has the row's number from 0 and its conversation as JSON,
    {"messages", "tools"} in transformers' form. Rows that LLaMA-Factory leaves out with a warning
    are left out here too, for the same faults; the gate counts them. Raises SftError with the rows
    that LLaMA-Factory would die of.
    """
    (folder / "sources").mkdir(parents=True)
    rows_read = {}
    for name, (files, options) in rows.items():
        numbered = enumerate(islice(read_rows(files), max_samples))
        path = folder / "sources" / f"{name}.parquet"
        try:
            rows_read[name] = _write_source(numbered, options, path)
        except _FatalRow:
            raise SftError(*find_fatal_rows(files, options, name)) from None
    write_json(folder / "sources.json", rows_read)


class _FatalRow(Exception):
    """A row that no trainer survives."""


def _write_source(
    numbered: Iterator[tuple[int, Mapping[str, Any]]], options: Mapping[str, Any], path: Path
) -> int:
    """How many rows there were."""
    schema, rows_read = read_schema(options), 0
    with pq.ParquetWriter(path, SCHEMA) as writer:
        while part := list(islice(numbered, ROWS_AT_ONCE)):
            rows_read += len(part)
            made = [(row, text) for row, content in part if (text := _as_json(content, schema))]
            columns = [[row for row, _ in made], [text for _, text in made]]
            writer.write_table(pa.table(columns, schema=SCHEMA))
    return rows_read


def _as_json(row: Mapping[str, Any], schema: Any) -> str | None:
    conversation, faults = read_conversation(row, schema)
    if any(fault.fails for fault in faults):
        raise _FatalRow
    if conversation is None or any(fault.drops for fault in faults):
        return None
    tools = {"tools": conversation.tools} if conversation.tools else {}
    return json.dumps({"messages": conversation.messages, **tools})
