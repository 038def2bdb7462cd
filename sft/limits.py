"""What keeps an experiment from running at a site, told before anything is submitted."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from sft.backends import BACKENDS
from sft.batch import derive_batch
from sft.errors import gathered, nearest
from sft.experiment import Experiment
from sft.memory import GIB, state_bytes
from sft.recipe import Recipe
from sft.request import Request, training_request
from sft.site import Site
from sft.sizes import Size
from sft.steps import count_warmup


def request_faults(
    site: Site, requests: Mapping[str, Request], experiments: Iterable[Experiment]
) -> list[str]:
    """One line for each rule whose jobs no QOS starts, and each row with more nodes than its QOS.

    Slurm takes such a job and lets it wait for ever.
    """
    if site.launcher != "slurm":
        return []
    lines = [
        f"profiles/{site.name}/config.yaml, "
        f"{f'set-resources, {rule}' if rule else 'default-resources'}, runtime: found "
        f"{each.minutes:g} minutes, expected at most {most_minutes(site, each.qos)}"
        f"{_named(each.qos)} at {site.name}; Slurm never starts a longer job"
        for rule, each in requests.items()
        if each.minutes and each.minutes > most_minutes(site, each.qos)
    ]
    qos = training_request(requests).qos
    most = site.max_nodes_by_qos.get(qos, site.max_nodes)
    lines += [
        f"{each.where}, num_nodes: found {each.num_nodes}, expected at most {most}{_named(qos)} "
        f"at {site.name}; or choose another qos under set-resources, train"
        for each in experiments
        if most < each.num_nodes <= site.max_nodes  # more is said by limit_faults
    ]
    return lines


def most_minutes(site: Site, qos: str) -> int:
    """The longest wall time of a job of that QOS, or of one without, in minutes."""
    return site.max_minutes_by_qos.get(qos, site.max_minutes)


def _named(qos: str) -> str:
    return f" for qos {qos}" if qos else ""


def limit_faults(experiment: Experiment, site: Site) -> list[str]:
    """One line for each thing that keeps the experiment from running at the site."""
    lines: list[str] = []
    with gathered(lines):
        derive_batch(experiment, site)
    if experiment.num_nodes > site.max_nodes:
        lines.append(
            f"{experiment.where}, num_nodes: found {experiment.num_nodes}, expected at most "
            f"{site.max_nodes} at {site.name}"
        )
    if experiment.environment not in site.environments:
        remedy = nearest(experiment.environment, site.environments)
        lines.append(
            f"{experiment.where}, environment: {site.name} has no {experiment.environment!r}; "
            f"{remedy}; or add it under `environments` in profiles/{site.name}/config.yaml"
        )
    recipe = BACKENDS[experiment.backend].read_recipe(experiment.config)
    if recipe.flash_attention and site.attn == "sdpa":
        lines.append(
            f"{experiment.where}, {recipe.flash_attention}: {site.name} has no flash-attn for its "
            "CPU architecture; leave it out to take the site's own (sdpa)"
        )
    if recipe.max_steps:
        lines += warmup_faults(experiment, recipe, recipe.max_steps)
    return lines


def warmup_faults(experiment: Experiment, recipe: Recipe, total_steps: int) -> list[str]:
    """A line where the warm-up is as long as the run: the learning rate never leaves its ramp."""
    warmup = count_warmup(total_steps, recipe)
    if warmup < total_steps:
        return []
    return [
        f"{experiment.where}, {recipe.warmup_key}: found {recipe.warmup:g}, a warm-up of {warmup} "
        f"steps in a run of {total_steps}: the learning rate never leaves its ramp; give fewer, or "
        "a share below 1"
    ]


def state_faults(experiment: Experiment, site: Site, size: Size) -> list[str]:
    """A line where weights, gradients and optimizer alone are more than a GPU holds.

    A fact, since all of them lie there from the first step on. Memory of a card counts in GiB.
    """
    found = BACKENDS[experiment.backend].read_recipe(experiment.config).states
    world_size = experiment.num_nodes * site.processes_per_node
    states = state_bytes(size.parameters, found, world_size) / GIB
    if not site.gpu_memory_gb or states <= site.gpu_memory_gb:
        return []
    if found.zero_stage >= 3:
        processes = math.ceil(states * world_size / site.gpu_memory_gb)
        nodes = math.ceil(processes / site.processes_per_node)
        remedy = f"num_nodes of {nodes} and more share them, or offload them (`deepspeed`)"
    else:
        remedy = "shard them with a `deepspeed` config, or set pure_bf16: true"
    return [
        f"{experiment.where}, GPU memory: weights, gradients and optimizer of "
        f"{size.parameters / 1e9:.2f}B parameters take {states:.0f} GiB on each GPU "
        f"({found.weights:g} + {found.gradients:g} + {found.optimizer or 0:g} bytes a parameter, "
        f"ZeRO stage {found.zero_stage}, {world_size} GPUs), "
        f"{site.name} has {site.gpu_memory_gb:g}; {remedy}"
    ]


def world_size_faults(
    experiment: Experiment, site: Site, checkpoints: Path, earlier: int
) -> list[str]:
    """A line where the run would go on from checkpoints of another number of processes.

    Shards of an optimizer and the order of the data belong to a number of processes.
    """
    world_size = experiment.num_nodes * site.processes_per_node
    if earlier == world_size:
        return []
    nodes, rest = divmod(earlier, site.processes_per_node)
    same = f"go on with {earlier} processes" if rest else f"set num_nodes to {nodes} to go on"
    return [
        f"{experiment.where}, num_nodes: found {experiment.num_nodes}, which is {world_size} "
        f"processes, but its checkpoints are of {earlier}: {same}; or move {checkpoints} away to "
        "start from the beginning; or let a new row start from their weights alone"
    ]
