"""How a run is cut into steps, as the trainer counts them."""

import math
from dataclasses import dataclass

from sft.recipe import Batch, Recipe


@dataclass(frozen=True)
class Steps:
    """Optimizer steps of an epoch and of the whole run, and how many of them warm up.

    `passes` is how often the run goes through its examples. `save_every` is how many steps lie
    between two checkpoints, None where none is saved before the end.
    """

    per_epoch: int
    total: int
    warmup: int
    passes: float
    save_every: int | None


def count_batches(examples: int, batch: Batch, recipe: Recipe) -> int:
    """The batches of a process in an epoch; 0 only where `drop_last` leaves out all of them.

    They are ceil(ceil(examples / device batch) / processes): short batches and missing ones are
    filled up from the beginning (accelerate's BatchSamplerShard with even_batches), or left out.
    """
    divide = _divide_down if recipe.drop_last else _divide_up
    return divide(divide(examples, batch.per_device), batch.world_size)


def count_steps(examples: int, batch: Batch, recipe: Recipe) -> Steps:
    """The steps of a run over so many examples, at least a batch, as transformers 5.6 counts them.

    An epoch is the batches by accumulation, rounded up; the run epochs × that, rounded up
    (Trainer.set_initial_training_values).
    """
    per_epoch = _divide_up(count_batches(examples, batch, recipe), batch.accumulation)
    total = recipe.max_steps or math.ceil(recipe.num_epochs * per_epoch)
    return Steps(
        per_epoch=per_epoch,
        total=total,
        warmup=count_warmup(total, recipe),
        passes=total / per_epoch if recipe.max_steps else recipe.num_epochs,
        save_every=per_epoch if recipe.save_each_epoch else recipe.save_steps,
    )


def count_warmup(total: int, recipe: Recipe) -> int:
    """The steps of a run's warm-up: given, or a share rounded up (get_warmup_steps)."""
    return int(recipe.warmup) if recipe.warmup >= 1 else math.ceil(total * recipe.warmup)


def _divide_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _divide_down(dividend: int, divisor: int) -> int:
    return dividend // divisor
