"""Whether files hold what shards hold, by a sample of each tensor, read back from the disk."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from sft.consolidation.archive import ITEM_BYTES
from sft.consolidation.checksums import read_at
from sft.consolidation.numbers import convert
from sft.consolidation.scattered import Piece, Scattered, cut
from sft.consolidation.writer import Files

RUN = 64  # elements in a row
RUNS = 8  # over a tensor, beside those around the seams of its pieces
SEAMS = 8


def sample_faults(folder: Path, tensors: Mapping[str, Scattered], files: Files) -> Iterator[str]:
    """A line for each file and each tensor that differs from the shards'."""
    for shard in files.shards:
        path = folder / shard.name
        places = json.loads(shard.header[8:])
        with open(path, "rb") as file:
            if file.read(len(shard.header)) != shard.header:
                yield f"{path}: its header is not the one that was written"
                continue
            for name in shard.tensors:
                begin = len(shard.header) + places[name]["data_offsets"][0]
                if place := _first_difference(file.fileno(), begin, tensors[name]):
                    yield f"{path}, {name}: {place} differ from the shards'"


def _first_difference(file: int, begin: int, tensor: Scattered) -> str | None:
    item = ITEM_BYTES[tensor.dtype]
    for first, count in _runs(tensor):
        found = os.pread(file, count * item, begin + first * item)
        if found != _expected(tensor, first, count):
            return f"elements {first} to {first + count - 1}"
    return None


def _runs(tensor: Scattered) -> Iterator[tuple[int, int]]:
    """The first element and the number of elements of each run that is compared."""
    seams, end = [], 0
    for piece in tensor.pieces:
        end += piece.count
        seams.append(max(0, end - RUN // 2))
    step = max(1, len(seams) // SEAMS)
    even = [tensor.count * number // RUNS for number in range(RUNS)]
    for first in sorted({*even, *seams[::step], max(0, tensor.count - RUN)}):
        if count := min(RUN, tensor.count - first):
            yield first, count


def _expected(tensor: Scattered, first: int, count: int) -> bytes:
    """Elements as the shards have them, in the dtype that is written; each read by itself."""
    pieces = cut(tensor.pieces, first, count)
    return b"".join(_converted(piece, tensor.dtype) for piece in pieces)


def _converted(piece: Piece, dtype: str) -> bytes:
    data = read_at(piece.storage.path, piece.start, piece.count * ITEM_BYTES[piece.dtype])
    output = bytearray(piece.count * ITEM_BYTES[dtype])
    convert(data, piece.dtype, dtype, memoryview(output))
    return bytes(output)
