"""Runs of a tiny random model by the real LLaMA-Factory, see tests/tiny_training.py."""

from functools import partial
from pathlib import Path

import yaml

from tests import tiny_training
from tests.tiny_training import Signal, finish, losses, make_inputs, read_events, saved_steps
from tests.trainer.demo_data import CHECKOUT

__all__ = ["Signal", "finish", "losses", "make_inputs", "read_events", "saved_steps"]

ZERO3 = {"deepspeed": str(CHECKOUT / "sft" / "deepspeed" / "ds_z3_nogather.json"), "use_cpu": None}

tiny_training.CONTEXT.set_forkserver_preload(["tests.trainer.preloaded"])
start = partial(tiny_training.start, "llamafactory")


def train(*arguments: object, **variables: object) -> list[int | None]:
    """Train to the end, or as far as it goes; the exit codes by rank."""
    return finish(start(*arguments, **variables))


def write_config(folder: Path, inputs: Path, **options: object) -> Path:
    """A train.yaml of 10 steps that saves each 4; options that are None are left out."""
    config = {
        "model_name_or_path": str(inputs / "model"),
        "stage": "sft",
        "finetuning_type": "full",
        "do_train": True,
        "dataset": "tiny",
        "template": "empty",
        "cutoff_len": 16,
        "tokenized_path": str(inputs / "tokens"),
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "max_steps": 10,
        "save_steps": 4,
        "logging_steps": 1,
        "learning_rate": 1.0e-2,
        "seed": 7,
        "use_cpu": True,
        "report_to": "none",
        **options,
    }
    folder.mkdir(exist_ok=True)
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "train.yaml").write_text(yaml.safe_dump(kept))
    return folder / "train.yaml"
