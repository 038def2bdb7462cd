"""What a training of several processes without a GPU needs."""

import os

from torch.serialization import register_package


def is_on_cpu() -> bool:
    """Whether the site trains without GPUs."""
    return os.environ.get("SFT_ON_CPU") == "1"


def know_numbered_cpu() -> None:
    """Let torch load to "cpu:0", so that several processes on CPUs can resume.

    accelerate 1.11 to 1.13 numbers the CPU of such processes, transformers 5 loads the optimizer to
    it, and torch 2.13 refuses: "don't know how to restore data location".
    """
    register_package(9, lambda _: None, lambda data, place: data if place == "cpu:0" else None)
