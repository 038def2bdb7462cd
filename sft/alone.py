"""Consolidate a checkpoint folder from anywhere, without the workflow that trained it."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from sft.checkpoint import Layout, detect_layout
from sft.consolidation.gather import gather, plan_weights
from sft.consolidation.loading import listed_faults
from sft.consolidation.scattered import Scattered
from sft.errors import SftError, first_few, raise_faults
from sft.step import log
from sft.weights import DTYPE_WORDS, EMBEDDINGS, HEADS, read_weights_index


def consolidate_alone(checkpoint: Path, folder: Path, dtype: str | None, base: Path | None) -> None:
    """Make `folder` of a checkpoint of shards, and prove it as far as can be done here.

    `dtype` is one of DTYPE_WORDS, None for the trainer's. Raises SftError where `folder` holds
    something already, or `checkpoint` no whole shards.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SftError(f"{folder}: is there and not empty; name a new folder")
    if checkpoint.name.startswith("global_step"):
        checkpoint = checkpoint.parent
    layout = _shards_layout(checkpoint)
    plan = plan_weights(checkpoint, layout, base, dtype and DTYPE_WORDS[dtype])
    if base:
        raise_faults(_base_faults(base, plan.tensors))

    def prove(partial: Path) -> None:
        raise_faults(_loading_faults(partial))

    files = gather(plan, folder, prove)
    size = sum(entry["size"] for entry in files) / 1e9
    log.info("%s: %d files of weights, %.2f GB", folder, len(files), size)


def _shards_layout(checkpoint: Path) -> Layout:
    """Which shards lie there; SftError where none do, or what needs none of this."""
    if not checkpoint.is_dir():
        raise SftError(f"{checkpoint}: no such folder")
    try:
        layout, found = detect_layout(checkpoint)
    except SftError as error:
        if inner := sorted(path.name for path in checkpoint.glob("checkpoint-*")):
            raise SftError(f"{error}; it holds {first_few(inner)}: name one of them") from None
        raise
    log.info("%s: %s", checkpoint, found)
    if layout is Layout.SAFETENSORS:
        raise SftError(f"{checkpoint}: its weights are whole: {found}; use them as they are")
    if layout is Layout.LORA:
        raise SftError(
            f"{checkpoint}: {found}; merge it in a trainer's environment: "
            f"python -m sft.trainers.merge BASE {checkpoint} OUT"
        )
    return layout


def _base_faults(base: Path, tensors: Mapping[str, Scattered]) -> Iterator[str]:
    """A line where names differ from the base's, or shapes do beyond the vocabulary's rows."""
    before = read_weights_index(base)
    if lost := sorted(before.keys() - tensors.keys()):
        yield f"the shards lack {first_few(lost)}, which the base {base} has"
    if new := sorted(tensors.keys() - before.keys()):
        yield f"the shards have {first_few(new)}, which the base {base} lacks"
    for name in sorted(before.keys() & tensors.keys()):
        first = 1 if name.endswith((*EMBEDDINGS, *HEADS)) else 0
        found, expected = tensors[name].shape, before[name].shape
        if found[first:] != expected[first:]:
            yield f"{name}: found shape {found}, expected {expected} as in the base {base}"


def _loading_faults(folder: Path) -> Iterator[str]:
    """What transformers says of the folder, where torch is here to ask it."""
    command = [sys.executable, "-m", "sft.trainers.loading", str(folder)]
    if not find_spec("torch"):
        log.warning(
            "not tried whether transformers loads it, since torch is not here; "
            "in a trainer's environment: python -m sft.trainers.loading OUT"
        )
        return
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ran.returncode:
        yield f"{folder}: transformers does not load it:\n{ran.stderr.strip()}"
    else:
        yield from listed_faults(ran.stdout.splitlines()[-1], folder)
