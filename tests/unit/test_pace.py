"""Hours, and how the wall limit cuts them."""

from dataclasses import replace

import pytest

from sft.backends.llamafactory_recipe import read_recipe
from sft.pace import Pace, cut_into_slots, guess_pace, hours_between_saves, pace_of_rate
from sft.recipe import Batch
from sft.site import Site
from sft.sizes import Size
from sft.steps import Steps

LEONARDO = Site(name="leonardo", gpus_per_node=4, gpu_tflops=312, gpu_network_gbit=100)
DELPHI = Size(9_700_000_000, 9_700_000_000, 37, 3840, 30, 3840, 3840, 15360, 128256)
RECIPE = read_recipe(
    {
        "finetuning_type": "full",
        "bf16": True,
        "cutoff_len": 4096,
        "learning_rate": 1e-5,
        "deepspeed": "ds_z3.json",
    }
)
BATCH = Batch(16, 1, 1, 16)
FIVE_S = Pace(5.0, "measured", guessed=False)
DAY = 1439


def run(total: int, save_every: int | None) -> Steps:
    return Steps(per_epoch=total, total=total, warmup=0, passes=1, save_every=save_every)


def test_guess_is_near_the_one_measured_run():
    """9.7B on 16 A100: about 17.3k steps of 16 sequences of 600 tokens in 24 hours."""
    pace = guess_pace(DELPHI, RECIPE, BATCH, 4, tokens_per_step=16 * 600, site=LEONARDO)

    assert pace.guessed
    assert pace.step_s == pytest.approx(24 * 3600 / 17_300, rel=0.15)


def test_guess_on_one_node_is_computing_alone():
    pace = guess_pace(DELPHI, RECIPE, BATCH, 1, tokens_per_step=16 * 600, site=LEONARDO)
    flops = (6 * 9.7e9 + 6 * 37 * 3840 * 600) * 9600

    assert pace.step_s == pytest.approx(flops / (16 * 312e12 * 0.25))


def test_measured_share_of_the_peak_replaces_the_guess():
    faster = replace(LEONARDO, mfu=0.5)
    paces = [guess_pace(DELPHI, RECIPE, BATCH, 1, 9600, site) for site in (LEONARDO, faster)]

    assert paces[0].step_s == 2 * paces[1].step_s


def test_rate_of_each_gpu_makes_more_gpus_faster():
    pace = pace_of_rate(1000, 96_000, replace(BATCH, world_size=32), "measured in a")

    assert (pace.step_s, pace.guessed) == (3.0, False)


def test_run_within_a_job_needs_no_restart():
    assert cut_into_slots(run(1000, 100), FIVE_S, DAY, save_hours=0.14).jobs == 1


def test_run_beyond_a_job_goes_on_from_the_checkpoint_at_its_end():
    slots = cut_into_slots(run(26_788, 2000), FIVE_S, DAY, save_hours=2.78)

    assert (slots.saves, slots.jobs) == (8, 2)


def test_run_without_other_checkpoints_goes_on_too():
    slots = cut_into_slots(run(26_788, None), FIVE_S, DAY, save_hours=None)

    assert (slots.saves, slots.jobs) == (0, 2)


def test_job_that_is_shorter_than_its_start_never_trains():
    assert cut_into_slots(run(10, 1), FIVE_S, slot_minutes=5, save_hours=None).jobs is None


def test_save_steps_decide_the_time_between_saves():
    hours = hours_between_saves(run(1000, 720), FIVE_S, RECIPE, 4, LEONARDO)

    assert hours == 1.0


def test_without_save_steps_faults_decide_the_time_between_saves():
    """√(2 × 2 min × 1000 h / 30) = √(4/60 × 1000/30) h."""
    hours = hours_between_saves(run(1000, None), FIVE_S, RECIPE, 30, LEONARDO)

    assert hours == pytest.approx(1.49, abs=0.01)


def test_run_that_saves_nothing_has_no_time_between_saves():
    nothing = replace(RECIPE, saves_by_time=False)

    assert hours_between_saves(run(1000, None), FIVE_S, nothing, 4, LEONARDO) is None
