"""Delphi's preparation: six slots get a name and a row, and nothing else changes."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from sft.backends import BACKENDS
from sft.catalog import tokens_name
from sft.delphi.matrices import narrow, widen
from sft.delphi.prepare_delphi_tokenizer import prepare_delphi
from sft.delphi.prepared import prepare_model
from sft.delphi.slots import TOKENS
from sft.errors import SftError
from sft.fetch import fetch_model, verify_fetched
from sft.files import list_files, read_json, write_json
from sft.identity import fingerprint
from sft.model import Model
from sft.tokens import token_identity
from sft.weights import read_weights_index
from tests.delphi_checkpoint import (
    COLUMNS,
    EMBEDDING,
    HEAD,
    TRAINED,
    VOCABULARY,
    numbers,
    save,
    special_names,
    write_checkpoint,
    write_shards,
)
from tests.unit.planning import EXPERIMENT

CHECKOUT = Path(__file__).parents[2]
SLOTS = [128002, 128003, 128005, 128011, 128012, 128013]
STORED = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untied checkpoint in three shards, of which the second holds neither matrix."""
    folder = tmp_path_factory.mktemp("original")
    write_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def prepared(original: Path) -> Path:
    """The original's prepared form, for tests that only look."""
    prepare_delphi(original, original.with_name("prepared"))
    return original.with_name("prepared")


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    """A checkpoint that a test may change."""
    return shutil.copytree(original, tmp_path / "model")


def write_single(folder: Path, dtype: str, tied: bool) -> None:
    """Write all weights of `folder` anew, into one file."""
    for path in folder.glob("model*"):
        path.unlink()
    tensors = {"a.weight": numbers(5, 3, dtype), EMBEDDING: numbers(6, VOCABULARY, dtype)}
    if not tied:
        tensors[HEAD] = numbers(7, VOCABULARY, dtype)
    save(folder / "model.safetensors", tensors | {"z.weight": numbers(8, 3, dtype)}, dtype)
    write_json(folder / "config.json", {"tie_word_embeddings": tied})


def load(folder: Path, name: str) -> np.ndarray:
    """A tensor as it is stored."""
    tensor = read_weights_index(folder)[name]
    data = (folder / tensor.file).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    first, last = json.loads(data[8:start])[name]["data_offsets"]
    return np.frombuffer(data[start + first : start + last], STORED[tensor.dtype]).reshape(
        tensor.shape
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in list_files(folder)}


def change_json(path: Path, **values: object) -> None:
    write_json(path, read_json(path) | values)


def states(folder: Path) -> dict[str, tuple[int, int]]:
    """Which file each name is, and when it was last written."""
    found = {path.name: path.stat() for path in [folder, *folder.iterdir()]}
    return {name: (state.st_ino, state.st_mtime_ns) for name, state in found.items()}


def prepare(model: Path) -> Path:
    prepare_delphi(model, model.parent / "out")
    return model.parent / "out"


# The tokenizer


def test_each_string_is_one_token_and_the_vocabulary_keeps_its_size(prepared):
    tokenizer = Tokenizer.from_file(str(prepared / "tokenizer.json"))

    assert tokenizer.get_vocab_size() == VOCABULARY
    text = "".join(TOKENS)
    assert tokenizer.encode(f"a{text}b", add_special_tokens=False).ids[1:-1] == SLOTS
    assert all(tokenizer.get_added_tokens_decoder()[slot].special for slot in SLOTS)


def test_slot_that_was_not_special_is(model):
    added = change_added(128002, '"special":true', '"special":false')
    added(model)

    tokenizer = Tokenizer.from_file(str(prepare(model) / "tokenizer.json"))

    assert tokenizer.get_added_tokens_decoder()[128002].special


def test_rest_of_the_tokenizer_keeps_its_bytes(original, prepared):
    text = (original / "tokenizer.json").read_text()
    for number, name in enumerate(TOKENS):
        text = text.replace(f'"<|reserved_special_token_{number}|>"', f'"{name}"')

    assert (prepared / "tokenizer.json").read_text() == text


def test_config_of_the_tokenizer_says_the_new_names_everywhere(prepared):
    config = read_json(prepared / "tokenizer_config.json")

    assert {config["added_tokens_decoder"][str(slot)]["content"] for slot in SLOTS} == {*TOKENS}
    assert config["extra_special_tokens"] == ["<|start_think|>", "<|eot_id|>"]


def test_transformers_adds_no_token_at_load(prepared):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(prepared)

    assert len(tokenizer) == VOCABULARY
    assert tokenizer.convert_tokens_to_ids(list(TOKENS)) == SLOTS


def test_config_without_the_block_gets_none(model):
    content = read_json(model / "tokenizer_config.json")
    del content["added_tokens_decoder"], content["extra_special_tokens"]
    write_json(model / "tokenizer_config.json", content)

    assert read_json(prepare(model) / "tokenizer_config.json") == content


# The rows


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", STORED)
def test_rows_are_the_mean_of_the_trained_ones(model, dtype, tied):
    write_single(model, dtype, tied)

    done = prepare_delphi(model, model.parent / "out")

    matrices = [EMBEDDING] if tied else [EMBEDDING, HEAD]
    assert sorted(done["means"]) == sorted(matrices)
    for name in matrices:
        trained = widen(load(model, name)[:TRAINED], dtype).astype(np.float64)
        mean = trained.sum(axis=0) / TRAINED
        found = widen(load(model.parent / "out", name)[SLOTS], dtype)
        assert np.array_equal(found, np.tile(widen(narrow(mean, dtype), dtype), (6, 1)))
        assert np.abs(found[0] - mean).max() <= np.abs(mean).max() * 2**-8


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_every_other_byte_of_the_weights_stays(model, tied):
    write_single(model, "BF16", tied)

    before, after = contents(model), contents(prepare(model))

    old, new = (np.frombuffer(each["model.safetensors"], np.uint8) for each in (before, after))
    row = COLUMNS * 2
    assert 0 < np.count_nonzero(old != new) <= (1 if tied else 2) * len(SLOTS) * row
    for name in [EMBEDDING] if tied else [EMBEDDING, HEAD]:
        kept = np.setdiff1d(np.arange(VOCABULARY), SLOTS)
        out = model.parent / "out"
        assert np.array_equal(load(model, name)[kept], load(out, name)[kept])


def test_bf16_rounds_to_the_nearest_and_halves_to_even():
    halves = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20], np.float64)

    assert narrow(halves, "BF16").tolist() == [0x3F80, 0x3F82, 0xBF80, 0x3F81]


# The files


def test_shards_without_a_matrix_are_linked(model):
    done = prepare_delphi(model, model.parent / "out")

    first, second, third = (f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))
    assert done["rewritten"] == [first, third, "tokenizer.json", "tokenizer_config.json"]
    assert done["linked"] == [second]
    assert os.path.samefile(model / second, model.parent / "out" / second)


@pytest.mark.parametrize("name", ["config.json", "README.md", "model.safetensors.index.json"])
def test_other_files_are_copies_of_the_same_bytes(original, prepared, name):
    assert (prepared / name).read_bytes() == (original / name).read_bytes()
    assert not os.path.samefile(original / name, prepared / name)


def test_checkpoint_itself_stays_as_it_is(model):
    before = contents(model)

    prepare(model)

    assert contents(model) == before


def test_snapshot_of_links_becomes_plain_files(model):
    blobs = model.parent / "blobs"
    model.rename(blobs)
    model.mkdir()
    for path in blobs.iterdir():
        (model / path.name).symlink_to(path)

    out = prepare(model)

    assert not any(path.is_symlink() for path in out.iterdir())
    assert set(list_files(out)) == {path.name for path in blobs.iterdir()}


def test_own_output_is_prepared_already(model):
    first = prepare(model)

    done = prepare_delphi(first, model.parent / "again")

    assert contents(model.parent / "again") == contents(first)
    assert (done["renamed"], done["rewritten"]) == ({}, [])


def test_second_run_into_the_same_folder_touches_nothing(model):
    out = prepare(model)
    before = states(out)

    prepare(model)

    assert states(out) == before
    assert sorted(path.name for path in model.parent.iterdir()) == ["model", "out"]


def test_empty_folder_is_filled(model):
    (model.parent / "out").mkdir()

    assert list_files(prepare(model)) == list_files(model)


@pytest.mark.parametrize("name", ["README.md", "model-00002-of-00003.safetensors", "more.txt"])
def test_folder_with_other_content_is_refused_and_kept(model, name):
    out = prepare(model)
    (out / name).unlink(missing_ok=True)
    (out / name).write_text("mine")

    with pytest.raises(SftError, match=f"out: exists and differs in {name}; it is not overwritten"):
        prepare(model)

    assert (out / name).read_text() == "mine"
    assert sorted(path.name for path in model.parent.iterdir()) == ["model", "out"]


def test_file_in_place_of_the_output_is_refused(model):
    (model.parent / "out").write_text("mine")

    with pytest.raises(SftError, match="exists and differs"):
        prepare(model)


@pytest.mark.parametrize("place", ["prepared", "."])
def test_output_in_the_checkpoint_is_refused(model, place):
    with pytest.raises(SftError, match="name a folder outside of it"):
        prepare_delphi(model, model / place)


# What is refused


def change_added(slot: int, old: str, new: str) -> Change:
    """Replace what tokenizer.json says of an added token."""

    def change(model: Path) -> None:
        text = (model / "tokenizer.json").read_text()
        before, entry, after = re.split(rf'(\{{"id":{slot},[^}}]*\}})', text)
        (model / "tokenizer.json").write_text(before + entry.replace(old, new) + after)

    return change


def take_slot(slot: int, name: str) -> Change:
    return change_added(slot, special_names()[slot - TRAINED], name)


def add_token(model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|im_start|>"])
    tokenizer.save(str(model / "tokenizer.json"))


def change_decoder(model: Path) -> None:
    config = read_json(model / "tokenizer_config.json")
    config["added_tokens_decoder"]["128012"]["content"] = "<|mine|>"
    write_json(model / "tokenizer_config.json", config)


def damage_row(model: Path) -> None:
    embedding = numbers(0, VOCABULARY, "BF16")
    embedding[7] = 0x7F80  # infinity
    norm = numbers(0, 1, "BF16")
    path = model / "model-00001-of-00003.safetensors"
    save(path, {EMBEDDING: embedding, "model.norm.weight": norm}, "BF16")


def drop_head(model: Path) -> None:
    (model / "model-00003-of-00003.safetensors").unlink()
    index = read_json(model / "model.safetensors.index.json")
    del index["weight_map"][HEAD]
    write_json(model / "model.safetensors.index.json", index)


def quantize(model: Path) -> None:
    path = model / "model-00003-of-00003.safetensors"
    save(path, {HEAD: np.zeros((VOCABULARY, COLUMNS), np.int8)}, "I8")


def set_value(file: str, **values: object) -> Change:
    def change(model: Path) -> None:
        content = read_json(model / file) if (model / file).exists() else {}
        write_json(model / file, content | values)

    return change


def remove(file: str) -> Change:
    return lambda model: (model / file).unlink()


REFUSALS = {
    "a larger vocabulary": (add_token, "found a vocabulary of 128257 tokens, expected the 128256"),
    "a slot in use": (
        take_slot(128005, "<|mine|>"),
        r"tokenizer\.json, token 128005: found <\|mine\|>, expected a reserved token or "
        r"<\|tool_call\|>",
    ),
    "a slot in use by the config": (
        change_decoder,
        r"tokenizer_config\.json, token 128012: found <\|mine\|>",
    ),
    "a name at another slot": (
        take_slot(128100, "<|end_think|>"),
        r"found <\|end_think\|> as token 128100, expected it at 128003",
    ),
    "a slot that pads": (
        set_value("tokenizer_config.json", pad_token="<|reserved_special_token_0|>"),
        r"pad_token: found <\|reserved_special_token_0\|>, which is one of the slots",
    ),
    "a slot that ends": (
        set_value("special_tokens_map.json", eos_token={"content": "<|end_think|>"}),
        r"special_tokens_map\.json, eos_token: found <\|end_think\|>",
    ),
    "a slot that pads by its id": (
        set_value("generation_config.json", pad_token_id=128002),
        r"generation_config\.json, pad_token_id: found 128002",
    ),
    "a slot that ends by its id": (
        set_value("config.json", eos_token_id=[128001, 128013]),
        r"config\.json, eos_token_id: found \[128001, 128013\]",
    ),
    "no tokenizer.json": (
        lambda model: (model / "tokenizer.json").rename(model / "tokenizer.model"),
        r"tokenizer\.json: missing; save the tokenizer",
    ),
    "a damaged tokenizer.json": (
        lambda model: (model / "tokenizer.json").write_text('{"a": 1}'),
        r"tokenizer\.json: not a tokenizer: .*; fetch the file again",
    ),
    "too few rows": (
        lambda model: write_shards(model, "BF16", rows=128000),
        f"{EMBEDDING}: found 128000 rows, expected at least 128256",
    ),
    "a missing shard": (
        remove("model-00002-of-00003.safetensors"),
        r"model-00002-of-00003\.safetensors: missing",
    ),
    "a cut shard": (
        lambda model: os.truncate(model / "model-00003-of-00003.safetensors", 900_000),
        r"model-00003-of-00003\.safetensors: 900000 bytes, its header promises .*: truncated",
    ),
    "no head": (drop_head, "config.json does not say `tie_word_embeddings: true`"),
    "a quantized head": (quantize, f"{HEAD}: found I8, expected one of F64, F32, F16, BF16"),
    "an infinite row": (damage_row, "rows below 128000 are not all finite"),
    "other names": (
        lambda model: write_other_names(model),
        r"no tensor's name ends in embed_tokens\.weight or .*, found transformer\.wte;",
    ),
}


def write_other_names(model: Path) -> None:
    for path in model.glob("model*"):
        path.unlink()
    save(model / "model.safetensors", {"transformer.wte": numbers(1, VOCABULARY, "BF16")}, "BF16")


@pytest.mark.parametrize(("change", "message"), REFUSALS.values(), ids=REFUSALS)
def test_refused_with_its_reason_and_nothing_left(model, change, message):
    change(model)

    with pytest.raises(SftError, match=message):
        prepare(model)

    assert [path.name for path in model.parent.iterdir()] == ["model"]


def test_every_slot_in_use_is_named_at_once(model):
    for slot in SLOTS:
        take_slot(slot, f"<|mine{slot}|>")(model)

    with pytest.raises(SftError) as refused:
        prepare(model)

    assert len(refused.value.args) == 6


# The command


@pytest.mark.parametrize(
    "command",
    [["sft/delphi/prepare_delphi_tokenizer.py"], ["-m", "sft.delphi.prepare_delphi_tokenizer"]],
    ids=["file", "module"],
)
def test_command_prepares_and_says_what_it_did(model, command):
    ran = run(*command, "--model", str(model), "--output", str(model.parent / "out"))

    assert ran.returncode == 0, ran.stderr
    assert "<|reserved_special_token_0|> is <|start_think|> now (128002)" in ran.stdout
    assert "linked: 1 files" in ran.stdout
    assert list_files(model.parent / "out") == list_files(model)


def test_command_finds_the_package_beside_it(tmp_path):
    # Not the one that is installed here, which hides that another user's is not.
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "sft", tmp_path / "sft", ignore=ignored)
    (tmp_path / "sft" / "sources.py").write_text("raise SystemExit('the copy')")

    ran = run(str(tmp_path / "sft" / "delphi" / "prepare_delphi_tokenizer.py"), "--help")

    assert ran.stderr.strip() == "the copy"


def test_command_says_a_refusal_without_a_traceback(model):
    add_token(model)

    ran = run(
        *("sft/delphi/prepare_delphi_tokenizer.py", "--model", str(model)),
        *("--output", str(model.parent / "out")),
    )

    assert ran.returncode == 1
    assert ran.stderr.startswith(f"{model}/tokenizer.json: found a vocabulary of 128257")


def run(*arguments: str) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=CHECKOUT, env=environment, capture_output=True, text=True
    )


# The stage


def test_receipt_has_the_form_of_what_was_fetched(model):
    fetched = fetch_model(Model("delphi", folder=str(model)))

    made = prepare_model(fetched, model.parent / "prepared")

    assert fetched.keys() <= made.keys()
    assert (made["name"], made["source"], made["revision"]) == ("delphi", f"local:{model}", None)
    assert made["sha256"] != fetched["sha256"]
    fresh = fetch_model(Model("delphi", folder=made["path"]))
    assert (made["files"], made["sha256"]) == (fresh["files"], fresh["sha256"])
    verify_fetched(made, thorough=True)


def test_stage_run_again_makes_the_same_receipt(model):
    fetched = fetch_model(Model("delphi", folder=str(model)))
    first = prepare_model(fetched, model.parent / "prepared")

    again = prepare_model(fetched, model.parent / "prepared")

    assert again == first


def test_other_content_is_another_folder(model):
    first = prepare_model(
        fetch_model(Model("delphi", folder=str(model))), model.parent / "prepared"
    )
    change_json(model / "config.json", architectures=["Qwen3ForCausalLM"])

    second = prepare_model(
        fetch_model(Model("delphi", folder=str(model))), model.parent / "prepared"
    )

    assert first["path"] != second["path"]
    verify_fetched(first, thorough=False)


def test_checkpoint_that_changed_since_the_fetch_is_refused(model):
    fetched = fetch_model(Model("delphi", folder=str(model)))
    change_json(model / "config.json", architectures=["Qwen3ForCausalLM"])

    with pytest.raises(SftError, match=r"config\.json: changed since it was fetched"):
        prepare_model(fetched, model.parent / "prepared")


@pytest.fixture(scope="module")
def receipts(original: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    """What is known of a model from the hub as it was fetched, and of its prepared form."""
    fetched = fetch_model(Model("delphi", folder=str(original)))
    fetched |= {"source": "hub:org/delphi", "revision": "c" * 40}
    return fetched, prepare_model(fetched, tmp_path_factory.mktemp("models") / "prepared")


def test_prepared_model_is_another_to_tokens_and_fingerprint(receipts):
    versions = dict.fromkeys(BACKENDS["llamafactory"].TOKEN_VERSIONS, "1")
    datasets = {each.name: {"sha256": "d" * 64} for each in EXPERIMENT.mix.datasets}
    keys = [token_identity(EXPERIMENT, model, datasets, versions) for model in receipts]
    prints = [fingerprint(EXPERIMENT, model, {"key": "k"}) for model in receipts]

    assert keys[0] != keys[1]
    assert prints[0] != prints[1]


def test_prepared_model_has_tokens_of_another_name():
    prepared = replace(EXPERIMENT, model=replace(EXPERIMENT.model, prepare="delphi"))

    assert tokens_name(prepared) != tokens_name(EXPERIMENT)
