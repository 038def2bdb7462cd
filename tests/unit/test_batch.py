"""The batch that follows from a row on a site."""

from dataclasses import replace

import pytest

from sft.batch import derive_batch
from sft.errors import SftError
from sft.recipe import Batch
from sft.site import Site
from tests.unit.experiments import EXPERIMENT, SITE, with_config


@pytest.mark.parametrize(
    ("num_nodes", "accumulation"), [(1, 24), (2, 12), (3, 8), (4, 6), (8, 3), (24, 1)]
)
def test_nodes_change_the_accumulation_and_never_the_global_batch(num_nodes, accumulation):
    batch = derive_batch(replace(EXPERIMENT, num_nodes=num_nodes), SITE)

    assert batch == Batch(96, 1, accumulation, world_size=4 * num_nodes)


def test_without_global_batch_the_accumulation_is_the_configs():
    experiment = with_config(
        global_batch_size=None, per_device_train_batch_size=2, gradient_accumulation_steps=3
    )

    assert derive_batch(experiment, SITE) == Batch(96, 2, 3, world_size=16)


def test_a_site_without_gpus_trains_one_process_a_node():
    assert derive_batch(replace(EXPERIMENT, num_nodes=1), Site(name="localhost")).accumulation == 96


@pytest.mark.parametrize(
    ("num_nodes", "per_device", "fitting"),
    [
        (5, 1, "1, 2, 3, 4, 6, 8, 12, 24"),
        (5, 8, "1, 3"),
        (1, 5, "none; change per_device_train_batch_size or global_batch_size"),
    ],
)
def test_batch_that_does_not_divide_is_refused_with_the_nodes_that_fit(
    num_nodes, per_device, fitting
):
    experiment = with_config(per_device_train_batch_size=per_device)

    with pytest.raises(SftError) as caught:
        derive_batch(replace(experiment, num_nodes=num_nodes), SITE)

    assert str(caught.value) == (
        "t.tsv, line 2 (run), num_nodes: a global batch of 96 sequences does not divide over "
        f"{num_nodes} nodes × 4 processes × {per_device} a process at leonardo; "
        f"num_nodes that fit: {fitting}"
    )


def test_only_node_counts_of_the_site_are_offered():
    with pytest.raises(SftError, match=r"num_nodes that fit: 1, 2, 3, 4$"):
        derive_batch(replace(EXPERIMENT, num_nodes=5), replace(SITE, max_nodes=5))
