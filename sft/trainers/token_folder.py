"""The folder of tokens that a trainer's entry leaves, whichever trainer it is.

Each example is int32 input_ids, int32 labels (IGNORED where a token has no loss) and int8
attention_mask; beside them, source and row name where it came from until it is written.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Dataset, Features, Sequence, Value

IGNORED = -100  # torch's cross entropy leaves these labels out

TOKEN_FEATURES = {
    "input_ids": Sequence(Value("int32")),
    "labels": Sequence(Value("int32")),
    "attention_mask": Sequence(Value("int8")),
}
# What an example has besides while its mix is made: the source's number, and the row's there.
ORIGIN_FEATURES = {"source": Value("int16"), "row": Value("int32")}


def save_tokens(mix: Dataset, folder: Path, more: Mapping[str, Any] | None = None) -> None:
    """Write the examples as a `datasets` folder, without where they came from.

    `more` are the features of further columns that the trainer wants to find there.
    """
    features = TOKEN_FEATURES | dict(more or {})
    mix.select_columns(list(features)).cast(Features(features)).save_to_disk(str(folder))


def write_counts(examples: int, counts: Mapping[str, Mapping[str, int]], folder: Path) -> None:
    """Write counts.json: the number of examples, and what was counted of each source."""
    made = {"examples": examples, "sources": counts}
    (folder / "counts.json").write_text(json.dumps(made, indent=2, ensure_ascii=False))


def refuse_empty(counts: Mapping[str, Mapping[str, int]]) -> None:
    """Trainers warn of each row that they drop, and go on with those that are left."""
    empty = [
        f"{name} (0 of {each['rows_in']} rows)"
        for name, each in counts.items()
        if not each["rows_out"]
    ]
    if empty:
        sys.exit(
            f"no example came out of {', '.join(empty)}: its `columns`, `tags` and `formatting` "
            "in the dataset registry do not fit the data, or its turns do not alternate"
        )


def write_rows(mix: Dataset, names: list[str], counts: dict, folder: Path) -> None:
    """Write rows.parquet, and add what the mix takes of each source to `counts`."""
    taken = np.zeros((len(names), 3), dtype=np.int64)  # examples, tokens, trained tokens
    schema = pa.schema({"source": pa.dictionary(pa.int16(), pa.string()), "row": pa.int32()})
    with pq.ParquetWriter(folder / "rows.parquet", schema) as writer:
        for batch in mix.with_format("arrow").iter(batch_size=1000):
            sources = batch["source"].to_numpy()
            lengths = pc.list_value_length(batch["input_ids"]).to_numpy()
            labels = pc.list_flatten(batch["labels"]).to_numpy()
            ends = np.cumsum(lengths)
            trained_before = np.concatenate([[0], np.cumsum(labels != IGNORED)])
            trained = trained_before[ends] - trained_before[ends - lengths]
            for column, amounts in enumerate((np.ones_like(lengths), lengths, trained)):
                np.add.at(taken[:, column], sources, amounts)
            named = pa.DictionaryArray.from_arrays(pa.array(sources), pa.array(names))
            writer.write_table(pa.table([named, batch["row"]], schema=schema))
    for name, (examples, num_tokens, num_trained) in zip(names, taken.tolist(), strict=True):
        counts[name] |= {
            "examples": examples,
            "tokens": num_tokens,
            "trained_tokens": num_trained,
        }
