"""Merge a LoRA adapter into the model that it was trained on, whichever trainer made it.

    python -m sft.trainers.merge BASE ADAPTER OUTPUT

Both trainers' own commands do this: peft adds scale × B·A to each matrix, on the CPU, in the dtype
of the base's weights. A sum that is not finite ends it.
"""

import argparse
import shutil
from pathlib import Path

from peft import PeftModel
from transformers import AutoModelForCausalLM

# The adapter was saved with them; the base's tokenizer has another template.
TOKENIZER = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
)


def merge(base: Path, adapter: Path, output: Path) -> None:
    """Write a transformers folder with the merged weights and the adapter's tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto", local_files_only=True)
    merged = PeftModel.from_pretrained(model, adapter).merge_and_unload(safe_merge=True)
    tell_end_of_turn(merged, adapter)
    merged.save_pretrained(output)
    for name in TOKENIZER:
        if (adapter / name).exists():
            shutil.copyfile(adapter / name, output / name)


def tell_end_of_turn(model: AutoModelForCausalLM, adapter: Path) -> None:
    """Let generation stop at the adapter tokenizer's end token, as a fully trained model's does."""
    from transformers import AutoTokenizer

    end = AutoTokenizer.from_pretrained(adapter, local_files_only=True).eos_token_id
    said = model.generation_config.eos_token_id
    stops = said if isinstance(said, list) else [] if said is None else [said]
    if end not in stops:
        model.generation_config.eos_token_id = [end, *stops]


def main() -> None:
    parser = argparse.ArgumentParser(prog="sft.trainers.merge")
    for name in ("base", "adapter", "output"):
        parser.add_argument(name, type=Path)
    merge(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
