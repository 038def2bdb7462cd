"""Write what a person reads before it runs: train.yaml, launch.sh and, for Slurm, train.sbatch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft.backends import BACKENDS
from sft.batch import derive_batch
from sft.checkpoint import finished_folder, newest_complete_checkpoint
from sft.environment import run_in_environment
from sft.errors import raise_faults
from sft.experiment import Experiment
from sft.fetch import verify_fetched
from sft.files import write_json, write_text, write_yaml
from sft.identity import checkpoints_folder, earlier_world_size, fingerprint
from sft.launch import launch_text, write_script
from sft.limits import state_faults, world_size_faults
from sft.plan import step_faults
from sft.request import Request
from sft.site import Site
from sft.sizes import read_size


def render(
    experiment: Experiment,
    site: Site,
    request: Request,
    model: Mapping[str, Any],
    tokens: Mapping[str, Any],
    config: Path,
    launch: Path,
    output: Path,
) -> None:
    """Write train.yaml (deepspeed.json beside it), which the trainer's parser reads, and launch.sh.

    For Slurm also train.sbatch, with what `request` asks for.

    `model` and `tokens` are what was fetched and pretokenized. Checkpoints go to a folder named by
    the run's fingerprint, so that a changed run never resumes what another one left, and a run
    that is changed back finds its own again; fingerprint.json there says what it stands for.
    Raises SftError where the run would waste its GPUs.
    """
    verify_fetched(model, thorough=False)
    backend = BACKENDS[experiment.backend]
    batch = derive_batch(experiment, site)
    run = config.resolve().parent
    identity = fingerprint(experiment, model, tokens)
    checkpoints = checkpoints_folder(run, identity)
    raise_faults(_faults(experiment, site, model, tokens, checkpoints))
    paths = backend.TrainPaths(
        model=Path(model["path"]),
        tokens=Path(tokens["tokens"]),
        output=checkpoints,
        deepspeed=run / "deepspeed.json",
    )
    write_json(checkpoints / "fingerprint.json", identity)
    if "deepspeed" in experiment.config:
        source = backend.DEEPSPEED_FOLDER / experiment.config["deepspeed"]
        write_text(paths.deepspeed, source.read_text())
    header = (
        f"{experiment.name}: {Path(experiment.base_config).name} with "
        f"{_list_overrides(experiment) or 'no override'}\n"
        f"{batch.global_batch_size} sequences a step = {batch.world_size} processes × "
        f"{batch.per_device} a process × {batch.accumulation} accumulated"
    )
    unchecked = config.with_name(f".{config.name}")
    write_yaml(unchecked, backend.render_config(experiment, site, batch, paths), header)
    run_in_environment(site, experiment.environment, backend.check_command(unchecked), output, {})
    unchecked.replace(config)
    write_text(launch, launch_text(experiment, site, config.resolve()))
    launch.chmod(0o755)
    write_script(experiment, site, request, config)


def _faults(
    experiment: Experiment,
    site: Site,
    model: Mapping[str, Any],
    tokens: Mapping[str, Any],
    checkpoints: Path,
) -> list[str]:
    """What would waste the GPUs of a run that is not complete, by its tokens, size and nodes."""
    if finished_folder(checkpoints):
        return []
    lines = step_faults(experiment, site, tokens)
    if size := read_size(Path(model["path"])):
        lines += state_faults(experiment, site, size)
    earlier = earlier_world_size(checkpoints)
    if earlier and newest_complete_checkpoint(checkpoints):
        lines += world_size_faults(experiment, site, checkpoints, earlier)
    return lines


def _list_overrides(experiment: Experiment) -> str:
    return ", ".join(f"{key}={value}" for key, value in experiment.overrides.items())
