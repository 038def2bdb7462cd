"""Names of tensors without the wrappers of a trainer, in files that keep their numbers."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft.errors import SftError
from sft.files import HASH_BLOCK_BYTES, read_json, write_json
from sft.weights import header_bytes

# Activation checkpointing, FSDP and torch.compile name a module's tensors after themselves.
WRAPPERS = ("_checkpoint_wrapped_module.", "_fsdp_wrapped_module.", "_orig_mod.")


def plain_name(name: str) -> str:
    """The name that the model itself gives to a tensor."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def copy_with_plain_names(source: Path, target: Path) -> str:
    """Copy a whole safetensors file under its tensors' plain names; the copy's SHA-256.

    Only the header changes. It is read once. Raises SftError where two tensors would share a name.
    """
    digest = hashlib.sha256()
    with open(source, "rb") as reader, open(target, "wb") as writer:
        length = int.from_bytes(reader.read(8), "little")
        block = header_bytes(plain_keys(json.loads(reader.read(length)), source))
        while block:
            digest.update(block)
            writer.write(block)
            block = reader.read(HASH_BLOCK_BYTES)
    return digest.hexdigest()


def copy_index_with_plain_names(source: Path, target: Path) -> None:
    """Copy the index of several files; SftError where two tensors would share a name."""
    index = read_json(source)
    write_json(target, index | {"weight_map": plain_keys(index["weight_map"], source)})


def plain_keys(named: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """What is `named` by plain names; SftError where two would share one."""
    plain: dict[str, Any] = {}
    for name, value in named.items():
        if plain_name(name) in plain:
            raise SftError(
                f"{where}: two tensors are named {plain_name(name)} but for wrappers "
                f"({', '.join(WRAPPERS)}); expected one; save the model unwrapped"
            )
        plain[plain_name(name)] = value
    return plain
