"""How fast a finished run was trained, as its own steps tell."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sft.sizes import Size
from sft.throughput import read_throughput
from tests.unit.experiments import EXPERIMENT, SITE, with_config

# Without layers a token costs 6 × the parameters: 6 GFLOP.
SIZE = Size(
    **{"parameters": 10**9, "active": 10**9, "layers": 0, "hidden": 1, "heads": 1, "query": 1},
    **{"key_value": 1, "inner": 1, "vocabulary": 1},
)
TOKENS = 8_000_000  # an epoch; of its ten steps one has 800,000


def write_run(folder: Path, device: str | None, seconds: list[float], epoch: float | None) -> None:
    """What a training notes that logs each step."""
    told = {"device": device} if device else {}
    events = [{"event": "begin", "step": 0, "world_size": 8, **told}]
    for step, step_s in enumerate(seconds, start=1):
        event = {"event": "log", "step": step, "step_s": step_s}
        events.append(event | ({"epoch": epoch * step / len(seconds)} if epoch else {}))
    lines = [json.dumps({"time": 1.0, "max_steps": len(seconds), **event}) for event in events]
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")


def speed(folder: Path, experiment=EXPERIMENT, site=SITE, size: Size | None = SIZE) -> dict:
    return read_throughput(experiment, site, size, tokens=TOKENS, batch=96, checkpoints=folder)


def test_tokens_a_second_are_those_of_a_step_over_the_median_step(tmp_path):
    write_run(tmp_path, None, [2.0] * 9 + [100.0], epoch=1.0)

    assert speed(tmp_path) == {
        **{"step_s": 2.0, "tokens_per_s": 400_000.0, "mfu": None, "device": None},
    }


def test_several_epochs_take_their_tokens_each(tmp_path):
    write_run(tmp_path, None, [2.0] * 10, epoch=3.0)

    assert speed(tmp_path)["tokens_per_s"] == pytest.approx(1_200_000)


def test_utilisation_is_of_the_peak_of_the_cards_that_trained(tmp_path):
    write_run(tmp_path, "NVIDIA A100-SXM-64GB", [2.0] * 10, epoch=1.0)

    # 400,000 tokens × 6 GFLOP a second, of 8 × 312 TFLOP/s
    assert speed(tmp_path)["mfu"] == pytest.approx(2400 / 2496)


def test_utilisation_of_an_unknown_card_is_of_the_peak_in_the_profile(tmp_path):
    write_run(tmp_path, "a new card", [2.0] * 10, epoch=1.0)

    assert speed(tmp_path)["mfu"] is None
    assert speed(tmp_path, site=replace(SITE, gpu_tflops=600))["mfu"] == pytest.approx(0.5)


def test_utilisation_of_an_adapter_is_not_told(tmp_path):
    write_run(tmp_path, "NVIDIA A100-SXM-64GB", [2.0] * 10, epoch=1.0)

    made = speed(tmp_path, with_config(finetuning_type="lora"))

    assert (made["mfu"], made["tokens_per_s"]) == (None, 400_000.0)


def test_run_that_noted_no_epoch_tells_its_seconds_alone(tmp_path):
    write_run(tmp_path, None, [2.0] * 10, epoch=None)

    assert speed(tmp_path) == dict.fromkeys(("tokens_per_s", "mfu", "device")) | {"step_s": 2.0}


def test_run_without_notes_tells_nothing(tmp_path):
    assert not any(speed(tmp_path).values())
