"""axolotl's entry: tokenize a mix, check a config, train. Runs in its own environment.

    python -m sft.trainers.axolotl versions [NAME ...]
    python -m sft.trainers.axolotl pretokenize REQUEST_FOLDER TOKENS_FOLDER
    python -m sft.trainers.axolotl check TRAIN_YAML
    python -m sft.trainers.axolotl train TRAIN_YAML --world-size N

Training is axolotl's own; what is ours comes in as a plugin (axolotl_plugin.py), so upstream stays
as it was installed. `axolotl train TRAIN_YAML` does the same with this package on PYTHONPATH, but
trains a finished run one step further and takes whatever number of processes it gets.
"""

import os
import sys
from pathlib import Path
from typing import Any

from sft.trainers.entry import has_ended, is_complete, is_first, refuse_to_tokenize, run
from sft.trainers.served_tokenizer import embed_templates

PACKAGES = (
    *("axolotl", "transformers", "tokenizers", "datasets", "torch", "accelerate", "trl", "peft"),
    *("deepspeed", "liger_kernel", "flash_attn", "bitsandbytes", "torchao"),
)

# Nothing is sent, and the log is the job's own: a copy in a shared folder is written by all nodes.
SETTINGS = {"AXOLOTL_DO_NOT_TRACK": "1", "AXOLOTL_TEE_STDOUT": "0"}
# Without it, several processes without a GPU each train alone.
CPU_SETTINGS = {"ACCELERATE_USE_CPU": "true"}


def pretokenize(request: Path, tokens: Path) -> None:
    """Tokenize the mix that request/tokenize.yaml names, with axolotl's own chat-template code.

    The files are those of `sft.trainers.llamafactory.pretokenize`. Packs are made while training
    goes on: of a packed mix the examples stand one by one, with their lengths and positions.
    """
    os.environ |= SETTINGS
    from sft.trainers.axolotl_tokens import tokenize_mix

    tokenize_mix(request, tokens)


def check(config: Path) -> None:
    """Let axolotl's own schema read the config as each training process will."""
    os.environ |= SETTINGS
    from axolotl.cli.config import prepare_plugins
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault

    read = DictDefault(_read_config(config))
    prepare_plugins(read)
    validate_config(read, capabilities=_capabilities(), env_capabilities=_versions())
    print("the trainer's own schema accepts", config)


def train(config: Path, world_size: int) -> None:
    """Train as the config says, or return at once where the run is complete.

    Where its keeper stops a run, each process leaves with an exit code of `sft.trainers.keeper`.

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
    refuse_to_tokenize(Path(arguments["datasets"][0]["path"]))
    from sft.trainers.on_cpu import is_on_cpu, know_numbered_cpu

    os.environ |= SETTINGS | (CPU_SETTINGS if is_on_cpu() else {})
    from axolotl.cli.config import load_cfg
    from axolotl.integrations.base import PluginManager
    from axolotl.train import train as train_model

    from sft.trainers.axolotl_plugin import NAME

    cfg = load_cfg(str(config))
    if is_on_cpu():
        know_numbered_cpu()
        cfg.device_map = None  # it numbers the device of each process, as if that were a GPU
    plugin = PluginManager.get_instance().plugins[NAME]
    plugin.world_size = world_size
    train_model(cfg=cfg, dataset_meta=plugin.load_datasets(cfg))
    if is_first():
        plugin.finish(output)
        if not has_ended(output):
            raise RuntimeError(f"{output}: training ended before its last step")
        embed_templates(output)


def _capabilities() -> dict[str, Any]:
    """What axolotl's schema asks about the GPU, which the training job has, if not this host."""
    from sft.trainers.on_cpu import is_on_cpu

    has_gpu = not is_on_cpu()
    return {"bf16": has_gpu, "tf32": has_gpu, "fp8": False, "n_gpu": 1, "compute_capability": None}


def _versions() -> dict[str, str]:
    import torch

    return {"torch_version": torch.__version__.partition("+")[0]}


def _read_config(path: Path) -> dict[str, Any]:
    import yaml

    return yaml.safe_load(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    run(sys.modules[__name__])
