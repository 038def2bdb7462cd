"""Whole weights of what a trainer left in parts: an adapter, or the shards of many ranks."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sft.adapter import kept_share, merge_faults, read_scales
from sft.checkpoint import Layout
from sft.consolidation.gather import gather, plan_weights
from sft.consolidation.loading import listed_faults
from sft.environment import ask_environment, run_in_environment
from sft.errors import raise_faults
from sft.experiment import Experiment
from sft.files import new_folder
from sft.site import Site
from sft.step import log


def consolidate(
    experiment: Experiment,
    site: Site,
    layout: Layout,
    weights: Path,
    base: Path,
    folder: Path,
    output: Path,
) -> dict[str, Any]:
    """Make whole weights of what lies in `weights`, as the folder `folder`; say what was made.

    It appears whole, or not at all. An adapter is merged into the model `base`: a sample of each
    merged matrix must be the base's plus the adapter's product, and all other tensors the base's.
    Shards are put together: a sample of each tensor must be the shards', and transformers must find
    all that config.json asks for. Weights that are whole stay where they are: some trainers merge
    shards themselves. `output` takes the merging's own lines.

    Returns {"weights", "merged", "kept", "files"}: how many matrices were merged, the share of what
    the adapter adds that is left after rounding, and the manifest entries of files that were hashed
    while they were written. Raises SftError where the layout or the adapter is of a kind that
    cannot be put together here, or where something is missing or damaged.
    """
    made: dict[str, Any] = {"weights": str(folder), "merged": 0, "kept": None, "files": []}
    if layout is Layout.SAFETENSORS:
        return made | {"weights": str(weights)}
    if layout is Layout.LORA:
        return made | _merge(experiment, site, weights, base, folder, output)

    def prove(partial: Path) -> None:
        raise_faults(loading_faults(site, experiment.environment, partial))

    return made | {"files": gather(plan_weights(weights, layout, base, None), folder, prove)}


def _merge(
    experiment: Experiment, site: Site, weights: Path, base: Path, folder: Path, output: Path
) -> dict[str, Any]:
    scales = read_scales(weights)
    with new_folder(folder) as partial:
        command = ["python", "-m", "sft.trainers.merge", str(base), str(weights), str(partial)]
        run_in_environment(site, experiment.environment, command, output, {})
        raise_faults(merge_faults(base, weights, partial, scales))
        kept = kept_share(base, weights, partial, scales)
    log.info(
        "merged %d matrices; %.0f %% of what the adapter adds is left after rounding",
        len(scales),
        100 * (kept or 0),
    )
    return {"merged": len(scales), "kept": kept}


def loading_faults(site: Site, environment: str, folder: Path) -> Iterator[str]:
    """A line for each kind of tensor that transformers does not find as config.json says."""
    command = f"python -m sft.trainers.loading {shlex.quote(str(folder))}"
    return listed_faults(ask_environment(site, environment, command), folder)
