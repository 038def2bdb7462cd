"""Whether packed examples are kept apart: how axolotl decides it, and what a model computes."""

import pytest
import torch
from axolotl.utils.config import validate_config
from axolotl.utils.dict import DictDefault
from axolotl.utils.schemas.enums import CANONICAL_ATTN_IMPLS
from transformers import LlamaConfig, LlamaForCausalLM

GPU = {"bf16": True, "tf32": True, "fp8": True, "n_gpu": 1, "compute_capability": "sm_90"}
CONFIG = {
    **{"base_model": "/models/m", "datasets": [{"path": "/tokens/t", "type": None}]},
    **{"micro_batch_size": 1, "gradient_accumulation_steps": 2, "num_epochs": 1, "bf16": True},
    **{"learning_rate": 1e-4, "sequence_len": 16, "val_set_size": 0, "warmup_steps": 0},
    **{"sample_packing": True, "skip_prepare_dataset": True},
}
MIXING = {None, "fp8"}  # the second is refused, and the first is never rendered
REFUSED = {"flash_attention_torch"}  # by axolotl itself: transformers has no such kernel yet


@pytest.mark.parametrize("attention", [None, *sorted(CANONICAL_ATTN_IMPLS - REFUSED)])
def test_axolotl_keeps_packed_examples_apart_unless_refused_here(attention):
    config = DictDefault({**CONFIG, "attn_implementation": attention})
    read = validate_config(config, capabilities=GPU, env_capabilities={"torch_version": "2.13.0"})

    assert read.attn_decontaminates_packing == (attention not in MIXING)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_packed_example_is_computed_as_if_alone_once_the_mask_is_dropped(attention, is_masked):
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=64, num_hidden_layers=2, num_key_value_heads=2, **size)
    model = LlamaForCausalLM._from_config(config, attn_implementation=attention)
    first, second = torch.randint(0, 64, (1, 7)), torch.randint(0, 64, (1, 9))
    pack = torch.cat([first, second], dim=1)
    positions = torch.cat([torch.arange(7), torch.arange(9)])[None]
    mask = torch.ones_like(pack) if is_masked else None

    packed = model(pack, position_ids=positions, attention_mask=mask, use_cache=False).logits
    alone = model(second, use_cache=False).logits

    assert torch.allclose(packed[:, 7:], alone, atol=1e-5) != is_masked
