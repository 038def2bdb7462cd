"""axolotl: its base configs, what it reads, and how it is called."""

import shlex
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import Any

from sft.backends import axolotl_recipe, axolotl_words, keys, llamafactory
from sft.backends.llamafactory import DEEPSPEED_FOLDER, TrainPaths
from sft.experiment import Experiment
from sft.files import hash_file, read_json, read_yaml
from sft.recipe import Batch
from sft.site import Site
from sft.templates import CUSTOM_TEMPLATES, template_path

PACKAGE = Path(__file__).parent.parent
CONFIG_FOLDER = PACKAGE / "axolotl_configs"
MODULE = "sft.trainers.axolotl"
PLUGIN = "sft.trainers.axolotl_plugin.Plugin"
READS_CONVERSATIONS = True

__all__ = ["DEEPSPEED_FOLDER", "TrainPaths"]

LAUNCHER_KEYS = {
    **llamafactory.LAUNCHER_KEYS,
    "template": {"type": "str"},
    "max_samples": {"type": "int", "null": True},
}

NEEDED_KEYS = ("environment", "template", "sequence_len", "learning_rate", "micro_batch_size")

_FROM_MIX = "it comes from the mix that the row names, for each of its sources"
_FROM_SITE = "it is a fact of the site and comes from its profile"
_FROM_WORKFLOW = "the workflow sets it"
_FROM_TEMPLATE = "the template decides it: name one under `template`"
_NO_UPLOAD = "training never uploads; a stage of its own does"
_NO_EVALUATION = "pretokenized sets hold training rows only"
_SECRET = "a secret stands in no file; it comes from the environment"
_SFT_ONLY = "only supervised fine-tuning is trained here"
_NOT_COUNTED = "the batch of a run would no longer be the one that is planned"
_TOKENS_ONCE = "tokens are made once, before training"
_NOT_READ = "axolotl reads it no more"
_OTHER_COMMAND = "another command of axolotl reads it, not its training"
OWNED_KEYS = {
    **dict.fromkeys(("base_model", "base_model_config"), "the row's column `model` says it"),
    "revision_of_model": "`revision` in the models file says it",
    "trust_remote_code": "the row's column `trust_remote_code` says it",
    **dict.fromkeys(("datasets", "pretraining_dataset", "test_datasets"), _FROM_MIX),
    **dict.fromkeys(("shuffle_merged_datasets", "shuffle_before_merging_datasets"), _FROM_MIX),
    **dict.fromkeys(("streaming", "streaming_multipack_buffer_size"), _TOKENS_ONCE),
    **dict.fromkeys(("dataset_prepared_path", "skip_prepare_dataset"), _TOKENS_ONCE),
    **dict.fromkeys(("dataset_exact_deduplication", "is_preprocess"), _TOKENS_ONCE),
    **dict.fromkeys(("chat_template", "chat_template_jinja", "eot_tokens"), _FROM_TEMPLATE),
    **dict.fromkeys(("special_tokens", "default_system_message"), _FROM_TEMPLATE),
    **dict.fromkeys(("tokens", "added_tokens_overrides"), "prepare the model's tokenizer before"),
    **dict.fromkeys(("tokenizer_config", "tokenizer_save_jinja_files"), _FROM_WORKFLOW),
    **dict.fromkeys(("output_dir", "local_rank", "world_size", "device"), _FROM_WORKFLOW),
    **dict.fromkeys(("device_map", "axolotl_config_path", "strict"), _FROM_WORKFLOW),
    **dict.fromkeys(("resume_from_checkpoint", "auto_resume_from_checkpoints"), _FROM_WORKFLOW),
    "dataset_processes": "its name is dataset_num_proc",
    "batch_size": "global_batch_size says it",
    "saves_per_epoch": "say save_steps, or save_strategy: epoch",
    "auto_find_batch_size": "the batch of a run never changes by itself",
    **dict.fromkeys(("context_parallel_size", "sequence_parallel_degree"), _NOT_COUNTED),
    **dict.fromkeys(("tensor_parallel_size", "expert_parallel_size"), _NOT_COUNTED),
    **dict.fromkeys(("dp_shard_size", "dp_replicate_size"), _NOT_COUNTED),
    **dict.fromkeys(("use_wandb", "wandb_mode", "wandb_name", "wandb_project"), _FROM_SITE),
    **dict.fromkeys(("use_mlflow", "use_comet", "use_tensorboard", "use_trackio"), _FROM_SITE),
    **dict.fromkeys(("use_ray", "ray_num_workers", "use_otel_metrics"), _FROM_SITE),
    **dict.fromkeys(("hub_model_id", "hub_strategy", "hub_revision"), _NO_UPLOAD),
    **dict.fromkeys(("push_dataset_to_hub", "wandb_log_model"), _NO_UPLOAD),
    **dict.fromkeys(("comet_api_key", "hf_use_auth_token"), _SECRET),
    **dict.fromkeys(("rl", "trl", "reward_model", "process_reward_model"), _SFT_ONLY),
    **dict.fromkeys(("val_set_size", "eval_strategy", "eval_steps"), _NO_EVALUATION),
    **dict.fromkeys(("evals_per_epoch", "load_best_model_at_end"), _NO_EVALUATION),
    **dict.fromkeys(("early_stopping_patience", "do_causal_lm_eval"), _NO_EVALUATION),
    **dict.fromkeys(("do_bench_eval", "generate_samples"), _NO_EVALUATION),
    # What axolotl takes and then makes no use of in a training like ours.
    **dict.fromkeys(("rl_beta", "ebft", "precompute_ref_log_probs", "num_labels"), _SFT_ONLY),
    **dict.fromkeys(("dpo_beta", "dpo_loss_type", "dpo_loss_weights"), _SFT_ONLY),
    **dict.fromkeys(("dpo_use_weighting", "dpo_use_liger_kernel"), _SFT_ONLY),
    **dict.fromkeys(("dpo_padding_free", "dpo_label_smoothing"), _SFT_ONLY),
    **dict.fromkeys(("dpo_use_logits_to_keep", "dpo_generate_during_eval"), _SFT_ONLY),
    **dict.fromkeys(("dpo_norm_loss", "rpo_alpha", "orpo_alpha", "cpo_alpha"), _SFT_ONLY),
    **dict.fromkeys(("kto_desirable_weight", "kto_undesirable_weight"), _SFT_ONLY),
    **dict.fromkeys(("simpo_gamma", "center_rewards_coefficient"), _SFT_ONLY),
    **dict.fromkeys(("max_prompt_len", "vllm"), _SFT_ONLY),
    **dict.fromkeys(("eval_batch_size", "eval_causal_lm_metrics"), _NO_EVALUATION),
    **dict.fromkeys(("eval_max_new_tokens", "eval_sample_packing"), _NO_EVALUATION),
    **dict.fromkeys(("eval_sequence_len", "eval_table_size"), _NO_EVALUATION),
    **dict.fromkeys(("evaluation_strategy", "bench_dataset", "bench_split"), _NO_EVALUATION),
    **dict.fromkeys(("metric_for_best_model", "greater_is_better"), _NO_EVALUATION),
    **dict.fromkeys(("num_generation_samples", "generation_max_new_tokens"), _NO_EVALUATION),
    **dict.fromkeys(("generation_temperature", "generation_top_p"), _NO_EVALUATION),
    **dict.fromkeys(("generation_top_k", "generation_do_sample"), _NO_EVALUATION),
    "generation_prompt_ratio": _NO_EVALUATION,
    **dict.fromkeys(("dataset_keep_in_memory", "preprocess_iterable"), _TOKENS_ONCE),
    **dict.fromkeys(("dataset_shard_idx", "dataset_shard_num"), _TOKENS_ONCE),
    **dict.fromkeys(("num_dataset_shards_to_save", "role_boundaries"), _TOKENS_ONCE),
    **dict.fromkeys(("pretrain_multipack_attn", "pretrain_multipack_buffer_size"), _TOKENS_ONCE),
    **dict.fromkeys(("pretraining_sample_concatenation", "use_pose"), _TOKENS_ONCE),
    **dict.fromkeys(("pose_max_context_len", "pose_num_chunks"), _TOKENS_ONCE),
    **dict.fromkeys(("pose_split_on_token_ids", "total_num_tokens"), _TOKENS_ONCE),
    "total_supervised_tokens": _TOKENS_ONCE,
    **dict.fromkeys(("wandb_entity", "wandb_run_id", "wandb_watch"), _FROM_SITE),
    **dict.fromkeys(("mlflow_experiment_name", "mlflow_run_name"), _FROM_SITE),
    **dict.fromkeys(("mlflow_tracking_uri", "hf_mlflow_log_artifacts"), _FROM_SITE),
    **dict.fromkeys(("comet_experiment_config", "comet_experiment_key"), _FROM_SITE),
    **dict.fromkeys(("comet_mode", "comet_online", "comet_project_name"), _FROM_SITE),
    **dict.fromkeys(("comet_workspace", "trackio_project_name"), _FROM_SITE),
    **dict.fromkeys(("trackio_run_name", "trackio_space_id"), _FROM_SITE),
    **dict.fromkeys(("otel_metrics_host", "otel_metrics_port"), _FROM_SITE),
    **dict.fromkeys(("ray_run_name", "resources_per_worker"), _FROM_SITE),
    **dict.fromkeys(("gradio_title", "gradio_share", "gradio_server_name"), _OTHER_COMMAND),
    **dict.fromkeys(("gradio_server_port", "gradio_max_new_tokens"), _OTHER_COMMAND),
    **dict.fromkeys(("gradio_temperature", "merge_lora", "merge_method"), _OTHER_COMMAND),
    **dict.fromkeys(("lora_on_cpu", "quantization"), _OTHER_COMMAND),
    **dict.fromkeys(("lr_div_factor", "max_packed_sequence_len", "s2_attention"), _NOT_READ),
    **dict.fromkeys(("flash_attn_rms_norm", "flash_optimum"), _NOT_READ),
    "noisy_embedding_alpha": "its name is neftune_noise_alpha",
    "fsdp": "fsdp_config with fsdp_version: 2 says it",
    "fsdp_final_state_dict_type": "its name is final_state_dict_type, in fsdp_config",
    "rope_scaling": "overrides_of_model_config says it, with all numbers of the scaling",
    "save_safetensors": "weights are read as safetensors by what follows",
    "trainer_cls": "the trainer is axolotl's own",
    # Deprecated spellings of attn_implementation.
    **dict.fromkeys(
        ("flash_attention", "sdp_attention", "flex_attention", "xformers_attention"),
        "its name is attn_implementation",
    ),
    **dict.fromkeys(("eager_attention", "sage_attention"), "its name is attn_implementation"),
}

# Adapters whose sum is not W + scale × B·A, see sft/adapter.py.
UNMERGED = (
    *("lora_modules_to_save", "peft_use_dora", "peft_init_lora_weights"),
    *("peft_layer_replication", "peft_trainable_token_indices"),
)

# Keys that exclude each other: the second has to go, and why.
EXCLUSIVE_KEYS = {
    ("global_batch_size", "gradient_accumulation_steps"): "global_batch_size decides it",
    ("warmup_steps", "warmup_ratio"): "warmup_steps decides it",
    ("deepspeed", "fsdp_config"): "deepspeed shards already",
    ("bf16", "fp16"): "bf16 decides the precision",
    ("bf16", "bfloat16"): "bf16 says it",
    ("lora_target_linear", "lora_target_modules"): "axolotl would take all of both",
}

LIMITS = {
    **{
        key: llamafactory.LIMITS[key]
        for key in (
            *("learning_rate", "warmup_ratio", "warmup_steps", "weight_decay", "max_grad_norm"),
            *("adam_beta1", "adam_beta2", "adam_epsilon", "neftune_noise_alpha", "lora_alpha"),
            *("lora_dropout", "global_batch_size", "tokens_per_second_per_gpu"),
            *("gradient_accumulation_steps", "logging_steps", "save_steps", "save_total_limit"),
            *("seed", "max_samples", "dataloader_num_workers", "ddp_timeout"),
        )
    },
    "sequence_len": llamafactory.LIMITS["cutoff_len"],
    "num_epochs": llamafactory.LIMITS["num_train_epochs"],
    "micro_batch_size": (1, None),
    "dataset_num_proc": (1, None),
    "lora_r": (1, None),
    "max_steps": (1, None),
}

# Packages whose version can change the tokens that the same text gives.
TOKEN_VERSIONS = ("axolotl", "transformers", "tokenizers")

TOKEN_KEYS = (
    *("template", "sequence_len", "max_samples", "excess_length_strategy", "min_sample_len"),
    *("sample_packing", "train_on_inputs", "chat_template_kwargs"),
    *("tokenizer_type", "tokenizer_use_fast", "tokenizer_legacy"),
)

# How a run is carried out, not what it computes. A change of these never trains again.
PLACEMENT_KEYS = {
    *("accept", "environment", "tokens_per_second_per_gpu", "ddp_timeout", "dataset_num_proc"),
    *("dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor"),
    *("logging_steps", "include_tkps", "include_tokens_per_second", "gc_collect_steps"),
    *("save_strategy", "save_steps", "save_total_limit", "save_only_model", "save_first_step"),
    *("gc_steps", "profiler_steps", "profiler_steps_start"),
}

# What an adapter is made of; axolotl has no default of these.
ADAPTER_KEYS = ("lora_r", "lora_alpha")
# Attention under which packed examples see each other (utils/schemas/enums.py, and
# attn_decontaminates_packing of utils/schemas/config.py). The names of hub kernels are many.
MIXES_PACKS = ("fp8",)
PACKS_BY_NAME = ("flash-attn2", "flash-attn3", "sage-attention")

# What needs flash-attn to be installed; the other kinds bring their own kernels.
FLASH_LIBRARY = ("flash_attention_2", "flash_attention_3")
LORA_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")

read_recipe = axolotl_recipe.read_recipe


@cache
def _description() -> Mapping[str, Any]:
    return read_json(Path(__file__).with_name("axolotl.json"))


@cache
def known_keys() -> Mapping[str, Mapping]:
    """Every key that a base config may hold, with its type and choices."""
    known = _description()["keys"]
    optimizers = {*known["optimizer"]["choices"], *llamafactory.known_keys()["optim"]["choices"]}
    schedulers = {"one_cycle", "rex", *llamafactory.known_keys()["lr_scheduler_type"]["choices"]}
    narrower = {
        "template": {"type": "str", "choices": sorted(template_descriptions())},
        "deepspeed": {
            "type": "str",
            "choices": [path.name for path in DEEPSPEED_FOLDER.glob("*.json")],
        },
        "adapter": {"type": "str", "choices": ["lora", "qlora"], "null": True},
        "bf16": {"type": "bool", "null": True},  # "auto" would be another precision on another host
        "learning_rate": {"type": "float"},
        "optimizer": {"type": "str", "choices": sorted(optimizers)},
        "lr_scheduler": {"type": "str", "choices": sorted(schedulers)},
        "save_steps": {"type": "int"},  # or shares of all steps, which are of no use here
        "save_strategy": {"type": "str", "choices": ["epoch", "no", "steps"]},
        "gradient_checkpointing": {"type": "bool", "null": True},
        "torch_compile": {"type": "bool", "null": True},
        "tf32": {"type": "bool", "null": True},  # "auto" would be another precision elsewhere
        "plugins": {"type": "list", "choices": None},
    }
    return known | LAUNCHER_KEYS | {key: _without_empty(each) for key, each in narrower.items()}


def _without_empty(description: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in description.items() if value is not None}


@cache
def template_descriptions() -> Mapping[str, Mapping[str, Any]]:
    """What each template needs of a tokenizer, by name: ours, and axolotl's own jinja files.

    The words are those of `sft.trainers.llamafactory_describe.describe_template`.
    """
    ours = {name: llamafactory.template_description(name) for name in CUSTOM_TEMPLATES}
    return _description()["templates"] | ours


def template_description(template: str) -> Mapping[str, Any]:
    """What a template needs of a tokenizer and adds by itself; see `template_descriptions`."""
    return template_descriptions()[template]


def shipped_templates() -> dict[str, Mapping[str, Any]]:
    """The descriptions of the templates that the base configs here name, and of ours."""
    named = {read_yaml(path).get("template") for path in CONFIG_FOLDER.rglob("*.yaml")}
    return {
        name: description
        for name, description in template_descriptions().items()
        if name in named or name in CUSTOM_TEMPLATES
    }


def template_hash(template: str) -> str | None:
    """The hash of a template of ours; None for axolotl's own, which its version pins."""
    return hash_file(template_path(template)) if template in CUSTOM_TEMPLATES else None


def read_overrides(cells: Mapping[str, str], where: str) -> tuple[dict[str, Any], list[str]]:
    """What the cells of a row change of its base config, and a line for each that cannot be said.

    A column is a word of the table (see `axolotl_words`) or a key of axolotl's own.
    """
    overrides: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    lines = []
    for column, cell in cells.items():
        if faults := _word_faults(column, cell, where):
            lines += faults
            continue
        try:
            made = _translate(column, cell)
        except KeyError:
            own_keys = known_keys().keys() - OWNED_KEYS.keys()
            lines.append(
                f"{where}, {column}: found {cell}, which has no counterpart in axolotl; "
                f"{axolotl_words.reason(column, own_keys)}; leave the cell empty"
            )
            continue
        twins = {said_by[key] for key in made if key in said_by}
        lines += [f"{where}, {column}: {twin} says the same; keep one of them" for twin in twins]
        overrides |= made
        said_by |= dict.fromkeys(made, column)
    return overrides, lines


def _translate(column: str, cell: str) -> Mapping[str, Any]:
    """The keys that a cell sets; KeyError where axolotl has no counterpart of column or value."""
    if column in axolotl_words.WORDS:
        return axolotl_words.WORDS[column](llamafactory.parse_cell(column, cell))
    is_word = column in llamafactory.known_keys() and column not in OWNED_KEYS
    if is_word and column not in axolotl_words.SHARED:
        raise KeyError(column)
    return {column: keys.parse_cell(column, cell, known_keys())}


def _word_faults(column: str, cell: str, where: str) -> list[str]:
    """What is wrong with a translated word before it is translated, in the row's own words."""
    if column not in axolotl_words.WORDS:
        return []
    said = {column: llamafactory.parse_cell(column, cell)}
    return [
        *llamafactory.config_faults(said, where),
        *llamafactory.warmup_faults(said, where),
    ]


def config_faults(config: Mapping[str, Any], where: str) -> list[str]:
    """One line for each key or value that a base config or a row's overrides cannot hold."""
    lines = keys.config_faults(config, known_keys(), OWNED_KEYS, LIMITS, where)
    plugins = config.get("plugins") or []
    lines += [
        f"{where}, plugins: found {each}, expected {' or '.join(_description()['plugins'])}; what "
        "else runs in a training is not known here"
        for each in ([plugins] if isinstance(plugins, str) else plugins)
        if each not in _description()["plugins"]
    ]
    return lines


def whole_config_faults(config: Mapping[str, Any], where: str) -> list[str]:
    """One line for each thing that is missing or contradicts another in a merged config."""
    is_set = {key for key, value in config.items() if value is not None and value is not False}
    lines = [
        f"{where}, {key}: missing; the base config has to say it"
        for key in NEEDED_KEYS
        if key not in is_set
    ]
    lines += [
        f"{where}, {second}: leave it out; {reason}"
        for (first, second), reason in EXCLUSIVE_KEYS.items()
        if {first, second} <= is_set
    ]
    if not {"warmup_steps", "warmup_ratio"} & config.keys():
        lines.append(
            f"{where}, warmup_steps: missing; axolotl would warm up for 3 % of all steps, at most "
            "100: say it, or warmup_ratio"
        )
    if "sample_packing" in is_set and _mixes_packs(config.get("attn_implementation") or ""):
        lines.append(
            f"{where}, sample_packing: {config['attn_implementation']} lets packed examples see "
            "each other; leave attn_implementation to the site"
        )
    lines += [
        f"{where}, {key}: leave it out; such an adapter cannot be merged and proven, so the run "
        "would not be released"
        for key in UNMERGED
        if key in is_set and "adapter" in is_set
    ]
    return lines + _adapter_faults(is_set, where) + _precision_faults(is_set, where)


def _mixes_packs(attention: str) -> bool:
    if "/" in attention:  # a kernel of the hub: organisation/name@revision:kernel
        return attention.rpartition("/")[2].partition("@")[0].partition(":")[0] not in PACKS_BY_NAME
    return attention in MIXES_PACKS


def _adapter_faults(is_set: AbstractSet[str], where: str) -> list[str]:
    """What an adapter lacks, or what only an adapter can be trained with."""
    if "adapter" not in is_set:
        return [
            f"{where}, {key}: only an adapter can be trained on such weights; set adapter"
            for key in axolotl_recipe.BITS
            if key in is_set
        ]
    lines = [
        f"{where}, {key}: missing; axolotl has no default of it"
        for key in ADAPTER_KEYS
        if key not in is_set
    ]
    if not is_set & {"lora_target_linear", "lora_target_modules", "lora_target_parameters"}:
        lines.append(f"{where}, lora_target_modules: missing; lora_target_linear: true takes all")
    return lines


def _precision_faults(is_set: AbstractSet[str], where: str) -> list[str]:
    """A full training without DeepSpeed keeps nothing in fp32, which only its own word may say."""
    if is_set & {"deepspeed", "fsdp_config", "adapter"}:
        return []
    lines = []
    if "bf16" in is_set:
        lines.append(
            f"{where}, bf16: axolotl would keep weights and optimizer in bf16 alone, where "
            "LLaMA-Factory keeps them in fp32; set deepspeed, which keeps fp32 too, or say "
            "bfloat16: true (pure_bf16 in the table) where bf16 alone is meant"
        )
    if "fp16" in is_set:
        lines.append(f"{where}, fp16: weights in fp16 alone do not train; set deepspeed, or bf16")
    return lines


def token_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide which tokens are made and which of them carry a loss."""
    return {key: config[key] for key in TOKEN_KEYS if config.get(key) is not None}


def masking(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the tokens of a config must look like: the words of `inspection.Request`."""
    thinking = (config.get("chat_template_kwargs") or {}).get("enable_thinking")
    return {"cutoff": config["sequence_len"], "thinking": thinking, "last_turn_only": False}


def decided_faults(config: Mapping[str, Any]) -> dict[str, str]:
    """Faults that the config asks for by a key of its own, with that key."""
    return {}


def needed_packages(config: Mapping[str, Any], attn: str) -> dict[str, str]:
    """The packages that a config asks for, each with the words that do; `attn` is the site's."""
    attention = config.get("attn_implementation")
    attention = attention or axolotl_words.ATTENTION.get(attn, {}).get("attn_implementation")
    bits = next((key for key in axolotl_recipe.BITS if config.get(key)), None)
    optimizer = config.get("optimizer", "")
    asked = {
        "deepspeed": config.get("deepspeed") and f"deepspeed: {config['deepspeed']}",
        "flash_attn": attention in FLASH_LIBRARY and f"attn_implementation: {attention}",
        "xformers": attention == "xformers" and "attn_implementation: xformers",
        "liger_kernel": next((key for key in sorted(config) if _is_liger(config, key)), None),
        "cut_cross_entropy": config.get("cut_cross_entropy") and "cut_cross_entropy",
        "bitsandbytes": bits or (("8bit" in optimizer) and f"optimizer: {optimizer}"),
        # Not built for aarch64.
        "torchao": optimizer.startswith("ao_") and f"optimizer: {optimizer}",
    }
    return {package: words for package, words in asked.items() if words}


def _is_liger(config: Mapping[str, Any], key: str) -> bool:
    return key.startswith("liger_") and bool(config[key])


def science(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a merged config that change the weights."""
    left_out = set(PLACEMENT_KEYS)
    if "global_batch_size" in config:
        left_out |= {"micro_batch_size", "gradient_accumulation_steps"}
    return {key: value for key, value in config.items() if key not in left_out}


def render_config(
    experiment: Experiment, site: Site, batch: Batch, paths: TrainPaths
) -> dict[str, Any]:
    """The whole train.yaml, in the order in which a person reads it.

    The tokenizer is the one that the tokens were made with: it has the template and its end token.
    """
    config = {key: each for key, each in experiment.config.items() if key not in LAUNCHER_KEYS}
    rendered: dict[str, Any] = {
        "base_model": str(paths.model),
        "tokenizer_config": str(paths.tokens.parent / "tokenizer"),
    }
    if experiment.trust_remote_code:
        rendered["trust_remote_code"] = True
    rendered |= config
    rendered.pop("save_total_limit", None)  # old checkpoints go when a newer one is found whole
    if config.get("save_strategy") in ("epoch", "no"):
        rendered.pop("save_steps", None)  # axolotl refuses both; LLaMA-Factory lets it decide
    if "deepspeed" in config:
        rendered["deepspeed"] = str(paths.deepspeed)
    if config.get("adapter") and not site.gpus_per_node:
        rendered |= dict.fromkeys(LORA_KERNELS, False)
    rendered |= {
        "plugins": [PLUGIN, *_plugins(config)],
        "datasets": [{"path": str(paths.tokens), "type": None}],  # our plugin reads them
        "skip_prepare_dataset": True,
        "val_set_size": 0,
        "output_dir": str(paths.output),
        "auto_resume_from_checkpoints": True,
        "micro_batch_size": batch.per_device,
        "gradient_accumulation_steps": batch.accumulation,
        "tokenizer_save_jinja_files": False,
        "use_wandb": site.wandb_mode != "disabled",
    }
    if rendered["use_wandb"]:
        project = site.variables.get("WANDB_PROJECT", "huggingface")
        rendered |= {"wandb_project": project, "wandb_name": experiment.name}
        rendered["wandb_mode"] = site.wandb_mode
    for key, value in axolotl_words.ATTENTION.get(site.attn, {}).items():
        rendered.setdefault(key, value)
    if config.get("sample_packing") and rendered.get("attn_implementation") is None:
        # Where none is named axolotl keeps the mask, and packed examples see each other.
        rendered["attn_implementation"] = "sdpa"
    return rendered


def _plugins(config: Mapping[str, Any]) -> list[str]:
    """The integrations whose keys a config sets, and those that it names itself."""
    named = config.get("plugins") or []
    asked = [
        name
        for name, its_keys in _description()["plugins"].items()
        if any(config.get(key) for key in its_keys)
    ]
    return list(dict.fromkeys([*([named] if isinstance(named, str) else named), *asked]))


def read_rendered(config: Mapping[str, Any]) -> tuple[Path, int]:
    """Where the tokens of a train.yaml lie, and how many sequences a process takes a step.

    Raises KeyError where it is of another backend.
    """
    sequences = config["micro_batch_size"] * config["gradient_accumulation_steps"]
    return Path(config["datasets"][0]["path"]), sequences


def render_pretokenize(
    experiment: Experiment, model: Path, registry: Path, num_workers: int
) -> dict[str, Any]:
    """What the tokenizing of the experiment's mix reads: a config of axolotl, and the `mix`."""
    mix, template = experiment.mix, experiment.template
    description = template_description(template)
    options = token_options(experiment.config)
    for key in LAUNCHER_KEYS:
        options.pop(key, None)
    rendered: dict[str, Any] = {
        "base_model": str(model),
        **({"trust_remote_code": True} if experiment.trust_remote_code else {}),
        **_template_keys(template),
        "excess_length_strategy": "truncate",  # where the config says nothing
        **options,
        "dataset_num_proc": num_workers,
    }
    if "eos" in description:
        rendered["special_tokens"] = {"eos_token": description["eos"]}
        rendered["eot_tokens"] = [description["eos"]]
    rendered["mix"] = {
        "sources": [dataset.name for dataset in mix.datasets],
        "strategy": mix.strategy,
        "probabilities": list(mix.probabilities) or None,
        "seed": mix.seed,
    }
    return rendered


def _template_keys(template: str) -> dict[str, Any]:
    if template in CUSTOM_TEMPLATES:
        path = str(template_path(template))
        return {"chat_template": "jinja", "chat_template_jinja": path}
    return {"chat_template": template}


def versions_command(names: Iterable[str]) -> str:
    """A line of shell that prints versions, of the trainer's packages and of `names`, as JSON."""
    return shlex.join(["python", "-m", MODULE, "versions", *names])


def pretokenize_command(request: Path, tokens_root: Path) -> list[str]:
    """Tokenize what `request` asks for into a folder below `tokens_root`."""
    return ["python", "-m", MODULE, "pretokenize", str(request), str(tokens_root)]


def check_command(config: Path) -> list[str]:
    """Let the trainer's own schema read a rendered config."""
    return ["python", "-m", MODULE, "check", str(config)]


def train_arguments(config: Path, world_size: int) -> list[str]:
    """What follows `python -m` (or torchrun's) to train."""
    return [MODULE, "train", str(config), "--world-size", str(world_size)]
