"""A small checkpoint of Delphi's shape: as many tokens as Llama-3's, in its special names."""

import json
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from sft.delphi.matrices import narrow
from sft.files import write_json

COLUMNS = 4
TRAINED, VOCABULARY = 128000, 128256
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def special_names() -> list[str]:
    """Ids 128000 to 128255 in Llama 3.1's names."""
    named = {
        0: "<|begin_of_text|>",
        1: "<|end_of_text|>",
        4: "<|finetune_right_pad_id|>",
        6: "<|start_header_id|>",
        7: "<|end_header_id|>",
        8: "<|eom_id|>",
        9: "<|eot_id|>",
        10: "<|python_tag|>",
    }
    numbers = iter(range(256))
    return [named.get(i) or f"<|reserved_special_token_{next(numbers)}|>" for i in range(256)]


def write_checkpoint(folder: Path) -> None:
    """Write an untied checkpoint in three shards, of which the second holds neither matrix."""
    pieces = {f"{number:x}": number for number in range(TRAINED)}
    tokenizer = Tokenizer(BPE(vocab=pieces, merges=[]))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special_names()])
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    write_json(
        folder / "tokenizer_config.json",
        {
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|end_of_text|>",
            "tokenizer_class": "PreTrainedTokenizerFast",
            "extra_special_tokens": ["<|reserved_special_token_0|>", "<|eot_id|>"],
            "added_tokens_decoder": {
                str(TRAINED + place): {"content": name, "special": True, "normalized": False}
                for place, name in enumerate(special_names())
            },
        },
    )
    write_json(folder / "config.json", {"tie_word_embeddings": False, "rope_scaling": {"odd": 1}})
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    write_shards(folder, "BF16")


def numbers(seed: int, rows: int, dtype: str) -> np.ndarray:
    """Rows as they are stored; those of reserved tokens are zero, as if never trained."""
    made = np.random.default_rng(seed).normal(0.01, 1, (rows, COLUMNS)).astype(np.float32)
    for token, name in enumerate(special_names(), TRAINED):
        if "reserved" in name:
            made[token : token + 1] = 0  # there may be fewer rows
    return narrow(made, dtype)


def write_shards(folder: Path, dtype: str, rows: int = VOCABULARY) -> None:
    shards = {
        "model-00001-of-00003.safetensors": {EMBEDDING: rows, "model.norm.weight": 1},
        "model-00002-of-00003.safetensors": {"model.layers.0.mlp.up_proj.weight": 8},
        "model-00003-of-00003.safetensors": {HEAD: rows},
    }
    for seed, (file, tensors) in enumerate(shards.items()):
        content = {name: numbers(seed, count, dtype) for name, count in tensors.items()}
        save(folder / file, content, dtype)
    places = {name: file for file, tensors in shards.items() for name in tensors}
    write_json(folder / "model.safetensors.index.json", {"weight_map": places})


def save(path: Path, tensors: dict[str, np.ndarray], dtype: str) -> None:
    """Write a file of safetensors; numpy's own writer knows no bf16."""
    header, start = {"__metadata__": {"format": "pt"}}, 0
    for name, content in tensors.items():
        place = [start, start + content.nbytes]
        header[name] = {"dtype": dtype, "shape": list(content.shape), "data_offsets": place}
        start += content.nbytes
    text = json.dumps(header).encode()
    data = b"".join(content.tobytes() for content in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
