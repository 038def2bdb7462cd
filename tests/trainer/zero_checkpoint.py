"""Checkpoints in DeepSpeed's format, of any tensors and any number of ranks, by the real torch.

Their shards are cut as DeepSpeed's engine and its optimizers of the stages cut them.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

HIDDEN, LAYERS, WORDS = 16, 2, 30


@dataclass
class Model:
    """Named fp32 tensors in parameter groups, with what else a checkpoint tells."""

    groups: list[dict[str, torch.Tensor]]
    frozen: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a consolidation has to give, by name, tied names left out."""
        trained = {name: each for group in self.groups for name, each in group.items()}
        cast = {name: each.to(self.dtype) for name, each in (trained | self.frozen).items()}
        return cast | self.buffers


def llama(tied: bool = False, words: int = WORDS, **more: object) -> Model:
    """A small Llama whose matrices decay and whose norms do not."""
    torch.manual_seed(1)
    matrices = {"model.embed_tokens.weight": (words, HIDDEN)}
    norms: dict[str, tuple] = {}
    for layer in range(LAYERS):
        start = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            matrices[f"{start}.self_attn.{name}.weight"] = (HIDDEN, HIDDEN)
        for name in ("gate_proj", "up_proj"):
            matrices[f"{start}.mlp.{name}.weight"] = (2 * HIDDEN, HIDDEN)
        matrices[f"{start}.mlp.down_proj.weight"] = (HIDDEN, 2 * HIDDEN)
        for name in ("input_layernorm", "post_attention_layernorm"):
            norms[f"{start}.{name}.weight"] = (HIDDEN,)
    norms["model.norm.weight"] = (HIDDEN,)
    if not tied:
        matrices["lm_head.weight"] = (words, HIDDEN)
    groups = [
        {name: torch.randn(shape) for name, shape in group.items()} for group in (matrices, norms)
    ]
    aliases = {"lm_head.weight": "model.embed_tokens.weight"} if tied else {}
    return Model(groups, tied=aliases, **more)


def write_stage3(
    folder: Path, model: Model, ranks: int, step: int = 10, sub_group: int = 10**9
) -> None:
    """Write shards of stage 3; a rank's flat tensors have at most `sub_group` elements or one part.

    A rank's flat tensors are cut without regard to where a parameter ends.
    """
    tag = _tag(folder, step)
    fragments = {name: _parts(each, ranks) for name, each in model.frozen.items()}
    parts = [{name: _parts(each, ranks) for name, each in group.items()} for group in model.groups]
    for rank in range(ranks):
        own = {name: each[rank].to(model.dtype) for name, each in fragments.items()}
        empty = {name: torch.empty(0, dtype=model.dtype) for name in _names(model)}
        states = _model_states(model, ranks, step, empty | model.buffers, own)
        torch.save(states, tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        flat = torch.cat([each[rank] for group in parts for each in group.values()])
        groups = [piece.clone() for piece in flat.split(sub_group)]
        _write_optimizer(tag, rank, ranks, ZeroStageEnum.weights, {"fp32_flat_groups": groups})


def write_stage2(folder: Path, model: Model, ranks: int, step: int = 10) -> None:
    """Write shards of stage 2: the whole model once, and each rank's part of each group."""
    tag = _tag(folder, step)
    trained = {name: each for group in model.groups for name, each in group.items()}
    module = {name: each.to(model.dtype) for name, each in (trained | model.frozen).items()}
    module |= {alias: module[name] for alias, name in model.tied.items()}
    frozen = {name: each.to(model.dtype) for name, each in model.frozen.items()}
    states = _model_states(model, ranks, step, module | model.buffers, frozen)
    torch.save(states, tag / "mp_rank_00_model_states.pt")
    for rank in range(ranks):
        partitions = []
        for group in model.groups:
            flat = torch.cat([each.flatten() for each in group.values()])
            length = 2 * ranks * math.ceil(flat.numel() / (2 * ranks))
            padded = torch.cat([flat, torch.zeros(length - flat.numel())])
            partitions.append(padded.chunk(ranks)[rank].clone())
        key = "single_partition_of_fp32_groups"
        _write_optimizer(tag, rank, ranks, ZeroStageEnum.gradients, {key: partitions})


def _tag(folder: Path, step: int) -> Path:
    tag = folder / f"global_step{step}"
    tag.mkdir(parents=True)
    (folder / "latest").write_text(tag.name)
    return tag


def _names(model: Model) -> list[str]:
    return [*model.frozen, *(name for group in model.groups for name in group), *model.tied]


def _parts(tensor: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    length = math.ceil(tensor.numel() / ranks)
    padded = torch.cat([tensor.flatten(), torch.zeros(length * ranks - tensor.numel())])
    return [part.clone() for part in padded.split(length)]


def _model_states(
    model: Model, ranks: int, step: int, module: dict, fragments: dict
) -> dict[str, object]:
    return {
        "module": OrderedDict(module),
        "buffer_names": list(model.buffers),
        "param_shapes": [
            OrderedDict((name, each.shape) for name, each in group.items())
            for group in model.groups
        ],
        "frozen_param_shapes": OrderedDict((name, t.shape) for name, t in model.frozen.items()),
        "frozen_param_fragments": OrderedDict(fragments),
        "shared_params": model.tied,
        "sparse_tensor_module_names": set(),
        "global_steps": step,
        "dp_world_size": ranks,
        "mp_world_size": 1,
        "ds_version": "0.18.4",
    }


def _write_optimizer(tag: Path, rank: int, ranks: int, stage: ZeroStageEnum, held: dict) -> None:
    states = {
        "optimizer_state_dict": {
            **{"zero_stage": stage, "loss_scaler": LossScaler(1.0), "partition_count": ranks},
            **held,
        },
        "ds_version": "0.18.4",
    }
    torch.save(states, tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
