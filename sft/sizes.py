"""The size of a model: its parameters, and the shape that its activations follow from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sft.errors import SftError
from sft.files import read_json
from sft.weights import count_parameters


@dataclass(frozen=True)
class Size:
    """A decoder: parameters in all and `active` ones of a token, and the widths of its layers.

    `query` and `key_value` are heads × head width; `inner` is the width of the MLP, of all experts
    that a token visits where there are several. `looked_up` parameters, an input embedding that is
    not the head too, multiply nothing; `linear` layers attend at a cost that does not grow with the
    sequence.
    """

    parameters: int
    active: int
    layers: int
    hidden: int
    heads: int
    query: int
    key_value: int
    inner: int
    vocabulary: int
    looked_up: int = 0
    linear: int = 0


def read_size(folder: Path) -> Size | None:
    """The size of the model in `folder`; None where its config.json does not tell.

    Parameters are counted in the weights' headers, or by `count_by_config` where there are none.
    """
    try:
        config = read_json(folder / "config.json")
        widths = _read_widths(config.get("text_config", config))
    except (SftError, KeyError, TypeError, AttributeError):  # not the config of a decoder
        return None
    try:
        parameters = count_parameters(folder)
    except SftError:
        parameters = count_by_config(config.get("text_config", config))
    idle = _idle_parameters(config.get("text_config", config))
    looked_up = 0 if is_tied(config) else widths["vocabulary"] * widths["hidden"]
    linear = _linear_layers(config.get("text_config", config))
    more = {"active": parameters - idle, "looked_up": looked_up, "linear": linear}
    return Size(parameters=parameters, **more, **widths)


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether a config.json makes the input embedding the head too; transformers' default."""
    said = {"tie_word_embeddings": True} | config | config.get("text_config", {})
    return bool(said["tie_word_embeddings"])


def _read_widths(config: Mapping[str, Any]) -> dict[str, int]:
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads": heads,
        "query": heads * width,
        "key_value": (config.get("num_key_value_heads") or heads) * width,
        "inner": _active_width(config),
        "vocabulary": config["vocab_size"],
    }


def _linear_layers(config: Mapping[str, Any]) -> int:
    """The layers of linear attention of a hybrid (qwen3_next, qwen3_5 in transformers)."""
    if kinds := config.get("layer_types"):
        return kinds.count("linear_attention")
    interval = config.get("full_attention_interval")
    layers = config["num_hidden_layers"]
    return layers - layers // interval if interval else 0


def _experts(config: Mapping[str, Any]) -> int:
    return config.get("num_experts") or config.get("num_local_experts") or 0


def _expert_width(config: Mapping[str, Any]) -> int:
    return config.get("moe_intermediate_size") or config["intermediate_size"]


def _active_width(config: Mapping[str, Any]) -> int:
    if not _experts(config):
        return config["intermediate_size"]
    return config["num_experts_per_tok"] * _expert_width(config)


def _idle_parameters(config: Mapping[str, Any]) -> int:
    """The parameters of experts that a token does not visit."""
    if not _experts(config):
        return 0
    idle = _experts(config) - config["num_experts_per_tok"]
    return 3 * config["num_hidden_layers"] * idle * config["hidden_size"] * _expert_width(config)


def count_by_config(config: Mapping[str, Any]) -> int:
    """The parameters of a decoder of the Llama and Qwen families, from its config.json.

    Embedding V·h, once more for an untied head; a layer has q and o (2·h·query), k and v
    (2·h·key_value), an MLP of three matrices (3·h·inner, for each expert, with a router), two
    norms; Qwen2 adds biases to q, k, v and Qwen3 norms to the heads of q and k. From their modules
    in transformers (models/llama, qwen2, qwen3, qwen3_moe).
    """
    widths = _read_widths(config)
    hidden, query, key_value = widths["hidden"], widths["query"], widths["key_value"]
    experts, family = _experts(config), config.get("model_type", "")
    layer = 2 * hidden * query + 2 * hidden * key_value + 2 * hidden
    layer += 3 * hidden * _expert_width(config) * max(1, experts) + hidden * experts
    if family.startswith("qwen2"):
        layer += query + 2 * key_value
    if family.startswith("qwen3"):
        layer += 2 * query // widths["heads"]
    if config.get("attention_bias"):
        layer += query + 2 * key_value + hidden
    heads = 1 if is_tied(config) else 2
    return heads * widths["vocabulary"] * hidden + widths["layers"] * layer + hidden
