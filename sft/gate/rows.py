"""The rows of a fetched dataset, in the order and with the numbers that a trainer's loading gives.

Values are those of the files. JSON is read a line at a time, so that no table format fills the keys
of other rows with nulls; Parquet, Arrow and CSV come through pyarrow (CSV through pandas, which
decides what is a number and what is missing, as in `datasets`).

Memory: JSON lines, one line; a JSON array, its largest element and a few megabytes; CSV, 10,000
rows; Parquet, the columns of one row group; Arrow, nothing but the rows asked for.
"""

import codecs
import gzip
import json
import os
import re
import sys
import tempfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pandas
import pyarrow
import pyarrow.parquet

from sft.errors import SftError, nearest

ROWS_A_MARK = 1000
ROWS_A_BATCH = 1000
CSV_ROWS_A_BATCH = 10_000  # as in datasets: the type of a column is decided anew in each
BLOCK_BYTES = 1 << 20
GAP = re.compile(r"[\s,]*")
# What a file's name ends in, and how it is read.
LINES, TABLES = (".json", ".jsonl", ".ndjson"), (".parquet", ".arrow", ".csv", ".tsv")


@dataclass(frozen=True)
class Part:
    """The rows `start` to `stop` of a file: what a split such as `train[:100]` takes of it."""

    path: Path
    start: int = 0
    stop: int | None = None


Files = Iterable[Path | Part]


class Mark(NamedTuple):
    """Where in a file a row starts: a byte and its line, or a row group."""

    row: int
    place: int
    line: int = 1


@dataclass(frozen=True)
class FileIndex:
    """How many rows a file has, and where some of them are; `array`: all in one JSON array."""

    path: Path
    num_rows: int
    marks: tuple[Mark, ...]
    array: bool = False

    def mark_before(self, row: int) -> Mark:
        """The last mark that is not behind the row."""
        return self.marks[bisect_right(self.marks, row, key=lambda mark: mark.row) - 1]


# Which files


def list_source_files(fetched: Mapping[str, Any], options: Mapping[str, Any]) -> list[Path | Part]:
    """The files of a dataset in the trainer's order: those of its `subset`, `folder` and `split`.

    `fetched` is what `fetch_dataset` returned, `options` the dataset's own. Raises SftError where
    there is no such subset or split.
    """
    path, split = Path(fetched["path"]), options.get("split", "train")
    if fetched["source"].startswith("hub:"):
        splits = _repository_splits(path, options, fetched["name"])
    else:
        splits = {"train": sorted(path.iterdir()) if path.is_dir() else [path]}
    if split in splits:
        return splits[split]
    return _slice(splits, split, fetched["name"])


def _repository_splits(path: Path, options: Mapping[str, Any], name: str) -> dict[str, list[Path]]:
    """The data files by split of a folder that is laid out as a repository of the hub."""
    from datasets import load_dataset_builder

    subset, folder = options.get("subset"), options.get("folder")
    with tempfile.TemporaryDirectory() as cache:
        try:
            builder = load_dataset_builder(str(path), subset, folder, cache_dir=cache)
        except (ValueError, OSError) as error:
            place = f"{name}: {path}"
            raise SftError(f"{place}: no data files for subset {subset!r}: {error}") from error
        found = builder.config.data_files or {}
        return {str(split): [Path(file) for file in files] for split, files in found.items()}


def _slice(splits: Mapping[str, list[Path]], split: str, name: str) -> list[Path | Part]:
    """The files of a split that names several, or a part of one, such as `train[:10%]+test`."""
    from datasets import ReadInstruction

    words = re.split(r"\[[^]]*\]|\+", split)
    for word in filter(None, words):
        if word not in splits:
            raise SftError(f"{name}, split: found {word!r}; {nearest(word, splits)}")
    sizes = {word: count_rows(splits[word]) for word in filter(None, words)}
    try:
        instructions = ReadInstruction.from_spec(split).to_absolute(sizes)
    except (ValueError, AssertionError) as error:
        raise SftError(f"{name}, split: found {split!r}: {error}") from error
    return [
        part
        for each in instructions
        for part in _cut(splits[each.splitname], each.from_ or 0, each.to)
    ]


def _cut(files: Iterable[Path], start: int, stop: int | None) -> Iterator[Part]:
    first = 0
    for file in files:
        last = first + index_file(file).num_rows
        end = last if stop is None else min(stop, last)
        if max(start, first) < end:
            yield Part(file, max(start, first) - first, end - first)
        first = last


# Which rows


def count_rows(files: Files) -> int:
    """How many rows the files have together."""
    return sum(stop - start for _, start, stop in _spans(files))


def read_rows(files: Files, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
    """The rows `start` to `stop` of the files behind one another, the first being row 0.

    Read from the first to the last, a file is only read as far as rows are taken. Otherwise it is
    indexed first, so that parts far into it are reached fast; the index is kept by process, and
    inherited by processes that are forked later. Raises SftError with file and line where a row
    cannot be read.
    """
    files = list(files)
    if start == 0 and stop is None and not any(isinstance(each, Part) for each in files):
        for path in files:
            yield from _read_whole(path)
        return
    before = 0
    for index, first, last in _spans(files):
        if stop is not None and before >= stop:
            return
        length = last - first
        low = max(start - before, 0)
        high = length if stop is None else min(stop - before, length)
        if low < high:
            yield from _read_file(index, first + low, first + high)
        before += length


def locate_row(files: Files, row: int) -> tuple[Path, int]:
    """The file that a row of the files is in, and its number there from 0."""
    before = 0
    for index, first, last in _spans(files):
        if row < before + last - first:
            return index.path, first + row - before
        before += last - first
    raise IndexError(row)


def has_inferred_dates(files: Files) -> bool:
    """Whether the trainer reads texts as points in time where a column holds nothing but dates.

    pyarrow infers that of JSON lines, in datasets' packaged_modules/json; of an array it does not.
    """
    paths = (each.path if isinstance(each, Part) else each for each in files)
    return any(_kind(path) in LINES and not _is_array(path) for path in paths)


def _spans(files: Files) -> Iterator[tuple[FileIndex, int, int]]:
    """Each file, and which of its rows are meant."""
    for each in files:
        part = each if isinstance(each, Part) else Part(each)
        index = index_file(part.path)
        yield index, part.start, index.num_rows if part.stop is None else part.stop


def index_file(path: Path) -> FileIndex:
    """What is needed to reach the rows of a file; it is read through once, or its metadata is."""
    state = path.stat()
    return _index_file(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4096)
def _index_file(path: Path, size: int, mtime_ns: int) -> FileIndex:
    kind = _kind(path)
    with _naming(path):
        if kind in TABLES:
            return _index_table(path, COUNTERS[kind](path))
        return _index_array(path) if _is_array(path) else _index_lines(path)


def _index_table(path: Path, sizes: Iterable[int]) -> FileIndex:
    starts = [0, *accumulate(sizes)]
    marks = [Mark(row, number) for number, row in enumerate(starts[:-1])]
    return FileIndex(path, starts[-1], tuple(marks) or (Mark(0, 0),))


def _kind(path: Path) -> str:
    """The ending that tells how a file is read."""
    ending = path.name.removesuffix(".gz")
    kind = Path(ending).suffix
    zipped = ending != path.name
    if kind in LINES or (kind in TABLES and not zipped) or kind in (".csv", ".tsv"):
        return kind
    expected = ", ".join((*LINES, *TABLES))
    raise SftError(f"{path}: expected a file that ends in one of {expected}; convert it")


def _open(path: Path) -> BinaryIO:
    return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")


def _read_file(index: FileIndex, start: int, stop: int) -> Iterator[dict[str, Any]]:
    if _kind(index.path) in TABLES:
        return _read_batches(index, start, stop)
    return (_read_array if index.array else _read_lines)(index, start, stop)


def _read_whole(path: Path) -> Iterator[dict[str, Any]]:
    kind = _kind(path)
    with _naming(path):
        if kind in TABLES:
            for batch in BATCHES[kind](path, 0):
                yield from batch.to_pylist()
        elif _is_array(path):
            yield from (row for _, row in _array_rows(path, Mark(0, _array_start(path))))
        else:
            yield from _read_lines(FileIndex(path, 0, (Mark(0, 0),)), 0, sys.maxsize)


# What the readers raise of a file that is cut short or of another type than its name says.
BROKEN = (
    *(pyarrow.ArrowException, pandas.errors.ParserError, pandas.errors.EmptyDataError),
    *(UnicodeDecodeError, EOFError, OSError, zlib.error),
)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Give the readers' errors in the block the name of the file."""
    try:
        yield
    except BROKEN as error:
        raise SftError(f"{path}: not a whole file of its type: {error}; replace it") from error


# JSON lines


def _index_lines(path: Path) -> FileIndex:
    marks, row, place = [], 0, 0
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.isspace():
                if row % ROWS_A_MARK == 0:
                    marks.append(Mark(row, place, number))
                row += 1
            place += len(line)
    return FileIndex(path, row, tuple(marks) or (Mark(0, 0),))


def _read_lines(index: FileIndex, start: int, stop: int) -> Iterator[dict[str, Any]]:
    mark = index.mark_before(start)
    row = mark.row
    with _open(index.path) as file:
        file.seek(mark.place)
        for number, line in enumerate(file, mark.line):
            if line.isspace():
                continue
            if row >= stop:
                return
            if row >= start:
                yield _parse_line(line, index.path, number)
            row += 1


def _parse_line(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise SftError(
            f"{path}, line {number}: not JSON: {error.msg} at column {error.colno}; "
            "expected one JSON object a line, or one array of objects"
        ) from error
    except UnicodeDecodeError as error:
        raise SftError(f"{path}, line {number}: not UTF-8: {error.reason}; convert it") from error
    return _as_row(row, path, number)


def _as_row(row: Any, path: Path, line: int) -> dict[str, Any]:
    if isinstance(row, dict):
        return row
    found = type(row).__name__
    raise SftError(f"{path}, line {line}: found a {found}, expected a JSON object; correct it")


# A JSON array


def _is_array(path: Path) -> bool:
    with _open(path) as file:
        return _text_start(file)[1][:1] == b"["


def _array_start(path: Path) -> int:
    """The byte behind the bracket that opens an array."""
    with _open(path) as file:
        return _text_start(file)[0] + 1


def _text_start(file: BinaryIO) -> tuple[int, bytes]:
    """Where the first thing that is no blank stands, and the bytes from there on."""
    head = file.read(BLOCK_BYTES)
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    return len(head) - len(text), text


def _index_array(path: Path) -> FileIndex:
    first = Mark(0, _array_start(path))
    marks, num_rows = [], 0
    for mark, _ in _array_rows(path, first):
        num_rows += 1
        if mark:
            marks.append(mark)
    return FileIndex(path, num_rows, tuple(marks) or (first,), array=True)


def _read_array(index: FileIndex, start: int, stop: int) -> Iterator[dict[str, Any]]:
    mark = index.mark_before(start)
    for number, (_, row) in enumerate(_array_rows(index.path, mark), mark.row):
        if number >= start:
            yield row
        if number + 1 >= stop:
            return


def _array_rows(path: Path, start: Mark) -> Iterator[tuple[Mark | None, dict[str, Any]]]:
    """The elements from a mark on, some of them with a mark of their own."""
    decode = json.JSONDecoder().raw_decode
    row, window, position = start.row, _Window(path, start), 0
    try:
        while True:
            position = GAP.match(window.text, position).end()
            if window.text[position : position + 1] == "]":
                return
            try:
                element, end = decode(window.text, position)
            except json.JSONDecodeError as error:
                window.go_on(position, error)
                position = 0
                continue
            if not isinstance(element, dict):
                _as_row(element, path, window.line_at(position))
            yield window.mark(row, position) if row % ROWS_A_MARK == 0 else None, element
            row, position = row + 1, end
    finally:
        window.file.close()


class _Window:
    """A piece of a file's text that moves forward: an element at least, some megabytes at first."""

    def __init__(self, path: Path, start: Mark) -> None:
        self.path, self.file = path, _open(path)
        self.file.seek(start.place)
        self.place, self.line, self.text = start.place, start.line, ""
        self.to_text = codecs.getincrementaldecoder("utf-8")().decode

    def go_on(self, position: int, error: json.JSONDecodeError) -> None:
        """Drop what is before a position, and read more; `error` was met with what is there."""
        block = self.file.read(max(BLOCK_BYTES, 2 * (len(self.text) - position)))
        if not block:
            line = self.line_at(error.pos)
            raise SftError(
                f"{self.path}, line {line}: not JSON: {error.msg}; correct the array"
            ) from error
        self.line, dropped = self.line_at(position), self.text[:position]
        self.place += len(dropped.encode())
        try:
            self.text = self.text[position:] + self.to_text(block)
        except UnicodeDecodeError as broken:
            raise SftError(
                f"{self.path}, behind line {self.line}: not UTF-8: {broken.reason}; convert it"
            ) from broken

    def line_at(self, position: int) -> int:
        """The line of the file at a position of the text."""
        return self.line + self.text.count("\n", 0, position)

    def mark(self, row: int, position: int) -> Mark:
        """The mark of a row that starts at a position of the text."""
        place = self.place + len(self.text[:position].encode())
        return Mark(row, place, self.line_at(position))


# Tables


def _read_batches(index: FileIndex, start: int, stop: int) -> Iterator[dict[str, Any]]:
    row = start
    while row < stop:
        first, batch = _batches(index, os.getpid()).at(row)
        taken = min(stop, first + batch.num_rows) - row
        yield from batch.slice(row - first, taken).to_pylist()
        row += taken


class _Batches:
    """The batches of a file, one after the other; begun again where an earlier row is asked for.

    A row group may hold the whole file, and can only be read from its beginning: who asks for one
    part after the other reads it once.
    """

    def __init__(self, index: FileIndex) -> None:
        self.index, self.first, self.batch = index, 0, None
        self.rest: Iterator[Any] = iter(())

    def at(self, row: int) -> tuple[int, Any]:
        """The batch that holds a row, and the number of its first row."""
        mark = self.index.mark_before(row)
        if self.batch is None or not self.first <= row or mark.row > self.stop:
            self.first, self.batch = mark.row, None
            self.rest = BATCHES[_kind(self.index.path)](self.index.path, mark.place)
        while self.batch is None or row >= self.stop:
            self.first = self.stop if self.batch is not None else self.first
            with _naming(self.index.path):
                self.batch = next(self.rest)
        return self.first, self.batch

    @property
    def stop(self) -> int:
        return self.first + self.batch.num_rows


@lru_cache(maxsize=4)  # open files
def _batches(index: FileIndex, process: int) -> _Batches:
    # By process: forked processes would share the place in an open file.
    return _Batches(index)


def _parquet_batches(path: Path, group: int) -> Iterator[Any]:
    file = pyarrow.parquet.ParquetFile(path)
    groups = range(group, file.num_row_groups)
    # Without threads: whoever forks later would copy their locks.
    yield from file.iter_batches(ROWS_A_BATCH, row_groups=groups, use_threads=False)


def _count_parquet(path: Path) -> list[int]:
    metadata = pyarrow.parquet.read_metadata(path)
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def _arrow_batches(path: Path, number: int) -> Iterator[Any]:
    with pyarrow.memory_map(str(path)) as content:
        try:
            batches = pyarrow.ipc.open_stream(content)
        except pyarrow.ArrowInvalid:
            file = pyarrow.ipc.open_file(content)
            batches = map(file.get_batch, range(file.num_record_batches))
        for position, batch in enumerate(batches):
            if position >= number:
                yield batch


def _count_arrow(path: Path) -> list[int]:
    return [batch.num_rows for batch in _arrow_batches(path, 0)]


def _csv_batches(path: Path, _: int) -> Iterator[Any]:
    separator = "\t" if _kind(path) == ".tsv" else ","
    with pandas.read_csv(path, sep=separator, chunksize=CSV_ROWS_A_BATCH) as chunks:
        for chunk in chunks:
            yield pyarrow.Table.from_pandas(chunk, preserve_index=False)


def _count_csv(path: Path) -> list[int]:
    """One group: a quoted cell may hold lines, so that no later place can be found in the bytes."""
    return [sum(batch.num_rows for batch in _csv_batches(path, 0))]


COUNTERS: Mapping[str, Callable[[Path], list[int]]] = {
    ".parquet": _count_parquet,
    ".arrow": _count_arrow,
    ".csv": _count_csv,
    ".tsv": _count_csv,
}
BATCHES: Mapping[str, Callable[[Path, int], Iterator[Any]]] = {
    ".parquet": _parquet_batches,
    ".arrow": _arrow_batches,
    ".csv": _csv_batches,
    ".tsv": _csv_batches,
}
