"""Make a model of few weights with SmolLM2's tokenizer; runs in the trainer's environment.

python -m tests.slurm.tiny_model OUT [--untied]
"""

import sys
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from demo.make_model import load_tokenizer


def main() -> None:
    """Write the transformers folder."""
    folder, tokenizer = Path(sys.argv[1]), load_tokenizer()
    torch.manual_seed(0)
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings="--untied" not in sys.argv,
        dtype=torch.bfloat16,
        **ids,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
