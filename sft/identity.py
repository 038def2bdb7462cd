"""Which run is the same run: what decides its weights, and where its checkpoints lie."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft.backends import BACKENDS
from sft.experiment import Experiment
from sft.files import hash_json, read_json


def fingerprint(
    experiment: Experiment, model: Mapping[str, Any], tokens: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that decides a run's weights: options by value, contents by hash.

    A prepared model is named by its content: its revision is that of what it was made of.
    """
    revision = None if "prepared" in model else model["revision"]
    return BACKENDS[experiment.backend].science(experiment.config) | {
        "backend": experiment.backend,
        "model": revision or model["sha256"],
        "tokens": tokens["key"],
    }


def checkpoints_folder(run: Path, identity: Mapping[str, Any]) -> Path:
    """The folder of the checkpoints of a run with that fingerprint."""
    return run / "checkpoints" / hash_json(identity)[:8]


def earlier_world_size(checkpoints: Path) -> int | None:
    """The number of processes of the last attempt to train a run; None before the first."""
    path = checkpoints / "attempts.json"
    attempts = read_json(path) if path.exists() else []
    sizes = [each["world_size"] for each in attempts if each["world_size"]]
    return sizes[-1] if sizes else None
