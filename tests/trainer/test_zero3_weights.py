"""What the real LLaMA-Factory leaves in ZeRO-3 shards is what it gathers from them itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from sft.checkpoint import Layout, detect_layout
from tests.trainer.demo_data import CHECKOUT
from tests.trainer.test_consolidation import assert_same, consolidate, load, loading
from tests.trainer.tiny_run import ZERO3, make_inputs, train, write_config

GATHERED = ZERO3 | {"deepspeed": str(CHECKOUT / "sft" / "deepspeed" / "ds_z3.json")}
STEPS = {"max_steps": 4, "save_steps": 2}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def trained(request, tmp_path_factory) -> Path:
    """The folder of a run in bfloat16 that leaves both, shards and gathered weights."""
    folder = tmp_path_factory.mktemp("zero3")
    make_inputs(folder, tied=request.param)
    config = write_config(folder / "run", folder, **GATHERED, **STEPS, bf16=True)
    codes = train(config, 2, SFT_ON_CPU=1)
    assert codes == [0, 0], (folder / "run" / "0.log").read_text()[-3000:]
    return folder / "run" / "out"


def test_check_of_a_config_compiles_nothing(trained, tmp_path):
    """It runs where there is no GPU, and a compiler's stale lock would stop it for ever."""
    ran = subprocess.run(
        [sys.executable, "-m", "sft.trainers.llamafactory", "check", trained.parent / "train.yaml"],
        cwd=CHECKOUT,
        env=os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert "own parser accepts" in ran.stdout, ran.stderr
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def consolidated(trained, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("consolidated") / "out"
    consolidate(trained / "checkpoint-4", folder, layout=Layout.ZERO3)
    return folder


def test_gathered_weights_beside_shards_are_what_counts(trained):
    layout, sentence = detect_layout(trained / "checkpoint-4")

    assert layout is Layout.SAFETENSORS
    assert sentence.endswith("not used: ZeRO-3 shards of 2 ranks in global_step4")


def test_shards_hold_what_the_trainer_gathers(trained, consolidated):
    assert_same(load(consolidated), load(trained))


def test_transformers_finds_all_that_the_config_asks_for(consolidated):
    assert not any(loading(consolidated).values())


def test_logits_are_those_of_the_trainers_own_weights(trained, consolidated):
    tokens = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        first, second = (
            AutoModelForCausalLM.from_pretrained(folder, dtype="auto")(tokens).logits
            for folder in (trained, consolidated)
        )

    assert first.dtype == torch.bfloat16 and torch.equal(first, second)
