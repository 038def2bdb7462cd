"""The batch that follows from an experiment on a site."""

from sft.backends import BACKENDS
from sft.errors import SftError
from sft.experiment import Experiment
from sft.recipe import Batch, Recipe
from sft.site import Site


def derive_batch(experiment: Experiment, site: Site) -> Batch:
    """The batch of an experiment on a site: accumulation = global / (nodes × processes × device).

    Nodes change the wall time, never the optimisation. Raises SftError where the global batch does
    not divide, with the node counts that fit.
    """
    recipe = BACKENDS[experiment.backend].read_recipe(experiment.config)
    per_device, wanted = recipe.per_device, recipe.global_batch_size
    world_size = experiment.num_nodes * site.processes_per_node
    if wanted is None:
        whole = world_size * per_device * recipe.accumulation
        return Batch(whole, per_device, recipe.accumulation, world_size)
    if wanted % (world_size * per_device):
        raise SftError(
            f"{experiment.where}, num_nodes: a global batch of {wanted} sequences does not divide "
            f"over {experiment.num_nodes} nodes × {site.processes_per_node} processes × "
            f"{per_device} a process at {site.name}; "
            f"num_nodes that fit: {_fitting_nodes(wanted, recipe, site)}"
        )
    return Batch(wanted, per_device, wanted // (world_size * per_device), world_size)


def _fitting_nodes(wanted: int, recipe: Recipe, site: Site) -> str:
    node_batch = site.processes_per_node * recipe.per_device
    counts = [
        str(nodes)
        for nodes in range(1, min(wanted, site.max_nodes) + 1)
        if wanted % (nodes * node_batch) == 0
    ]
    return ", ".join(counts) or f"none; change {recipe.per_device_key} or global_batch_size"
