"""What a merged config of LLaMA-Factory asks for, with the defaults of its parser."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sft.files import read_json
from sft.recipe import Recipe, States

DEEPSPEED_FOLDER = Path(__file__).parent.parent / "deepspeed"
# transformers' schedules that take no warm-up (optimization.py, get_scheduler).
WITHOUT_WARMUP = ("constant", "reduce_lr_on_plateau")
ADAM = ("adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adamw_anyprecision")
# Options of LLaMA-Factory with an optimizer of their own, whatever `optim` says.
OTHER_OPTIMIZERS = ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon")
# Losses of its own that need the logits, liger or not.
KEPT_BY_TIME = 2  # of the checkpoints that training saves as often as it sees fit
OTHER_LOSSES = ("use_dft_loss", "use_eaft_loss", "use_asft_loss")


def read_recipe(config: Mapping[str, Any]) -> Recipe:
    """The recipe of a merged config that has no faults."""
    strategy = config.get("save_strategy", "steps")
    by_time = strategy == "steps" and "save_steps" not in config
    max_steps = config.get("max_steps", -1)
    states = _read_states(config)
    return Recipe(
        per_device=config.get("per_device_train_batch_size", 1),
        per_device_key="per_device_train_batch_size",
        accumulation=config.get("gradient_accumulation_steps", 1),
        global_batch_size=config.get("global_batch_size"),
        num_epochs=config.get("num_train_epochs", 3.0),
        max_steps=max_steps if max_steps > 0 else None,
        warmup=_read_warmup(config),
        warmup_key="warmup_ratio" if config.get("warmup_ratio") is not None else "warmup_steps",
        cutoff_len=config["cutoff_len"],
        max_samples=config.get("max_samples"),
        packing=bool(config.get("packing") or config.get("neat_packing")),
        drop_last=config.get("dataloader_drop_last", False),
        save_steps=config.get("save_steps") if strategy == "steps" else None,
        save_each_epoch=strategy == "epoch",
        saves_by_time=by_time,
        save_total_limit=config.get("save_total_limit", KEPT_BY_TIME if by_time else None),
        save_only_model=config.get("save_only_model", False),
        layout=_read_layout(config),
        saved_weight=2.0 if config.get("deepspeed") else states.weights,
        states=states,
        recomputes=not config.get("disable_gradient_checkpointing", False),
        fused_loss=_fuses_loss(config),
        eager_attention=config.get("flash_attn") == "disabled",
        flash_attention="flash_attn: fa2" if config.get("flash_attn") == "fa2" else None,
    )


def _read_warmup(config: Mapping[str, Any]) -> float:
    if config.get("lr_scheduler_type", "linear") in WITHOUT_WARMUP:
        return 0
    share = config.get("warmup_ratio")
    return config.get("warmup_steps", 0) if share is None else share


def _fuses_loss(config: Mapping[str, Any]) -> bool:
    liger = config.get("enable_liger_kernel") or config.get("use_liger_kernel")
    return bool(liger) and not any(config.get(key) for key in OTHER_LOSSES)


def _read_layout(config: Mapping[str, Any]) -> str:
    if config["finetuning_type"] in ("lora", "oft"):
        return "lora"
    if config.get("deepspeed"):
        zero = read_zero(config["deepspeed"])
        gathered = zero.get("stage3_gather_16bit_weights_on_model_save", False)
        return "safetensors" if zero.get("stage", 0) < 3 or gathered else "zero3"
    return "fsdp" if config.get("fsdp") else "safetensors"


@cache
def read_zero(name: str) -> Mapping[str, Any]:
    """The `zero_optimization` of a shipped DeepSpeed config."""
    return read_json(DEEPSPEED_FOLDER / name)["zero_optimization"]


def _read_states(config: Mapping[str, Any]) -> States:
    """Bytes a parameter, as the trainer keeps them.

    Under DeepSpeed weights and gradients are bf16 and the optimizer holds fp32 master weights with
    two moments of Adam: 2 + 2 + 12 (ZeRO, arXiv 1910.02054, section 3.1; gradients in the dtype of
    the model: DeepSpeed's engine, get_data_types). Without it LLaMA-Factory trains in fp32 under
    autocast, 4 + 4 + 8, or wholly in bf16 with `pure_bf16`, 2 + 2 + 4 (model/adapter.py,
    init_adapter). Adapters, frozen layers and optimizers other than Adam keep less: of them only
    the weights are counted.
    """
    zero = read_zero(config["deepspeed"]) if config.get("deepspeed") else {}
    half = 2.0 if config.get("bf16") or config.get("fp16") else 4.0
    if config["finetuning_type"] != "full":
        bits = config.get("quantization_bit")
        weights, gradients, optimizer = bits / 8 if bits else half, 0.0, None
    elif zero:
        weights, gradients, optimizer = half, half, 12.0 if half == 2 else 8.0
    elif config.get("pure_bf16"):
        weights, gradients, optimizer = 2.0, 2.0, 4.0
    else:
        weights, gradients, optimizer = 4.0, 4.0, 8.0
    if not _is_adam(config):
        gradients, optimizer = 0.0, None
    sharded_by_fsdp = "full_shard" in str(config.get("fsdp", ""))
    return States(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        zero_stage=3 if sharded_by_fsdp else zero.get("stage", 0),
        optimizer_on_cpu="offload_optimizer" in zero,
        weights_on_cpu="offload_param" in zero,
        max_live_parameters=zero.get("stage3_max_live_parameters", 1e9),
    )


def _is_adam(config: Mapping[str, Any]) -> bool:
    named = config.get("optim", "adamw_torch_fused") in ADAM
    return named and not any(config.get(key) for key in OTHER_OPTIMIZERS)
