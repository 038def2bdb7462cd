"""What a checkpoint folder holds: its layout, whether it is whole, whether training can go on.

Headers, names and sizes tell; no weight is read and nothing is unpickled, so it works without
torch and in seconds on a folder of any size.
"""

import itertools
import math
import re
import shutil
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path

from sft.errors import SftError, first_few
from sft.files import read_json
from sft.shards import (
    FSDP_OPTIMIZER,
    Shards,
    check_archive,
    find_fsdp,
    find_zero,
    read_shards,
)
from sft.sizes import count_by_config
from sft.weights import EMBEDDINGS, Tensor, read_tensors, read_weights_index

# The families whose parameters follow exactly from the config.
COUNTED = ("llama", "qwen2", "qwen3", "qwen3_moe")

LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")


class Layout(StrEnum):
    """How a trainer stored its weights."""

    SAFETENSORS = "safetensors"
    LORA = "lora"
    ZERO3 = "zero3"
    ZERO2 = "zero2"
    FSDP = "fsdp"


# `ZERO2` stands for stage 1, too: both shard the optimizer alone.
DEEPSPEED = (Layout.ZERO3, Layout.ZERO2)


def detect_layout(folder: Path) -> tuple[Layout, str]:
    """The layout of the weights right in `folder`, and a sentence about what was found.

    The first whole one counts in the order of `Layout`: weights that serve as they are win over
    shards, shards over empty or partial weights beside them. Raises SftError with all that is
    missing where none is whole.
    """
    whole, broken = {}, []
    for layout, find in FINDERS.items():
        try:
            if sentence := find(folder):
                whole[layout] = sentence
        except SftError as error:
            broken.append(str(error))
    if not whole:
        nothing = f"{folder}: no weights: neither safetensors, nor an adapter, nor shards"
        raise SftError("\n".join(broken) or nothing)
    (layout, sentence), *unused = whole.items()
    notes = [f"not used: {other}" for _, other in unused]
    notes += [f"not usable: {fault}" for fault in broken]
    return layout, "; ".join([sentence, *notes]).replace("\n", ", ")


def weights_folder(run: Path) -> Path:
    """Where the weights of a run lie: its root, or its last checkpoint where the root has none.

    The second is what sharded FSDP leaves.
    """
    step = read_json(run / "trainer_state.json")["global_step"]
    last = run / f"checkpoint-{step}"
    try:
        empty = not any(find(run) for find in FINDERS.values())
    except SftError:  # broken weights are there
        empty = False
    return last if empty and last.is_dir() else run


def is_complete_run(folder: Path) -> bool:
    """Whether training reached its last step and left whole weights of that step.

    The root's trainer_state.json decides: a trainer that is told to stop exits with code 0 and
    writes the same files as a finished one.
    """
    try:
        state = read_json(folder / "trainer_state.json")
        step = state["global_step"]
        if not step >= state["max_steps"] > 0:
            return False
        place = weights_folder(folder)
        layout, _ = detect_layout(place)
        return layout not in DEEPSPEED or read_shards(place).tag == f"global_step{step}"
    except SftError:
        return False


def finished_folder(run: Path) -> Path | None:
    """The folder with the end of a run: its root, or its last checkpoint; None before the end.

    A run that is killed after its last checkpoint and before its root's weights are whole is
    trained to its end all the same. A trainer started on it would go one step too far.
    """
    last = newest_complete_checkpoint(run)
    return next((each for each in (run, last) if each and is_complete_run(each)), None)


def newest_complete_checkpoint(folder: Path) -> Path | None:
    """The `checkpoint-N` with the highest N from which training can go on."""
    return next((path for path in _checkpoints(folder) if not resume_fault(path)), None)


def set_aside_broken_checkpoints(folder: Path) -> list[str]:
    """Rename each broken `checkpoint-N` to `broken-checkpoint-N`; a sentence for each.

    Trainers resume from the highest `checkpoint-N` whatever its state. They also count every
    `checkpoint-*` when they delete old ones: the new name does not begin with it, so that a broken
    one never takes a whole one's place. To be called while no trainer writes to `folder`.
    """
    sentences = []
    for path in _checkpoints(folder):
        if fault := resume_fault(path):
            aside = _free_name(path.with_name(f"broken-{path.name}"))
            path.rename(aside)
            sentences.append(f"{path.name} cannot be resumed and is now {aside.name}: {fault}")
    return sentences


def prune_checkpoints(folder: Path, keep: int) -> list[str]:
    """Delete what is older than the newest `keep` checkpoints that are whole; their names.

    While a trainer writes a new one, the old ones stay: what counts is that newer ones are whole.
    """
    for left in folder.glob("pruned-checkpoint-*"):  # by one that was killed while it deleted
        shutil.rmtree(left)
    paths = _checkpoints(folder)
    whole = (place for place, path in enumerate(paths) if not resume_fault(path))
    last_kept = next(itertools.islice(whole, keep - 1, None), len(paths))
    for path in paths[last_kept + 1 :]:
        shutil.rmtree(path.rename(path.with_name(f"pruned-{path.name}")))
    return [path.name for path in paths[last_kept + 1 :]]


def count_checkpoints(folder: Path) -> int:
    """How many `checkpoint-N` there are, whole or not."""
    return len(_checkpoints(folder))


def step_of(checkpoint: Path | None) -> int:
    """The N of a `checkpoint-N`; 0 for None, the beginning."""
    return int(checkpoint.name[11:]) if checkpoint else 0


def _free_name(path: Path) -> Path:
    """`path`, with the first free number where it is taken."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], numbered) if not each.exists())


def _checkpoints(folder: Path) -> list[Path]:
    """The `checkpoint-N` folders, highest N first."""
    paths = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit()]
    return sorted(paths, key=step_of, reverse=True)


def resume_fault(checkpoint: Path) -> str | None:
    """What keeps training from going on from `checkpoint`; None where nothing does.

    The trainer saves weights, optimizer, scheduler, random states and, last, trainer_state.json;
    but each rank writes its own random state without waiting for the others.
    """
    try:
        read_json(checkpoint / "trainer_state.json")
        detect_layout(checkpoint)
        shards = read_shards(checkpoint)
        if not shards and not find_fsdp(checkpoint, FSDP_OPTIMIZER):
            check_archive(checkpoint / "optimizer.pt")
        if not shards or (checkpoint / "scheduler.pt").exists():  # DeepSpeed may keep its own
            check_archive(checkpoint / "scheduler.pt")
        _check_random_states(checkpoint, shards)
    except SftError as error:
        return str(error)
    return None


def _check_random_states(checkpoint: Path, shards: Shards | None) -> None:
    found = list(checkpoint.glob("rng_state_*.pth"))
    world_size = shards.world_size if shards else max(1, len(found))
    names = [f"rng_state_{rank}.pth" for rank in range(world_size)]
    for name in names if world_size > 1 else ["rng_state.pth"]:
        check_archive(checkpoint / name)


def _check_filled(tensors: Mapping[str, Tensor], where: Path) -> None:
    """Refuse the placeholders that ZeRO-3 saves for weights which it did not gather."""
    empty = [name for name, tensor in tensors.items() if 0 in tensor.shape]
    if empty or not tensors:
        raise SftError(
            f"{where}: {len(empty)} of {len(tensors)} tensors are empty: weights never gathered"
        )


def _find_safetensors(folder: Path) -> str | None:
    if not any(folder.glob("model*.safetensors*")):
        return None
    tensors = read_weights_index(folder)
    _check_filled(tensors, folder)
    _check_against_config(tensors, folder)
    files = {tensor.file for tensor in tensors.values()}
    return f"safetensors, {len(tensors)} tensors in {len(files)} files"


def _check_against_config(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse weights that lack layers or parameters, or whose embedding is not the config's."""
    config = read_json(folder / "config.json")
    config = config.get("text_config", config)
    expected = (config["vocab_size"], config["hidden_size"])
    found = [tensor.shape for name, tensor in tensors.items() if name.endswith(EMBEDDINGS)]
    if expected not in found:
        shape = found[0] if found else "missing"
        raise SftError(f"{folder}: embedding {shape}, config.json says {expected}")
    seen = {int(match[1]) for name in tensors if (match := LAYER.search(name))}
    if lacking := sorted(set(range(config["num_hidden_layers"])) - seen):
        raise SftError(f"{folder}: partial weights: layers {first_few(lacking)} are missing")
    if config.get("model_type") in COUNTED:
        held = sum(math.prod(tensor.shape) for tensor in tensors.values())
        if held < (wanted := count_by_config(config)):
            raise SftError(
                f"{folder}: partial weights: {held:,} parameters, config.json asks for {wanted:,}"
            )


def _find_adapter(folder: Path) -> str | None:
    weights = folder / "adapter_model.safetensors"
    if not weights.exists() and not (folder / "adapter_config.json").exists():
        return None
    tensors = read_tensors(weights)
    _check_filled(tensors, weights)
    base = read_json(folder / "adapter_config.json")["base_model_name_or_path"]
    return f"a LoRA adapter of {base}, {len(tensors)} tensors"


FINDERS = {
    Layout.SAFETENSORS: _find_safetensors,
    Layout.LORA: _find_adapter,
    Layout.ZERO3: partial(find_zero, is_zero3=True),
    Layout.ZERO2: partial(find_zero, is_zero3=False),
    Layout.FSDP: find_fsdp,
}
