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
    some of them, as {alias: name}: tied weights.
    """

    kind: str
    tensors: dict[str, Scattered]
    aliases: dict[str, str]


def whole(stored: Stored) -> Scattered:
    """A tensor that lies in one piece."""
    return Scattered(stored.shape, stored.dtype, (piece_of(stored),))


def piece_of(stored: Stored) -> Piece:
    """All elements of a stored tensor."""
    return Piece(stored.storage, stored.start, stored.count, stored.dtype)


def cut(pieces: Iterable[Piece], first: int, count: int) -> tuple[Piece, ...]:
    """`count` elements from `first` on, of pieces that follow each other; fewer where they end."""
    found, begin = [], 0
    for piece in pieces:
        low, high = max(first, begin), min(first + count, begin + piece.count)
        if low < high:
            start = piece.start + (low - begin) * ITEM_BYTES[piece.dtype]
            found.append(piece._replace(start=start, count=high - low))
        begin += piece.count
    return tuple(found)
