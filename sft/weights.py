"""Weights in safetensors: what the headers of their files tell, without reading a weight.

A file is eight bytes with the length of its header, the header as JSON, then the tensors without a
gap (https://github.com/huggingface/safetensors#format).
"""

import json
import math
from pathlib import Path
from typing import NamedTuple

from sft.errors import SftError, first_few
from sft.files import read_json

INDEX = "model.safetensors.index.json"
TORCH_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


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


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file by name; SftError where it is missing, cut or no safetensors."""
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
    return {
        name: Tensor(path.name, entry["dtype"], tuple(entry["shape"]))
        for name, entry in header.items()
    }
