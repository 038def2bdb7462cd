"""Files of torch.save, read without torch: what they hold, and where the numbers of a tensor lie.

Such a file is a zip of a pickle and the tensors' storages, none of them compressed
(https://docs.pytorch.org/docs/stable/notes/serialization.html). Of the pickle, tensors, sizes and
plain values are made; all other classes become a Record, and no code of theirs runs.
"""

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from sft.errors import SftError

# torch's storage classes, in the words of safetensors.
STORAGES = {
    **{"DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16"},
    **{"BFloat16Storage": "BF16", "LongStorage": "I64", "IntStorage": "I32"},
    **{"ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8", "BoolStorage": "BOOL"},
}
ITEM_BYTES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1},
    **{"U8": 1, "BOOL": 1},
}
LOCAL_HEADER_BYTES = 30


class Storage(NamedTuple):
    """Bytes of a file that tensors are views of, and the CRC-32 that the zip keeps of them."""

    path: Path
    start: int
    size: int
    crc: int


class Stored(NamedTuple):
    """A tensor: `start` is its first byte in the file, `dtype` in the words of safetensors."""

    storage: Storage
    start: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


class Record:
    """What a pickle says of an object of a class that is not made: arguments, state, items."""

    kind = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> "Record":
        made = object.__new__(cls)
        made.args, made.state, made.items = args, {}, {}
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    def append(self, value: Any) -> None:
        self.items[len(self.items)] = value


def read_archive(path: Path) -> Any:
    """What was saved to `path`, with each tensor as a Stored; SftError where the file is damaged.

    It must still have the name under which it was saved: torch writes that into it.
    """
    with _named(path), open(path, "rb") as file:
        return _read(file, path, 0, path.stat().st_size, path.stem)


def read_archive_within(path: Path, start: int, size: int) -> Any:
    """As `read_archive`, of `size` bytes of a file that begin at byte `start`."""
    with _named(path), open(path, "rb") as file:
        file.seek(start)
        # The zip alone is in memory: a blob of a sharded checkpoint is a part of one tensor.
        return _read(_Window(file, start, size), path, start, size, None)


def read_pickle(path: Path) -> Any:
    """The content of a plain pickle, read as those in archives are."""
    with _named(path):
        return _Unpickler(io.BytesIO(path.read_bytes()), {}).load()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in errors about what it holds."""
    try:
        yield
    except FileNotFoundError:
        raise SftError(f"{path}: missing") from None
    except zipfile.BadZipFile:
        raise SftError(f"{path}: truncated, or not written by torch.save") from None
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise SftError(f"{path}: damaged, its pickle is not readable: {error}") from error


class _Window(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self.file, self.start, self.size, self.place = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = 0) -> int:
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def read(self, count: int = -1) -> bytes:
        left = max(0, self.size - self.place)
        self.file.seek(self.start + self.place)
        data = self.file.read(left if count is None or count < 0 else min(count, left))
        self.place += len(data)
        return data


def _read(file: Any, path: Path, start: int, size: int, name: str | None) -> Any:
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        pickled = next((each for each in entries if each.endswith("/data.pkl")), None)
        if pickled is None:
            raise SftError(f"{path}: no data.pkl in it; expected a file of torch.save")
        root = pickled.removesuffix("/data.pkl")
        if name not in (None, root) and root != "archive":
            raise SftError(f"{path}: was saved as {root}.pt; it has been renamed or swapped")
        order = entries.get(f"{root}/byteorder")
        if order and archive.read(order) != b"little":
            raise SftError(f"{path}: not little-endian")
        storages = {}
        for entry_name, entry in entries.items():
            folder, _, key = entry_name.rpartition("/")
            if folder == f"{root}/data":
                place = start + _data_start(file, entry)
                if place + entry.file_size > start + size or entry.compress_type:
                    raise SftError(f"{path}: truncated, or not written by torch.save")
                storages[key] = Storage(path, place, entry.file_size, entry.CRC)
        return _Unpickler(io.BytesIO(archive.read(pickled)), storages).load()


def _data_start(file: Any, entry: zipfile.ZipInfo) -> int:
    """Where an entry's data begin: behind its local header, whose padding is its own."""
    file.seek(entry.header_offset)
    header = file.read(LOCAL_HEADER_BYTES)
    lengths = (int.from_bytes(header[place : place + 2], "little") for place in (26, 28))
    return entry.header_offset + LOCAL_HEADER_BYTES + sum(lengths)


class _Unpickler(pickle.Unpickler):
    """Makes tensors and plain values; of any other class a Record."""

    def __init__(self, file: BinaryIO, storages: Mapping[str, Storage]) -> None:
        super().__init__(file)
        self.storages = storages
        self.records: dict[str, type[Record]] = {}

    def persistent_load(self, saved: tuple) -> tuple[Storage, str]:
        _, dtype, key, _, _ = saved
        return self.storages[key], dtype

    def find_class(self, module: str, name: str) -> Any:
        if made := MADE.get((module, name)):
            return made
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        kind = f"{module}.{name}"
        return self.records.setdefault(kind, type(name, (Record,), {"kind": kind}))


def _rebuild_tensor(
    storage: tuple[Storage, str], offset: int, shape: Any, stride: Any, *_: Any
) -> Stored:
    place, dtype = storage
    shape = tuple(shape)
    made = Stored(place, place.start + offset * ITEM_BYTES[dtype], dtype, shape)
    if made.count and tuple(stride) != _contiguous(shape, stride):
        raise SftError(f"{place.path}: a tensor of shape {shape} is not contiguous")
    if made.start + made.count * ITEM_BYTES[dtype] > place.start + place.size:
        raise SftError(f"{place.path}: a tensor of shape {shape} goes beyond its storage")
    return made


def _contiguous(shape: tuple[int, ...], stride: Any) -> tuple[int, ...]:
    """The strides of a contiguous tensor; those of single elements are as they are said to be."""
    steps, step = [], 1
    for length, said in zip(reversed(shape), reversed(stride), strict=True):
        steps.append(said if length == 1 else step)
        step *= length
    return tuple(reversed(steps))


def _rebuild_of_type(function: Callable, _: Any, args: tuple, __: Any) -> Any:
    return function(*args)


MADE: dict[tuple[str, str], Callable] = {
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_of_type,
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): lambda *_: {},
    ("builtins", "set"): set,
    ("__builtin__", "set"): set,
}
