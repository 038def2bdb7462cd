"""Whole weights of what a trainer left in parts: today an adapter, merged into its base."""

from pathlib import Path
from typing import Any

from sft.adapter import kept_share, merge_faults, read_scales
from sft.checkpoint import Layout
from sft.environment import run_in_environment
from sft.errors import SftError, raise_faults
from sft.experiment import Experiment
from sft.files import new_folder
from sft.site import Site
from sft.step import log

NOT_YET = {
    Layout.ZERO3: "train with a `deepspeed` that gathers weights at its saves (ds_z3.json), or "
    "consolidate them with DeepSpeed's zero_to_fp32.py",
    Layout.FSDP: "say `final_state_dict_type: FULL_STATE_DICT` under `fsdp_config`",
}


def consolidate(
    experiment: Experiment,
    site: Site,
    layout: Layout,
    weights: Path,
    base: Path,
    folder: Path,
    output: Path,
) -> dict[str, Any]:
    """Merge the adapter in `weights` into the model `base`, as the folder `folder`.

    It appears whole, or not at all, after a sample of each merged matrix was found to be the base's
    plus the adapter's product, and all other tensors to be the base's. Weights that are whole stay
    where they are: some trainers merge shards themselves. `output` takes the merging's own lines.
    Returns {"weights", "merged", "kept"}: how many matrices were merged, and the share of what the
    adapter adds that is left after rounding. Raises SftError where the layout or the adapter is of
    a kind that cannot be merged here.
    """
    if layout is Layout.SAFETENSORS:
        return {"weights": str(weights), "merged": 0, "kept": None}
    if layout in NOT_YET:
        raise SftError(f"{weights}: {layout.value} shards are not released yet; {NOT_YET[layout]}")
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
    return {"weights": str(folder), "merged": len(scales), "kept": kept}
