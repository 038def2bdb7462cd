"""The batch that follows from an experiment on a site."""

from dataclasses import dataclass

from sft.errors import SftError
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
