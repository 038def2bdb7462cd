"""LLaMA-Factory: its base configs, what it reads, and how it is called."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sft.backends import keys, llamafactory_recipe
from sft.experiment import Experiment
from sft.files import hash_file, read_json, read_yaml
from sft.recipe import Batch
from sft.site import Site
from sft.templates import CUSTOM_TEMPLATES, template_path

PACKAGE = Path(__file__).parent.parent
CONFIG_FOLDER = PACKAGE / "lf_configs"
DEEPSPEED_FOLDER = llamafactory_recipe.DEEPSPEED_FOLDER
MODULE = "sft.trainers.llamafactory"
READS_CONVERSATIONS = False

LAUNCHER_KEYS = {
    "environment": {"type": "str"},
    "accept": {"type": "list"},
    "global_batch_size": {"type": "int"},
    "tokens_per_second_per_gpu": {"type": "float"},
}

NEEDED_KEYS = (
    *("environment", "stage", "finetuning_type"),
    *("template", "cutoff_len", "learning_rate"),
)

# Keys of its parser that a base config must not hold, with the place that sets them.
_FROM_MIX = "it comes from the mix that the row names"
_FROM_SITE = "it is a fact of the site and comes from its profile"
_FROM_WORKFLOW = "the workflow sets it"
_NO_UPLOAD = "training never uploads; a stage of its own does"
_NO_EVALUATION = "pretokenized sets hold training rows only"
_SECRET = "a secret stands in no file; it comes from the environment"
OWNED_KEYS = {
    "model_name_or_path": "the row's column `model` says it",
    "model_revision": "`revision` in the models file says it",
    "trust_remote_code": "the row's column `trust_remote_code` says it",
    **dict.fromkeys(("dataset", "dataset_dir", "media_dir"), _FROM_MIX),
    **dict.fromkeys(("mix_strategy", "interleave_probs"), _FROM_MIX),
    "streaming": "tokens are made once, before training",
    **dict.fromkeys(("tokenized_path", "overwrite_cache", "do_train", "run_name"), _FROM_WORKFLOW),
    **dict.fromkeys(("output_dir", "overwrite_output_dir"), _FROM_WORKFLOW),
    "resume_from_checkpoint": _FROM_WORKFLOW,
    **dict.fromkeys(("local_rank", "master_addr", "master_port"), _FROM_WORKFLOW),
    "auto_find_batch_size": "the batch of a run never changes by itself",
    **dict.fromkeys(("report_to", "use_swanlab"), _FROM_SITE),
    **dict.fromkeys(("push_to_hub", "hub_model_id", "push_to_hub_model_id"), _NO_UPLOAD),
    **dict.fromkeys(("hub_strategy", "hub_private_repo", "hub_always_push"), _NO_UPLOAD),
    **dict.fromkeys(("hub_revision", "export_dir", "export_hub_model_id"), _NO_UPLOAD),
    **dict.fromkeys(("hub_token", "hf_hub_token", "ms_hub_token", "om_hub_token"), _SECRET),
    **dict.fromkeys(("swanlab_api_key", "swanlab_lark_secret"), _SECRET),
    "swanlab_lark_webhook_url": _SECRET,
    **dict.fromkeys(("do_eval", "do_predict", "predict_with_generate"), _NO_EVALUATION),
    **dict.fromkeys(("eval_dataset", "val_size", "eval_on_each_dataset"), _NO_EVALUATION),
    **dict.fromkeys(("eval_strategy", "eval_steps", "eval_on_start"), _NO_EVALUATION),
    **dict.fromkeys(("load_best_model_at_end", "early_stopping_steps"), _NO_EVALUATION),
}

# Keys that exclude each other: the second has to go, and why.
EXCLUSIVE_KEYS = {
    ("global_batch_size", "gradient_accumulation_steps"): "global_batch_size decides it",
    ("warmup_steps", "warmup_ratio"): "warmup_steps decides it, below 1 as a share of all steps",
    ("train_on_prompt", "mask_history"): "the parser refuses it beside train_on_prompt",
    ("deepspeed", "pure_bf16"): "the parser refuses it under ZeRO-3",
    ("bf16", "fp16"): "bf16 decides the precision",
}

# Adapters whose sum is not W + scale × B·A, see sft/adapter.py.
UNMERGED = ("use_dora", "additional_target", "pissa_init")

# Least and greatest value that make sense, whatever the parser takes.
LIMITS = {
    "learning_rate": (1e-9, 1.0),
    "num_train_epochs": (1e-3, 1000),
    "max_steps": (-1, None),
    "warmup_ratio": (0, 1),
    "warmup_steps": (0, None),
    "weight_decay": (0, 1),
    "max_grad_norm": (0, None),
    "adam_beta1": (0, 1),
    "adam_beta2": (0, 1),
    "adam_epsilon": (0, 1),
    "label_smoothing_factor": (0, 1),
    "neftune_noise_alpha": (0, None),
    "lora_rank": (1, None),
    "lora_alpha": (1, None),
    "lora_dropout": (0, 1),
    "cutoff_len": (8, None),
    "global_batch_size": (1, None),
    "tokens_per_second_per_gpu": (1e-3, None),
    "per_device_train_batch_size": (1, None),
    "gradient_accumulation_steps": (1, None),
    "logging_steps": (1, None),
    "save_steps": (1, None),
    "save_total_limit": (1, None),
    "seed": (0, 2**32 - 1),
    "max_samples": (1, None),
    "preprocessing_num_workers": (1, None),
    "preprocessing_batch_size": (1, None),
    "dataloader_num_workers": (0, None),
    "ddp_timeout": (1, None),
}

# Packages whose version can change the tokens that the same text gives.
TOKEN_VERSIONS = ("llamafactory", "transformers", "tokenizers")

TOKEN_KEYS = (
    *("template", "cutoff_len", "train_on_prompt", "mask_history", "max_samples"),
    *("packing", "neat_packing", "tool_format", "default_system"),
    *("enable_thinking", "preserve_thinking", "ignore_pad_token_for_loss"),
    *("add_tokens", "add_special_tokens", "resize_vocab", "split_special_tokens"),
    *("use_fast_tokenizer", "new_special_tokens_config"),
)

# How a run is carried out, not what it computes. A change of these never trains again.
PLACEMENT_KEYS = {
    *(
        "accept",
        "environment",
        "plot_loss",
        "disable_tqdm",
        "ddp_timeout",
        "data_shared_file_system",
        "tokens_per_second_per_gpu",
    ),
    *("preprocessing_num_workers", "preprocessing_batch_size"),
    *("dataloader_num_workers", "dataloader_persistent_workers", "dataloader_pin_memory"),
    *("dataloader_prefetch_factor", "include_num_input_tokens_seen"),
    *("logging_steps", "logging_first_step", "logging_strategy", "log_level", "log_level_replica"),
    *("save_strategy", "save_steps", "save_total_limit", "save_on_each_node", "save_only_model"),
}

read_recipe = llamafactory_recipe.read_recipe


@dataclass(frozen=True)
class TrainPaths:
    """What the rendered config points to; all absolute."""

    model: Path
    tokens: Path
    output: Path
    deepspeed: Path


@cache
def _description() -> Mapping[str, Any]:
    return read_json(Path(__file__).with_name("llamafactory.json"))


@cache
def known_keys() -> Mapping[str, Mapping]:
    """Every key that a base config may hold, with its type and choices."""
    narrower = {
        "template": {"type": "str", "choices": list(template_descriptions())},
        "deepspeed": {
            "type": "str",
            "choices": [path.name for path in DEEPSPEED_FOLDER.glob("*.json")],
        },
        "stage": {"type": "str", "choices": ["sft"]},
        "save_steps": {"type": "int"},  # or shares of all steps, which are of no use here
        "logging_steps": {"type": "int"},
    }
    return _description()["keys"] | narrower | LAUNCHER_KEYS


def template_descriptions() -> Mapping[str, Mapping[str, Any]]:
    """What each template needs of a tokenizer, by name, ours among them.

    The words are those of `sft.trainers.llamafactory_describe.describe_template`.
    """
    return _description()["templates"]


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
    """The hash of a template of ours; None for LLaMA-Factory's own, which its version pins."""
    return hash_file(template_path(template)) if template in CUSTOM_TEMPLATES else None


def parse_cell(key: str, cell: str) -> Any:
    """The value that a cell of the table gives to a key of the base config."""
    return keys.parse_cell(key, cell, known_keys())


def read_overrides(cells: Mapping[str, str], where: str) -> tuple[dict[str, Any], list[str]]:
    """What the cells of a row change of its base config; the table's words are its own."""
    return {key: parse_cell(key, cell) for key, cell in cells.items()}, []


def config_faults(config: Mapping[str, Any], where: str) -> list[str]:
    """One line for each key or value that a base config or a row's overrides cannot hold."""
    return keys.config_faults(config, known_keys(), OWNED_KEYS, LIMITS, where)


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
    lines += warmup_faults(config, where)
    if config.get("max_steps") == 0:
        lines.append(f"{where}, max_steps: found 0, expected at least 1, or -1 where epochs decide")
    if "neat_packing" in is_set:
        # transformers > 4.52.4 turns the block mask into booleans: sequences see each other.
        lines.append(
            f"{where}, neat_packing: it mixes sequences with this transformers; use packing"
        )
    if "split_special_tokens" in is_set:
        lines.append(
            f"{where}, split_special_tokens: leave it out; turns would begin and end in plain text"
        )
    lines += [
        f"{where}, {key}: leave it out; such an adapter cannot be merged and proven, so the run "
        "would not be released"
        for key in UNMERGED
        if key in is_set
    ]
    template = config.get("template")
    lines += [
        f"{where}, {key}: leave it out; {template}.jinja decides it, and what is served would "
        "differ from what is trained"
        for key in ("tool_format", "default_system")
        if key in is_set and template in CUSTOM_TEMPLATES
    ]
    return lines


def warmup_faults(config: Mapping[str, Any], where: str) -> list[str]:
    """A line where `warmup_steps` is neither whole steps nor a share of them."""
    warmup = config.get("warmup_steps")
    if type(warmup) is float and warmup > 1 and not warmup.is_integer():
        return [f"{where}, warmup_steps: found {warmup}, expected whole steps or a share below 1"]
    return []


def token_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide which tokens are made and which of them carry a loss."""
    return {key: config[key] for key in TOKEN_KEYS if config.get(key) is not None}


def masking(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the tokens of a config must look like: the words of `inspection.Request`."""
    return {
        # Packing leaves room for one token (hparams/data_args.py).
        "cutoff": config["cutoff_len"] - bool(config.get("packing")),
        "thinking": config.get("enable_thinking"),
        "last_turn_only": bool(config.get("mask_history")),
    }


def decided_faults(config: Mapping[str, Any]) -> dict[str, str]:
    """Faults that the config asks for by a key of its own, with that key."""
    if config.get("enable_thinking") is False:
        return dict.fromkeys(("masked_reasoning", "stripped_reasoning"), "enable_thinking: false")
    return {}


def needed_packages(config: Mapping[str, Any], attn: str) -> dict[str, str]:
    """The packages that a config asks for, each with the words that do; `attn` is the site's."""
    asked = {
        "deepspeed": config.get("deepspeed") and f"deepspeed: {config['deepspeed']}",
        "flash_attn": config.get("flash_attn", attn) == "fa2" and "flash_attn: fa2",
        "liger_kernel": config.get("enable_liger_kernel") and "enable_liger_kernel",
    }
    return {package: words for package, words in asked.items() if words}


def science(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a merged config that change the weights."""
    left_out = set(PLACEMENT_KEYS)
    if "global_batch_size" in config:
        left_out |= {"per_device_train_batch_size", "gradient_accumulation_steps"}
    return {key: value for key, value in config.items() if key not in left_out}


def render_config(
    experiment: Experiment, site: Site, batch: Batch, paths: TrainPaths
) -> dict[str, Any]:
    """The whole train.yaml, in the order in which a person reads it."""
    config = {key: each for key, each in experiment.config.items() if key not in LAUNCHER_KEYS}
    rendered: dict[str, Any] = {"model_name_or_path": str(paths.model)}
    if experiment.trust_remote_code:
        rendered["trust_remote_code"] = True
    rendered |= config
    rendered.pop("save_total_limit", None)  # old checkpoints go when a newer one is found whole
    if "deepspeed" in config:
        rendered["deepspeed"] = str(paths.deepspeed)
    elif not site.gpus_per_node:
        rendered["use_cpu"] = True
    rendered |= {
        "do_train": True,
        "dataset": experiment.mix.name,  # asked for, not read: the tokens are made
        "tokenized_path": str(paths.tokens),
        "overwrite_cache": False,
        "output_dir": str(paths.output),
        "run_name": experiment.name,
        "per_device_train_batch_size": batch.per_device,
        "gradient_accumulation_steps": batch.accumulation,
        "report_to": "none" if site.wandb_mode == "disabled" else "wandb",
    }
    rendered.setdefault("flash_attn", site.attn)
    return rendered


def read_rendered(config: Mapping[str, Any]) -> tuple[Path, int]:
    """Where the tokens of a train.yaml lie, and how many sequences a process takes a step.

    Raises KeyError where it is of another backend.
    """
    sequences = config["per_device_train_batch_size"] * config["gradient_accumulation_steps"]
    return Path(config["tokenized_path"]), sequences


def render_pretokenize(
    experiment: Experiment, model: Path, registry: Path, num_workers: int
) -> dict[str, Any]:
    """What the tokenizing of the experiment's mix reads; `registry` holds its dataset_info.json."""
    mix = experiment.mix
    rendered: dict[str, Any] = {
        "model_name_or_path": str(model),
        "stage": "sft",
        "do_train": True,
        "dataset": ",".join(dataset.name for dataset in mix.datasets),
        "dataset_dir": str(registry),
        "mix_strategy": mix.strategy,
        "seed": mix.seed,
        "preprocessing_num_workers": num_workers,
        "output_dir": str(registry / "unused"),
        "report_to": "none",
        "use_cpu": True,
        **token_options(experiment.config),
    }
    if mix.probabilities:
        rendered["interleave_probs"] = ",".join(str(share) for share in mix.probabilities)
    if experiment.trust_remote_code:
        rendered["trust_remote_code"] = True
    return rendered


def render_registry(experiment: Experiment, fetched: Mapping[str, Mapping]) -> dict[str, Any]:
    """The dataset_info.json of a mix, each dataset pointing to what was fetched."""
    return {
        dataset.name: {_source_key(fetched[dataset.name]): fetched[dataset.name]["path"]}
        | dict(dataset.options)
        for dataset in experiment.mix.datasets
    }


def _source_key(made: Mapping[str, Any]) -> str:
    # "script_url" is its word for a folder that datasets.load_dataset reads as it stands: a hub
    # snapshot keeps its subsets and splits. "file_name" is for plain data files.
    return "script_url" if made["source"].startswith("hub:") else "file_name"


def versions_command(names: Iterable[str]) -> str:
    """A line of shell that prints versions, of the trainer's packages and of `names`, as JSON."""
    return shlex.join(["python", "-m", MODULE, "versions", *names])


def pretokenize_command(request: Path, tokens_root: Path) -> list[str]:
    """Tokenize what `request` asks for into a folder below `tokens_root`."""
    return ["python", "-m", MODULE, "pretokenize", str(request), str(tokens_root)]


def check_command(config: Path) -> list[str]:
    """Let the trainer's own parser read a rendered config."""
    return ["python", "-m", MODULE, "check", str(config)]


def train_arguments(config: Path, world_size: int) -> list[str]:
    """What follows `python -m` (or torchrun's) to train."""
    return [MODULE, "train", str(config), "--world-size", str(world_size)]
