"""The weights that FSDP leaves: shards of a distributed checkpoint, or one file of torch.save.

A sharded folder has a pickle, `.metadata`, that tells of each tensor its chunks, and of each chunk
the file and the bytes, which are a file of torch.save (torch/distributed/checkpoint/filesystem.py).
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft.consolidation.archive import (
    Record,
    Stored,
    read_archive,
    read_archive_within,
    read_pickle,
)
from sft.consolidation.scattered import Gathering, Scattered, piece_of, whole
from sft.errors import SftError
from sft.shards import FSDP_MODEL

# accelerate keeps the model under this key (accelerate/utils/fsdp_utils.py).
PREFIX = "model."


def read_fsdp(folder: Path) -> Gathering:
    """The tensors of FSDP's weights in `folder`; SftError with what is wrong."""
    sharded, single = (folder / name for name in FSDP_MODEL)
    if single.exists():
        states = read_archive(single)
        tensors = {name: whole(each) for name, each in states.items() if isinstance(each, Stored)}
        return _untied(f"weights in {single.name}", tensors)
    metadata = read_pickle(sharded / ".metadata")
    if not isinstance(metadata, Record) or not metadata.state.get("storage_data"):
        raise SftError(f"{sharded}/.metadata: not the metadata of a distributed checkpoint")
    chunks = _read_chunks(sharded, metadata.state["storage_data"])
    tensors = {}
    for name, said in metadata.state["state_dict_metadata"].items():
        if said.kind.endswith("TensorStorageMetadata"):
            tensors[name] = _join(sharded, name, tuple(said.state["size"]), chunks[name])
    if tensors and all(name.startswith(PREFIX) for name in tensors):
        tensors = {name.removeprefix(PREFIX): each for name, each in tensors.items()}
    return _untied(f"FSDP shards in {sharded.name}", tensors)


def _read_chunks(folder: Path, storage: Mapping[Record, Record]) -> dict[str, dict]:
    """By tensor and by offset, where its chunks lie."""
    chunks: dict[str, dict[tuple, Any]] = {}
    for index, place in storage.items():
        named, info = _fields(index), place.state
        if info.get("transform_descriptors"):
            raise SftError(f"{folder}: compressed shards are not read")
        path = folder / info["relative_path"]
        if not path.is_file() or path.stat().st_size < info["offset"] + info["length"]:
            raise SftError(f"{path}: truncated or missing; .metadata promises more")
        own = chunks.setdefault(named["fqn"], {})
        own[tuple(named.get("offset") or ())] = (path, info["offset"], info["length"])
    return chunks


def _fields(index: Record) -> Mapping[str, Any]:
    """The fields of a frozen data class; one with slots keeps them in the second half."""
    state = index.state
    return state[1] if isinstance(state, tuple) else state


def _join(folder: Path, name: str, shape: tuple, chunks: Mapping[tuple, tuple]) -> Scattered:
    pieces, rows, dtype = [], 0, None
    for offset, (path, start, length) in sorted(chunks.items()):
        stored = read_archive_within(path, start, length)
        if not isinstance(stored, Stored):
            raise SftError(f"{path}: {name} is no plain tensor there")
        begins_at_row = not offset or (offset[0] == rows and not any(offset[1:]))
        if shape and (not begins_at_row or stored.shape[1:] != shape[1:]):
            raise SftError(f"{folder}: {name} is cut along several dimensions, which is not read")
        rows += stored.shape[0] if shape else 0
        dtype = stored.dtype
        pieces.append(piece_of(stored))
    if sum(piece.count for piece in pieces) != math.prod(shape):
        raise SftError(f"{folder}: the chunks of {name} do not make up its shape {shape}")
    return Scattered(shape, dtype, tuple(pieces))


def _untied(kind: str, tensors: dict[str, Scattered]) -> Gathering:
    """Tensors by one name each: those whose pieces are the same are tied."""
    first: dict[tuple, str] = {}
    aliases = {}
    for name, tensor in tensors.items():
        if tensor.count and first.setdefault(tensor.pieces, name) != name:
            aliases[name] = first[tensor.pieces]
    kept = {name: each for name, each in tensors.items() if name not in aliases}
    return Gathering(kind, kept, aliases)
