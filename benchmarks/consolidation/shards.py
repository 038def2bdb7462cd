"""Shards of ZeRO-3 with random numbers, as a training of eight ranks leaves them.

python -m benchmarks.consolidation.shards FOLDER SIZE
"""

import math
import sys
from collections import OrderedDict
from pathlib import Path

import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

RANKS = 8
WORDS = 151_936
# Layers, hidden size and width of the MLP, by billions of parameters.
SHAPES = {"0.3": (12, 896, 4864), "0.6": (28, 1024, 3072), "1.2": (24, 1536, 6144)}


def shapes_of(size: str) -> tuple[dict[str, tuple], dict[str, tuple]]:
    """The matrices and the norms of a decoder with a tied head."""
    layers, hidden, inner = SHAPES[size]
    matrices: dict[str, tuple] = {"model.embed_tokens.weight": (WORDS, hidden)}
    norms: dict[str, tuple] = {"model.norm.weight": (hidden,)}
    for layer in range(layers):
        start = f"model.layers.{layer}"
        for name, shape in {
            **{"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden // 2, hidden)},
            **{"self_attn.v_proj": (hidden // 2, hidden), "self_attn.o_proj": (hidden, hidden)},
            **{"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)},
            **{"mlp.down_proj": (hidden, inner)},
        }.items():
            matrices[f"{start}.{name}.weight"] = shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            norms[f"{start}.{name}.weight"] = (hidden,)
    return matrices, norms


def write_checkpoint(folder: Path, size: str) -> int:
    """Write the shards of a model; the number of its parameters."""
    groups = shapes_of(size)
    names = {name: shape for group in groups for name, shape in group.items()}
    tag = folder / "global_step10"
    tag.mkdir(parents=True)
    (folder / "latest").write_text(tag.name)
    (folder / "config.json").write_text('{"tie_word_embeddings": true, "dtype": "bfloat16"}')
    module = {name: torch.empty(0, dtype=torch.bfloat16) for name in [*names, "lm_head.weight"]}
    for rank in range(RANKS):
        states = {
            **{"module": OrderedDict(module), "buffer_names": [], "frozen_param_shapes": None},
            **{"param_shapes": [_sizes(group) for group in groups], "global_steps": 10},
            **{"shared_params": {"lm_head.weight": "model.embed_tokens.weight"}},
            **{"frozen_param_fragments": None, "dp_world_size": RANKS, "ds_version": "0.18.4"},
        }
        torch.save(states, tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        made = torch.Generator().manual_seed(rank)
        parts = [sum(math.ceil(math.prod(s) / RANKS) for s in g.values()) for g in groups]
        flats = [torch.empty(part).normal_(0, 0.02, generator=made) for part in parts]
        moments = {
            number: {"step": torch.tensor(10.0), "exp_avg": flat * 0, "exp_avg_sq": flat * 0}
            for number, flat in enumerate(flats)
        }
        optimizer = {
            **{"zero_stage": ZeroStageEnum.weights, "loss_scaler": LossScaler(1.0)},
            **{"partition_count": RANKS, "fp32_flat_groups": flats},
            "optimizer_state_dict": {"state": moments},
        }
        path = tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": optimizer, "ds_version": "0.18.4"}, path)
    return sum(map(math.prod, names.values()))


def _sizes(group: dict[str, tuple]) -> OrderedDict:
    return OrderedDict((name, torch.Size(shape)) for name, shape in group.items())


if __name__ == "__main__":
    print(write_checkpoint(Path(sys.argv[1]), sys.argv[2]))
