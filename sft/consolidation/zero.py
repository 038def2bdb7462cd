"""The shards of DeepSpeed's ZeRO: which elements of which file make up each parameter.

The trained numbers are the optimizer's, in fp32. At stage 3 each rank has ceil(n / ranks) elements
of each parameter, which may cross from one of its flat tensors into the next; at stages 1 and 2 a
parameter group is one flat tensor, cut into equal parts, whatever parameter ends there. As in
DeepSpeed's utils/zero_to_fp32.py.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sft.consolidation.archive import Stored, read_archive
from sft.consolidation.scattered import Gathering, Piece, Scattered, cut, piece_of, whole
from sft.errors import SftError, first_few
from sft.shards import SHARD, Shards, read_shards

TAG = re.compile(r"global_step(\d+)")
# At stages 1 and 2 flat tensors are padded to a multiple of twice the ranks.
ALIGNED = 2


def read_zero(folder: Path) -> Gathering:
    """The tensors in the shards that `folder`/latest names; SftError with the file that is wrong.

    Only the numbers' places are read. All ranks' files must be there, of one step, and by their
    names what they were saved as.
    """
    shards = read_shards(folder)
    if not shards:
        raise SftError(f"{folder}: no DeepSpeed shards: neither `latest` nor a global_step folder")
    tag = folder / shards.tag
    whole_model = tag / "mp_rank_00_model_states.pt"
    models = _read_ranks(tag, "model") if shards.is_zero3 else {0: _read_states(whole_model)}
    optimizers = _read_ranks(tag, "optim")
    first = models[0]
    _check_parallelism(tag, first)
    _check_steps(tag, models, optimizers)
    _check_equal(tag, models)
    saved = {name: each for name, each in first["module"].items() if isinstance(each, Stored)}
    tensors = _buffers(first) | _frozen(tag, models, shards.is_zero3)
    flats = [_flat_tensors(tag, rank, each, shards) for rank, each in optimizers.items()]
    cut_group = _cut_stage3 if shards.is_zero3 else _cut_stage2
    for name, (shape, pieces) in cut_group(tag, first["param_shapes"], flats).items():
        if name not in saved:
            raise SftError(f"{tag}: {name} has a shape and is no parameter of the saved model")
        tensors[name] = Scattered(tuple(shape), saved[name].dtype, tuple(pieces))
    # Where weights are gathered at a save, only some of the ranks say which are tied.
    aliases = {}
    for states in models.values():
        aliases |= {of: name for of, name in states["shared_params"].items() if name in tensors}
    if lost := sorted(saved.keys() - tensors.keys() - aliases.keys()):
        raise SftError(f"{tag}: the shards do not hold {first_few(lost)}")
    stage = "ZeRO-3" if shards.is_zero3 else "ZeRO-1 or 2"
    return Gathering(f"{stage} shards of {shards.world_size} ranks", tensors, aliases)


def _read_ranks(tag: Path, kind: str) -> dict[int, Mapping[str, Any]]:
    paths = {path: SHARD.fullmatch(path.name) for path in tag.iterdir()}
    found = {int(match[1]): path for path, match in paths.items() if match and match[2] == kind}
    return {rank: _read_states(found[rank]) for rank in sorted(found)}


def _read_states(path: Path) -> Mapping[str, Any]:
    states = read_archive(path)
    wanted = "optimizer_state_dict" if "optim_states" in path.name else "param_shapes"
    if not isinstance(states, Mapping) or wanted not in states:
        raise SftError(f"{path}: has no {wanted}; expected a file that DeepSpeed saved")
    return states


def _check_parallelism(tag: Path, states: Mapping[str, Any]) -> None:
    parts = states.get("mp_world_size", 1)
    if parts != 1:
        raise SftError(
            f"{tag}: saved by {parts} tensor-parallel ranks; only data-parallel shards are read"
        )


def _check_steps(
    tag: Path, models: Mapping[int, Mapping], optimizers: Mapping[int, Mapping]
) -> None:
    """Refuse files of several steps, or of several versions of DeepSpeed."""
    named = TAG.fullmatch(tag.name)
    steps = {rank: states.get("global_steps") for rank, states in models.items()}
    expected = int(named[1]) if named else steps[0]
    if odd := {rank: step for rank, step in steps.items() if step != expected}:
        raise SftError(f"{tag}: model_states of rank {_listed(odd)}, expected {expected}")
    versions = {rank: states.get("ds_version") for rank, states in (models | optimizers).items()}
    if len(set(versions.values())) > 1:
        raise SftError(f"{tag}: files of several versions of DeepSpeed: {_listed(versions)}")


def _listed(steps: Mapping[int, Any]) -> str:
    return first_few([f"{rank} (of {found})" for rank, found in sorted(steps.items())])


def _check_equal(tag: Path, models: Mapping[int, Mapping]) -> None:
    """Refuse files whose lists of parameters differ: they are of several models."""
    for key in ("param_shapes", "frozen_param_shapes"):
        odd = [rank for rank, states in models.items() if states.get(key) != models[0].get(key)]
        if odd:
            raise SftError(
                f"{tag}: model_states of rank {first_few(odd)} have another {key} than rank 0's"
            )


def _flat_tensors(tag: Path, rank: int, states: Mapping[str, Any], shards: Shards) -> list[Piece]:
    """A rank's trained numbers: at stage 3 one flat tensor a sub-group, else one a group."""
    optimizer = states["optimizer_state_dict"]
    key = "fp32_flat_groups" if shards.is_zero3 else "single_partition_of_fp32_groups"
    found = optimizer.get(key) if isinstance(optimizer, Mapping) else None
    if not found or not all(isinstance(each, Stored) for each in found):
        raise SftError(f"{tag}: optim_states of rank {rank} have no {key}")
    parts = optimizer.get("partition_count")
    if (max(parts) if isinstance(parts, list) else parts) != shards.world_size:
        raise SftError(
            f"{tag}: optim_states of rank {rank} are one of {parts} parts, expected "
            f"{shards.world_size}: they were saved by another number of ranks"
        )
    return [piece_of(each) for each in found]


def _cut_stage3(
    tag: Path, groups: Iterable[Mapping[str, tuple]], flats: Sequence[list[Piece]]
) -> dict[str, tuple]:
    ranks = len(flats)
    sizes = [[flat.count for flat in own] for own in flats]
    if odd := [rank for rank in range(ranks) if sizes[rank] != sizes[0]]:
        raise SftError(
            f"{tag}: optim_states of rank {first_few(odd)} hold other sizes than rank 0's"
        )
    made, offset = {}, 0
    for name, shape in (item for group in groups for item in group.items()):
        count = math.prod(shape)
        part = math.ceil(count / ranks)
        used = [max(0, min(part, count - rank * part)) for rank in range(ranks)]
        pieces = [cut(flats[rank], offset, used[rank]) for rank in range(ranks)]
        made[name] = shape, [piece for own in pieces for piece in own]
        offset += part
    if offset != sum(sizes[0]):
        raise SftError(
            f"{tag}: each rank holds {sum(sizes[0])} elements, the model's parameters need {offset}"
        )
    return made


def _cut_stage2(
    tag: Path, groups: Sequence[Mapping[str, tuple]], flats: Sequence[list[Piece]]
) -> dict[str, tuple]:
    ranks = len(flats)
    made = {}
    for number, group in enumerate(groups):
        if any(number >= len(own) for own in flats):
            raise SftError(f"{tag}: a rank has no partition of parameter group {number}")
        line = [own[number] for own in flats]
        offset = 0
        for name, shape in group.items():
            made[name] = shape, cut(line, offset, math.prod(shape))
            offset += math.prod(shape)
        held = sum(flat.count for flat in line)
        align = ALIGNED * ranks
        if align * math.ceil(offset / align) != align * math.ceil(held / align):
            raise SftError(
                f"{tag}: the ranks hold {held} elements of group {number}, which needs {offset}"
            )
    return made


def _buffers(states: Mapping[str, Any]) -> dict[str, Scattered]:
    module = states["module"]
    return {name: whole(module[name]) for name in states["buffer_names"] if name in module}


def _frozen(tag: Path, models: Mapping[int, Mapping], is_zero3: bool) -> dict[str, Scattered]:
    """Parameters that were not trained: the optimizer does not have them."""
    shapes = models[0].get("frozen_param_shapes") or {}
    made = {}
    for name, shape in shapes.items():
        parts = [models[rank]["frozen_param_fragments"][name] for rank in sorted(models)]
        count = math.prod(shape)
        if sum(part.count for part in parts) < count:
            raise SftError(f"{tag}: the fragments of {name} do not hold its {count} elements")
        held = [piece_of(part) for part in (parts if is_zero3 else parts[:1])]
        made[name] = Scattered(tuple(shape), parts[0].dtype, cut(held, 0, count))
    return made
