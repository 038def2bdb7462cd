"""Mixtures of experts: one tensor of all experts in memory, one of each in a model's files."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sft.consolidation.scattered import Scattered, cut

# The families that transformers 5 saves by the rule of qwen2_moe (its conversion_mapping.py):
# gate_up_proj holds gate and up of each expert in a row, of shape (experts, 2 × inner, hidden).
FAMILIES = ("qwen2_moe", "qwen3_moe", "qwen3_next", "olmoe")
FUSED = {
    "mlp.experts.gate_up_proj": ("gate_proj", "up_proj"),
    "mlp.experts.down_proj": ("down_proj",),
}


def split_experts(
    tensors: Mapping[str, Scattered], config: Mapping[str, Any]
) -> dict[str, Scattered]:
    """The tensors by the names that files have; those of other families as they are."""
    if config.get("text_config", config).get("model_type") not in FAMILIES:
        return dict(tensors)
    return {new: each for name, tensor in tensors.items() for new, each in _split(name, tensor)}


def _split(name: str, tensor: Scattered) -> Iterator[tuple[str, Scattered]]:
    parts = next((FUSED[end] for end in FUSED if name.endswith(end)), None)
    if not parts:
        yield name, tensor
        return
    experts, height, width = tensor.shape
    shape = (height // len(parts), width)
    start = name.rpartition(".")[0]
    for expert in range(experts):
        for number, part in enumerate(parts):
            first = (expert * len(parts) + number) * math.prod(shape)
            pieces = cut(tensor.pieces, first, math.prod(shape))
            yield f"{start}.{expert}.{part}.weight", replace(tensor, shape=shape, pieces=pieces)
