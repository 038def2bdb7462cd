"""Steps, epochs and warm-up, as the trainer counts them (tests/trainer/test_steps.py asks it)."""

import pytest

from sft.backends.llamafactory_recipe import read_recipe
from sft.recipe import Batch
from sft.steps import count_batches, count_steps
from tests.step_cases import CASES, Case

BASE = {"finetuning_type": "full", "cutoff_len": 4096, "learning_rate": 1e-5}


def recipe_of(case: Case):
    return read_recipe(
        BASE
        | {
            "num_train_epochs": case.num_epochs,
            "max_steps": case.max_steps,
            "warmup_steps": case.warmup,
            "dataloader_drop_last": case.drop_last,
        }
    )


def batch_of(case: Case) -> Batch:
    sequences = case.per_device * case.accumulation * case.world_size
    return Batch(sequences, case.per_device, case.accumulation, case.world_size)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_steps_are_those_of_the_trainer(case):
    steps = count_steps(case.examples, batch_of(case), recipe_of(case))

    assert (steps.per_epoch, steps.total, steps.warmup) == (
        case.per_epoch,
        case.total,
        case.warmup_steps,
    )


def test_drop_last_may_leave_no_batch():
    case = CASES["drop_last loses a step"]

    assert count_batches(9, batch_of(case), recipe_of(case)) == 0


def test_max_steps_decide_how_often_the_examples_are_seen():
    case = CASES["max_steps over several epochs"]

    assert count_steps(100, batch_of(case), recipe_of(case)).passes == 77 / 25


@pytest.mark.parametrize(
    ("config", "every"),
    [
        ({"save_steps": 300}, 300),
        ({}, None),
        ({"save_strategy": "epoch", "save_steps": 300}, 8),
        ({"save_strategy": "no", "save_steps": 300}, None),
    ],
)
def test_steps_between_checkpoints_follow_the_strategy(config, every):
    case = CASES["the demo"]

    assert count_steps(30, batch_of(case), read_recipe(BASE | config)).save_every == every


@pytest.mark.parametrize("scheduler", ["constant", "reduce_lr_on_plateau"])
def test_schedule_without_warm_up_has_none(scheduler):
    recipe = read_recipe(BASE | {"warmup_steps": 48, "lr_scheduler_type": scheduler})

    assert count_steps(30, batch_of(CASES["the demo"]), recipe).warmup == 0


def test_older_key_of_the_warm_up_decides_where_it_is_given():
    recipe = read_recipe(BASE | {"warmup_ratio": 0.5, "num_train_epochs": 2})

    assert count_steps(30, batch_of(CASES["the demo"]), recipe).warmup == 8
