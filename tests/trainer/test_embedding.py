"""The real LLaMA-Factory leaves a root and checkpoints that say their template themselves."""

import json
from pathlib import Path

import pytest

from sft.trainers import llamafactory
from sft.trainers.served_tokenizer import CONFIG, JINJA
from tests.trainer.tiny_run import make_inputs, train, write_config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The train.yaml of a complete run of ten steps that saved at 4, 8 and 10."""
    make_inputs(tmp_path)
    config = write_config(tmp_path / "run", tmp_path, template="chatml")
    assert train(config) == [0], (config.parent / "0.log").read_text()[-3000:]
    return config


def folders(config: Path) -> list[Path]:
    output = config.parent / "out"
    return [output, *sorted(output.glob("checkpoint-*"))]


def assert_embedded(config: Path) -> None:
    for folder in folders(config):
        saved = json.loads((folder / CONFIG).read_text())
        assert "<|im_start|>" in saved["chat_template"]
        assert saved["chat_template"] == (folder / JINJA).read_bytes().decode()
        assert not isinstance(saved.get("extra_special_tokens"), list)


def test_root_and_each_checkpoint_say_their_template(config):
    assert [each.name for each in folders(config)[1:]] == [
        "checkpoint-10",
        "checkpoint-4",
        "checkpoint-8",
    ]
    assert_embedded(config)


def test_only_the_first_process_of_a_complete_run_embeds_it(config, monkeypatch):
    for folder in folders(config):
        saved = json.loads((folder / CONFIG).read_text())
        del saved["chat_template"]
        (folder / CONFIG).write_text(json.dumps(saved))

    monkeypatch.setenv("RANK", "1")
    llamafactory.train(config, 2)
    assert not any("chat_template" in (each / CONFIG).read_text() for each in folders(config))

    monkeypatch.setenv("RANK", "0")
    llamafactory.train(config, 2)
    assert_embedded(config)
