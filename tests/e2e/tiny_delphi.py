"""Make a model of Delphi's kind and few weights: Qwen3's architecture, Llama-3's tokenizer.

python -m tests.e2e.tiny_delphi TOKENIZER OUT

Runs in a trainer's environment.
"""

import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, GenerationConfig, Qwen3Config, Qwen3ForCausalLM


def main() -> None:
    """Write the transformers folder."""
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(source)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=4096,
            tie_word_embeddings=False,
            **ids,
        )
    )
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(folder)
    for path in source.iterdir():  # as they are: the preparation reads the files, not the object
        shutil.copyfile(path, folder / path.name)


if __name__ == "__main__":
    main()
