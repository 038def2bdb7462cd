"""CRC-32 of files that several threads read in parts, held against what their archives keep."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sft.consolidation.archive import Storage
from sft.errors import SftError

POLYNOMIAL = 0xEDB88320
BLOCK_BYTES = 4 << 20


@dataclass
class Checksums:
    """CRC-32 of storages, as far as they have been read from their begin, without a gap.

    `seen` maps a storage (its path and first byte, as text) to [bytes, CRC-32 so far].
    """

    seen: dict[str, list[int]]

    def add(self, storage: Storage, start: int, size: int, crc: int) -> None:
        """Count `size` bytes with the CRC-32 `crc`, read from byte `start` of the file on.

        Padding between them is read here. Raises SftError where all bytes of a storage have been
        seen and are not those that were saved.
        """
        own = self._seen_of(storage)
        if start > storage.start + own[0]:
            self._read(storage, start - storage.start)
        if start == storage.start + own[0]:
            self._count(storage, size, crc)

    def finish(self, storages: Iterable[Storage]) -> None:
        """Read what no tensor needs of each storage, its padding, and judge it."""
        for storage in storages:
            self._read(storage, storage.size)

    def _read(self, storage: Storage, end: int) -> None:
        """Count the bytes up to the `end`th of a storage."""
        own = self._seen_of(storage)
        while own[0] < end:
            size = min(end - own[0], BLOCK_BYTES)
            data = read_at(storage.path, storage.start + own[0], size)
            self._count(storage, size, zlib.crc32(data))

    def _seen_of(self, storage: Storage) -> list[int]:
        return self.seen.setdefault(f"{storage.path}:{storage.start}", [0, 0])

    def _count(self, storage: Storage, size: int, crc: int) -> None:
        own = self._seen_of(storage)
        own[:] = [own[0] + size, combine(own[1], crc, size)]
        if own[0] == storage.size and own[1] != storage.crc:
            raise SftError(
                f"{storage.path}: damaged: its numbers are not those that were saved (CRC-32 "
                f"{own[1]:08x}, expected {storage.crc:08x})"
            )


def combine(first: int, second: int, size: int) -> int:
    """The CRC-32 of two parts in a row, of which the second has `size` bytes."""
    # As zlib's crc32_combine: the first one goes on over as many zeros, a linear map of its bits.
    for power in _zeros(size.bit_length()):
        if size & 1:
            first = _times(power, first)
        size >>= 1
    return first ^ second


@lru_cache
def _zeros(count: int) -> tuple[tuple[int, ...], ...]:
    """What 1, 2, 4, … zero bytes make of each bit of a CRC-32; `count` of these maps."""
    step = (POLYNOMIAL, *(1 << place for place in range(31)))  # what one zero bit makes
    for _ in range(3):
        step = _square(step)
    powers = []
    for _ in range(count):
        powers.append(step)
        step = _square(step)
    return tuple(powers)


def _square(matrix: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(_times(matrix, column) for column in matrix)


def _times(matrix: tuple[int, ...], vector: int) -> int:
    total, place = 0, 0
    while vector:
        if vector & 1:
            total ^= matrix[place]
        vector >>= 1
        place += 1
    return total


def read_at(path: Path, start: int, size: int) -> bytes:
    """Bytes of a file; SftError where it ends before."""
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read(size)
    if len(data) < size:
        raise SftError(f"{path}: truncated at {start + len(data)} bytes")
    return data
