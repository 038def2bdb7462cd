"""What will come of an experiment, from what is known of it, and what does not fit its site."""

from dataclasses import replace

import pytest

from sft.backends import llamafactory
from sft.files import write_json
from sft.mix import Dataset, Mix
from sft.plan import step_faults
from tests.unit.planning import (
    BIG,
    DELPHI_CONFIG,
    EXPERIMENT,
    LEONARDO,
    attempt,
    changed,
    fetch_model,
    finish_run,
    plan_of,
    stop_run,
    tokenize,
)

WILDCHAT = [385_700, 45_000]
WILDCHAT_TAKEN = [385_700, 42_900]  # 428,600 examples: 26,788 steps of 16


@pytest.fixture
def delphi(tmp_path):
    """Results with the model fetched and the mix tokenized."""
    fetch_model(tmp_path, DELPHI_CONFIG)
    tokenize(tmp_path, EXPERIMENT, WILDCHAT, WILDCHAT_TAKEN)
    return tmp_path


def concat(experiment=EXPERIMENT):
    """The experiment over one source."""
    return replace(experiment, mix=Mix("mix", (BIG,)))


# What is known when


def test_nothing_but_table_and_config_is_known_before_anything_is_fetched(tmp_path):
    plan = plan_of(EXPERIMENT, tmp_path)

    assert (plan.size, plan.steps, plan.hours, plan.memory, plan.disk) == (None,) * 5
    assert (plan.batch.world_size, plan.recipe.layout) == (16, "safetensors")
    assert (plan.refused, plan.doubts) == ((), ())


def test_size_memory_and_disk_are_known_once_the_model_is_fetched(tmp_path):
    fetch_model(tmp_path, DELPHI_CONFIG)
    plan = plan_of(EXPERIMENT, tmp_path)

    assert plan.size.parameters == pytest.approx(9.7e9, rel=0.02)
    assert plan.memory.states == pytest.approx(16 * plan.size.parameters / 16 / 2**30)
    assert plan.steps is None


def test_steps_tokens_and_hours_are_known_once_the_mix_is_tokenized(delphi):
    plan = plan_of(EXPERIMENT, delphi)

    assert plan.steps.total == 26_788
    assert plan.tokens == 428_600 * 600
    assert plan.hours == pytest.approx(37, rel=0.1)


def test_rows_of_a_local_file_are_counted_before_it_is_fetched(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n" * 100)
    source = Dataset("a", "datasets.yaml", path=str(tmp_path / "a.jsonl"))
    plan = plan_of(replace(EXPERIMENT, mix=Mix("mix", (source,))), tmp_path)

    assert (plan.taking.tokenized, plan.steps.total) == (False, 7)


def test_size_of_a_model_is_known_before_it_is_prepared(tmp_path):
    fetch_model(tmp_path, DELPHI_CONFIG)
    experiment = replace(EXPERIMENT, model=replace(EXPERIMENT.model, prepare="delphi"))

    assert plan_of(experiment, tmp_path).size.layers == 37


def test_prepared_model_counts_where_the_row_asks_for_one(tmp_path):
    fetch_model(tmp_path, DELPHI_CONFIG)
    fetch_model(tmp_path, DELPHI_CONFIG | {"num_hidden_layers": 1}, stage="prepared")
    prepared = replace(EXPERIMENT, model=replace(EXPERIMENT.model, prepare="delphi"))

    assert plan_of(prepared, tmp_path).size.layers == 1
    assert plan_of(EXPERIMENT, tmp_path).size.layers == 37


# The pace


def test_finished_run_of_the_same_config_and_model_is_the_measure(delphi):
    tokens = tokenize(delphi, EXPERIMENT, WILDCHAT, WILDCHAT_TAKEN)
    finish_run(delphi, EXPERIMENT, tokens, steps=5760, attempts=[attempt(8)])
    plan = plan_of(EXPERIMENT, delphi)

    assert plan.pace.step_s == pytest.approx(5.0)
    assert plan.pace.origin == "measured in run on 16 processes"


def test_measure_on_other_nodes_is_taken_by_tokens_a_second_and_gpu(delphi):
    tokens = tokenize(delphi, EXPERIMENT, WILDCHAT, WILDCHAT_TAKEN)
    finish_run(delphi, EXPERIMENT, tokens, steps=5760, attempts=[attempt(8)])

    assert plan_of(replace(EXPERIMENT, num_nodes=2), delphi).pace.step_s == pytest.approx(10.0)


def test_rate_of_the_base_config_replaces_the_guess(delphi):
    plan = plan_of(changed(tokens_per_second_per_gpu=120), delphi)

    assert plan.pace.step_s == pytest.approx(5.0)
    assert not plan.pace.guessed


def test_rate_of_the_base_config_gives_way_to_a_measure(delphi):
    tokens = tokenize(delphi, EXPERIMENT, WILDCHAT, WILDCHAT_TAKEN)
    finish_run(delphi, EXPERIMENT, tokens, steps=5760, attempts=[attempt(8)])

    assert plan_of(changed(tokens_per_second_per_gpu=1), delphi).pace.step_s == pytest.approx(5.0)


def test_rate_of_the_base_config_is_no_part_of_the_run():
    with_rate = changed(tokens_per_second_per_gpu=120)

    assert llamafactory.science(with_rate.config) == llamafactory.science(EXPERIMENT.config)


def test_site_that_does_not_know_its_gpus_guesses_nothing(delphi):
    plan = plan_of(EXPERIMENT, delphi, replace(LEONARDO, gpu_tflops=0))

    assert (plan.hours, plan.slots, plan.steps.total) == (None, None, 26_788)


# Jobs and checkpoints


def measured(results, experiment=EXPERIMENT):
    """The plan at 5 s a step, as the run that is known."""
    return plan_of(changed(experiment, tokens_per_second_per_gpu=120), results)


def test_run_beyond_the_wall_needs_restarts(delphi):
    assert measured(delphi).slots.jobs == 2


def test_save_steps_beyond_one_wall_are_a_doubt(delphi):
    plan = measured(delphi, changed(save_steps=24_107))

    assert plan.slots.jobs == 2
    assert plan.doubts == (
        "t.tsv, line 2 (run), save_steps: found 24107: no checkpoint for 23.8 h (5 s a step, "
        "tokens_per_second_per_gpu of 120 in the base config or row), and a fault of a node loses "
        "that; leave save_steps out to save as often as the faults of the site ask for",
    )


def test_no_checkpoint_in_a_long_run_is_a_doubt(delphi):
    (doubt,) = measured(delphi, changed(max_steps=10_000, save_strategy="no")).doubts

    assert "save_strategy: found no: no checkpoint for 13.9 h (5 s a step" in doubt


def test_run_that_saves_by_time_has_no_doubt(delphi):
    experiment = changed()
    config = {key: value for key, value in experiment.config.items() if key != "save_steps"}

    assert measured(delphi, replace(experiment, config=config)).doubts == ()


def test_no_checkpoint_in_a_short_run_is_none(delphi):
    assert measured(delphi, changed(max_steps=1000, save_steps=24_107)).doubts == ()


# Warm-up


def test_warm_up_longer_than_the_run_is_refused_once_its_steps_are_known(tmp_path):
    experiment = concat(changed(warmup_steps=48))
    tokenize(tmp_path, experiment, [480], [480])
    expected = (
        "t.tsv, line 2 (run), warmup_steps: found 48, a warm-up of 48 steps in a run of 30: the "
        "learning rate never leaves its ramp; give fewer, or a share below 1"
    )

    assert plan_of(experiment, tmp_path).refused == (expected,)


def test_warm_up_longer_than_the_rows_promise_is_a_doubt(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n" * 480)
    source = Dataset("a", "datasets.yaml", path=str(tmp_path / "a.jsonl"))
    experiment = replace(changed(warmup_steps=48), mix=Mix("mix", (source,)))
    plan = plan_of(experiment, tmp_path)

    assert plan.refused == ()
    assert "a warm-up of 48 steps in a run of 30" in plan.doubts[0]


def test_warm_up_is_refused_where_the_run_is_rendered(tmp_path):
    experiment = concat(changed(warmup_steps=48))
    tokens = tokenize(tmp_path, experiment, [480], [480])

    assert len(step_faults(experiment, LEONARDO, tokens)) == 1
    assert step_faults(concat(changed(warmup_steps=29)), LEONARDO, tokens) == []


def test_run_without_a_batch_is_refused(tmp_path):
    experiment = concat(changed(dataloader_drop_last=True))
    tokens = tokenize(tmp_path, experiment, [15], [15])

    assert step_faults(experiment, LEONARDO, tokens) == [
        "t.tsv, line 2 (run), dataloader_drop_last: 15 examples are less than a batch of 16 "
        "processes × 1, which it drops; leave it out"
    ]


# The mix


def test_small_source_that_ends_the_mix_is_named_with_what_is_never_seen(tmp_path):
    mix = Mix("mix", EXPERIMENT.mix.datasets, "interleave_under", (0.5, 0.5))
    experiment = replace(EXPERIMENT, mix=mix)
    tokenize(tmp_path, experiment, [3893, 632], [640, 632])
    plan = plan_of(experiment, tmp_path)

    assert plan.taking.sources[plan.taking.ending].name == "small"
    assert plan.doubts == (
        "t.tsv, line 2 (run), mix mix: 84% of big is never seen (640 of 3893 rows): small ends the "
        "mix; give big a larger probability, or use interleave_over or concat",
    )


def test_mix_that_sees_most_of_each_source_is_fine(tmp_path):
    tokenize(tmp_path, EXPERIMENT, [900, 110], [900, 100])

    assert plan_of(EXPERIMENT, tmp_path).doubts == ()


def test_mix_smaller_than_the_global_batch_is_a_doubt(tmp_path):
    tokenize(tmp_path, concat(), [15], [15])

    assert plan_of(concat(), tmp_path).doubts == (
        "t.tsv, line 2 (run), mix mix: 15 examples are fewer than the global batch of 16: each "
        "epoch is one step; use a smaller batch",
    )


# Memory and workers


def test_states_beyond_the_card_are_refused(tmp_path):
    fetch_model(tmp_path, DELPHI_CONFIG)
    (refused,) = plan_of(replace(EXPERIMENT, num_nodes=1), tmp_path, one_card(32)).refused

    assert "take 36 GiB on each GPU (2 + 2 + 12 bytes a parameter" in refused


def one_card(gpu_memory_gb: float):
    """Leonardo with other GPUs."""
    return replace(LEONARDO, gpu_memory_gb=gpu_memory_gb)


def test_estimate_beyond_the_card_is_a_doubt_that_says_what_helps(tmp_path):
    fetch_model(tmp_path, DELPHI_CONFIG)
    experiment = changed(cutoff_len=32768, enable_liger_kernel=False)
    plan = plan_of(experiment, tmp_path)
    (doubt,) = plan.doubts

    assert plan.refused == ()
    assert "GPU memory: about 66 GiB on each GPU, leonardo has 64" in doubt
    assert "logits 39)" in doubt
    assert doubt.endswith("enable_liger_kernel: true; more nodes change nothing")


def test_workers_beyond_the_cpus_of_a_node_are_a_doubt(tmp_path):
    experiment = changed(preprocessing_num_workers=64, dataloader_num_workers=16)

    assert plan_of(experiment, tmp_path).doubts == (
        "t.tsv, line 2 (run), preprocessing_num_workers: found 64, which is 64 processes on a node "
        "of 32 CPUs at leonardo; give 32 or fewer",
        "t.tsv, line 2 (run), dataloader_num_workers: found 16, which is 64 processes on a node of "
        "32 CPUs at leonardo; give 8 or fewer",
    )


# Checkpoints of before


def test_checkpoints_of_another_number_of_processes_are_refused(delphi):
    folder = stop_run(delphi, EXPERIMENT, world_size=32)

    assert plan_of(EXPERIMENT, delphi).refused == (
        "t.tsv, line 2 (run), num_nodes: found 4, which is 16 processes, but its checkpoints are "
        f"of 32: set num_nodes to 8 to go on; or move {folder} away to start from the beginning; "
        "or let a new row start from their weights alone",
    )


def test_checkpoints_of_the_same_number_of_processes_go_on(delphi):
    stop_run(delphi, EXPERIMENT, world_size=16)

    assert plan_of(EXPERIMENT, delphi).refused == ()


def test_complete_run_may_be_planned_on_other_nodes(delphi):
    folder = stop_run(delphi, EXPERIMENT, world_size=32)
    write_json(folder / "trainer_state.json", {"global_step": 26_788, "max_steps": 26_788})

    assert plan_of(EXPERIMENT, delphi).refused == ()


def test_attempt_without_a_checkpoint_may_be_repeated_on_other_nodes(delphi):
    folder = stop_run(delphi, EXPERIMENT, world_size=32)
    (folder / "checkpoint-2000" / "trainer_state.json").unlink()

    assert plan_of(EXPERIMENT, delphi).refused == ()


# Layout and disk


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        ({"deepspeed": "ds_z3.json"}, "safetensors"),
        ({"deepspeed": "ds_z3_optim_offload.json"}, "safetensors"),
        ({"deepspeed": "ds_z3_nogather.json"}, "zero3"),
        ({"deepspeed": "ds_z3_offload_nogather.json"}, "zero3"),
        ({"deepspeed": None}, "safetensors"),
        ({"finetuning_type": "lora"}, "lora"),
        ({"deepspeed": None, "fsdp": "full_shard"}, "fsdp"),
    ],
)
def test_layout_follows_from_gathering_and_not_from_the_size(tmp_path, config, layout):
    assert plan_of(changed(**config), tmp_path).recipe.layout == layout


def disk(results, **config):
    plan = plan_of(changed(**config), results)
    return plan.disk, plan.size.parameters / 1e9


def test_gathered_checkpoint_holds_weights_beside_its_shards(delphi):
    taken, giga = disk(delphi)

    assert taken.checkpoint == pytest.approx(14 * giga)
    assert (taken.root, taken.release) == (pytest.approx(2 * giga), 0)


def test_run_that_is_not_gathered_leaves_shards_in_its_root_and_a_new_release(delphi):
    taken, giga = disk(delphi, deepspeed="ds_z3_nogather.json")

    assert taken.checkpoint == taken.root == pytest.approx(12 * giga)
    assert taken.release == pytest.approx(2 * giga)


def test_checkpoint_without_deepspeed_holds_fp32_weights_and_two_moments(delphi):
    taken, giga = disk(delphi, deepspeed=None)

    assert (taken.checkpoint, taken.root) == (pytest.approx(12 * giga), pytest.approx(4 * giga))


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({}, 4),
        ({"save_total_limit": 1}, 2),
        ({"save_total_limit": None}, 14),
        ({"save_steps": 20_000}, 2),
        ({"save_strategy": "epoch"}, 1),
        ({"save_strategy": "no"}, 0),
    ],
)
def test_one_checkpoint_more_than_are_kept_lies_there_while_it_is_written(delphi, config, kept):
    assert disk(delphi, **config)[0].kept == kept


def test_checkpoint_of_the_model_alone_holds_its_weights(delphi):
    taken, giga = disk(delphi, save_only_model=True)

    assert taken.checkpoint == pytest.approx(2 * giga)
