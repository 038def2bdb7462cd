"""Runs of a tiny random model by the real axolotl, see tests/tiny_training.py."""

from functools import partial
from pathlib import Path

import yaml

from sft.trainers.axolotl_plugin import NAME
from tests import tiny_training
from tests.tiny_training import (
    CONTEXT,
    Signal,
    finish,
    losses,
    make_inputs,
    read_events,
    saved_steps,
)

__all__ = ["CONTEXT", "Signal", "finish", "losses", "make_inputs", "read_events", "saved_steps"]

CONTEXT.set_forkserver_preload(["tests.axolotl.preloaded"])
start = partial(tiny_training.start, "axolotl")


def train(*arguments: object, **variables: object) -> list[int | None]:
    """Train to the end, or as far as it goes; the exit codes by rank."""
    return finish(start(*arguments, **variables))


def write_config(folder: Path, inputs: Path, **options: object) -> Path:
    """A train.yaml of 10 steps that saves each 4; options that are None are left out."""
    config = {
        "base_model": str(inputs / "model"),
        "sequence_len": 16,
        "datasets": [{"path": str(inputs / "tokens"), "type": None}],
        "skip_prepare_dataset": True,
        "dataset_prepared_path": str(folder / "unused"),
        "plugins": [NAME],
        "output_dir": str(folder / "out"),
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "num_epochs": 1,
        "max_steps": 10,
        "save_strategy": "steps",
        "save_steps": 4,
        "logging_steps": 1,
        "learning_rate": 1.0e-2,
        "lr_scheduler": "linear",
        "warmup_steps": 0,
        "optimizer": "adamw_torch",
        "seed": 7,
        "bf16": False,
        "attn_implementation": "sdpa",
        "val_set_size": 0,
        "auto_resume_from_checkpoints": True,
        "use_wandb": False,
        "tokenizer_save_jinja_files": False,
        **options,
    }
    folder.mkdir(exist_ok=True)
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "train.yaml").write_text(yaml.safe_dump(kept))
    return folder / "train.yaml"
