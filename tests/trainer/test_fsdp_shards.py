"""Weights that FSDP shards over real processes are put together without torch."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sft.checkpoint import Layout, detect_layout
from sft.errors import SftError
from tests.trainer.demo_data import CHECKOUT
from tests.trainer.fsdp_checkpoint import make_model
from tests.trainer.test_consolidation import assert_same, consolidate, load

SHARDED, SINGLE = "pytorch_model_fsdp_0", "pytorch_model_fsdp.bin"


def save_sharded(checkpoint: Path, ranks: int) -> None:
    folder = checkpoint / SHARDED
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "tests.trainer.fsdp_checkpoint", str(folder)]
    processes = [
        subprocess.Popen([*command, *map(str, (rank, ranks, port))], cwd=CHECKOUT)
        for rank in range(ranks)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0] * ranks
    make_model().config.save_pretrained(checkpoint)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    checkpoint = tmp_path_factory.mktemp("fsdp") / "checkpoint-4"
    save_sharded(checkpoint, ranks=3)
    return checkpoint


def test_layout_is_fsdp(saved):
    assert detect_layout(saved) == (Layout.FSDP, f"FSDP shards, 3 files in {SHARDED}")


def test_shards_of_three_ranks_are_the_model(saved, tmp_path):
    consolidate(saved, tmp_path / "out")

    assert_same(load(tmp_path / "out"), make_model().state_dict())


def test_one_file_is_the_model(tmp_path):
    model = make_model()
    model.config.save_pretrained(tmp_path / "shards")
    torch.save(model.state_dict(), tmp_path / "shards" / SINGLE)

    consolidate(tmp_path / "shards", tmp_path / "out")

    assert_same(load(tmp_path / "out"), model.state_dict())


@pytest.mark.parametrize("left", [0, 2000])
def test_truncated_shard_is_refused_by_name(left, saved, tmp_path):
    subprocess.run(["cp", "-r", saved, tmp_path / "shards"], check=True)
    os.truncate(tmp_path / "shards" / SHARDED / "__1_0.distcp", left)

    with pytest.raises(SftError, match=r"__1_0\.distcp: truncated"):
        consolidate(tmp_path / "shards", tmp_path / "out")
    assert not (tmp_path / "out").exists()
