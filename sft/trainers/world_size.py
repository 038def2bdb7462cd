"""Whether all processes of a training found each other."""

from typing import Any

from transformers import TrainerCallback


class AssertWorldSize(TrainerCallback):
    """Ends a training that begins with another number of processes than `expected`.

    `accelerate launch --cpu --num_processes 2`, for one, starts with one and says nothing.
    """

    def __init__(self, expected: int) -> None:
        self.expected = expected

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.world_size != self.expected:
            raise RuntimeError(
                f"{args.world_size} training processes found each other, expected {self.expected}"
            )
