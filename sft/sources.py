"""What a local model or dataset must hold before anything is made of it."""

import csv
import json
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from sft.errors import SftError, nearest
from sft.files import list_files, read_json
from sft.weights import INDEX, Tensor, read_tensors

# Other weight formats, and what a trainer leaves beside its weights: nobody reads them here.
LEFT_OUT = (
    *("*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx*", "*.msgpack", "*.h5"),
    *("original/*", "checkpoint-*/*", "global_step*/*"),
)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
# A JSON file is judged by its first rows: files may be larger than a login node's memory.
PEEKED_BYTES = 4 << 20
# LLaMA-Factory's columns where a registry names none (data/parser.py).
DEFAULT_COLUMNS = {
    "alpaca": {"prompt": "instruction", "query": "input", "response": "output"},
    "sharegpt": {"messages": "conversations"},
}


def list_model(folder: Path) -> list[str]:
    """The files of a model folder that are read here, relative to it."""
    return [
        name
        for name in list_files(folder)
        if not any(fnmatch(name, pattern) for pattern in LEFT_OUT)
    ]


def check_model(folder: Path) -> None:
    """Refuse a folder that is not a whole model in safetensors with its tokenizer."""
    if parts := sorted(folder.rglob("*.incomplete")):
        raise SftError(f"{parts[0]}: a download that did not end; finish it, then delete this file")
    _read_whole_json(folder / "config.json")
    index = folder / INDEX
    if index.exists():
        _check_shards(index)
    elif (folder / "model.safetensors").exists():
        _read_shard(folder / "model.safetensors")
    else:
        raise SftError(
            f"{folder}: expected model.safetensors or {INDEX}, found {_weights(folder)}; "
            "only whole models in safetensors are fetched and trained: convert or merge it first"
        )
    if not any((folder / name).exists() for name in TOKENIZERS):
        raise SftError(
            f"{folder}: no tokenizer: expected one of {', '.join(TOKENIZERS)}; "
            "copy it from the base model"
        )


def _weights(folder: Path) -> str:
    """The files that look like weights, for a message."""
    endings = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5")
    names = sorted(path.name for path in folder.iterdir() if path.suffix in endings)
    return ", ".join(names[:5]) or "none"


def _read_whole_json(file: Path) -> Any:
    try:
        return read_json(file)
    except SftError as error:
        raise SftError(f"{error}; {replace_file(file)}") from error


def _check_shards(index: Path) -> None:
    """Refuse shards that are absent, cut short, or lack a tensor that the index places there."""
    shards: dict[str, set[str]] = {}
    for tensor, shard in _read_whole_json(index)["weight_map"].items():
        shards.setdefault(shard, set()).add(tensor)
    for name, tensors in sorted(shards.items()):
        shard = index.parent / name
        absent = sorted(tensors - set(_read_shard(shard)))
        if absent:
            raise SftError(
                f"{shard}: {INDEX} places {absent[0]!r} there, and {len(absent)} tensors in all "
                f"that it does not hold: they are of different saves; {replace_file(shard)}"
            )


def _read_shard(file: Path) -> dict[str, Tensor]:
    try:
        return read_tensors(file)
    except SftError as error:
        raise SftError(f"{error}; {replace_file(file)}") from error


def check_repository_data(folder: Path, names: list[str]) -> None:
    """Refuse a repository without any file that could hold rows."""
    if all(name.endswith((".md", ".py")) for name in names):
        script = any(name.endswith(".py") for name in names)
        found = "only a loading script, which is never run" if script else "no data files"
        raise SftError(f"{folder}: {found}; take a repository that holds {_types()} files")


def data_files(path: Path) -> list[Path]:
    """The files of a local dataset; SftError where LLaMA-Factory would not read all of them.

    It reads every entry of a folder, hidden ones too, with one reader.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    if not files:
        raise SftError(f"{path}: an empty folder, expected {_types()} files")
    for file in files:
        if file.is_dir() or file.suffix not in READERS:
            advice = f"move it out of {path}" if path.is_dir() else "convert it"
            raise SftError(f"{file}: expected a {_types()} file; {advice}")
    for first, second in pairwise(files):
        if READERS[first.suffix] != READERS[second.suffix]:
            raise SftError(
                f"{path}: {first.name} and {second.name} are of different types; "
                "keep files of one type, the others can be a dataset of their own"
            )
    return files


def _types() -> str:
    return ", ".join(sorted(READERS))


def check_columns(where: str, options: Mapping, path: Path, files: list[Path]) -> None:
    """Refuse a dataset none of whose files has a column that the registry names, or implies."""
    found: set[str] = set()
    for file in files:
        found |= READERS[file.suffix](file)
    formatting = options.get("formatting", "alpaca")
    named = "columns" in options
    for key, column in (options["columns"] if named else DEFAULT_COLUMNS[formatting]).items():
        if column not in found:
            origin = f"columns.{key}" if named else f"columns.{key}, the default of {formatting}"
            advice = nearest(column, found)
            raise SftError(f"{where}, {origin}: {path} has no column {column!r}; {advice}")


def _empty(file: Path) -> SftError:
    return SftError(f"{file}: no rows in it; fill it, or take the dataset out of the mix")


def _json_columns(file: Path) -> set[str]:
    """The keys of the first rows, of JSON lines or of one array."""
    with open(file, "rb") as content:
        head = content.read(PEEKED_BYTES) + content.readline()
        cut = bool(content.read(1))
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        line = head.count(b"\n", 0, error.start) + 1
        raise SftError(f"{file}, line {line}: not UTF-8: {error.reason}; convert it") from error
    rows = _array_rows(file, text, cut) if text.lstrip().startswith("[") else _rows(file, text)
    if not rows:
        raise _empty(file)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            found = type(row).__name__
            raise SftError(f"{file}, row {number}: found a {found}, expected a JSON object")
    return set().union(*rows)


def _rows(file: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise SftError(
                    f"{file}, line {number}: not JSON: {error.msg} at column {error.colno}; "
                    "expected one JSON object a line, or one array of objects"
                ) from error
    return rows


def _array_rows(file: Path, text: str, cut: bool) -> list[Any]:
    """The elements of an array that start within the part that is judged; `cut`: it goes on."""
    rows, decoder, position = [], json.JSONDecoder(), text.index("[") + 1
    while position < PEEKED_BYTES:
        position = re.compile(r"[\s,]*").match(text, position).end()
        if text[position : position + 1] == "]":
            break
        try:
            row, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            if cut and rows and error.pos >= len(text.rstrip()) - 1:
                break  # the end of what was read, not a fault
            raise SftError(
                f"{file}, line {error.lineno}: not JSON: {error.msg}; correct the array"
            ) from error
        rows.append(row)
    return rows


def _parquet_columns(file: Path) -> set[str]:
    try:
        metadata = pyarrow.parquet.read_metadata(file)
    except pyarrow.ArrowInvalid as error:
        raise SftError(
            f"{file}: not a whole Parquet file: {error}; {replace_file(file)}"
        ) from error
    if not metadata.num_rows:
        raise _empty(file)
    return set(metadata.schema.to_arrow_schema().names)


def _csv_columns(file: Path) -> set[str]:
    with open(file, encoding="utf-8", newline="") as content:
        rows = csv.reader(content)
        try:
            header, first = next(rows, []), next(rows, None)
        except UnicodeDecodeError as error:
            raise SftError(f"{file}: not UTF-8: {error.reason}; convert it") from error
    if first is None:
        raise _empty(file)
    return set(header)


def _arrow_columns(file: Path) -> set[str]:
    with pyarrow.memory_map(str(file)) as content:
        try:
            return set(pyarrow.ipc.open_stream(content).schema.names)
        except pyarrow.ArrowInvalid:
            content.seek(0)
        try:
            return set(pyarrow.ipc.open_file(content).schema.names)
        except pyarrow.ArrowInvalid as error:
            raise SftError(f"{file}: not an Arrow file: {error}; {replace_file(file)}") from error


READERS: Mapping[str, Callable[[Path], set[str]]] = {
    ".arrow": _arrow_columns,
    ".csv": _csv_columns,
    ".json": _json_columns,
    ".jsonl": _json_columns,
    ".parquet": _parquet_columns,
}


def replace_file(file: Path) -> str:
    """How to get a whole file in place of a broken one."""
    if file.is_symlink():
        return f"delete {file.resolve()} and run again"
    return "get it again from where the folder came from"
