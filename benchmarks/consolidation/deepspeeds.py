"""DeepSpeed's function in its sparing mode, each tensor rounded to bfloat16, as safetensors."""

import os
from pathlib import Path

import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file


def consolidate(checkpoint: Path, output: Path) -> None:
    output.mkdir()
    lazy = get_fp32_state_dict_from_zero_checkpoint(str(checkpoint), lazy_mode=True)
    del lazy["lm_head.weight"]  # its own command dies of tied weights
    empty = {
        name: torch.empty(each.shape, dtype=torch.bfloat16, device="meta")
        for name, each in lazy.items()
    }
    pattern = "model{suffix}.safetensors"
    split = split_torch_state_dict_into_shards(empty, filename_pattern=pattern)
    for file, names in split.filename_to_tensors.items():
        tensors = {name: lazy[name].contiguous().to(torch.bfloat16) for name in names}
        save_file(tensors, output / file, {"format": "pt"})
    for path in output.iterdir():
        with open(path, "rb") as written:
            os.fsync(written.fileno())
