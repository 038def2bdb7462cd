"""One rank of an FSDP training that saves its weights sharded, as accelerate does.

python -m tests.trainer.fsdp_checkpoint FOLDER RANK RANKS PORT
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from tests.trainer.zero_checkpoint import HIDDEN, LAYERS, WORDS


def make_model() -> LlamaForCausalLM:
    """The same random model on each rank; three ranks do not share its vocabulary evenly."""
    torch.manual_seed(3)
    widths = {"hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=WORDS + 1, num_hidden_layers=LAYERS, **widths)
    return LlamaForCausalLM(config).to(torch.bfloat16)


def main(folder: str, rank: int, ranks: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    model = make_model()
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # As in accelerate/utils/fsdp_utils.py, save_fsdp_model.
    dcp.save(
        {"model": model.state_dict()},
        storage_writer=dcp.FileSystemWriter(folder),
        planner=DefaultSavePlanner(),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
