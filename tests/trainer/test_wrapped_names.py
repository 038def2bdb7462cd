"""Weights under the names that activation checkpointing gives, made loadable by their release."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from sft.tensor_names import copy_with_plain_names

CONFIG = LlamaConfig(
    **{"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 1},
)


def test_model_with_wrapped_names_loads_and_answers_as_trained(tmp_path: Path):
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    ids = torch.arange(8).unsqueeze(0)
    expected = model(ids).logits
    apply_activation_checkpointing(
        model, check_fn=lambda module: isinstance(module, LlamaDecoderLayer)
    )
    wrapped = {name: value.detach() for name, value in model.named_parameters()}
    assert any("._checkpoint_wrapped_module." in name for name in wrapped)
    save_file(wrapped, tmp_path / "wrapped", metadata={"format": "pt"})
    CONFIG.save_pretrained(tmp_path)

    copy_with_plain_names(tmp_path / "wrapped", tmp_path / "model.safetensors")

    loaded, found = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(found.values()), found
    assert torch.equal(loaded(ids).logits, expected)
