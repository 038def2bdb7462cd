"""What a merged config of axolotl asks for, with the defaults of its schema."""

from collections.abc import Mapping
from typing import Any

from sft.backends.llamafactory_recipe import ADAM, WITHOUT_WARMUP, read_zero
from sft.recipe import Recipe, States

KEPT_BY_TIME = 2  # of the checkpoints that training saves as often as it sees fit
FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
FUSED_LOSSES = ("liger_fused_linear_cross_entropy", "cut_cross_entropy")
BITS = {"load_in_4bit": 4, "load_in_8bit": 8}


def read_recipe(config: Mapping[str, Any]) -> Recipe:
    """The recipe of a merged config that has no faults."""
    # axolotl saves each epoch where a config says nothing (core/builders/base.py).
    strategy = config.get("save_strategy") or ("steps" if config.get("save_steps") else "epoch")
    by_time = strategy == "steps" and not config.get("save_steps")
    attention = config.get("attn_implementation")
    states = _read_states(config)
    return Recipe(
        per_device=config.get("micro_batch_size", 1),
        per_device_key="micro_batch_size",
        accumulation=config.get("gradient_accumulation_steps", 1),
        global_batch_size=config.get("global_batch_size"),
        num_epochs=config.get("num_epochs", 1.0),
        max_steps=config.get("max_steps"),
        warmup=_read_warmup(config),
        warmup_key="warmup_steps" if config.get("warmup_steps") is not None else "warmup_ratio",
        cutoff_len=config["sequence_len"],
        max_samples=config.get("max_samples"),
        packing=bool(config.get("sample_packing")),
        drop_last=bool(config.get("dataloader_drop_last")),
        save_steps=config.get("save_steps") if strategy == "steps" else None,
        save_each_epoch=strategy == "epoch",
        saves_by_time=by_time,
        save_total_limit=config.get("save_total_limit", KEPT_BY_TIME if by_time else None),
        save_only_model=bool(config.get("save_only_model")),
        layout=_read_layout(config),
        saved_weight=2.0 if _half(config) else 4.0,
        states=states,
        recomputes=bool(config.get("gradient_checkpointing")),
        fused_loss=any(config.get(key) for key in FUSED_LOSSES),
        eager_attention=attention == "eager",
        flash_attention=f"attn_implementation: {attention}" if attention in FLASH else None,
    )


def _read_warmup(config: Mapping[str, Any]) -> float:
    """Steps, or a share of them below 1."""
    if config.get("lr_scheduler") in WITHOUT_WARMUP:
        return 0
    steps = config.get("warmup_steps")
    return config["warmup_ratio"] if steps is None else steps


def _read_layout(config: Mapping[str, Any]) -> str:
    if config.get("adapter"):
        return "lora"
    if config.get("deepspeed"):
        zero = read_zero(config["deepspeed"])
        gathered = zero.get("stage3_gather_16bit_weights_on_model_save", False)
        return "safetensors" if zero.get("stage", 0) < 3 or gathered else "zero3"
    fsdp = config.get("fsdp_config") or {}
    kind = fsdp.get("final_state_dict_type") or fsdp.get("state_dict_type")
    return "fsdp" if kind == "SHARDED_STATE_DICT" else "safetensors"


def _half(config: Mapping[str, Any]) -> bool:
    return any(config.get(key) for key in ("bf16", "bfloat16", "fp16", "float16"))


def _read_states(config: Mapping[str, Any]) -> States:
    """Bytes a parameter, as axolotl keeps them.

    It loads the weights in the dtype that it trains in (utils/config, resolve_dtype): wholly in
    bf16 that is 2 + 2 + 4 bytes with Adam, in fp32 4 + 4 + 8. DeepSpeed adds fp32 master weights,
    2 + 2 + 12, as `llamafactory_recipe` says. Of adapters and other optimizers only the weights
    count.
    """
    zero = read_zero(config["deepspeed"]) if config.get("deepspeed") else {}
    weights = 2.0 if _half(config) else 4.0
    gradients, optimizer = weights, 2 * weights
    if zero and weights == 2:
        optimizer = 12.0
    if config.get("adapter") or config.get("optimizer", "adamw_torch_fused") not in ADAM:
        gradients, optimizer = 0.0, None
    if config.get("adapter"):
        bits = next((BITS[key] for key in BITS if config.get(key)), None)
        weights = bits / 8 if bits else weights
    sharded = bool(config.get("fsdp_config"))
    return States(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        zero_stage=3 if sharded else zero.get("stage", 0),
        optimizer_on_cpu="offload_optimizer" in zero,
        weights_on_cpu="offload_param" in zero,
        max_live_parameters=zero.get("stage3_max_live_parameters", 1e9),
    )
