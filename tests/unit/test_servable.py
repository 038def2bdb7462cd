"""Config and tokenizer of a release, in words that older and newer loaders read alike."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models
from transformers import AutoTokenizer

from sft.servable import servable_config, servable_generation, servable_tokenizer
from sft.trainers.served_tokenizer import embed_template

TEMPLATE = "{{ messages }}"
SPECIAL = ("<x>", "<y>", "<z>")


def load(folder: Path, config: dict):
    """The tokenizer of a tokenizer_config.json, as the real transformers loads it."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return AutoTokenizer.from_pretrained(folder)


def servable(**config) -> dict:
    return servable_tokenizer(config, TEMPLATE, with_code=False)


# --- tokenizer -----------------------------------------------------------------------------------


def test_list_of_special_tokens_moves_to_the_key_that_older_loaders_know():
    config = servable(extra_special_tokens=["<x>"])

    assert config["extra_special_tokens"] == {}
    assert config["additional_special_tokens"] == ["<x>"]


def test_both_lists_of_special_tokens_stay_each_token_once():
    config = servable(extra_special_tokens=["<x>", "<z>"], additional_special_tokens=["<y>", "<x>"])

    assert config["additional_special_tokens"] == ["<y>", "<x>", "<z>"]


def test_embedding_a_template_keeps_both_lists_of_special_tokens(tmp_path):
    lists = {"extra_special_tokens": ["<x>"], "additional_special_tokens": ["<y>", "<x>"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(lists))

    embed_template(tmp_path, TEMPLATE)

    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == {
        **{"extra_special_tokens": {}, "additional_special_tokens": ["<y>", "<x>"]},
        "chat_template": TEMPLATE,
    }


def test_transformers_finds_the_special_tokens_of_both_lists(tmp_path):
    config = servable(extra_special_tokens=["<x>"], additional_special_tokens=["<y>"])

    assert set(load(tmp_path, config).all_special_tokens) == {"<x>", "<y>"}


def test_transformers_finds_the_tokens_that_it_saved_itself(tmp_path):
    first = load(tmp_path, {"extra_special_tokens": {"image_token": "<z>"}})
    first.add_special_tokens({"extra_special_tokens": ["<y>"]})
    first.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())

    config = servable_tokenizer(saved, TEMPLATE, with_code=False)
    loaded = load(tmp_path, config)

    assert saved["is_local"] is True
    assert "is_local" not in config
    assert config["extra_special_tokens"] == {"image_token": "<z>"}
    assert set(loaded.all_special_tokens) == set(first.all_special_tokens) == {"<y>", "<z>"}
    assert loaded.image_token == "<z>"


def test_mapping_of_special_tokens_stays():
    assert servable(extra_special_tokens={"a": "<x>"})["extra_special_tokens"] == {"a": "<x>"}


def test_tokenizer_class_is_one_that_older_loaders_know():
    config = servable(tokenizer_class="TokenizersBackend")

    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"


# --- config --------------------------------------------------------------------------------------


def test_rope_theta_stands_where_older_loaders_read_it():
    rope = {"rope_theta": 1e6, "rope_type": "default"}

    config = servable_config({"text_config": {"rope_parameters": rope}}, with_code=False)

    assert config["text_config"] == {"rope_parameters": rope, "rope_theta": 1e6}


def test_rope_scaling_stands_where_older_loaders_read_it():
    rope = {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0}

    config = servable_config({"rope_parameters": rope}, with_code=False)

    assert config["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0}


# --- generation ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trained", "base", "stops"),
    [(2, 7, [2, 7]), ([2, 3], [3, 7], [2, 3, 7]), (2, None, [2]), (None, 7, [7])],
)
def test_generation_stops_where_the_trained_config_and_the_base_do(trained, base, stops):
    made = servable_generation(None, {"eos_token_id": base}, {"eos_token_id": trained})

    assert made == {"eos_token_id": stops}


def test_no_generation_config_comes_from_nowhere():
    assert servable_generation(None, None, {"eos_token_id": 2}) is None
