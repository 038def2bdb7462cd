"""What a trained model stops at: sft.gate.vocabulary foretells what LLaMA-Factory saves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from sft.gate.vocabulary import template_faults
from tests.tokenizers import qwen
from tests.trainer.demo_data import CHECKOUT

END, TEXT_END = 151645, 151643  # <|im_end|>, <|endoftext|>
TRAIN = (
    "import sys; from sft.trainers.text_only import allow_text_only; allow_text_only()\n"
    "from llamafactory.train.tuner import run_exp; from omegaconf import OmegaConf\n"
    "for path in sys.argv[1:]: run_exp(OmegaConf.to_container(OmegaConf.load(path)))"
)
# `chatml` makes <|im_end|> the end token, `smollm` adds it to the special tokens.
TEMPLATES = ("chatml", "smollm")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of one layer with Qwen's tokenizer, that stops at the end of a text."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = AutoTokenizer.from_pretrained(str(qwen()))
    tokenizer.eos_token = "<|endoftext|>"
    tokenizer.save_pretrained(folder)
    widths = {"hidden_size": 8, "intermediate_size": 8}
    counts = {"num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": len(tokenizer)}
    LlamaForCausalLM(LlamaConfig(**widths, **counts, eos_token_id=TEXT_END)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what LLaMA-Factory itself leaves after one step, by template."""
    folder = tmp_path_factory.mktemp("trained")
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]
    (folder / "rows.json").write_text(json.dumps([{"conversations": turns}] * 2))
    registry = {"rows": {"file_name": "rows.json", "formatting": "sharegpt"}}
    (folder / "dataset_info.json").write_text(json.dumps(registry))
    for template in TEMPLATES:
        config = {
            "model_name_or_path": str(model),
            "stage": "sft",
            "finetuning_type": "full",
            "do_train": True,
            "dataset": "rows",
            "dataset_dir": str(folder),
            "template": template,
            "output_dir": str(folder / template),
            "max_steps": 1,
            "use_cpu": True,
            "report_to": "none",
        }
        OmegaConf.save(OmegaConf.create(config), folder / f"{template}.yaml")
    command = [sys.executable, "-c", TRAIN, *(str(folder / f"{each}.yaml") for each in TEMPLATES)]
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}
    ran = subprocess.run(command, cwd=CHECKOUT, env=offline, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return folder


def stops(folder: Path) -> list[int]:
    return json.loads((folder / "generation_config.json").read_text())["eos_token_id"]


def end_faults(model: Path, template: str) -> list[str]:
    described = json.loads((CHECKOUT / "sft" / "backends" / "llamafactory.json").read_text())
    description = described["templates"][template]
    faults = template_faults(model, description, template, "tiny")
    return [line for line in faults if "the trained model will stop at" in line]


def test_an_end_of_turn_that_replaces_the_end_token_is_saved_before_the_old_one(model, trained):
    assert stops(trained / "chatml") == [END, TEXT_END]
    assert AutoTokenizer.from_pretrained(str(trained / "chatml")).eos_token_id == END
    assert end_faults(model, "chatml") == []


def test_an_end_of_turn_that_replaces_nothing_is_not_stopped_at(model, trained):
    assert stops(trained / "smollm") == [TEXT_END]
    assert AutoTokenizer.from_pretrained(str(trained / "smollm")).eos_token_id == TEXT_END
    [fault] = end_faults(model, "smollm")
    assert "will stop at <|endoftext|>" in fault
