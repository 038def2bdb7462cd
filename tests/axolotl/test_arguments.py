"""What a rendered config says reaches transformers' arguments in the real axolotl."""

from pathlib import Path

import pytest
import torch
from axolotl.utils.dict import DictDefault

from sft.trainers.axolotl_plugin import read_warmup
from tests.axolotl.tiny_run import make_inputs, train, write_config

# A key of train.yaml, its value, and the argument of transformers' Trainer that it has to become.
KEYS = {
    "learning_rate": (3e-3, "learning_rate", 3e-3),
    "lr_scheduler": ("cosine", "lr_scheduler_type", "cosine"),
    "weight_decay": (0.05, "weight_decay", 0.05),
    "adam_beta1": (0.8, "adam_beta1", 0.8),
    "adam_beta2": (0.9, "adam_beta2", 0.9),
    "adam_epsilon": (1e-7, "adam_epsilon", 1e-7),
    "max_grad_norm": (0.5, "max_grad_norm", 0.5),
    "optimizer": ("adamw_torch", "optim", "adamw_torch"),
    "warmup_ratio": (0.6, "warmup_steps", 0.6),
    "num_epochs": (0.25, "num_train_epochs", 0.25),
    "micro_batch_size": (2, "per_device_train_batch_size", 2),
    "gradient_accumulation_steps": (1, "gradient_accumulation_steps", 1),
    "seed": (3, "seed", 3),
    "logging_steps": (2, "logging_steps", 2),
    "save_strategy": ("steps", "save_strategy", "steps"),
    "save_steps": (3, "save_steps", 3),
    "gradient_checkpointing": (True, "gradient_checkpointing", True),
    "dataloader_num_workers": (1, "dataloader_num_workers", 1),
    "dataloader_pin_memory": (False, "dataloader_pin_memory", False),
    "dataloader_prefetch_factor": (3, "dataloader_prefetch_factor", 3),
    "dataloader_drop_last": (True, "dataloader_drop_last", True),
    "ddp_timeout": (77, "ddp_timeout", 77),
    "neftune_noise_alpha": (0.1, "neftune_noise_alpha", 0.1),
    "use_wandb": (False, "report_to", []),
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> object:
    """The arguments that a run kept beside its last checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    make_inputs(folder)
    said = {key: value for key, (value, _, _) in KEYS.items()} | {"warmup_steps": None}
    config = write_config(folder, folder, max_steps=None, **said)
    assert train(config) == [0], (folder / "0.log").read_text()[-3000:]
    [saved] = Path(folder / "out").glob("checkpoint-4/training_args.bin")
    return torch.load(saved, weights_only=False)


@pytest.mark.parametrize("key", KEYS)
def test_key_becomes_the_argument(key, arguments):
    _, argument, expected = KEYS[key]

    assert getattr(arguments, argument) == expected


def test_warmup_is_rounded_as_transformers_does(arguments):
    # 0.6 of 4 steps; axolotl rounds it down.
    assert arguments.get_warmup_steps(arguments.max_steps) == 3


@pytest.mark.parametrize(
    ("said", "warmup"),
    [
        ({"warmup_steps": 1}, 1),  # of which axolotl makes two
        ({"warmup_steps": 0, "warmup_ratio": None}, 0),
        ({"warmup_ratio": 0.1}, 0.1),
        ({}, 5),
    ],
)
def test_warmup_is_what_the_config_says(said, warmup):
    assert read_warmup(DictDefault(said), 5) == warmup


def test_steps_are_counted_as_transformers_does(arguments):
    # A quarter of 32 examples by two.
    assert arguments.max_steps == 4
