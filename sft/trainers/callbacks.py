"""What every training of this project checks and mends beside its keeper."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from sft.trainers.served_tokenizer import embed_template


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


class EmbedTemplate(TrainerCallback):
    """Makes each `checkpoint-N` serve the template of the trainer's own tokenizer.

    To stand before the callback that notes a checkpoint as complete.
    """

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            embed_template(folder, kwargs["processing_class"].chat_template)
