"""Memory of a GPU, part by part."""

from dataclasses import replace

import pytest

from sft.backends.llamafactory_recipe import read_recipe
from sft.memory import GIB, estimate_memory, host_bytes, state_bytes
from sft.recipe import Batch, States
from sft.sizes import Size

EIGHT_B = Size(8_190_735_360, 8_190_735_360, 36, 4096, 32, 4096, 1024, 12288, 151936)
CONFIG = {"finetuning_type": "full", "bf16": True, "cutoff_len": 32768, "learning_rate": 1e-5}
ZERO3 = States(2, 2, 12, zero_stage=3, max_live_parameters=1e9)


def memory(nodes: int = 1, **config):
    recipe = read_recipe(CONFIG | config)
    return estimate_memory(EIGHT_B, recipe, Batch(96, 1, 96 // (4 * nodes), 4 * nodes))


@pytest.mark.parametrize(
    ("stage", "bytes_each"), [(0, 16), (1, 4 + 12 / 64), (2, 2 + 14 / 64), (3, 16 / 64)]
)
def test_stages_of_zero_shard_as_in_its_paper(stage, bytes_each):
    """Its figure 1: 7.5B parameters on 64 GPUs take 120, 31.4, 16.6 and 1.9 GB."""
    states = replace(ZERO3, zero_stage=stage)

    assert state_bytes(7.5e9, states, 64) == pytest.approx(7.5e9 * bytes_each)
    assert state_bytes(7.5e9, states, 64) / 1e9 == pytest.approx(
        {0: 120, 1: 31.4, 2: 16.6, 3: 1.9}[stage], rel=0.02
    )


def test_more_nodes_shrink_the_states_and_nothing_else():
    one, four = memory(1, deepspeed="ds_z3.json"), memory(4, deepspeed="ds_z3.json")

    assert four.states == one.states / 4
    assert replace(four, states=one.states) == one


def test_states_of_an_8b_are_16_bytes_a_parameter_or_8_in_pure_bf16():
    assert memory().states == pytest.approx(122.05, abs=0.01)
    assert memory(pure_bf16=True).states == pytest.approx(61.03, abs=0.01)


def test_logits_of_32k_tokens_are_more_than_the_18_gib_of_their_fp32_copy():
    logits = memory().logits

    assert logits == 10 * 32768 * 151936 / GIB
    assert logits * 4 / 10 == pytest.approx(18.5, abs=0.1)


@pytest.mark.parametrize("key", ["enable_liger_kernel", "use_liger_kernel"])
def test_fused_loss_holds_no_logits(key):
    assert memory(**{key: True}).logits == 0


@pytest.mark.parametrize("key", ["use_dft_loss", "use_eaft_loss", "use_asft_loss"])
def test_loss_of_its_own_needs_the_logits_with_liger_too(key):
    assert memory(enable_liger_kernel=True, **{key: True}).logits > 0


def test_recomputing_keeps_the_input_of_each_layer_and_one_layer_whole():
    layer = 2 * 32768 * (4 * 4096 + 2 * 4096 + 2 * 1024 + 4 * 12288)
    inputs = 36 * 2 * 4096 * 32768

    assert memory().activations == pytest.approx((inputs + layer) / GIB)
    assert memory(disable_gradient_checkpointing=True).activations == pytest.approx(
        36 * layer / GIB
    )


def test_eager_attention_keeps_scores_that_grow_with_the_square_of_the_tokens():
    extra = memory(flash_attn="disabled").activations - memory().activations

    assert extra == pytest.approx(5 * 32 * 32768**2 / GIB)


def test_offloaded_states_take_memory_of_the_cpu():
    states = read_recipe(CONFIG | {"deepspeed": "ds_z3_offload_nogather.json"}).states

    assert state_bytes(EIGHT_B.parameters, states, 4) == 0
    assert host_bytes(EIGHT_B.parameters, states, num_nodes=2) == EIGHT_B.parameters * 20 / 2


def test_optimizer_on_the_cpu_leaves_the_weights_on_the_gpu():
    states = read_recipe(CONFIG | {"deepspeed": "ds_z3_optim_offload.json"}).states

    assert state_bytes(1e9, states, 4) == 2e9 / 4
    assert host_bytes(1e9, states, num_nodes=1) == 18e9


def test_nothing_offloaded_takes_nothing_of_the_cpu():
    assert host_bytes(1e9, ZERO3, num_nodes=1) == 0
