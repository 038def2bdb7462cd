"""A tensor in pieces: where in which files its elements lie, in order."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sft.consolidation.archive import ITEM_BYTES, Storage, Stored


class Piece(NamedTuple):
    """`count` elements of dtype `dtype` from byte `start` of the storage's file on."""

    storage: Storage
    start: int
    count: int
    dtype: str


@dataclass(frozen=True)
class Scattered:
    """A tensor of `shape` whose elements are those of its pieces, one after the other.

    `dtype` is what it is stored as when it is put together; the pieces may hold others.
    """

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """The bytes that it takes when it is put together."""
        return self.count * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Gathering:
    """All that a folder of shards holds of a model.

    `tensors` by name, in the order in which they lie in the shards. `aliases` are other names of
    some of them, as {alias: name}: tied weights. `step` is the training step, where it is said.
    """

    kind: str
    tensors: dict[str, Scattered]
    aliases: dict[str, str]
    step: int | None


def whole(stored: Stored, dtype: str | None = None) -> Scattered:
    """A tensor that lies in one piece."""
    return Scattered(stored.shape, dtype or stored.dtype, (piece_of(stored),))


def piece_of(stored: Stored, first: int = 0, count: int | None = None) -> Piece:
    """Some elements of a stored tensor: all, or `count` from `first` on."""
    start = stored.start + first * ITEM_BYTES[stored.dtype]
    return Piece(
        stored.storage, start, stored.count - first if count is None else count, stored.dtype
    )


def cut(flats: Iterable[Stored], first: int, count: int) -> list[Piece]:
    """The pieces of `count` elements from `first` on, in flat tensors that follow each other."""
    pieces, begin = [], 0
    for flat in flats:
        end = begin + flat.count
        low, high = max(first, begin), min(first + count, end)
        if low < high:
            pieces.append(piece_of(flat, low - begin, high - low))
        begin = end
    return pieces
