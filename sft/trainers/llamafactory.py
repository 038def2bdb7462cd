"""LLaMA-Factory's entry: tokenize a mix, check a config, train. Runs in its own environment.

    python -m sft.trainers.llamafactory versions [NAME ...]
    python -m sft.trainers.llamafactory pretokenize REQUEST_FOLDER TOKENS_FOLDER
    python -m sft.trainers.llamafactory check TRAIN_YAML
    python -m sft.trainers.llamafactory train TRAIN_YAML --world-size N

Upstream's command line has no hook for templates, and trains a finished run one step further; so
both tokenizing and training come through here, and upstream stays as it was installed.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft.trainers.entry import has_ended, is_complete, is_first, refuse_to_tokenize, run
from sft.trainers.served_tokenizer import embed_templates
from sft.trainers.text_only import allow_text_only

PACKAGES = (
    *("llamafactory", "transformers", "tokenizers", "datasets", "torch", "accelerate"),
    *("deepspeed", "liger_kernel", "flash_attn"),
)


def pretokenize(request: Path, tokens: Path) -> None:
    """Tokenize the mix that request/tokenize.yaml names, with LLaMA-Factory's own code.

    `tokens` becomes a `datasets` folder with int32 input_ids, int32 labels (-100 where a token has
    no loss) and int8 attention_mask. Beside it lie rows.parquet (for each example its source and
    the number of its row there, from 0), counts.json (the number of examples; by source rows in,
    rows out, examples, tokens and trained tokens in the mix) and tokenizer/ (as training will save
    it). Where examples are packed, rows.parquet and the counts by source are of unpacked/, which
    holds them one by one.
    """
    _import_trainer()
    from sft.trainers.llamafactory_tokens import tokenize_mix

    tokenize_mix(_read_config(request / "tokenize.yaml"), tokens)


def check(config: Path) -> None:
    """Let LLaMA-Factory's own parser read the config as each training process will."""
    _import_trainer()
    import torch.distributed as dist
    from llamafactory.hparams import get_train_args
    from transformers import training_args

    # The parser runs where there may be no GPU; the training job has one.
    training_args.is_torch_bf16_gpu_available = lambda: True
    arguments = _read_config(config)
    if arguments.get("flash_attn") == "fa2" and importlib.util.find_spec("flash_attn") is None:
        # LLaMA-Factory warns and takes eager attention, which runs out of memory at long contexts.
        sys.exit("flash_attn: fa2, but flash-attn is not installed in this environment")
    if arguments.get("deepspeed"):  # the parser wants a process group then
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        _compile_nothing()
    get_train_args(arguments)
    print("the trainer's own parser accepts", config)


def _compile_nothing() -> None:
    """Let DeepSpeed do without what it compiles where there is no GPU, for processes of one host.

    It takes a minute, in the user's cache, where a killed one's lock stops all others for ever.
    """
    # By its name: the package's own attribute `torch` is torch itself.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None


def train(config: Path, world_size: int) -> None:
    """Train as the config says, or return at once where the run is complete.

    Where its keeper stops a run, each process leaves with an exit code of `sft.trainers.keeper`. A
    config without `save_steps` leaves it to the keeper when to save.

    Raises RuntimeError where the tokens are not there, where the processes that found each other
    are not `world_size`, and where training ends before its last step.
    """
    arguments = _read_config(config)
    output = Path(arguments["output_dir"])
    if is_complete(output):
        if is_first():  # two that write the same files at once would spoil them
            embed_templates(output)
        print(f"{output}: the run is complete; nothing to train")
        return
    refuse_to_tokenize(Path(arguments["tokenized_path"]))
    _import_trainer()
    from llamafactory.train.tuner import run_exp
    from transformers import training_args

    from sft.trainers.callbacks import AssertWorldSize, EmbedTemplate
    from sft.trainers.keeper import Keeper
    from sft.trainers.on_cpu import is_on_cpu, know_numbered_cpu

    if is_on_cpu() and "deepspeed" in arguments:
        # DeepSpeed is skipped with use_cpu, and bf16 is refused on a CPU without it.
        training_args.is_torch_bf16_gpu_available = lambda: True
    if arguments.get("use_cpu"):
        know_numbered_cpu()

    keeper = Keeper(saves_by_time=_saves_by_time(arguments))
    run_exp(arguments, callbacks=[AssertWorldSize(world_size), EmbedTemplate(), keeper])
    if is_first():
        if not has_ended(output):
            raise RuntimeError(f"{output}: training ended before its last step")
        embed_templates(output)


def _import_trainer() -> None:
    """Import LLaMA-Factory with this project's templates in its table."""
    allow_text_only()
    from sft.trainers.llamafactory_templates import register_templates

    register_templates()


def _saves_by_time(arguments: Mapping[str, Any]) -> bool:
    """Whether a config leaves it open when to save; transformers would save each 500 steps."""
    return "save_steps" not in arguments and arguments.get("save_strategy", "steps") == "steps"


def _read_config(path: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(path))


if __name__ == "__main__":
    run(sys.modules[__name__])
