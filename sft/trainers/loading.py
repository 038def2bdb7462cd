"""Whether transformers loads a model as its config says, found without reading its numbers.

    python -m sft.trainers.loading FOLDER

The last line is JSON: the names of tensors that are `missing`, that are `unexpected`, whose shape
is `mismatched`, and `renamed` ones, under which transformers itself would not save the model: other
software would not find them.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors import safe_open
from transformers import AutoConfig
from transformers.core_model_loading import revert_weight_conversion

LISTED = 20


def examine(folder: Path) -> dict[str, list[str]]:
    """The names by what is wrong with them; at most LISTED of each."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    model_class = getattr(transformers, config.architectures[0])
    # On the meta device the loader goes through all names and shapes, and keeps no number.
    _, said = model_class.from_pretrained(
        folder,
        device_map="meta",
        dtype="auto",
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    with torch.device("meta"):
        new = model_class(config)
    saved = revert_weight_conversion(new, new.state_dict()).keys()
    found = {
        "missing": said["missing_keys"],
        "unexpected": said["unexpected_keys"],
        "mismatched": [name for name, *_ in said["mismatched_keys"]],
        "renamed": _names(folder) - saved - set(said["unexpected_keys"]),
    }
    return {kind: sorted(names)[:LISTED] for kind, names in found.items()}


def _names(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= set(file.keys())
    return found


if __name__ == "__main__":
    print(json.dumps(examine(Path(sys.argv[1]))))
