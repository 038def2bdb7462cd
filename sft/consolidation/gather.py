"""The weights of a checkpoint of shards, as a folder in the transformers layout.

Files are made one after the other in a hidden folder beside the one that is wanted. It keeps a
record of those that are done, so that a killed consolidation goes on with the next one.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sft.consolidation.archive import Storage
from sft.consolidation.checksums import Checksums
from sft.consolidation.experts import split_experts
from sft.consolidation.fsdp import read_fsdp
from sft.consolidation.numbers import FLOATS
from sft.consolidation.sample import sample_faults
from sft.consolidation.scattered import Gathering, Scattered
from sft.consolidation.writer import (
    MAX_SHARD,
    Layout,
    lay_out,
    write_index,
    write_shard,
)
from sft.consolidation.zero import read_zero
from sft.errors import SftError, raise_faults
from sft.files import hash_json, list_files, new_folder, read_json, write_json
from sft.step import Progress, log
from sft.tensor_names import plain_name
from sft.weights import TORCH_DTYPES

RECORD, LOCK = "done.json", "lock"
GB = 1e9
BESIDE = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"),
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json"),
)


def read_gathering(checkpoint: Path) -> Gathering:
    """What the shards in a checkpoint hold: DeepSpeed's where there are any, else FSDP's."""
    is_zero = (checkpoint / "latest").exists() or any(checkpoint.glob("global_step*"))
    return (read_zero if is_zero else read_fsdp)(checkpoint)


@dataclass(frozen=True)
class Plan:
    """What is to be made: tensors by name, config.json, and where the files beside it lie."""

    tensors: Mapping[str, Scattered]
    config: Mapping[str, Any]
    places: tuple[Path, ...]


def plan_weights(checkpoint: Path, base: Path | None, dtype: str | None) -> Plan:
    """What the shards in `checkpoint` make; SftError with the file that is wrong.

    `dtype` (BF16, F16, F32) is that of all floating-point tensors, None for what the trainer had.
    Config and tokenizer come from beside the shards or the folder above, else from `base`.
    """
    gathering = read_gathering(checkpoint)
    places = tuple(place for place in (checkpoint, checkpoint.parent, base) if place)
    config = read_json(_find("config.json", places))
    tensors = name_tensors(gathering, config, dtype)
    log.info("%s: %s, %d tensors", checkpoint, gathering.kind, len(tensors))
    return Plan(tensors, config, places)


def gather(
    plan: Plan,
    folder: Path,
    prove: Callable[[Path], object],
    max_shard: str = MAX_SHARD,
) -> list[dict[str, Any]]:
    """Make `folder` as planned; the manifest entries of its weights.

    It appears whole, after a sample of each tensor was read back and found to be the shards', and
    after `prove` has looked at it and raised nothing. Raises SftError with the file that is wrong.
    """
    layout = lay_out(plan.tensors, max_shard)
    with _working_folder(folder) as work:
        files = _write_weights(work, plan.tensors, layout)
        raise_faults(sample_faults(work, plan.tensors, layout))
        with new_folder(folder) as partial:
            for entry in files:
                _move(work / entry["path"], partial / entry["path"])
            write_index(partial, layout)
            _copy_beside(plan.places, partial)
            write_json(partial / "config.json", _with_dtype(plan.config, plan.tensors))
            prove(partial)
    return files


def name_tensors(
    gathering: Gathering, config: Mapping[str, Any], dtype: str | None
) -> dict[str, Scattered]:
    """The tensors as a model's files name and hold them.

    Tied ones are there once where the config ties them, as `save_pretrained` writes them, else
    under both names.
    """
    tied = ({"tie_word_embeddings": True} | config | config.get("text_config", {}))[
        "tie_word_embeddings"
    ]
    aliases = {} if tied else gathering.aliases
    found = gathering.tensors | {name: gathering.tensors[of] for name, of in aliases.items()}
    made = {}
    for name, tensor in found.items():
        wanted = dtype if dtype and tensor.dtype in FLOATS else tensor.dtype
        plain = plain_name(name)
        if plain in made:
            raise SftError(f"two tensors are named {plain} but for wrappers; expected one")
        made[plain] = replace(tensor, dtype=wanted)
    if not made:
        raise SftError("the shards hold no tensor")
    return split_experts(made, config)


def _write_weights(
    work: Path, tensors: Mapping[str, Scattered], layout: Layout
) -> list[dict[str, Any]]:
    plan = _plan(tensors, layout)
    record = _read_record(work, plan)
    checksums = Checksums(record["checksums"])
    total = sum(tensor.size for tensor in tensors.values())
    progress = Progress("consolidate", total / GB, "GB")
    done = {entry["path"]: entry for entry in record["files"]}
    if done:
        log.info("%d of %d files were made before", len(done), len(layout.shards))
        progress.skip(sum(entry["size"] for entry in done.values()) / GB)
    for shard in layout.shards:
        if shard.name in done:
            continue
        entry = write_shard(
            *(work / shard.name, shard, tensors, checksums),
            count=lambda written: progress.add(written / GB),
        )
        done[shard.name] = entry
        write_json(
            work / RECORD,
            {"plan": plan, "files": list(done.values()), "checksums": checksums.seen},
        )
    checksums.finish(_storages(tensors))
    return list(done.values())


def _plan(tensors: Mapping[str, Scattered], layout: Layout) -> str:
    """What is to be made of which files, as a hash: another one starts anew."""
    files = {storage.path for storage in _storages(tensors)}
    states = {str(path): [(told := path.stat()).st_size, told.st_mtime_ns] for path in files}
    return hash_json([states, [[shard.name, shard.header.hex()] for shard in layout.shards]])


def _storages(tensors: Mapping[str, Scattered]) -> set[Storage]:
    return {piece.storage for tensor in tensors.values() for piece in tensor.pieces}


def _read_record(work: Path, plan: str) -> dict[str, Any]:
    """What an earlier consolidation of the same plan has finished; all else is removed."""
    new = {"plan": plan, "files": [], "checksums": {}}
    record = read_json(work / RECORD) if (work / RECORD).exists() else new
    whole = all(
        (work / entry["path"]).is_file() and (work / entry["path"]).stat().st_size == entry["size"]
        for entry in record["files"]
    )
    if record["plan"] != plan or not whole:
        record = new
    kept = {RECORD, LOCK, *(entry["path"] for entry in record["files"])}
    for name in list_files(work):
        if name not in kept:
            (work / name).unlink()
    return record


@contextmanager
def _working_folder(folder: Path) -> Iterator[Path]:
    """The folder beside `folder` that no other process writes to; it goes when all went well."""
    work = folder.with_name(f".{folder.name}.unfinished")
    work.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(work / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        with suppress(OSError):  # a file system without locks
            _lock(descriptor, folder)
        yield work
        shutil.rmtree(work)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SftError(f"{folder}: another process makes it; wait for its end") from None


def _move(source: Path, target: Path) -> None:
    """Give a file its place; where links are possible it keeps the old one too, for a next try."""
    try:
        os.link(source, target)
    except OSError:
        source.rename(target)


def _find(name: str, places: Iterable[Path]) -> Path:
    found = next((place / name for place in places if (place / name).exists()), None)
    if not found:
        looked = " nor in ".join(map(str, places))
        raise SftError(f"no {name} in {looked}; name the base model's folder (--base)")
    return found


def _copy_beside(places: Iterable[Path], folder: Path) -> None:
    """Copy config and tokenizer; a tokenizer is taken from one place, whole."""
    home = next((each for each in places if (each / "tokenizer_config.json").exists()), None)
    for name in BESIDE:
        source = next((each for each in places if (each / name).exists()), None)
        if name not in ("config.json", "generation_config.json"):
            source = home
        if source and (source / name).exists():
            shutil.copyfile(source / name, folder / name)


def _with_dtype(config: Mapping[str, Any], tensors: Mapping[str, Scattered]) -> dict[str, Any]:
    """The config, naming the dtype of most numbers where it names one."""
    sizes: dict[str, int] = {}
    for tensor in tensors.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.count
    dtype = TORCH_DTYPES[max((each for each in sizes if each in TORCH_DTYPES), key=sizes.get)]
    key = "torch_dtype" if "torch_dtype" in config else "dtype"
    return {**config, key: dtype}
