"""What is read of weights: single rows of a matrix, and the number of embedding rows."""

import json
from pathlib import Path

import numpy as np
import pytest

from sft.errors import SftError
from sft.weights import count_embeddings, read_rows

MATRIX = np.array([[0.5, -2.0], [3.0, 0.25], [-1.0, 8.0]], np.float32)  # exact in each dtype


def write_matrices(path: Path, **matrices: tuple[str, np.ndarray]) -> Path:
    """A safetensors file of matrices, each with the name of its dtype."""
    header, body = {}, b""
    for name, (dtype, values) in matrices.items():
        data = to_bytes(dtype, values)
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def to_bytes(dtype: str, values: np.ndarray) -> bytes:
    if dtype == "BF16":  # the upper half of a float32
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype(
        {"F64": "<f8", "F32": "<f4", "F16": "<f2", "F8_E4M3": "u1"}[dtype]
    ).tobytes()


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_rows_are_read_as_float32(tmp_path, dtype):
    path = write_matrices(tmp_path / "a.safetensors", first=("F32", MATRIX), wanted=(dtype, MATRIX))

    rows = read_rows(path, "wanted", [2, 0])

    assert rows.dtype == np.float32
    assert rows.tolist() == [[-1.0, 8.0], [0.5, -2.0]]


def test_values_that_are_not_finite_stay_so(tmp_path):
    odd = np.array([[np.nan, np.inf], [0.0, -np.inf]], np.float32)
    path = write_matrices(tmp_path / "a.safetensors", wanted=("BF16", odd))

    np.testing.assert_array_equal(read_rows(path, "wanted", [0, 1]), odd)


def test_no_rows_are_an_empty_matrix(tmp_path):
    path = write_matrices(tmp_path / "a.safetensors", wanted=("BF16", MATRIX))

    assert read_rows(path, "wanted", []).shape == (0, 2)


def test_a_row_beyond_the_matrix_is_not_the_next_tensor(tmp_path):
    path = write_matrices(tmp_path / "a.safetensors", wanted=("F32", MATRIX), next=("F32", MATRIX))

    with pytest.raises(IndexError):
        read_rows(path, "wanted", [3])


def test_a_quantized_matrix_is_refused(tmp_path):
    path = write_matrices(tmp_path / "a.safetensors", wanted=("F8_E4M3", abs(MATRIX)))

    with pytest.raises(SftError, match="wanted: found dtype F8_E4M3, expected F64 or F32 or"):
        read_rows(path, "wanted", [0])


# --- count_embeddings ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "transformer.wte.weight"])
def test_rows_of_the_embedding_are_counted_not_those_of_the_head(tmp_path, name):
    matrices = {name: ("BF16", MATRIX), "lm_head.weight": ("BF16", MATRIX[:2])}
    write_matrices(tmp_path / "model.safetensors", **matrices)

    assert count_embeddings(tmp_path) == 3


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["lm_head.weight"], "found no tensor for the input embedding"),
        (["a.wte.weight", "b.wte.weight"], "found a.wte.weight, b.wte.weight for the input"),
    ],
    ids=["none", "two"],
)
def test_no_embedding_or_two_are_refused(tmp_path, names, found):
    matrices = {name: ("BF16", MATRIX) for name in names}
    write_matrices(tmp_path / "model.safetensors", **matrices)

    with pytest.raises(SftError, match=found):
        count_embeddings(tmp_path)
