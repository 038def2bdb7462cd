"""Shards of a mixture of experts become the tensors that transformers itself would save."""

import pytest
import torch
import transformers

from tests.trainer.test_consolidation import assert_same, consolidate, load, loading
from tests.trainer.zero_checkpoint import Model, write_stage3

WIDTHS = {
    **{"vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 5},
    **{"moe_intermediate_size": 6, "shared_expert_intermediate_size": 6, "num_experts_per_tok": 2},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 4},
    **{"linear_value_head_dim": 4, "layer_types": ["linear_attention", "full_attention"]},
}
CLASSES = ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM", "OlmoeForCausalLM")


def make_model(name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(2)
    model_class = getattr(transformers, name)
    kept = WIDTHS if "Next" in name else {k: v for k, v in WIDTHS.items() if k != "layer_types"}
    config = model_class.config_class(**kept)
    return model_class(config).to(torch.bfloat16)


@pytest.mark.parametrize("name", CLASSES)
def test_experts_are_saved_one_by_one(name, tmp_path):
    model = make_model(name)
    model.save_pretrained(tmp_path / "saved")
    trained = {key: each.detach().float() for key, each in model.named_parameters()}
    write_stage3(tmp_path / "shards", Model([trained]), ranks=3, sub_group=1000)
    model.config.save_pretrained(tmp_path / "shards")

    consolidate(tmp_path / "shards", tmp_path / "out")

    assert any(".experts.4.down_proj.weight" in key for key in load(tmp_path / "out"))
    assert_same(load(tmp_path / "out"), load(tmp_path / "saved"))
    assert not any(loading(tmp_path / "out").values())
