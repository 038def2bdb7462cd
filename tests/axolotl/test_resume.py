"""A run of axolotl that was interrupted goes on as one that was not, and knows when it is done."""

import os
import signal
from pathlib import Path

import pytest

from sft.trainers import axolotl
from tests.axolotl.tiny_run import (
    CONTEXT,
    Signal,
    finish,
    losses,
    make_inputs,
    read_events,
    saved_steps,
    start,
    train,
    write_config,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert train(write_config(folder, inputs)) == [0], last_words(folder)
    return folder


def last_words(folder: Path) -> str:
    return (folder / "0.log").read_text()[-3000:]


def weights(folder: Path) -> bytes:
    return (folder / "out" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("sent", "code", "newest"),
    [
        pytest.param(Signal(signal.SIGKILL, step=7), -9, 4, id="killed"),
        pytest.param(Signal(signal.SIGTERM, step=6), 75, 6, id="told to stop"),
    ],
)
def test_run_goes_on_as_if_it_had_not_been_interrupted(
    sent, code, newest, inputs, undisturbed, tmp_path
):
    config = write_config(tmp_path, inputs)

    assert train(config, sent=sent) == [code], last_words(tmp_path)
    assert saved_steps(tmp_path)[-1] == newest
    assert train(config) == [0], last_words(tmp_path)
    assert losses(tmp_path) == losses(undisturbed)
    assert weights(tmp_path) == weights(undisturbed)


def test_complete_run_is_left_alone(inputs, undisturbed):
    before = weights(undisturbed)

    assert train(undisturbed / "train.yaml") == [0]
    assert weights(undisturbed) == before
    assert "the run is complete" in last_words(undisturbed)


def test_all_checkpoints_stay(inputs, tmp_path):
    # axolotl alone would keep four of them.
    assert train(write_config(tmp_path, inputs, save_steps=1, max_steps=6)) == [0]

    assert saved_steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_two_processes_train_one_run(inputs, tmp_path):
    config = write_config(tmp_path, inputs, gradient_accumulation_steps=1)

    assert train(config, 2) == [0, 0], last_words(tmp_path)
    begin = read_events(tmp_path)[0]
    assert (begin["event"], begin["world_size"]) == ("begin", 2)


def test_killed_run_of_two_processes_goes_on(inputs, tmp_path):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    assert train(write_config(undisturbed, inputs), 2) == [0, 0], last_words(undisturbed)
    config = write_config(killed, inputs)
    first, second = start(config, 2, sent=Signal(signal.SIGKILL, step=7))
    assert finish([first]) == [-9]
    second.kill()
    finish([second])

    assert train(config, 2) == [0, 0], last_words(killed)
    assert losses(killed) == losses(undisturbed)
    assert weights(killed) == weights(undisturbed)


def test_other_number_of_processes_is_refused(inputs, tmp_path):
    config = write_config(tmp_path, inputs)
    # One process of a launcher that was to start two.
    process = CONTEXT.Process(target=train_alone, args=(config, 2))
    process.start()

    assert finish([process]) == [1]
    assert "1 training processes found each other, expected 2" in (tmp_path / "log").read_text()


def train_alone(config: Path, world_size: int) -> None:
    log = os.open(config.parent / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 2)
    axolotl.train(config, world_size)
