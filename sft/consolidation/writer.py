"""Scattered tensors, written as safetensors: read once, in memory that does not grow with them.

Threads read, check and convert; one hand takes their work in order, writes it, and hashes it on the
way, so that nobody has to read the files again. What was read is held against the CRC-32 of the
archives: a file that a crash left full of zeros is found.
"""

import hashlib
import json
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import split_state_dict_into_shards_factory

from sft.consolidation.archive import ITEM_BYTES, Storage
from sft.consolidation.checksums import Checksums
from sft.consolidation.numbers import convert, not_finite
from sft.consolidation.scattered import Piece, Scattered
from sft.errors import SftError
from sft.weights import INDEX, header_bytes

CHUNK_ELEMENTS = 512 << 10
WIDEST = max(ITEM_BYTES.values())
THREADS = 4  # on two cores, too: most of the time they wait for the disk
AHEAD = 3  # chunks that wait for their turn, for each thread
PATTERN = "model{suffix}.safetensors"
MAX_SHARD = "5GB"


class Shard(NamedTuple):
    """A file to be: its name, the bytes before its tensors, and their names in order."""

    name: str
    header: bytes
    tensors: tuple[str, ...]


class Files(NamedTuple):
    """The files of a model, and their index where there are several."""

    shards: tuple[Shard, ...]
    index: dict[str, Any] | None


def divide(tensors: Mapping[str, Scattered], max_shard: str) -> Files:
    """Which file holds which tensor, by the hub's own rule; nothing is written.

    `tensors` stay in their order, in which they lie in the shards that they are read from, but that
    wider dtypes come first, so that each tensor is aligned.
    """
    names = sorted(tensors, key=lambda name: -ITEM_BYTES[tensors[name].dtype])
    split = split_state_dict_into_shards_factory(
        {name: tensors[name] for name in names},
        get_storage_size=lambda tensor: tensor.size,
        get_storage_id=lambda tensor: None,
        filename_pattern=PATTERN,
        max_shard_size=max_shard,
    )
    shards = tuple(
        Shard(name, _header(tensors, held), tuple(held))
        for name, held in split.filename_to_tensors.items()
    )
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    return Files(shards, index if split.is_sharded else None)


def _header(tensors: Mapping[str, Scattered], names: Iterable[str]) -> bytes:
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].size
        described[name] = {
            "dtype": tensors[name].dtype,
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    return header_bytes(described)


def write_shard(
    path: Path,
    shard: Shard,
    tensors: Mapping[str, Scattered],
    checksums: Checksums,
    count: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Write one file and return its entry of a manifest, with its `mtime_ns`.

    `count` is told the bytes that were written. Raises SftError where a source is cut short or
    damaged, or holds numbers that are not finite. The file is on the disk when this returns.
    """
    digest = hashlib.sha256(shard.header)
    chosen = {name: tensors[name] for name in shard.tensors}
    with open(path, "wb") as output, _opened(chosen.values()) as files:
        output.write(shard.header)
        for chunk in _in_order(_chunks(chosen), files):
            for part in chunk.read:
                checksums.add(*part)
            output.write(chunk.data)
            digest.update(chunk.data)
            count(len(chunk.data))
        output.flush()
        os.fsync(output.fileno())
        state = os.fstat(output.fileno())
    times = {"size": state.st_size, "mtime_ns": state.st_mtime_ns}
    return {"path": shard.name, "sha256": digest.hexdigest(), **times}


def write_index(folder: Path, files: Files) -> None:
    """Write the index of several files; a model of one file has none."""
    if files.index:
        text = json.dumps(files.index, indent=2, sort_keys=True, ensure_ascii=False)
        (folder / INDEX).write_text(f"{text}\n", encoding="utf-8")


class _Task(NamedTuple):
    """Pieces, of one tensor or of several, that are read and converted at once."""

    pieces: tuple[tuple[str, Piece, str], ...]  # tensor, piece, dtype as written


class _Chunk(NamedTuple):
    """What was read (storage, first byte, size, CRC-32), and what is to be written."""

    read: list[tuple[Storage, int, int, int]]
    data: memoryview


def _chunks(tensors: Mapping[str, Scattered]) -> Iterator[_Task]:
    """The work in the order of the file, in parts of about CHUNK_ELEMENTS."""
    waiting: list[tuple[str, Piece, str]] = []
    room = CHUNK_ELEMENTS
    for name, tensor in tensors.items():
        for piece in tensor.pieces:
            done = 0
            while done < piece.count:
                used = min(room, piece.count - done)
                start = piece.start + done * ITEM_BYTES[piece.dtype]
                part = piece._replace(start=start, count=used)
                waiting.append((name, part, tensor.dtype))
                done += used
                room -= used
                if not room:
                    yield _Task(tuple(waiting))
                    waiting, room = [], CHUNK_ELEMENTS
    if waiting:
        yield _Task(tuple(waiting))


class _Room:
    """Memory for a chunk as it is read and as it is written; it is used again and again."""

    def __init__(self) -> None:
        self.read = memoryview(bytearray(CHUNK_ELEMENTS * WIDEST))
        self.written = memoryview(bytearray(CHUNK_ELEMENTS * WIDEST))


def _in_order(tasks: Iterable[_Task], files: Mapping[Path, int]) -> Iterator[_Chunk]:
    """The chunks of all tasks, in order, while threads work ahead; each is valid until the next."""
    rooms = [_Room() for _ in range(THREADS * AHEAD)]
    pending: deque[Future[_Chunk]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for number, task in enumerate(tasks):
                if number >= len(rooms):
                    yield pending.popleft().result()
                room = rooms[number % len(rooms)]
                pending.append(pool.submit(_make_chunk, task, files, room))
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _make_chunk(task: _Task, files: Mapping[Path, int], room: _Room) -> _Chunk:
    read, source, target = [], room.read, room.written
    for name, piece, dtype in task.pieces:
        size, made_size = (piece.count * ITEM_BYTES[each] for each in (piece.dtype, dtype))
        data, source = source[:size], source[size:]
        made, target = target[:made_size], target[made_size:]
        _fill(data, files[piece.storage.path], piece)
        read.append((piece.storage, piece.start, size, zlib.crc32(data)))
        if fault := not_finite(data, piece.dtype):
            raise SftError(f"{piece.storage.path}: {name} holds {fault}: the training went astray")
        convert(data, piece.dtype, dtype, made)
        if dtype != piece.dtype and not_finite(made, dtype):
            raise SftError(f"{piece.storage.path}: {name} holds numbers too large for {dtype}")
    return _Chunk(read, room.written[: len(room.written) - len(target)])


def _fill(room: memoryview, file: int, piece: Piece) -> None:
    """Read the bytes of a piece."""
    place = piece.start
    while room:
        got = os.preadv(file, [room], place)
        if not got:
            raise SftError(f"{piece.storage.path}: truncated at {place} bytes")
        room, place = room[got:], place + got


@contextmanager
def _opened(tensors: Iterable[Scattered]) -> Iterator[dict[Path, int]]:
    """The files of all pieces, open for reading, by path."""
    paths = {piece.storage.path for tensor in tensors for piece in tensor.pieces}
    with ExitStack() as stack:
        files = {}
        for path in sorted(paths):
            files[path] = os.open(path, os.O_RDONLY)
            stack.callback(os.close, files[path])
            with suppress(OSError):
                os.posix_fadvise(files[path], 0, 0, os.POSIX_FADV_SEQUENTIAL)
        yield files
