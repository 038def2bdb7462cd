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

from sft.checkpoint import Layout
from sft.consolidation.archive import Storage
from sft.consolidation.checksums import Checksums
from sft.consolidation.experts import split_experts
from sft.consolidation.fsdp import read_fsdp
from sft.consolidation.sample import sample_faults
from sft.consolidation.scattered import Gathering, Scattered
from sft.consolidation.writer import (
    MAX_SHARD,
    Files,
    divide,
    write_index,
    write_shard,
)
from sft.consolidation.zero import read_zero
from sft.errors import SftError, raise_faults
from sft.files import hash_json, list_files, new_folder, read_json, write_json
from sft.publishable import TEMPLATE, VOCABULARIES
from sft.sizes import is_tied
from sft.step import Progress, log
from sft.tensor_names import plain_keys
from sft.weights import NUMPY_DTYPES, weights_dtype

RECORD, LOCK = "done.json", "lock"
GB = 1e9
CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER = (
    *VOCABULARIES,
    *("tokenizer_config.json", TEMPLATE, "special_tokens_map.json", "added_tokens.json"),
)
READERS = {Layout.ZERO3: read_zero, Layout.ZERO2: read_zero, Layout.FSDP: read_fsdp}


@dataclass(frozen=True)
class Plan:
    """What is to be made: tensors by name, config.json, and where the files beside it lie."""

    tensors: Mapping[str, Scattered]
    config: Mapping[str, Any]
    places: tuple[Path, ...]


def plan_weights(checkpoint: Path, layout: Layout, base: Path | None, dtype: str | None) -> Plan:
    """What the shards in `checkpoint` make; SftError with the file that is wrong.

    `layout` is one of READERS, as it was detected. `dtype` (BF16, F16, F32) is that of all
    floating-point tensors, None for what the trainer had. Config and tokenizer come from beside the
    shards or the folder above, else from `base`.
    """
    gathering = READERS[layout](checkpoint)
    places = tuple(place for place in (checkpoint, checkpoint.parent, base) if place)
    config = _read_config(places)
    tensors = split_experts(_name_tensors(checkpoint, gathering, is_tied(config), dtype), config)
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
    files = divide(plan.tensors, max_shard)
    with _working_folder(folder) as work:
        entries = _write_weights(work, plan.tensors, files)
        raise_faults(sample_faults(work, plan.tensors, files))
        with new_folder(folder) as partial:
            for entry in entries:
                _move(work / entry["path"], partial / entry["path"])
            write_index(partial, files)
            _copy_beside(plan.places, partial)
            key = "torch_dtype" if "torch_dtype" in plan.config else "dtype"
            write_json(partial / CONFIG, {**plan.config, key: weights_dtype(partial)})
            prove(partial)
    return entries


def _name_tensors(
    checkpoint: Path, gathering: Gathering, tied: bool, dtype: str | None
) -> dict[str, Scattered]:
    """The tensors as a model's files name and hold them.

    Tied ones are there once where the config ties them, as `save_pretrained` writes them, else
    under both names.
    """
    aliases = {} if tied else gathering.aliases
    found = gathering.tensors | {name: gathering.tensors[of] for name, of in aliases.items()}
    if not found:
        raise SftError(f"{checkpoint}: the shards hold no tensor")
    return {
        name: replace(tensor, dtype=dtype) if dtype and tensor.dtype in NUMPY_DTYPES else tensor
        for name, tensor in plain_keys(found, checkpoint).items()
    }


def _write_weights(
    work: Path, tensors: Mapping[str, Scattered], files: Files
) -> list[dict[str, Any]]:
    plan = _plan(tensors, files)
    record = _read_record(work, plan)
    checksums = Checksums(record["checksums"])
    total = sum(tensor.size for tensor in tensors.values())
    progress = Progress("consolidate", total / GB, "GB")
    done = {entry["path"]: entry for entry in record["files"]}
    if done:
        log.info("%d of %d files were made before", len(done), len(files.shards))
        progress.skip(sum(entry["size"] for entry in done.values()) / GB)
    for shard in files.shards:
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


def _plan(tensors: Mapping[str, Scattered], files: Files) -> str:
    """What is to be made of which files, as a hash: another one starts anew."""
    sources = {storage.path for storage in _storages(tensors)}
    states = {str(path): [(told := path.stat()).st_size, told.st_mtime_ns] for path in sources}
    return hash_json([states, [[shard.name, shard.header.hex()] for shard in files.shards]])


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


def _read_config(places: Iterable[Path]) -> dict[str, Any]:
    found = next((place / CONFIG for place in places if (place / CONFIG).exists()), None)
    if not found:
        looked = " nor in ".join(map(str, places))
        raise SftError(f"no {CONFIG} in {looked}; name the base model's folder (--base)")
    return read_json(found)


def _copy_beside(places: Iterable[Path], folder: Path) -> None:
    """Copy what lies beside weights; a tokenizer is taken from one place, whole."""
    home = next((each for each in places if (each / "tokenizer_config.json").exists()), None)
    generation = next((each for each in places if (each / GENERATION).exists()), None)
    for source, names in ((generation, [GENERATION]), (home, TOKENIZER)):
        for name in names:
            if source and (source / name).exists():
                shutil.copyfile(source / name, folder / name)
