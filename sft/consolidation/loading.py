"""What transformers said of a folder of weights, by `sft.trainers.loading`, in sentences."""

import json
from collections.abc import Iterator
from pathlib import Path

LOADING = {
    "missing": "the model's config asks for them and no file holds them",
    "unexpected": "no part of the model that config.json describes",
    "mismatched": "of another shape than config.json says",
    "renamed": "transformers has them under these names in memory alone: load the folder with it "
    "where there is memory for the whole model, and save_pretrained it",
}


def listed_faults(said: str, folder: Path) -> Iterator[str]:
    """A line for each kind of tensor that is not as config.json says; `said` is its JSON."""
    for kind, names in json.loads(said).items():
        if names:
            yield f"{folder.name}: {kind} tensors {', '.join(names)}: {LOADING[kind]}"
