"""Names of tensors without what a trainer wrapped around them; the numbers stay."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sft.errors import SftError
from sft.files import hash_file, read_json
from sft.tensor_names import (
    copy_index_with_plain_names,
    copy_with_plain_names,
    plain_name,
)
from sft.weights import read_tensors

WRAPPED = {
    "model.layers.0._checkpoint_wrapped_module.mlp.weight": np.arange(12, dtype="<f4"),
    "_fsdp_wrapped_module.model.layers.1._checkpoint_wrapped_module.b": np.ones((2, 3), "<f2"),
    "_orig_mod.lm_head.weight": np.zeros((3, 1), "<f4"),
    "model.embed_tokens.weight": np.full((2, 2), 7, "<f8"),
}
PLAIN = (
    *("model.layers.0.mlp.weight", "model.layers.1.b", "lm_head.weight"),
    "model.embed_tokens.weight",
)


@pytest.fixture
def wrapped(tmp_path: Path) -> Path:
    path = tmp_path / "wrapped.safetensors"
    save_file(WRAPPED, path, metadata={"format": "pt", "Łódź": "é"})
    return path


def header_of(path: Path) -> dict:
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


@pytest.mark.parametrize(("name", "plain"), list(zip(WRAPPED, PLAIN, strict=True)))
def test_plain_name_has_no_wrapper(name, plain):
    assert plain_name(name) == plain


def test_copy_holds_the_same_numbers_under_plain_names(wrapped, tmp_path):
    copy_with_plain_names(wrapped, tmp_path / "copy.safetensors")

    found = load_file(tmp_path / "copy.safetensors")
    assert found.keys() == set(PLAIN)
    for name, values in WRAPPED.items():
        np.testing.assert_array_equal(found[plain_name(name)], values, strict=True)


def test_copy_keeps_what_a_file_says_of_itself(wrapped, tmp_path):
    copy_with_plain_names(wrapped, tmp_path / "copy")

    assert header_of(tmp_path / "copy")["__metadata__"] == {"format": "pt", "Łódź": "é"}


def test_hash_is_that_of_the_copy(wrapped, tmp_path):
    assert copy_with_plain_names(wrapped, tmp_path / "copy") == hash_file(tmp_path / "copy")


def test_numbers_of_a_copy_begin_where_the_format_wants_them(wrapped, tmp_path):
    copy_with_plain_names(wrapped, tmp_path / "copy")

    assert int.from_bytes((tmp_path / "copy").read_bytes()[:8], "little") % 8 == 0
    assert len(read_tensors(tmp_path / "copy")) == len(WRAPPED)


def test_names_that_only_a_wrapper_tells_apart_are_refused(tmp_path):
    save_file({"a.b": np.ones(1), "a._orig_mod.b": np.ones(1)}, tmp_path / "twins.safetensors")

    with pytest.raises(SftError, match=r"twins\.safetensors: two tensors are named a\.b but for"):
        copy_with_plain_names(tmp_path / "twins.safetensors", tmp_path / "copy")


def test_index_names_the_same_files_by_plain_names(tmp_path):
    files = [f"model-0000{number}-of-00004.safetensors" for number in range(1, 5)]
    index = {"metadata": {"total_size": 9}, "weight_map": dict(zip(WRAPPED, files, strict=True))}
    (tmp_path / "index.json").write_text(json.dumps(index))

    copy_index_with_plain_names(tmp_path / "index.json", tmp_path / "copy.json")

    expected = dict(zip(PLAIN, files, strict=True))
    assert read_json(tmp_path / "copy.json") == index | {"weight_map": expected}
