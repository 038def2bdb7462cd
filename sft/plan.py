"""What follows from an experiment on a site: the batch, and the limits it must keep."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from sft.errors import SftError, gathered, nearest
from sft.experiment import Experiment
from sft.site import Site


@dataclass(frozen=True)
class Batch:
    """How a global batch is made: sequences a process and step, accumulated steps, processes."""

    global_batch_size: int
    per_device: int
    accumulation: int
    world_size: int


def derive_batch(experiment: Experiment, site: Site) -> Batch:
    """The batch of an experiment on a site: accumulation = global / (nodes × processes × device).

    Nodes change the wall time, never the optimisation. Raises SftError where the global batch does
    not divide, with the node counts that fit.
    """
    config = experiment.config
    per_device = config.get("per_device_train_batch_size", 1)
    world_size = experiment.num_nodes * site.processes_per_node
    if "global_batch_size" not in config:
        accumulation = config.get("gradient_accumulation_steps", 1)
        return Batch(world_size * per_device * accumulation, per_device, accumulation, world_size)
    wanted = config["global_batch_size"]
    if wanted % (world_size * per_device):
        raise SftError(
            f"{experiment.where}, num_nodes: a global batch of {wanted} sequences does not divide "
            f"over {experiment.num_nodes} nodes × {site.processes_per_node} processes × "
            f"{per_device} a process at {site.name}; "
            f"num_nodes that fit: {_fitting_nodes(wanted, per_device, site)}"
        )
    return Batch(wanted, per_device, wanted // (world_size * per_device), world_size)


def _fitting_nodes(wanted: int, per_device: int, site: Site) -> str:
    node_batch = site.processes_per_node * per_device
    counts = [
        str(nodes)
        for nodes in range(1, min(wanted, site.max_nodes) + 1)
        if wanted % (nodes * node_batch) == 0
    ]
    return ", ".join(counts) or "none; change per_device_train_batch_size or global_batch_size"


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
    wanted = experiment.config.get("flash_attn")
    if wanted == "fa2" and site.attn == "sdpa":
        lines.append(
            f"{experiment.where}, flash_attn: found 'fa2', but {site.name} has no flash-attn for "
            "its CPU architecture; leave it out to take the site's own (sdpa)"
        )
    return lines


# A learning rate in a name: lr1e-5, lr1e5 (the habit; no rate has a positive exponent), lr2.5e-5,
# lr2p5e5, lr0.00001. No other number is taken for one (lr83, lr0.5), nor is the end of another
# word or of min_lr.
_NAMED_RATE = re.compile(
    r"(?<![a-z0-9])(?<!min[-_.])lr[-_]?"
    r"(?:(?P<digits>\d+(?:[.p]\d+)?)e-?0?(?P<exponent>[1-9])(?!\d)|(?P<decimal>0[.p]00\d+))",
    re.IGNORECASE,
)


def named_rates(name: str) -> dict[str, float]:
    """The learning rates that a name spells, by their spelling."""
    rates = {}
    for match in _NAMED_RATE.finditer(name):
        text = match["decimal"] or f"{match['digits']}e-{match['exponent']}"
        rates[match[0]] = float(text.lower().replace("p", "."))
    return rates


def name_faults(experiment: Experiment) -> list[str]:
    """One line for each name of the experiment that spells another learning rate than is trained.

    What the names of its model and mix spell is theirs. Of several rates one has to be right.
    """
    trained = experiment.config["learning_rate"]
    model, mix = experiment.model, experiment.mix
    foreign = (model.name, Path(model.hub or model.folder).name, mix.name)
    longest_first = "|".join(map(re.escape, sorted(foreign, key=len, reverse=True)))
    names = {"name": experiment.name, "hub_id": experiment.hub_id.partition("/")[2]}
    if names["hub_id"] == names["name"]:
        del names["hub_id"]
    lines = []
    for key, name in names.items():
        own = re.sub(rf"(?<![a-zA-Z0-9])({longest_first})(?![a-zA-Z0-9])", "/", name)
        rates = named_rates(own)
        if rates and not any(math.isclose(rate, trained) for rate in rates.values()):
            spelled = " and ".join(f"{text} = {rate:g}" for text, rate in rates.items())
            lines.append(
                f"{experiment.where}, {key}: {name!r} says {spelled}, but the learning_rate is "
                f"{trained:g}; rename it, or set the learning_rate"
            )
    return lines
