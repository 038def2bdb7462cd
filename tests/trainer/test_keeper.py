"""What happens inside training processes: the notes, the saves and the stops."""

import json
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from sft import progress
from sft.trainers import keeper
from tests.trainer.tiny_run import (
    ZERO3,
    Signal,
    finish,
    make_inputs,
    read_events,
    saved_steps,
    start,
    train,
    write_config,
)

SIGTERM = signal.SIGTERM
LONG_S = 1e6  # longer than any job


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs whose model has one weight that is not a number."""
    folder = tmp_path_factory.mktemp("poisoned")
    make_inputs(folder)
    weights = load_file(folder / "model" / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][0, 0] = torch.nan
    save_file(weights, folder / "model" / "model.safetensors", metadata={"format": "pt"})
    return folder


def whats(folder: Path) -> list[str]:
    return [each["event"] for each in read_events(folder)]


def has_finished(folder: Path) -> bool:
    """Whether the trainer left what it leaves at the end of a run."""
    ends = ("model.safetensors", "train_results.json", "trainer_state.json")
    return any((folder / "out" / name).exists() for name in ends)


# The interval between saves


def test_interval_is_youngs():
    assert keeper.save_interval_s(50, mtbf_hours=1000, num_nodes=4) == pytest.approx(9486.8, abs=1)


def test_interval_shrinks_with_the_root_of_the_nodes():
    one, sixteen = (keeper.save_interval_s(60, 1000, nodes) for nodes in (1, 16))

    assert one == pytest.approx(4 * sixteen)


def test_saves_never_take_more_than_a_tenth_of_the_time():
    assert keeper.save_interval_s(600, mtbf_hours=10, num_nodes=64) == 6000


def test_run_without_save_steps_saves_its_last_step_only_where_it_is_short(inputs, tmp_path):
    assert train(write_config(tmp_path, inputs, save_steps=None)) == [0]
    assert saved_steps(tmp_path) == [10]


def test_run_without_save_steps_saves_each_ten_times_as_long_as_a_save_takes(inputs, tmp_path):
    config = write_config(tmp_path, inputs, save_steps=None, max_steps=100)

    assert train(config, SFT_SAVE_GUESS_S=0.01, SFT_NODE_MTBF_HOURS=1e-9) == [0]
    saves = [each for each in read_events(tmp_path) if each["event"] == "save"]
    *timed, last = saves
    assert len(timed) > 1
    assert last["step"] == 100
    for before, after in pairwise(timed):
        assert after["time"] - before["time"] >= 10 * before["save_s"]


# steps.jsonl


def test_events_tell_the_run_from_its_begin_to_its_end(inputs, tmp_path):
    assert train(write_config(tmp_path, inputs, max_steps=3, save_steps=2)) == [0]
    begin, log, *_, save, end = read_events(tmp_path)

    assert whats(tmp_path) == ["begin", "log", "log", "save", "log", "save", "end"]
    assert begin | {"time": 0} == {
        "time": 0,
        "event": "begin",
        "step": 0,
        "max_steps": 3,
        "world_size": 1,
        "versions": begin["versions"],
    }
    assert f"transformers=={transformers.__version__}" in begin["versions"]
    assert progress.read_events(tmp_path / "out")[0] == begin
    assert {"loss", "grad_norm", "learning_rate", "epoch", "step_s"} < log.keys()
    assert save["save_s"] > 0
    assert (end["step"], end["max_steps"]) == (3, 3)


def test_half_a_line_of_a_killed_process_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text('{"event": "begin"}\n{"event": "lo')
    keeper.StepsFile(path).write({"event": "begin"})

    assert path.read_text().splitlines()[2] == '{"event": "begin"}'


def test_sign_of_life_is_given_at_most_each_ten_seconds(tmp_path):
    path = tmp_path / "steps.jsonl"
    steps = keeper.StepsFile(path)
    signs = []
    for _ in range(2):
        os.utime(path, (0, 0))
        steps.touch()
        signs.append(path.stat().st_mtime > 0)

    assert signs == [True, False]


def test_newest_save_of_earlier_attempts_is_known_past_a_broken_line(tmp_path):
    path = tmp_path / "steps.jsonl"
    events = [{"event": "save", "save_s": seconds} for seconds in (9.0, 7.0)]
    path.write_text("\n".join(map(json.dumps, events)) + '\n{"event": "save", "save_s"')

    assert keeper.newest_save_s(path) == [7.0]


# The end of the job


def test_most_steps_are_shorter_than_the_step_that_is_reckoned_with():
    pace = keeper.Pace()
    pace.steps.extend([9.0] * 3 + [1.0] * 97)
    assert pace.step_s() == 1.0
    pace.steps.extend([9.0] * 6)
    assert pace.step_s() == 9.0


def test_checkpoint_is_there_before_the_job_ends(inputs, tmp_path):
    config = write_config(
        tmp_path, inputs, max_steps=1000, save_steps=1000, gradient_accumulation_steps=60
    )
    job_end = time.time() + 9
    limits = {"SFT_JOB_END": job_end, "SFT_END_MARGIN_S": 2, "SFT_SAVE_GUESS_S": 1}

    assert train(config, **limits) == [75]
    assert time.time() < job_end
    events = read_events(tmp_path)
    step = events[-1]["step"]
    assert [each["event"] for each in events[-2:]] == ["save", "stop"]
    assert events[-1]["reason"] == "job_end"
    assert saved_steps(tmp_path) == [step]
    assert not has_finished(tmp_path)
    sentence = f"stopped before the end of the job at step {step} of 1000; checkpoint-{step} is"
    assert f"\n{sentence} complete\n" in (tmp_path / "0.log").read_text()
    slowest = max(each["step_s"] for each in events if each["event"] == "log")
    assert job_end - events[-1]["time"] < 2 + 1 + 2 * slowest  # and not sooner than it must


def test_save_of_an_earlier_attempt_tells_how_long_one_takes(inputs, tmp_path):
    config = write_config(tmp_path, inputs)
    limits = {"SFT_JOB_END": time.time() + 1000, "SFT_SAVE_GUESS_S": LONG_S}

    assert train(config, **limits) == [75]
    assert saved_steps(tmp_path) == [1]
    assert train(config, **limits) == [0]


# SIGTERM


def test_sigterm_to_all_processes_of_a_run_leaves_a_checkpoint(inputs, tmp_path):
    workers = {"dataloader_num_workers": 2, "dataloader_persistent_workers": True}
    # Steps long enough for the trainer to see that its workers died.
    config = write_config(tmp_path, inputs, gradient_accumulation_steps=32, **workers)

    assert train(config, sent=Signal(SIGTERM, step=3, group=True)) == [75]
    assert saved_steps(tmp_path) == [3]
    assert not has_finished(tmp_path)
    assert read_events(tmp_path)[-1]["reason"] == "told"


def test_sigterm_during_a_save_does_not_save_again(inputs, tmp_path):
    config = write_config(tmp_path, inputs)

    assert train(config, sent=Signal(SIGTERM, step=4, saving=True)) == [75]
    assert whats(tmp_path)[-3:] == ["log", "save", "stop"]
    assert saved_steps(tmp_path) == [4]


def test_sigterm_in_the_last_step_lets_the_run_end(inputs, tmp_path):
    assert train(write_config(tmp_path, inputs), sent=Signal(SIGTERM, step=10)) == [0]
    assert whats(tmp_path)[-1] == "end"
    assert has_finished(tmp_path)


def test_sigterm_before_the_first_step_ends_the_process_at_once(inputs, tmp_path):
    [process] = start(write_config(tmp_path, inputs))
    process.terminate()

    assert finish([process]) == [-SIGTERM]
    assert not (tmp_path / "out" / "steps.jsonl").exists()


def test_torchruns_summary_tells_why_a_process_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    keeper.tell_torchrun("stopped")
    failure = ProcessFailure(0, 1, keeper.UNFINISHED, str(tmp_path / "error.json"))

    assert failure.message["extraInfo"]["py_callstack"] == "stopped"


# Ruined runs


@pytest.mark.parametrize(("world_size", "options"), [(1, {}), (2, ZERO3)], ids=["one", "zero3"])
def test_run_whose_loss_is_not_a_number_stops(world_size, options, poisoned, tmp_path):
    config = write_config(tmp_path, poisoned, **options)

    assert set(train(config, world_size)) == {76}
    assert whats(tmp_path) == ["begin", "log", "log", "stop"]
    assert read_events(tmp_path)[-1]["reason"] == "diverged"
    assert saved_steps(tmp_path) == []
    assert not has_finished(tmp_path)


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({"save_steps": 1, "logging_steps": 5}, {}),
        ({"save_steps": None, "save_strategy": "epoch", "gradient_accumulation_steps": 32}, {}),
        ({"max_steps": 1}, {}),
        ({}, {"SFT_JOB_END": time.time() + 1000, "SFT_SAVE_GUESS_S": LONG_S}),
    ],
    ids=["between logs", "at the end of an epoch", "at the last step", "at the end of the job"],
)
def test_ruined_state_is_never_saved(options, limits, poisoned, tmp_path):
    assert train(write_config(tmp_path, poisoned, **options), **limits) == [76]
    assert saved_steps(tmp_path) == []
    assert not has_finished(tmp_path)
