"""The rows that a checkpoint has for Delphi's six tokens, in its embedding and its output head.

Reserved rows were never trained: each becomes the mean of the rows that were. A row lies in a file
as so many bytes, so nothing else of the file is touched.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sft.delphi.slots import TOKENS, VOCABULARY
from sft.errors import SftError, first_few
from sft.files import read_json
from sft.weights import EMBEDDINGS, HEADS, NUMPY_DTYPES, read_weights_index

TRAINED_ROWS = 128000  # Llama-3's byte pairs; its control tokens come after them
BLOCK_BYTES = 8 << 20


class Matrix(NamedTuple):
    """An embedding or a head: where it lies (`start` in bytes), and what it is."""

    path: Path
    name: str
    dtype: str
    columns: int
    start: int


def find_matrices(folder: Path) -> list[Matrix]:
    """The embedding of the model in `folder` and, where it has one of its own, its head.

    Raises SftError where one is missing, has fewer rows than the vocabulary, or no float type.
    """
    tensors = read_weights_index(folder)
    embeddings = [name for name in tensors if name.endswith(EMBEDDINGS)]
    heads = [name for name in tensors if name.endswith(HEADS)]
    if not embeddings:
        raise SftError(
            f"{folder}: no tensor's name ends in {' or '.join(EMBEDDINGS)}, found "
            f"{first_few(tensors)}; convert the checkpoint to the names of transformers"
        )
    if not heads and not read_json(folder / "config.json").get("tie_word_embeddings"):
        raise SftError(
            f"{folder}: no tensor's name ends in {' or '.join(HEADS)}, and config.json does not "
            "say `tie_word_embeddings: true`; add whichever the model lacks"
        )
    found = []
    for name in [*embeddings, *heads]:
        file, dtype, (rows, columns) = tensors[name]
        where = f"{folder / file}, {name}"
        if rows < VOCABULARY:
            raise SftError(
                f"{where}: found {rows} rows, expected at least {VOCABULARY}, one a token; "
                "take the checkpoint that belongs to this tokenizer"
            )
        if dtype not in NUMPY_DTYPES:
            raise SftError(
                f"{where}: found {dtype}, expected one of {', '.join(NUMPY_DTYPES)}; "
                "take the checkpoint before it was quantized"
            )
        start = _find_tensor(folder / file, name)
        found.append(Matrix(folder / file, name, dtype, columns, start))
    return found


def _find_tensor(path: Path, name: str) -> int:
    """The first byte of a tensor in a file of safetensors."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return 8 + length + json.loads(file.read(length))[name]["data_offsets"][0]


def mean_row(matrix: Matrix) -> np.ndarray:
    """The mean of the trained rows, summed in float64, in the form that the file stores.

    Memory is a few blocks. Raises SftError where a trained row is not finite.
    """
    stored = np.dtype(NUMPY_DTYPES[matrix.dtype])
    step = max(1, BLOCK_BYTES // (matrix.columns * stored.itemsize))
    total = np.zeros(matrix.columns)
    with open(matrix.path, "rb") as file:
        file.seek(matrix.start)
        for first in range(0, TRAINED_ROWS, step):
            count = min(step, TRAINED_ROWS - first) * matrix.columns
            block = widen(np.fromfile(file, stored, count), matrix.dtype)
            total += block.reshape(-1, matrix.columns).sum(axis=0, dtype=np.float64)
    if not np.isfinite(total).all():
        raise SftError(
            f"{matrix.path}, {matrix.name}: rows below {TRAINED_ROWS} are not all finite; "
            "the checkpoint is damaged, fetch it again"
        )
    return narrow(total / TRAINED_ROWS, matrix.dtype)


def widen(stored: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers that a file stores; numpy knows no bfloat16, the upper half of a float32."""
    return (stored.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else stored


def narrow(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """What a file stores of finite numbers, each rounded to the nearest; halves to even."""
    if dtype == "BF16":
        bits = numbers.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return numbers.astype(NUMPY_DTYPES[dtype])


def holds_row(matrix: Matrix, row: np.ndarray) -> bool:
    """Whether each of the six rows is this one already."""
    with open(matrix.path, "rb") as file:
        for position in _positions(matrix, row):
            file.seek(position)
            if file.read(row.nbytes) != row.tobytes():
                return False
    return True


def write_row(path: Path, matrix: Matrix, row: np.ndarray) -> None:
    """Write the row over each of the six in `path`, a copy of the matrix's file."""
    with open(path, "r+b") as file:
        for position in _positions(matrix, row):
            file.seek(position)
            file.write(row.tobytes())


def _positions(matrix: Matrix, row: np.ndarray) -> list[int]:
    """The first byte of each of the six rows in the matrix's file."""
    return [matrix.start + slot * row.nbytes for slot in TOKENS.values()]
