"""The words of the table for axolotl: what a column that LLaMA-Factory knows means there.

A row that changes its backend keeps its columns. Each key of LLaMA-Factory has a counterpart here,
or is refused with a reason: nothing is dropped.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sft.errors import nearest

Translate = Callable[[Any], Mapping[str, Any]]


def _named(key: str) -> Translate:
    return lambda value: {key: value}


def _listed(values: Mapping[Any, Mapping[str, Any]]) -> Translate:
    """Some values have a counterpart; a KeyError says that another has none."""
    return lambda value: values[value]


def _warmup(value: float) -> Mapping[str, Any]:
    return {"warmup_ratio": value} if 0 < value < 1 else {"warmup_steps": int(value)}


def _lora_target(value: str) -> Mapping[str, Any]:
    # axolotl takes what both name, and a base config may hold the other one.
    if value == "all":
        return {"lora_target_linear": True, "lora_target_modules": None}
    return {"lora_target_linear": None, "lora_target_modules": _split(value)}


def _split(value: str) -> list[str]:
    return [each.strip() for each in value.split(",")]


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
    "max_steps": lambda value: {"max_steps": None if value < 0 else value},
    "packing": _named("sample_packing"),
    "train_on_prompt": _named("train_on_inputs"),
    "preprocessing_num_workers": _named("dataset_num_proc"),
    "flash_attn": _listed({"auto": {"attn_implementation": None}, **ATTENTION}),
    "disable_gradient_checkpointing": lambda value: {"gradient_checkpointing": not value},
    "enable_liger_kernel": lambda value: dict.fromkeys(LIGER, value),
    # Another name of bf16 for axolotl, and here the word for bf16 alone.
    "pure_bf16": _listed({True: {"bfloat16": True, "bf16": None}, False: {}}),
    "lora_rank": _named("lora_r"),
    "lora_target": _lora_target,
    "additional_target": lambda value: {"lora_modules_to_save": value and _split(value)},
    "use_dora": _named("peft_use_dora"),
    "use_rslora": _named("peft_use_rslora"),
    "use_reentrant_gc": lambda value: {"gradient_checkpointing_kwargs": {"use_reentrant": value}},
    "use_eaft_loss": _named("use_eaft"),
    "use_fast_tokenizer": _named("tokenizer_use_fast"),
}

# Keys of both with one meaning. A name that they share by chance is none of these.
SHARED = (
    *("learning_rate", "weight_decay", "max_grad_norm", "neftune_noise_alpha", "warmup_ratio"),
    *("adam_beta1", "adam_beta2", "adam_epsilon", "optim_args", "optim_target_modules"),
    *("lr_scheduler_kwargs", "seed", "bf16", "fp16", "tf32", "fp8", "eaft_alpha"),
    *("fp8_enable_fsdp_float8_all_gather", "gradient_accumulation_steps", "deepspeed"),
    *("fsdp_config", "accelerator_config", "gradient_checkpointing"),
    *("gradient_checkpointing_kwargs", "low_cpu_mem_usage", "torch_empty_cache_steps"),
    *("torch_compile", "torch_compile_backend", "torch_compile_mode", "remove_unused_columns"),
    *("ddp_timeout", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_find_unused_parameters"),
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor"),
    *("dataloader_drop_last", "save_strategy", "save_steps", "save_total_limit"),
    *("save_only_model", "logging_steps", "lora_alpha", "lora_dropout", "loraplus_lr_ratio"),
    *("loraplus_lr_embedding", "template", "max_samples", "environment", "accept"),
    *("global_batch_size", "tokens_per_second_per_gpu"),
)

_OWN_KEYS = "say it in axolotl's own keys: "
_IN_TOKENIZER = "prepare the model's tokenizer before"
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
    "preprocessing_batch_size": "preprocessing_num_workers says how fast tokens are made",
    "use_liger_kernel": "enable_liger_kernel says it",
    "quantization_bit": _OWN_KEYS + "adapter: qlora with load_in_4bit, or load_in_8bit",
    "quantization_method": _OWN_KEYS + "adapter: qlora with load_in_4bit, or load_in_8bit",
    **dict.fromkeys(
        ("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"),
        _OWN_KEYS + "unfrozen_parameters",
    ),
    "use_muon": "optimizer: muon says it",
    "train_sampling_strategy": _OWN_KEYS + "group_by_length",
    "include_num_input_tokens_seen": _OWN_KEYS + "include_tokens_per_second",
    "ignore_pad_token_for_loss": "axolotl never trains padding",
    **dict.fromkeys(("add_tokens", "add_special_tokens", "resize_vocab"), _IN_TOKENIZER),
    **dict.fromkeys(("new_special_tokens_config", "init_special_tokens"), _IN_TOKENIZER),
}


def reason(word: str, own_keys: Iterable[str]) -> str:
    """Why axolotl has no counterpart of a word, or which of its keys has the nearest name."""
    return REASONS.get(word) or f"of its own keys, {nearest(word, own_keys)}"
