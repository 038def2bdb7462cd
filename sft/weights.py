"""Weights in safetensors: what the headers of their files tell, and single rows of a matrix.

A file is eight bytes with the length of its header, the header as JSON, then the tensors without a
gap (https://github.com/huggingface/safetensors#format).
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sft.errors import SftError, first_few
from sft.files import read_json

INDEX = "model.safetensors.index.json"
TORCH_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
DTYPE_WORDS = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}  # as people say them
# How numpy reads each; it has no bfloat16, which is the upper half of a float32.
NUMPY_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}

BLOCK_BYTES = 8 << 20

# How the names of a model's token embedding and of an output head of its own end.
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
HEADS = ("lm_head.weight", "embed_out.weight")


class Tensor(NamedTuple):
    """Where a tensor lies, and what it is; `dtype` in the words of safetensors (BF16, F32)."""

    file: str
    dtype: str
    shape: tuple[int, ...]


def read_weights_index(folder: Path) -> dict[str, Tensor]:
    """All tensors of the model in `folder` by name, as the headers of its files tell.

    Raises SftError that names every file that is missing, truncated or at odds with the index.
    """
    single = folder / "model.safetensors"
    if not (folder / INDEX).exists():
        if not single.exists() and any(folder.glob("model-*.safetensors")):
            raise SftError(f"{folder}: model-*.safetensors without {INDEX}, which is written last")
        return read_tensors(single)
    named = read_json(folder / INDEX)["weight_map"]
    if single.exists() and single.name not in named.values():
        raise SftError(f"{folder}: {single.name} and {INDEX} name different weights; keep one")
    tensors, faults = {}, []
    for file in sorted(set(named.values())):
        try:
            tensors |= read_tensors(folder / file)
        except SftError as error:
            faults.append(str(error))
    if faults:
        raise SftError("\n".join(faults))
    found = {name: tensor.file for name, tensor in tensors.items()}
    if odd := sorted({name for name, _ in named.items() ^ found.items()}):
        raise SftError(f"{folder / INDEX}: at odds with its files about {first_few(odd)}")
    return tensors


def count_parameters(folder: Path) -> int:
    """The number of parameters in the safetensors of `folder`; tied ones count once."""
    return sum(math.prod(tensor.shape) for tensor in read_weights_index(folder).values())


def weights_dtype(folder: Path) -> str:
    """The dtype of most parameters in the safetensors of `folder`, as torch names it."""
    sizes: dict[str, int] = {}
    for tensor in read_weights_index(folder).values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + math.prod(tensor.shape)
    most = max(sizes, key=sizes.get)
    return TORCH_DTYPES.get(most, most)


def count_embeddings(folder: Path) -> int:
    """The rows of the input embedding in the safetensors of `folder`."""
    tensors = read_weights_index(folder)
    found = [name for name in tensors if name.endswith(EMBEDDINGS)]
    if len(found) != 1:
        raise SftError(
            f"{folder}: found {first_few(found) or 'no tensor'} for the input embedding, expected "
            f"one whose name ends in {' or '.join(EMBEDDINGS)}"
        )
    return tensors[found[0]].shape[0]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file by name; SftError where it is missing, cut or no safetensors."""
    return {
        name: Tensor(path.name, entry["dtype"], tuple(entry["shape"]))
        for name, entry in _read_header(path)[1].items()
    }


def read_rows(path: Path, name: str, rows: Iterable[int]) -> np.ndarray:
    """Rows of the matrix `name` in a file, as float32 of shape (rows, width); only they are read.

    Raises SftError where the matrix is not of floats (a quantized one).
    """
    start, header = _read_header(path)
    entry = header[name]
    if entry["dtype"] not in NUMPY_DTYPES:
        raise SftError(
            f"{path}, {name}: found dtype {entry['dtype']}, expected {' or '.join(NUMPY_DTYPES)}; "
            "take the model as it was before it was quantized"
        )
    dtype = np.dtype(NUMPY_DTYPES[entry["dtype"]])
    height, width = entry["shape"]
    found = []
    with open(path, "rb") as file:
        for row in rows:
            place = range(height)[row] * width * dtype.itemsize  # an IndexError where there is none
            file.seek(start + entry["data_offsets"][0] + place)
            found.append(np.frombuffer(file.read(width * dtype.itemsize), dtype))
    return as_float32(np.array(found, dtype).reshape(-1, width), entry["dtype"])


def header_bytes(described: Mapping[str, Any]) -> bytes:
    """The beginning of a file, of what its header says: numbers begin at a multiple of 8."""
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def as_float32(values: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers as numpy read them by NUMPY_DTYPES, as float32."""
    if dtype == "BF16":
        return (values.astype("<u4") << 16).view("<f4")
    return values.astype("<f4", copy=False)


def same_data(first: Path, second: Path, name: str) -> bool:
    """Whether two files hold the same bytes for the tensor `name`, read piece by piece."""
    with open(first, "rb") as one, open(second, "rb") as other:
        sizes = []
        for path, file in ((first, one), (second, other)):
            start, header = _read_header(path)
            begin, end = header[name]["data_offsets"]
            file.seek(start + begin)
            sizes.append(end - begin)
        left = sizes[0]
        while sizes[0] == sizes[1] and left:
            part = min(left, BLOCK_BYTES)
            if one.read(part) != other.read(part):
                return False
            left -= part
    return sizes[0] == sizes[1]


def _read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the tensors of a file begin, and what its header says of each."""
    if not path.is_file():
        raise SftError(f"{path}: missing")
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        if start == b"version ":
            raise SftError(f"{path}: a Git LFS pointer in place of the weights; run `git lfs pull`")
        length = int.from_bytes(start, "little")
        if size < 8 or 8 + length > size:
            raise SftError(f"{path}: truncated at {size} bytes, inside its header")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise SftError(f"{path}: damaged, its header is not JSON: {error}") from error
    header.pop("__metadata__", None)
    promised = 8 + length + max((each["data_offsets"][1] for each in header.values()), default=0)
    if size != promised:
        raise SftError(f"{path}: {size} bytes, its header promises {promised}: truncated")
    return 8 + length, header
