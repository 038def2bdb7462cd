"""What came of the experiments of a site: one line each, read from their receipts."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft.experiment import Experiment
from sft.receipt import read_receipt

STAGES = ("registered", "uploaded", "release", "layout", "trained")


def result_line(experiment: Experiment, results: Path) -> dict[str, str]:
    """An experiment's stage, steps, loss before and after, and where its release is."""
    run = results / "runs" / experiment.name
    made = {stage: _made(run / f"{stage}.json") for stage in STAGES}
    reached = next((stage for stage in STAGES if made[stage]), "not trained")
    trained = made["trained"]
    return {
        "experiment": experiment.name,
        "reached": reached,
        "steps": f"{trained['global_step']}/{trained['max_steps']}" if trained else "",
        "loss before": _loss(trained.get("loss_start")),
        "loss after": _loss(trained.get("loss_end")),
        "release": _shown(made["uploaded"].get("location") or made["release"].get("folder")),
    }


def _made(path: Path) -> Mapping[str, Any]:
    return read_receipt(path) if path.exists() else {}


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _shown(path: str | None) -> str:
    return os.path.relpath(path) if path else ""
