"""A run that was interrupted and goes on ends as one that was not: losses and weights are equal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.trainer.demo_data import CHECKOUT
from tests.trainer.tiny_run import (
    ZERO3,
    Signal,
    losses,
    make_inputs,
    read_events,
    saved_steps,
    train,
    write_config,
)

LAUNCHERS = {"one process": (1, {}), "two processes": (2, {}), "zero3 on two": (2, ZERO3)}

# How a run ends before its last step: its exit code, and the newest checkpoint then.
INTERRUPTIONS = {
    "SIGKILL": ({"sent": Signal(signal.SIGKILL, step=7)}, -9, 4),
    "SIGTERM": ({"sent": Signal(signal.SIGTERM, step=6)}, 75, 6),
    # A save would take longer than the job does: the first step has to be the last.
    "the job's end": ({"SFT_JOB_END": time.time() + 1e5, "SFT_SAVE_GUESS_S": 1e6}, 75, 1),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run that nothing interrupts, by launcher."""

    @cache
    def folder_of(name: str) -> Path:
        world_size, options = LAUNCHERS[name]
        folder = tmp_path_factory.mktemp("undisturbed")
        codes = train(write_config(folder, inputs, **options), world_size)
        assert set(codes) == {0}, (folder / "0.log").read_text()[-3000:]
        return folder

    return folder_of


def states(folder: Path) -> dict[str, bytes]:
    """The weights at the root, and weights, optimizer and scheduler of the last checkpoint."""
    out = folder / "out"
    last = out / f"checkpoint-{saved_steps(folder)[-1]}"
    found = [path for suffix in ("pt", "safetensors") for path in last.rglob(f"*.{suffix}")]
    return {str(path.relative_to(out)): path.read_bytes() for path in [*found, *out.glob("*.saf*")]}


@pytest.mark.parametrize("interruption", INTERRUPTIONS.values(), ids=INTERRUPTIONS.keys())
def test_run_goes_on_as_if_it_had_not_been_interrupted(interruption, undisturbed, inputs, tmp_path):
    how, code, newest = interruption
    config = write_config(tmp_path, inputs)

    assert train(config, **how) == [code]
    assert saved_steps(tmp_path)[-1] == newest
    assert train(config) == [0]
    assert losses(tmp_path) == losses(undisturbed("one process"))
    assert states(tmp_path) == states(undisturbed("one process"))


@pytest.mark.parametrize("name", ["two processes", "zero3 on two"])
def test_run_goes_on_where_one_of_its_processes_was_told_to_stop(
    name, undisturbed, inputs, tmp_path
):
    world_size, options = LAUNCHERS[name]
    config = write_config(tmp_path, inputs, **options)

    assert train(config, world_size, Signal(signal.SIGTERM, step=6, rank=1)) == [75, 75]
    assert saved_steps(tmp_path) == [4, 6]
    assert train(config, world_size) == [0, 0]
    assert losses(tmp_path) == losses(undisturbed(name))
    assert states(tmp_path) == states(undisturbed(name))


def test_resumed_run_saves_and_logs_as_its_config_says_now(inputs, tmp_path):
    train(write_config(tmp_path, inputs), sent=Signal(signal.SIGTERM, step=1))
    assert train(write_config(tmp_path, inputs, save_steps=3, logging_steps=5)) == [0]

    assert saved_steps(tmp_path) == [1, 3, 6, 9, 10]
    assert list(losses(tmp_path)) == [1, 3, 5, 6, 9, 10]  # each save is logged, too


def test_sigterm_to_torchrun_ends_its_processes_with_a_checkpoint_and_a_plain_word(
    inputs, tmp_path
):
    config = write_config(tmp_path, inputs, max_steps=2000, dataloader_num_workers=1)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    entry = ["-m", "sft.trainers.llamafactory", "train", str(config), "--world-size", "2"]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    with open(tmp_path / "log", "w") as log:
        job = subprocess.Popen([*launcher, *entry], env=environment, stdout=log, stderr=log)
    steps = tmp_path / "out" / "steps.jsonl"
    while job.poll() is None and not (steps.exists() and '"log"' in steps.read_text()):
        time.sleep(0.05)
    job.terminate()
    job.wait(timeout=60)

    *_, stop = read_events(tmp_path)
    step = stop["step"]
    assert (stop["event"], stop["reason"]) == ("stop", "told")
    assert saved_steps(tmp_path) == [step]
    assert (
        f"\nstopped on SIGTERM at step {step} of 2000; checkpoint-{step} is complete\n"
        in (tmp_path / "log").read_text()
    )
