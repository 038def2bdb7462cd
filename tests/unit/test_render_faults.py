"""What is refused where a run is rendered: the last stage before its GPUs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sft.errors import SftError
from sft.experiment import Experiment
from sft.files import write_json
from sft.identity import checkpoints_folder, fingerprint
from sft.mix import Mix
from sft.render import render
from sft.request import Request
from sft.site import Site
from tests.unit.planning import BIG, DELPHI_CONFIG, EXPERIMENT, LEONARDO, changed, tokenize
from tests.workflow import stub_trainer

ALONE = replace(EXPERIMENT, mix=Mix("mix", (BIG,)))
LONG_WARMUP = replace(changed(warmup_steps=48), mix=ALONE.mix)


@pytest.fixture(autouse=True)
def no_trainer(monkeypatch):
    """The trainer's own parser, which is asked last, takes everything."""
    monkeypatch.setattr("sft.render.run_in_environment", lambda *arguments: None)


def inputs(results: Path, experiment: Experiment) -> tuple[dict[str, Any], dict[str, Any]]:
    """What fetching a model without weights and tokenizing 480 examples made."""
    write_json(results / "model" / "config.json", DELPHI_CONFIG)
    model = {
        "name": "delphi",
        "path": str(results / "model"),
        "source": "hub:org/delphi",
        "revision": "a" * 40,
        "sha256": "b" * 64,
        "files": [],
    }
    return model, tokenize(results, experiment, [480], [480])


def render_run(results: Path, experiment: Experiment, site: Site = LEONARDO) -> Path:
    """Render the experiment; its train.yaml."""
    config = results / "runs" / experiment.name / "train.yaml"
    launch, output = config.with_name("launch.sh"), results / "render.log"
    render(experiment, site, Request(), *inputs(results, experiment), config, launch, output)
    return config


def train_to(results: Path, experiment: Experiment, step: int, world_size: int) -> None:
    """Leave a checkpoint of that step, saved by so many processes."""
    identity: Mapping[str, Any] = fingerprint(experiment, *inputs(results, experiment))
    folder = checkpoints_folder(results / "runs" / experiment.name, identity)
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    stub_trainer.write_checkpoint(checkpoint, step)
    write_json(folder / "attempts.json", [{"world_size": world_size}])


def test_run_within_its_limits_is_rendered(tmp_path):
    assert render_run(tmp_path, ALONE).exists()


def test_warm_up_as_long_as_the_run_is_refused(tmp_path):
    with pytest.raises(SftError, match="a warm-up of 48 steps in a run of 30"):
        render_run(tmp_path, LONG_WARMUP)


def test_refused_run_leaves_no_config_to_train(tmp_path):
    with pytest.raises(SftError):
        render_run(tmp_path, LONG_WARMUP)

    assert not (tmp_path / "runs").exists()


def test_states_beyond_the_card_are_refused(tmp_path):
    small_card = replace(LEONARDO, gpu_memory_gb=32)

    with pytest.raises(SftError, match="take 36 GiB on each GPU"):
        render_run(tmp_path, replace(ALONE, num_nodes=1), small_card)


def test_checkpoint_of_another_number_of_processes_is_refused(tmp_path):
    train_to(tmp_path, ALONE, step=2, world_size=32)

    with pytest.raises(SftError, match="16 processes, but its checkpoints are of 32"):
        render_run(tmp_path, ALONE)


def test_checkpoint_of_the_same_number_of_processes_goes_on(tmp_path):
    train_to(tmp_path, ALONE, step=2, world_size=16)

    assert render_run(tmp_path, ALONE).exists()


def test_complete_run_is_rendered_for_other_nodes(tmp_path):
    train_to(tmp_path, ALONE, step=stub_trainer.STEPS, world_size=32)

    assert render_run(tmp_path, ALONE).exists()
