"""LLaMA-Factory: its base configs, what it reads, and how it is called."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sft.backends import keys
from sft.errors import nearest
from sft.experiment import Experiment
from sft.files import read_json
from sft.plan import Batch
from sft.site import Site

PACKAGE = Path(__file__).parent.parent
CONFIG_FOLDER = PACKAGE / "lf_configs"
DEEPSPEED_FOLDER = PACKAGE / "deepspeed"
TEMPLATE_FOLDER = PACKAGE / "templates"
MODULE = "sft.trainers.llamafactory"

LAUNCHER_KEYS = {
    "environment": {"type": "str"},
    "global_batch_size": {"type": "int"},
}

# Keys of its parser that a base config must not hold, with the place that sets them.
_FROM_ROW = "the experiment's row sets it"
_FROM_MIX = "it comes from the mix that the row names"
_FROM_SITE = "it is a fact of the site and comes from its profile"
_FROM_WORKFLOW = "the workflow sets it"
_NO_UPLOAD = "training never uploads; a stage of its own does"
_NO_EVALUATION = "pretokenized sets hold training rows only"
OWNED_KEYS = {
    "model_name_or_path": _FROM_ROW,
    "trust_remote_code": _FROM_ROW,
    "dataset": _FROM_MIX,
    "dataset_dir": _FROM_MIX,
    "mix_strategy": _FROM_MIX,
    "interleave_probs": _FROM_MIX,
    "tokenized_path": _FROM_WORKFLOW,
    "output_dir": _FROM_WORKFLOW,
    "overwrite_output_dir": _FROM_WORKFLOW,
    "overwrite_cache": _FROM_WORKFLOW,
    "resume_from_checkpoint": _FROM_WORKFLOW,
    "run_name": _FROM_WORKFLOW,
    "do_train": _FROM_WORKFLOW,
    "streaming": "tokens are made once, before training",
    "report_to": _FROM_SITE,
    "push_to_hub": _NO_UPLOAD,
    "hub_model_id": _NO_UPLOAD,
    "hub_token": _NO_UPLOAD,
    "hf_hub_token": _NO_UPLOAD,
    "push_to_hub_model_id": _NO_UPLOAD,
    "do_eval": _NO_EVALUATION,
    "eval_dataset": _NO_EVALUATION,
    "eval_strategy": _NO_EVALUATION,
    "val_size": _NO_EVALUATION,
}

# Least and greatest value that make sense, whatever the parser takes.
LIMITS = {
    "learning_rate": (1e-9, 1.0),
    "num_train_epochs": (1e-3, 1000),
    "max_steps": (-1, None),
    "warmup_ratio": (0, 1),
    "warmup_steps": (0, None),
    "weight_decay": (0, 1),
    "max_grad_norm": (0, None),
    "cutoff_len": (8, None),
    "global_batch_size": (1, None),
    "per_device_train_batch_size": (1, None),
    "gradient_accumulation_steps": (1, None),
    "logging_steps": (1, None),
    "save_steps": (1, None),
    "save_total_limit": (1, None),
    "seed": (0, 2**32 - 1),
    "max_samples": (1, None),
    "preprocessing_num_workers": (1, None),
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
    *("environment", "plot_loss", "disable_tqdm", "ddp_timeout", "data_shared_file_system"),
    *("preprocessing_num_workers", "preprocessing_batch_size"),
    *("dataloader_num_workers", "dataloader_persistent_workers", "dataloader_pin_memory"),
    *("dataloader_prefetch_factor", "include_num_input_tokens_seen"),
    *("logging_steps", "logging_first_step", "logging_strategy", "log_level", "log_level_replica"),
    *("save_strategy", "save_steps", "save_total_limit", "save_on_each_node", "save_only_model"),
}


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
    return _description()["keys"] | LAUNCHER_KEYS


@cache
def known_templates() -> frozenset[str]:
    """LLaMA-Factory's own templates and those in sft/templates."""
    own = {path.stem for path in TEMPLATE_FOLDER.glob("*.jinja")}
    return frozenset(_description()["templates"]) | own


def parse_cell(key: str, cell: str) -> Any:
    """The value that a cell of the table gives to a key of the base config."""
    return keys.parse_cell(key, cell, known_keys())


def config_faults(config: Mapping[str, Any], where: str) -> list[str]:
    """One line for each key or value that a base config or a row's overrides cannot hold."""
    lines = keys.refuse_owned(config, OWNED_KEYS, where)
    rest = {key: value for key, value in config.items() if key not in OWNED_KEYS}
    lines += keys.value_faults(rest, known_keys(), LIMITS, where)
    template = config.get("template")
    if isinstance(template, str) and template not in known_templates():
        lines.append(
            f"{where}, template: unknown template {template!r}; "
            f"{nearest(template, known_templates())}"
        )
    deepspeed = config.get("deepspeed")
    files = [path.name for path in DEEPSPEED_FOLDER.glob("*.json")]
    if deepspeed is not None and deepspeed not in files:
        lines.append(f"{where}, deepspeed: no file {deepspeed!r}; {nearest(str(deepspeed), files)}")
    return lines


def whole_config_faults(config: Mapping[str, Any], where: str) -> list[str]:
    """One line for each thing that is missing or contradicts another in a merged config."""
    lines = [
        f"{where}, {key}: missing; the base config has to say it"
        for key in ("environment", "template", "cutoff_len", "stage", "finetuning_type")
        if key not in config
    ]
    if "global_batch_size" in config and "gradient_accumulation_steps" in config:
        lines.append(
            f"{where}, gradient_accumulation_steps: leave it out; global_batch_size decides it"
        )
    if config.get("stage", "sft") != "sft":
        lines.append(f"{where}, stage: found {config['stage']!r}, expected 'sft'")
    if config.get("neat_packing"):
        # transformers > 4.52.4 turns the block mask into booleans: sequences see each other.
        lines.append(f"{where}, neat_packing: it mixes sequences with this transformers; use packing")
    return lines


def token_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide which tokens are made and which of them carry a loss."""
    return {key: config[key] for key in TOKEN_KEYS if config.get(key) is not None}


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


def versions_command() -> str:
    """A line of shell that prints the versions of the trainer's packages as JSON."""
    return f"python -m {MODULE} versions"


def pretokenize_command(request: Path, tokens_root: Path) -> list[str]:
    """Tokenize what `request` asks for into a folder below `tokens_root`."""
    return ["python", "-m", MODULE, "pretokenize", str(request), str(tokens_root)]


def check_command(config: Path) -> list[str]:
    """Let the trainer's own parser read a rendered config."""
    return ["python", "-m", MODULE, "check", str(config)]


def train_arguments(config: Path, world_size: int) -> list[str]:
    """What follows `python -m` (or torchrun's) to train."""
    return [MODULE, "train", str(config), "--world-size", str(world_size)]
