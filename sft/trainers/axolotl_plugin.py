"""axolotl's side of this project: a plugin that its `plugins:` names, outside of its tree.

It gives axolotl the tokens as they lie on the disk: no lock, no cache and no copy, however many
processes start at once. It counts steps as transformers does from epochs, and brings the callbacks
that save, stop and watch a run.
"""

import inspect
import math
import os
from pathlib import Path
from typing import Any

from axolotl.common.datasets import TrainDatasetMeta
from axolotl.integrations.base import BasePlugin
from axolotl.utils.trainer import calculate_total_num_steps
from datasets import Dataset, load_from_disk
from transformers import Trainer, TrainerCallback

from sft.trainers.callbacks import AssertWorldSize, EmbedTemplate
from sft.trainers.keeper import Keeper

NAME = f"{__name__}.Plugin"


class Plugin(BasePlugin):
    """Tokens in, callbacks beside, the trainer's own state at the end."""

    world_size: int | None = None  # what the launcher expects, where it is told

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> TrainDatasetMeta:
        """The tokens that `datasets` names, in their order."""
        tokens = load_from_disk(cfg.datasets[0].path)
        return TrainDatasetMeta(train_dataset=tokens, total_num_steps=count_steps(cfg, tokens))

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[TrainerCallback]:
        saves_by_time = cfg.save_strategy == "steps" and not cfg.save_steps
        callbacks: list[TrainerCallback] = [EmbedTemplate(), Keeper(saves_by_time=saves_by_time)]
        if self.world_size:
            callbacks.insert(0, AssertWorldSize(self.world_size))
        return callbacks

    def post_trainer_create(self, cfg: Any, trainer: Trainer) -> None:
        self.trainer = trainer
        # axolotl would keep four of them; who launched the run deletes the old ones.
        trainer.args.save_total_limit = None
        trainer.args.warmup_steps = read_warmup(cfg, trainer.args.warmup_steps)
        weigh_tokens_equally(trainer)
        # It asks the hub about the base model, and is not published.
        trainer.create_model_card = lambda *args, **kwargs: None

    def post_train(self, cfg: Any, model: Any) -> None:
        # The first process of each node would write the weights to the same shared files.
        cfg.local_rank = int(os.environ.get("RANK", "0"))

    def finish(self, output: Path) -> None:
        """Write the trainer's state beside the weights, the sign that both are there."""
        self.trainer.state.save_to_json(str(output / "trainer_state.json"))


def count_steps(cfg: Any, tokens: Dataset) -> int:
    """The optimizer steps of a run, as transformers counts them from epochs.

    axolotl rounds once, over all epochs, and would end a run of two short ones a step early. Packs
    are made as training goes on, so of them its own estimate counts.
    """
    if cfg.max_steps:
        return cfg.max_steps
    if cfg.sample_packing:
        return calculate_total_num_steps(cfg, tokens)
    divide = math.floor if cfg.dataloader_drop_last else math.ceil
    batches = divide(divide(len(tokens) / cfg.micro_batch_size) / cfg.world_size)
    return math.ceil(cfg.num_epochs * math.ceil(batches / cfg.gradient_accumulation_steps))


def read_warmup(cfg: Any, made: float) -> float:
    """Steps, or a share of them that transformers rounds up; `made` where the config says neither.

    axolotl rounds a share down, and makes two steps of one (core/builders/base.py).
    """
    said = (cfg.warmup_steps, cfg.warmup_ratio)
    return next((each for each in said if each is not None), made)


def weigh_tokens_equally(trainer: Trainer) -> None:
    """Let each trained token of a step count the same, as in LLaMA-Factory's runs.

    axolotl 0.19 takes nearly every model for unable to divide its loss by the tokens of the whole
    step (core/trainers/base.py), and means over each micro-batch: the tokens of short answers
    would weigh more, and the batch's making would change the gradient. This is transformers' own
    rule again, over all processes.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    parameters = inspect.signature(model.forward).parameters.values()
    trainer.model_accepts_loss_kwargs = any(
        each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters
    )
    trainer.args.average_tokens_across_devices = trainer.args.world_size > 1
