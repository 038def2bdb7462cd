"""Tokens are only read: however many processes start at once, none waits for another."""

from pathlib import Path

import pytest

from benchmarks.load_tokens import load_ours, median_s, rounds_of_cores, write_tokens
from sft.trainers.axolotl import train
from tests.axolotl.tiny_run import make_inputs, write_config


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens") / "tokens"
    write_tokens(folder)
    return folder


def test_sixteen_loaders_at_once_take_at_most_twice_the_time_of_one(tokens):
    alone, together = median_s(load_ours, tokens, 1), median_s(load_ours, tokens, 16)

    assert together <= 2 * alone * rounds_of_cores(16)


def test_loading_leaves_no_file_behind(tokens):
    before = sorted(path.name for path in tokens.parent.rglob("*"))
    load_ours(tokens)

    assert sorted(path.name for path in tokens.parent.rglob("*")) == before


def test_half_written_tokens_are_refused(tmp_path):
    make_inputs(tmp_path)
    (tmp_path / "tokens" / "state.json").unlink()

    with pytest.raises(RuntimeError, match="no tokens there; a training job does not tokenize"):
        train(write_config(tmp_path / "run", tmp_path), 1)
