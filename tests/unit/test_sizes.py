"""The size of a model from its public config values, and from its weights."""

import json
import struct
from pathlib import Path

import pytest

from sft.sizes import count_by_config, read_size

QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
QWEN3_32B = QWEN3_8B | {
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "intermediate_size": 25600,
}
QWEN3_06B = QWEN3_8B | {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "intermediate_size": 3072,
    "tie_word_embeddings": True,
}
QWEN3_30B_A3B = QWEN3_8B | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}
QWEN2_5_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}
LLAMA3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
SMOLLM2_135M = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (QWEN3_8B, 8_190_735_360),
        (QWEN3_32B, 32_762_123_264),
        (QWEN3_06B, 596_049_920),
        (QWEN3_30B_A3B, 30_532_122_624),
        (QWEN2_5_7B, 7_615_616_512),
        (LLAMA3_8B, 8_030_261_248),
        (SMOLLM2_135M, 134_515_008),
    ],
    ids=["8B", "32B", "0.6B", "30B-A3B", "qwen2.5 7B", "llama3 8B", "135M"],
)
def test_parameters_by_config_are_the_published_ones(config, parameters):
    assert count_by_config(config) == parameters


def write_model(folder: Path, config: dict, shape: list[int] | None = None) -> Path:
    """A folder with a config.json, and one tensor of that shape."""
    (folder / "config.json").write_text(json.dumps(config))
    if shape:
        size = 2 * shape[0] * shape[1]
        tensor = {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}
        header = json.dumps({"model.embed_tokens.weight": tensor}).encode()
        data = struct.pack("<Q", len(header)) + header + bytes(size)
        (folder / "model.safetensors").write_bytes(data)
    return folder


def test_parameters_of_weights_that_are_there_are_counted(tmp_path):
    size = read_size(write_model(tmp_path, SMOLLM2_135M, [100, 3]))

    assert (size.parameters, size.layers, size.vocabulary) == (300, 30, 49152)


def test_parameters_without_weights_follow_from_the_config(tmp_path):
    assert read_size(write_model(tmp_path, SMOLLM2_135M)).parameters == 134_515_008


def test_token_visits_a_few_experts_only(tmp_path):
    size = read_size(write_model(tmp_path, QWEN3_30B_A3B))

    assert size.active == pytest.approx(3.35e9, rel=0.01)
    assert size.inner == 8 * 768


def test_text_part_of_a_larger_config_counts(tmp_path):
    nested = {"model_type": "qwen3_5", "text_config": SMOLLM2_135M}

    assert read_size(write_model(tmp_path, nested)).hidden == 576


@pytest.mark.parametrize("content", ["{}", "", "not JSON", "[]", '{"hidden_size": 8}'])
def test_size_is_unknown_where_the_config_does_not_tell(tmp_path, content):
    (tmp_path / "config.json").write_text(content)

    assert read_size(tmp_path) is None


def test_size_is_unknown_without_a_config(tmp_path):
    assert read_size(tmp_path) is None


@pytest.mark.parametrize(
    ("config", "looked_up"),
    [(LLAMA3_8B, 525_336_576), (QWEN3_06B, 0), ({"text_config": LLAMA3_8B}, 525_336_576)],
    ids=["untied", "tied", "nested"],
)
def test_embedding_that_is_not_the_head_is_looked_up(tmp_path, config, looked_up):
    assert read_size(write_model(tmp_path, config)).looked_up == looked_up


@pytest.mark.parametrize(
    "kinds",
    [
        {"layer_types": [*["linear_attention"] * 3, "full_attention"] * 9},
        {"full_attention_interval": 4},
    ],
    ids=["listed", "by interval"],
)
def test_layers_of_linear_attention_are_counted(tmp_path, kinds):
    assert read_size(write_model(tmp_path, QWEN3_8B | kinds)).linear == 27
