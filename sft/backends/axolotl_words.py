"""The words of the table for axolotl: what a column that LLaMA-Factory knows means there.

A row that changes its backend keeps its columns. Each key of LLaMA-Factory has a counterpart here,
or is refused with a reason: nothing is dropped.
"""

from collections.abc import Callable, Mapping
from typing import Any

Translate = Callable[[Any], Mapping[str, Any]]


def _named(key: str) -> Translate:
    return lambda value: {key: value}


def _listed(values: Mapping[Any, Mapping[str, Any]]) -> Translate:
    """Some values have a counterpart; a KeyError says that another has none."""
    return lambda value: values[value]


def _warmup(value: float) -> Mapping[str, Any]:
    return {"warmup_ratio": value} if 0 < value < 1 else {"warmup_steps": int(value)}


def _lora_target(value: str) -> Mapping[str, Any]:
    if value == "all":
        return {"lora_target_linear": True}
    return {"lora_target_modules": [each.strip() for each in value.split(",")]}


ATTENTION = {
    "fa2": {"attn_implementation": "flash_attention_2"},
    "fa3": {"attn_implementation": "flash_attention_3"},
    "sdpa": {"attn_implementation": "sdpa"},
    "disabled": {"attn_implementation": "eager"},
}
# The kernels that LLaMA-Factory's enable_liger_kernel takes (model/model_utils/liger_kernel.py).
LIGER = {
    "liger_rope": True,
    "liger_rms_norm": True,
    "liger_glu_activation": True,
    "liger_fused_linear_cross_entropy": True,
}

WORDS: Mapping[str, Translate] = {
    "stage": _listed({"sft": {}}),
    "finetuning_type": _listed({"full": {"adapter": None}, "lora": {"adapter": "lora"}}),
    "cutoff_len": _named("sequence_len"),
    "num_train_epochs": _named("num_epochs"),
    "per_device_train_batch_size": _named("micro_batch_size"),
    "lr_scheduler_type": _named("lr_scheduler"),
    "optim": _named("optimizer"),
    "warmup_steps": _warmup,
    "packing": _named("sample_packing"),
    "train_on_prompt": _named("train_on_inputs"),
    "preprocessing_num_workers": _named("dataset_num_proc"),
    "flash_attn": _listed(ATTENTION),
    "disable_gradient_checkpointing": lambda value: {"gradient_checkpointing": not value},
    "enable_liger_kernel": lambda value: dict.fromkeys(LIGER, value),
    # axolotl loads the weights in bf16 wherever it trains in bf16.
    "pure_bf16": _listed({True: {"bf16": True}, False: {}}),
    "lora_rank": _named("lora_r"),
    "lora_target": _lora_target,
}

_NO_SUCH = "axolotl has nothing like it"
# Why a word has no counterpart, where more can be said than that.
REASONS: Mapping[str, str] = {
    "neat_packing": "axolotl keeps packed examples apart by itself: packing says it all",
    "mask_history": "axolotl trains every answer",
    "enable_thinking": "axolotl's templates are jinja files and add no think block of their own",
    "preserve_thinking": "the jinja file decides which reasoning stays",
    "plot_loss": "the report draws the losses of each run",
    "tool_format": "the jinja file decides it",
    "default_system": "the jinja file decides it",
    "dataloader_persistent_workers": "axolotl always starts its workers anew",
    "data_shared_file_system": "tokens are made once and only read",
}


def reason(word: str) -> str:
    """Why axolotl has no counterpart of a word."""
    return REASONS.get(word, _NO_SUCH)
