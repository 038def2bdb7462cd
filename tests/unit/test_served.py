"""Saved tokenizers serve what was trained, or are refused with the difference."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sft.errors import SftError
from sft.files import read_json
from sft.served import CASES, check_served, saved_tokenizers
from sft.templates import template_path
from tests.unit.served import FAMILIES, write_family, write_served

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EXACT = template_path("chatml_tools").read_text()


def embed(folder: Path, **changes: object) -> None:
    """Change tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(read_json(path) | changes))


@pytest.fixture
def truth(tmp_path) -> Path:
    """The tokens' own tokenizer."""
    folder = write_served(tmp_path / "truth", EXACT, CONTROLS)
    embed(folder, chat_template=EXACT, eos_token="<|im_end|>")
    return folder


@pytest.fixture
def saved(truth, tmp_path) -> Path:
    """What a run left: the same, and a generation config."""
    folder = shutil.copytree(truth, tmp_path / "run")
    end = read_json(folder / "tokenizer.json")["added_tokens"][2]["id"]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, end]}))
    return folder


def refusal(truth: Path, *folders: Path) -> str:
    with pytest.raises(SftError) as caught:
        check_served(truth, folders)
    return str(caught.value)


def test_same_tokenizer_serves_the_same(truth, saved):
    made = check_served(truth, [saved])

    assert made["folders"] == ["run"]
    assert made["conversations"] == len(CASES)
    assert made["refused"] == ["unknown role"]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_of_templates_serves_itself(family, tmp_path):
    folder = write_family(tmp_path / "truth", FAMILIES[family])
    embed(folder, chat_template=FAMILIES[family].template, eos_token=FAMILIES[family].end)

    check_served(folder, [folder])


def test_template_in_the_jinja_file_alone_is_refused(truth, saved):
    config = read_json(saved / "tokenizer_config.json")
    del config["chat_template"]
    (saved / "tokenizer_config.json").write_text(json.dumps(config))

    assert "tokenizer_config.json, chat_template: found NoneType" in refusal(truth, saved)


def test_two_templates_are_refused_with_the_first_difference(truth, saved):
    (saved / "chat_template.jinja").write_text(EXACT.replace("im_start|>user", "im_start|>human"))

    found = refusal(truth, saved)
    assert "chat_template.jinja: not what tokenizer_config.json says" in found
    assert "human" in found


def test_other_template_in_both_places_is_refused(truth, saved):
    other = EXACT.replace("assistant\\n", "assistant:\\n")
    (saved / "chat_template.jinja").write_text(other)
    embed(saved, chat_template=other)

    assert "does not render 'question' as trained: found" in refusal(truth, saved)


def test_difference_in_calls_alone_is_refused(truth, saved):
    other = EXACT.replace("<tool_call>\\n{", "<tool_call>{")
    assert other != EXACT
    (saved / "chat_template.jinja").write_text(other)
    embed(saved, chat_template=other)

    assert "as trained" in refusal(truth, saved)


def test_template_that_refuses_what_was_rendered_is_refused(truth, saved):
    other = "{{- raise_exception('no') if tools else '' -}}" + EXACT
    (saved / "chat_template.jinja").write_text(other)
    embed(saved, chat_template=other)

    assert "found a refusal, expected '<|im_start|>" in refusal(truth, saved)


def test_other_cut_of_the_text_is_refused(truth, saved):
    merged = write_served(saved.with_name("merged"), EXACT, CONTROLS, merges=[("e", "a")])
    shutil.copy(merged / "tokenizer.json", saved / "tokenizer.json")

    assert "tokenizer.json: cuts" in refusal(truth, saved)


def test_end_token_that_no_answer_ends_in_is_refused(truth, saved):
    embed(saved, eos_token="<|endoftext|>")

    assert "eos_token: found '<|endoftext|>', expected '<|im_end|>'" in refusal(truth, saved)


def test_generation_that_would_not_stop_is_refused(truth, saved):
    (saved / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))

    assert "generation_config.json, eos_token_id: found 0, expected" in refusal(truth, saved)


def test_config_counts_where_there_is_no_generation_config(truth, saved):
    (saved / "generation_config.json").unlink()
    (saved / "config.json").write_text(json.dumps({"eos_token_id": 0}))

    assert "config.json, eos_token_id: found 0, expected" in refusal(truth, saved)


def test_older_run_is_told_what_to_do(truth, saved):
    config = read_json(saved / "tokenizer_config.json")
    del config["chat_template"]
    (saved / "tokenizer_config.json").write_text(json.dumps(config))
    (saved / "chat_template.jinja").write_text(EXACT)

    command = refusal(truth, saved).partition("embed it: python ")[2].split()
    subprocess.run([sys.executable, *command], check=True)
    check_served(truth, [saved])


def test_list_of_extra_tokens_is_refused(truth, saved):
    embed(saved, extra_special_tokens=["<|im_start|>"])

    assert "extra_special_tokens: found a list, expected an object" in refusal(truth, saved)


def test_renamed_token_that_no_text_holds_is_refused(truth, saved):
    path = saved / "tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "<|other|>"))

    found = refusal(truth, saved)
    assert "tokenizer.json: token '<|endoftext|>': found id None, expected" in found


def test_folder_without_a_tokenizer_is_refused(truth, tmp_path):
    (tmp_path / "empty").mkdir()

    assert "empty/tokenizer_config.json: missing" in refusal(truth, tmp_path / "empty")


def test_each_folder_is_named_that_differs(truth, saved, tmp_path):
    bad = shutil.copytree(saved, tmp_path / "checkpoint-4")
    embed(bad, eos_token="<|endoftext|>")

    found = refusal(truth, saved, bad)
    assert "checkpoint-4/" in found and "run/" not in found


def test_weights_and_checkpoints_are_looked_at_once(tmp_path):
    for name in ("checkpoint-4", "checkpoint-8"):
        (tmp_path / name).mkdir()

    folders = saved_tokenizers(tmp_path / "checkpoint-8", tmp_path)
    assert [each.name for each in folders] == ["checkpoint-8", "checkpoint-4"]
