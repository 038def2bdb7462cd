"""Tokenize a mix with LLaMA-Factory's own code, keeping for each example where it came from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, load_dataset
from llamafactory.data import get_template_and_fix_tokenizer
from llamafactory.data.converter import align_dataset
from llamafactory.data.data_utils import merge_dataset
from llamafactory.data.loader import _get_preprocessed_dataset
from llamafactory.data.parser import get_dataset_list
from llamafactory.data.processor import SupervisedDatasetProcessor
from llamafactory.extras.constants import FILEEXT2TYPE
from llamafactory.hparams import get_train_args
from llamafactory.model import load_tokenizer

from sft.trainers.served_tokenizer import embed_templates
from sft.trainers.token_folder import (
    ORIGIN_FEATURES,
    TOKEN_FEATURES,
    refuse_empty,
    save_tokens,
    write_counts,
    write_rows,
)


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
    embed_templates(tokens.parent / "tokenizer")
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
    refuse_empty(counts)
    mix = merge_dataset(encoded, data_args, seed=training_args.seed)
    write_rows(mix, list(sources), counts, tokens.parent)
    if data_args.packing:
        save_tokens(mix, tokens.with_name("unpacked"))
        merged = merge_dataset(list(sources.values()), data_args, seed=training_args.seed)
        mix = _get_preprocessed_dataset(
            merged, data_args, training_args, stage="sft", template=template, **module
        )
    save_tokens(mix, tokens)
    write_counts(mix.num_rows, counts, tokens.parent)


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
        features=Features(TOKEN_FEATURES | ORIGIN_FEATURES),
        num_proc=data_args.preprocessing_num_workers,
        desc="Tokenizing",
    )
