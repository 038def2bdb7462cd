"""How many rows data files hold, told without reading gigabytes."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pyarrow.parquet

# Files up to this size are counted, larger ones estimated by their first rows.
COUNTED_BYTES = 16 << 20
HEAD_BYTES = 2 << 20
_GAP = re.compile(r"[\s,]*")


class Rows(NamedTuple):
    """A number of rows, and whether it is an estimate."""

    number: int
    about: bool = False


def count_rows(files: Iterable[Path]) -> Rows | None:
    """The rows of several files together; None where they hold none, or one cannot be counted."""
    counts = []
    for file in files:
        counter = COUNTERS.get(file.suffix)
        try:
            counts.append(counter(file) if counter else None)
        except (OSError, ValueError, pyarrow.ArrowException):  # a stage refuses it, with reasons
            return None
    if None in counts or not any(each.number for each in counts):
        return None
    return Rows(sum(each.number for each in counts), any(each.about for each in counts))


def _count_json(file: Path) -> Rows:
    size = file.stat().st_size
    with open(file, "rb") as content:
        head = content.read(COUNTED_BYTES if size <= COUNTED_BYTES else HEAD_BYTES)
    if head.lstrip()[:1] == b"[":
        return _count_array(head, size)
    lines = sum(1 for line in head.split(b"\n") if line.strip())
    if size <= COUNTED_BYTES:
        return Rows(lines)
    return _extrapolate(lines - 1, head.rfind(b"\n") + 1, size)


def _count_array(head: bytes, size: int) -> Rows:
    """The elements of one JSON array, of which `head` is all or the beginning."""
    if len(head) == size:
        return Rows(len(json.loads(head)))
    text, decoder = head.decode(errors="ignore"), json.JSONDecoder()
    position, number = text.index("[") + 1, 0
    while True:
        try:
            _, position = decoder.raw_decode(text, _GAP.match(text, position).end())
        except json.JSONDecodeError:  # the end of the beginning
            return _extrapolate(number, len(text[:position].encode()), size)
        number += 1


def _extrapolate(rows: int, read_bytes: int, size: int) -> Rows:
    """The rows of a file whose first `read_bytes` hold so many."""
    if rows < 1:
        raise ValueError("not one row ends in what was read")
    return Rows(round(rows * size / read_bytes), about=True)


def _count_csv(file: Path) -> Rows:
    rows = _count_json(file)
    return Rows(rows.number - 1, about=True)  # a quoted cell may hold several lines


def _count_parquet(file: Path) -> Rows:
    return Rows(pyarrow.parquet.read_metadata(file).num_rows)


def _count_arrow(file: Path) -> Rows:
    with pyarrow.memory_map(str(file)) as content:
        try:
            return Rows(pyarrow.ipc.open_stream(content).read_all().num_rows)
        except pyarrow.ArrowInvalid:
            content.seek(0)
        return Rows(pyarrow.ipc.open_file(content).read_all().num_rows)


COUNTERS: Mapping[str, Callable[[Path], Rows]] = {
    ".arrow": _count_arrow,
    ".csv": _count_csv,
    ".json": _count_json,
    ".jsonl": _count_json,
    ".parquet": _count_parquet,
}
