"""Tokenize a mix with LLaMA-Factory's own code, keeping for each example where it came from."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from datasets import Dataset, Features, Sequence, Value, load_dataset
from llamafactory.data import get_template_and_fix_tokenizer
from llamafactory.data.converter import align_dataset
from llamafactory.data.data_utils import merge_dataset
from llamafactory.data.loader import _get_preprocessed_dataset
from llamafactory.data.parser import get_dataset_list
from llamafactory.data.processor import SupervisedDatasetProcessor
from llamafactory.extras.constants import FILEEXT2TYPE
from llamafactory.hparams import get_train_args
from llamafactory.model import load_tokenizer

IGNORED = -100  # torch's cross entropy leaves these labels out

TOKEN_FEATURES = {
    "input_ids": Sequence(Value("int32")),
    "labels": Sequence(Value("int32")),
    "attention_mask": Sequence(Value("int8")),
}


def tokenize_mix(config: Mapping[str, Any], tokens: Path) -> None:
    """Write the tokens of the mix that `config` names; see `llamafactory.pretokenize`.

    Each source is tokenized alone, row by row, and mixed after by LLaMA-Factory's own function, so
    that the order is the one it would have trained in while every example keeps its row. A packed
    example joins rows of several sources: what is packed is written beside it one by one.
    """
    model_args, data_args, training_args, _, _ = get_train_args(dict(config))
    module = load_tokenizer(model_args)
    template = get_template_and_fix_tokenizer(module["tokenizer"], data_args)
    module["tokenizer"].save_pretrained(str(tokens.parent / "tokenizer"))
    names = data_args.dataset
    sources = {
        name: _load_source(attributes, model_args, data_args, training_args)
        for name, attributes in zip(
            names, get_dataset_list(names, data_args.dataset_dir), strict=True
        )
    }
    counts = {name: {"rows_in": source.num_rows} for name, source in sources.items()}
    processor = SupervisedDatasetProcessor(template=template, data_args=data_args, **module)
    encoded = []
    for position, (name, source) in enumerate(sources.items()):
        encoded.append(_encode(source, position, processor, data_args))
        counts[name]["rows_out"] = encoded[-1].num_rows
    _refuse_empty(counts)
    mix = merge_dataset(encoded, data_args, seed=training_args.seed)
    _write_rows(mix, list(sources), counts, tokens.parent)
    if data_args.packing:
        _save(mix, tokens.with_name("unpacked"))
        merged = merge_dataset(list(sources.values()), data_args, seed=training_args.seed)
        mix = _get_preprocessed_dataset(
            merged, data_args, training_args, stage="sft", template=template, **module
        )
    _save(mix, tokens)
    made = {"examples": mix.num_rows, "sources": counts}
    (tokens.parent / "counts.json").write_text(json.dumps(made, indent=2, ensure_ascii=False))


def _load_source(attributes: Any, model_args: Any, data_args: Any, training_args: Any) -> Dataset:
    """The rows of one source in LLaMA-Factory's own form.

    As its `_load_single_dataset`, which takes the files of a folder in the order in which the file
    system lists them: the same folder can be another order, and other tokens, elsewhere.
    """
    path = Path(data_args.dataset_dir, attributes.dataset_name)
    files = None
    if attributes.load_from == "file":
        files = [str(file) for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    rows = load_dataset(
        path=FILEEXT2TYPE[Path(files[0]).suffix[1:]] if files else str(path),
        name=attributes.subset,
        data_dir=attributes.folder,
        data_files=files,
        split=attributes.split,
        num_proc=data_args.preprocessing_num_workers,
    )
    if data_args.max_samples is not None:
        rows = rows.select(range(min(data_args.max_samples, rows.num_rows)))
    return align_dataset(rows, attributes, data_args, training_args)


def _save(mix: Dataset, folder: Path) -> None:
    made = mix.select_columns(list(TOKEN_FEATURES)).cast(Features(TOKEN_FEATURES))
    made.save_to_disk(str(folder))


def _encode(source: Dataset, position: int, processor: Any, data_args: Any) -> Dataset:
    """The tokenized rows of one source; a row that LLaMA-Factory drops is absent."""

    def encode(batch: dict[str, list], rows: list[int]) -> dict[str, list]:
        out: dict[str, list] = {key: [] for key in (*TOKEN_FEATURES, "source", "row")}
        for index, row in enumerate(rows):
            example = {key: [column[index]] for key, column in batch.items()}
            made = processor.preprocess_dataset(example)
            for key in TOKEN_FEATURES:
                out[key] += made[key]
            out["source"] += [position] * len(made["input_ids"])
            out["row"] += [row] * len(made["input_ids"])
        return out

    return source.map(
        encode,
        batched=True,
        batch_size=data_args.preprocessing_batch_size,
        with_indices=True,
        remove_columns=source.column_names,
        features=Features(TOKEN_FEATURES | {"source": Value("int16"), "row": Value("int32")}),
        num_proc=data_args.preprocessing_num_workers,
        desc="Tokenizing",
    )


def _refuse_empty(counts: Mapping[str, Mapping[str, int]]) -> None:
    """LLaMA-Factory warns of each row that it drops, and goes on with those that are left."""
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


def _write_rows(mix: Dataset, names: list[str], counts: dict, folder: Path) -> None:
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
