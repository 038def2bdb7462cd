"""Runs and the steps that the trainer makes of them, checked on both sides.

tests/trainer/test_steps.py asks the trainer's own code for these numbers, tests/unit/test_steps.py
asks ours: neither environment has to import the other.
"""

from typing import NamedTuple


class Case(NamedTuple):
    """A run, and what comes of it: steps an epoch, in all, and of the warm-up."""

    examples: int
    per_device: int
    accumulation: int
    world_size: int
    num_epochs: float
    max_steps: int
    warmup: float
    drop_last: bool
    per_epoch: int
    total: int
    warmup_steps: int


CASES = {
    "the demo": Case(30, 2, 2, 1, 2.0, -1, 2, False, 8, 16, 2),
    "one batch too many": Case(97, 1, 6, 16, 7.0, -1, 0.1, False, 2, 14, 2),
    "exactly one step": Case(96, 1, 6, 16, 7.0, -1, 0.1, False, 1, 7, 1),
    "fewer examples than processes": Case(5, 1, 1, 16, 3.0, -1, 0, False, 1, 3, 0),
    "one example": Case(1, 4, 8, 4, 1.0, -1, 0.1, False, 1, 1, 1),
    "short batches": Case(1000, 3, 2, 4, 1.0, -1, 0.03, False, 42, 42, 2),
    "short batches left out": Case(1000, 3, 2, 4, 1.0, -1, 0.03, True, 42, 42, 2),
    "drop_last loses a step": Case(103, 1, 5, 10, 2.0, -1, 1, True, 2, 4, 1),
    "the same without": Case(103, 1, 5, 10, 2.0, -1, 1, False, 3, 6, 1),
    "half an epoch": Case(1000, 1, 1, 8, 0.5, -1, 10, False, 125, 63, 10),
    "a third of an epoch": Case(1000, 1, 1, 8, 1 / 3, -1, 0.5, False, 125, 42, 21),
    "an epoch and a bit": Case(80, 1, 1, 8, 1.1, -1, 0, False, 10, 11, 0),
    "max_steps within an epoch": Case(10_000, 1, 4, 8, 3.0, 30, 48, False, 313, 30, 48),
    "max_steps over several epochs": Case(100, 2, 1, 2, 1.0, 77, 0.25, False, 25, 77, 20),
    "an instruction mix on 16 GPUs": Case(
        555_519, 1, 1, 16, 1.0, -1, 0.1, False, 34_720, 34_720, 3472
    ),
    "the same on 4 GPUs": Case(555_519, 1, 4, 4, 1.0, -1, 0.1, False, 34_720, 34_720, 3472),
    "113,957 rows, seven times": Case(113_957, 1, 6, 16, 7.0, -1, 0.1, False, 1188, 8316, 832),
}
