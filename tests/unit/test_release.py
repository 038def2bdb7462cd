"""What a release holds, and that it is whole or absent."""

import json
import logging
from dataclasses import asdict
from pathlib import Path

import pytest

from sft import placement
from sft.errors import SftError
from sft.files import list_files, manifest, read_json
from sft.release import assemble_release
from sft.weights import read_tensors
from tests.unit.killing import kill_at_wait
from tests.unit.releasing import (
    SHAPES,
    TEMPLATE,
    accept,
    assemble,
    base,
    change_json,
    provenance,
    weights,
    wrap_names,
)

__all__ = ["base", "weights"]

SERVED = [
    *("README.md", "chat_template.jinja", "config.json", "generation_config.json", "loss.png"),
    *("model.safetensors", "provenance.json", "tokenizer.json", "tokenizer_config.json"),
]
SHARD = "model-00001-of-00001.safetensors"


def move_to_shard(weights: Path) -> None:
    """Let the weights be in one numbered file with an index."""
    (weights / "model.safetensors").rename(weights / SHARD)
    index = {"weight_map": dict.fromkeys(SHAPES, SHARD)}
    (weights / "model.safetensors.index.json").write_text(json.dumps(index))


def entry_of(files: list[dict]) -> dict:
    """The manifest entry of the weights."""
    (entry,) = (each for each in files if each["path"] == "model.safetensors")
    return entry


# --- files ---------------------------------------------------------------------------------------


def test_a_release_holds_what_serving_needs_and_nothing_else(weights, base):
    assert list_files(assemble(weights, base)) == SERVED


def test_the_manifest_is_that_of_the_folder(weights, base, tmp_path):
    files = assemble_release(weights, base, tmp_path / "release", provenance(), accept)
    assert files == manifest(tmp_path / "release")


@pytest.mark.parametrize(
    "name", ["preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"]
)
def test_processor_files_come_from_the_base_where_it_has_them(weights, base, name):
    (base / name).write_text('{"size": 1}')
    release = assemble(weights, base)
    assert read_json(release / name) == {"size": 1}
    assert set(list_files(release)) == {*SERVED, name}


def test_chat_template_in_a_processor_of_the_base_is_left_out(weights, base):
    (base / "processor_config.json").write_text('{"size": 1, "chat_template": "of the base"}')
    assert read_json(assemble(weights, base) / "processor_config.json") == {"size": 1}


def test_generation_config_comes_from_the_base_where_training_saved_none(weights, base):
    (weights / "generation_config.json").unlink()
    change_json(weights / "config.json", eos_token_id=2)
    (base / "generation_config.json").write_text('{"top_k": 20, "eos_token_id": 7}')
    release = assemble(weights, base)
    assert read_json(release / "generation_config.json") == {"top_k": 20, "eos_token_id": [2, 7]}


def test_generation_config_of_the_training_wins(weights, base):
    (base / "generation_config.json").write_text('{"top_k": 20, "eos_token_id": 7}')
    assert read_json(assemble(weights, base) / "generation_config.json") == {"eos_token_id": 2}


def test_sharded_weights_go_with_their_index(weights, base):
    move_to_shard(weights)
    names = list_files(assemble(weights, base))
    assert [name for name in names if name.startswith("model")] == [
        SHARD,
        "model.safetensors.index.json",
    ]


def test_truncated_weights_are_refused_and_leave_nothing(weights, base, tmp_path):
    path = weights / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SftError, match="truncated"):
        assemble(weights, base)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "checkpoints"]


def test_weights_under_a_name_that_no_server_knows_are_refused(weights, base):
    (weights / "model.safetensors").rename(weights / "model-best.safetensors")
    index = {"weight_map": dict.fromkeys(SHAPES, "model-best.safetensors")}
    (weights / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SftError, match=r"weights in model-best\.safetensors; expected model\.safe"):
        assemble(weights, base)


def test_a_model_without_a_vocabulary_is_refused(weights, base):
    (weights / "tokenizer.json").unlink()
    with pytest.raises(SftError, match="no vocabulary"):
        assemble(weights, base)


def test_a_release_that_is_not_proven_leaves_nothing(weights, base, tmp_path):
    def refuse(folder: Path) -> None:
        assert (folder / "tokenizer_config.json").exists()
        raise SftError("it serves another template")

    with pytest.raises(SftError, match="another template"):
        assemble_release(weights, base, tmp_path / "release", provenance(), refuse)
    assert not (tmp_path / "release").exists()


def test_a_release_replaces_the_one_before(weights, base):
    (assemble(weights, base) / "stale.txt").write_text("old")
    assert list_files(assemble(weights, base)) == SERVED


def test_a_refused_release_leaves_the_one_before(weights, base):
    before = manifest(assemble(weights, base))
    (base / "processor_config.json").write_text('{"processor": "/fsx/team/model"}')
    with pytest.raises(SftError, match="/fsx/team/model"):
        assemble(weights, base)
    assert manifest(weights.parent / "release") == before


def test_provenance_holds_everything(weights, base):
    made = read_json(assemble(weights, base) / "provenance.json")
    expected = json.loads(json.dumps(asdict(provenance())))
    assert made.keys() == expected.keys()
    for key in made.keys() - {"config", "datasets"}:
        assert made[key] == expected[key]


def test_the_source_is_left_as_it_was(weights, base):
    wrap_names(weights / "model.safetensors")
    before = manifest(weights)
    assemble(weights, base)
    assert manifest(weights) == before


# --- a model's own code --------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["checkpoints", "base"])
def test_code_of_a_model_comes_where_the_row_trusts_it(weights, base, tmp_path, place):
    change_json(weights / "config.json", auto_map={"AutoConfig": "own.Config"})
    (tmp_path / place / "own.py").write_text("class Config: ...")
    release = tmp_path / "release"
    assemble_release(weights, base, release, provenance(), accept, with_code=True)
    assert (release / "own.py").read_text() == "class Config: ..."
    assert read_json(release / "config.json")["auto_map"] == {"AutoConfig": "own.Config"}


def test_without_trust_neither_code_nor_its_names_are_released(weights, base):
    change_json(weights / "config.json", auto_map={"AutoConfig": "own.Config"})
    change_json(weights / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.T", None]})
    (weights / "own.py").write_text("class Config: ...")
    release = assemble(weights, base)
    assert list_files(release) == SERVED
    assert "auto_map" not in read_json(release / "config.json")
    assert "auto_map" not in read_json(release / "tokenizer_config.json")


# --- weights -------------------------------------------------------------------------------------


def test_weights_are_linked_not_copied(weights, base, caplog):
    with caplog.at_level(logging.INFO, "sft"):
        release = assemble(weights, base)
    assert (release / "model.safetensors").samefile(weights / "model.safetensors")
    assert caplog.messages == ["weights: 1 linked"]


@pytest.mark.parametrize("sharded", [False, True])
def test_wrapped_names_are_plain_in_the_release(weights, base, sharded, caplog):
    wrap_names(weights / "model.safetensors")
    if sharded:
        move_to_shard(weights)
        index = {f"_orig_mod.{name}": SHARD for name in SHAPES}
        (weights / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with caplog.at_level(logging.INFO, "sft"):
        release = assemble(weights, base)
    names = read_tensors(release / (SHARD if sharded else "model.safetensors")).keys()
    assert names == SHAPES.keys()
    assert caplog.messages == [
        "weights: 1 written anew, without a trainer's wrappers in the names of tensors"
    ]
    if sharded:
        index = read_json(release / "model.safetensors.index.json")
        assert index["weight_map"].keys() == SHAPES.keys()


def test_the_manifest_of_renamed_weights_is_that_of_the_folder(weights, base, tmp_path):
    wrap_names(weights / "model.safetensors")
    files = assemble_release(weights, base, tmp_path / "release", provenance(), accept)
    assert files == manifest(tmp_path / "release")


@pytest.fixture
def unread(monkeypatch):
    """Let the test fail where weights are read to be hashed."""

    def refuse(path: Path) -> str:
        raise AssertionError(f"{path} was hashed")

    return lambda: monkeypatch.setattr(placement, "hash_file", refuse)


@pytest.mark.parametrize("timed", [False, True])
def test_weights_whose_hash_is_known_are_not_read_again(weights, base, tmp_path, unread, timed):
    state = (weights / "model.safetensors").stat()
    entry = {"path": "model.safetensors", "size": state.st_size, "sha256": "a" * 64}
    known = [entry | ({"mtime_ns": state.st_mtime_ns} if timed else {})]
    unread()
    files = assemble_release(weights, base, tmp_path / "release", provenance(), accept, known)
    assert entry_of(files) == entry


@pytest.mark.parametrize("change", [{"size": 1}, {"mtime_ns": 1}, {"path": "other.safetensors"}])
def test_a_known_hash_of_another_file_counts_for_nothing(weights, base, tmp_path, change):
    size = (weights / "model.safetensors").stat().st_size
    known = [{"path": "model.safetensors", "size": size, "sha256": "a" * 64, **change}]
    release = tmp_path / "release"
    files = assemble_release(weights, base, release, provenance(), accept, known)
    assert files == manifest(release)


@pytest.mark.parametrize("wrapped", [False, True])
def test_weights_of_the_release_before_are_neither_read_nor_written_again(
    weights, base, tmp_path, unread, wrapped
):
    if wrapped:
        wrap_names(weights / "model.safetensors")
    release = tmp_path / "release"
    first = assemble_release(weights, base, release, provenance(), accept)
    inode = (release / "model.safetensors").stat().st_ino
    unread()
    assert assemble_release(weights, base, release, provenance(), accept) == first
    assert (release / "model.safetensors").stat().st_ino == inode


@pytest.mark.parametrize("changed", ["checkpoints", "release"])
def test_weights_that_changed_since_are_placed_anew(weights, base, tmp_path, changed):
    release = tmp_path / "release"
    wrap_names(weights / "model.safetensors")  # so that the release has a copy
    assemble_release(weights, base, release, provenance(), accept)
    path = tmp_path / changed / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    files = assemble_release(weights, base, release, provenance(), accept)
    assert files == manifest(release)
    last = (weights / "model.safetensors").read_bytes()[-1]
    assert (release / "model.safetensors").read_bytes()[-1] == last


# --- chat template -------------------------------------------------------------------------------


def test_a_template_in_jinja_alone_is_embedded_too(weights, base):
    release = assemble(weights, base)
    assert read_json(release / "tokenizer_config.json")["chat_template"] == TEMPLATE
    assert (release / "chat_template.jinja").read_text() == TEMPLATE


def test_a_template_in_the_config_alone_becomes_jinja_too(weights, base):
    (weights / "chat_template.jinja").unlink()
    change_json(weights / "tokenizer_config.json", chat_template=TEMPLATE)
    assert (assemble(weights, base) / "chat_template.jinja").read_text() == TEMPLATE


def test_two_different_templates_are_refused_with_their_difference(weights, base):
    change_json(weights / "tokenizer_config.json", chat_template="other\n" + TEMPLATE)
    with pytest.raises(SftError, match=r"(?s)two chat templates.*\n-other\n"):
        assemble(weights, base)


def test_a_model_without_a_template_is_refused(weights, base):
    (weights / "chat_template.jinja").unlink()
    with pytest.raises(SftError, match="no chat template"):
        assemble(weights, base)


def test_the_ends_of_lines_of_a_template_stay(weights, base):
    (weights / "chat_template.jinja").write_bytes(b"a\r\nb\n")
    release = assemble(weights, base)
    assert (release / "chat_template.jinja").read_bytes() == b"a\r\nb\n"
    assert read_json(release / "tokenizer_config.json")["chat_template"] == "a\r\nb\n"


# --- killed --------------------------------------------------------------------------------------

SLOW = """
import sft.placement, sft.release
from sft import {module}
from tests.unit.releasing import provenance
{module}.{function} = wait
folder = Path(sys.argv[1])
sft.release.assemble_release(
    folder / "checkpoints", folder / "base", folder / "release", provenance(), print
)
"""
MOMENTS = [
    *(("placement", "link_or_copy"), ("release", "write_card"), ("release", "manifest")),
    ("release", "record_placement"),
]


@pytest.mark.parametrize(("module", "function"), MOMENTS)
def test_after_a_kill_the_release_is_whole_or_absent_and_the_next_one_whole(
    weights, base, tmp_path, module, function
):
    expected = manifest(assemble(weights, base))
    (tmp_path / "release").rename(tmp_path / "undisturbed")

    kill_at_wait(SLOW.format(module=module, function=function), tmp_path)

    found = tmp_path / "release"
    assert found.exists() == (function == "record_placement")
    assert not found.exists() or manifest(found) == expected
    assert manifest(assemble(weights, base)) == expected
    assert not list(tmp_path.glob(".release.*"))
