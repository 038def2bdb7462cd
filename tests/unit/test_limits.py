"""What keeps an experiment from running at a site."""

from dataclasses import replace
from pathlib import Path

import pytest

from sft.limits import limit_faults, request_faults, state_faults, world_size_faults
from sft.request import Request, read_requests, training_request
from sft.site import Site
from sft.sizes import Size
from tests.unit.experiments import EXPERIMENT, SITE, with_config


def test_experiment_within_the_limits_has_no_fault():
    assert limit_faults(EXPERIMENT, SITE) == []


def test_more_nodes_than_the_site_has_are_a_fault():
    assert limit_faults(EXPERIMENT, replace(SITE, max_nodes=2)) == [
        "t.tsv, line 2 (run), num_nodes: found 4, expected at most 2 at leonardo"
    ]


def test_environment_that_the_site_lacks_is_a_fault():
    (fault,) = limit_faults(with_config(environment="otagnt"), SITE)

    assert fault.startswith(
        "t.tsv, line 2 (run), environment: leonardo has no 'otagnt'; did you mean 'otagent'?"
    )


def test_attention_that_the_site_lacks_is_a_fault():
    (fault,) = limit_faults(with_config(flash_attn="fa2"), replace(SITE, attn="sdpa"))

    assert "flash_attn: fa2: leonardo has no flash-attn" in fault


def test_every_limit_that_is_broken_is_named():
    experiment = replace(with_config(environment="other"), num_nodes=128)
    keys = [line.split(", ")[2].partition(":")[0] for line in limit_faults(experiment, SITE)]

    assert keys == ["num_nodes", "num_nodes", "environment"]


def test_max_steps_within_the_warm_up_are_a_fault():
    assert limit_faults(with_config(max_steps=30, warmup_steps=48), SITE) == [
        "t.tsv, line 2 (run), warmup_steps: found 48, a warm-up of 48 steps in a run of 30: the "
        "learning rate never leaves its ramp; give fewer, or a share below 1"
    ]


# What jobs ask for

QOS_SITE = replace(
    SITE,
    launcher="slurm",
    max_minutes=1440,
    max_minutes_by_qos={"normal": 720, "debug": 30, "long": 5760},
    max_nodes_by_qos={"debug": 2},
)


def test_training_asks_for_the_default_where_it_has_nothing_of_its_own():
    requests = read_requests({"default-resources": {"runtime": 1439, "qos": "debug"}})

    assert training_request(requests) == Request(1439, "debug")
    assert request_faults(QOS_SITE, requests, []) == [
        "profiles/leonardo/config.yaml, default-resources, runtime: found 1439 minutes, expected "
        "at most 30 for qos debug at leonardo; Slurm never starts a longer job"
    ]


def test_day_on_a_qos_of_twelve_hours_is_refused():
    assert request_faults(QOS_SITE, {"": Request(), "train": Request(1439, "normal")}, []) == [
        "profiles/leonardo/config.yaml, set-resources, train, runtime: found 1439 minutes, "
        "expected at most 720 for qos normal at leonardo; Slurm never starts a longer job"
    ]


def test_limit_of_a_qos_may_be_longer_than_the_sites():
    assert request_faults(QOS_SITE, {"": Request(), "train": Request(5760, "long")}, []) == []


def test_limit_of_the_site_holds_without_a_qos():
    (fault,) = request_faults(QOS_SITE, {"": Request(), "pretokenize": Request(1441)}, [])

    assert "set-resources, pretokenize, runtime: found 1441 minutes, expected at most 1440" in fault


def test_more_nodes_than_a_qos_gives_are_refused_with_the_row():
    requests = {"": Request(), "train": Request(30, "debug")}

    assert request_faults(QOS_SITE, requests, [EXPERIMENT]) == [
        "t.tsv, line 2 (run), num_nodes: found 4, expected at most 2 for qos debug at leonardo; "
        "or choose another qos under set-resources, train"
    ]


def test_runtime_that_cannot_be_read_is_not_held_against_the_site():
    assert (
        request_faults(QOS_SITE, {"": Request(), "train": Request(None, "normal")}, [EXPERIMENT])
        == []
    )


def test_computer_without_slurm_has_no_wall():
    site = replace(QOS_SITE, launcher="local")

    assert request_faults(site, {"train": Request(10**6, "normal")}, [EXPERIMENT]) == []


# Memory that is a fact

EIGHT_B = Size(8_190_735_360, 8_190_735_360, 36, 4096, 32, 4096, 1024, 12288, 151936)
ONE_CARD = Site(name="vista", gpus_per_node=1, gpu_memory_gb=96, max_nodes=32)
ALONE = replace(EXPERIMENT, num_nodes=1)


def test_8b_with_fp32_master_weights_does_not_fit_one_card_of_96_gib():
    experiment = replace(with_config(deepspeed="ds_z3.json"), num_nodes=1)

    assert state_faults(experiment, ONE_CARD, EIGHT_B) == [
        "t.tsv, line 2 (run), GPU memory: weights, gradients and optimizer of 8.19B parameters "
        "take 122 GiB on each GPU (2 + 2 + 12 bytes a parameter, ZeRO stage 3, 1 GPUs), vista has "
        "96; num_nodes of 2 and more share them, or offload them (`deepspeed`)"
    ]


def test_8b_in_fp32_under_autocast_does_not_fit_one_card_of_96_gib():
    (fault,) = state_faults(ALONE, ONE_CARD, EIGHT_B)

    assert "(4 + 4 + 8 bytes a parameter, ZeRO stage 0, 1 GPUs)" in fault
    assert fault.endswith("shard them with a `deepspeed` config, or set pure_bf16: true")


@pytest.mark.parametrize(
    "config",
    [
        {"pure_bf16": True},
        {"deepspeed": "ds_z3_optim_offload.json"},
        {"deepspeed": "ds_z3_offload_nogather.json"},
        {"finetuning_type": "lora"},
        {"optim": "adafactor"},
        {"use_badam": True},
        {"use_galore": True},
    ],
    ids=lambda config: next(iter(config.items())),
)
def test_what_keeps_less_of_an_8b_is_not_refused(config):
    assert state_faults(replace(with_config(**config), num_nodes=1), ONE_CARD, EIGHT_B) == []


def test_more_nodes_make_sharded_states_fit():
    experiment = replace(with_config(deepspeed="ds_z3.json"), num_nodes=2)

    assert state_faults(experiment, ONE_CARD, EIGHT_B) == []


def test_more_nodes_do_not_help_what_is_not_sharded():
    assert state_faults(replace(ALONE, num_nodes=32), ONE_CARD, EIGHT_B)


def test_computer_without_gpus_is_not_held_against_a_card():
    assert state_faults(ALONE, Site(name="localhost"), EIGHT_B) == []


# Checkpoints of another number of processes


def test_other_number_of_processes_is_refused_with_both_numbers_and_the_choices():
    assert world_size_faults(EXPERIMENT, SITE, Path("runs/run/checkpoints/01234567"), 32) == [
        "t.tsv, line 2 (run), num_nodes: found 4, which is 16 processes, but its checkpoints are "
        "of 32: set num_nodes to 8 to go on; or move runs/run/checkpoints/01234567 away to start "
        "from the beginning; or let a new row start from their weights alone"
    ]


def test_same_number_of_processes_goes_on():
    assert world_size_faults(EXPERIMENT, SITE, Path("checkpoints"), 16) == []


def test_number_of_processes_that_no_nodes_make_is_said_as_it_is():
    (fault,) = world_size_faults(EXPERIMENT, SITE, Path("checkpoints"), 6)

    assert "its checkpoints are of 6: go on with 6 processes" in fault
