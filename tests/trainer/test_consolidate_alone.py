"""`python -m sft consolidate` makes weights of a folder from anywhere, or says what is wrong."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from sft.alone import consolidate_alone
from sft.errors import SftError
from tests.trainer.demo_data import CHECKOUT
from tests.trainer.test_consolidation import assert_same, load, write_config
from tests.trainer.zero_checkpoint import llama, write_stage3

COMMAND = (CHECKOUT / ".venv" / "bin" / "python", "-m", "sft", "consolidate")


def run(*arguments: object) -> subprocess.CompletedProcess:
    """The command as a user gives it, in the workflow's environment, which has no torch."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    folder = tmp_path / "checkpoint-10"
    write_stage3(folder, llama(), 3)
    write_config(folder)
    return folder


@pytest.fixture
def base(tmp_path) -> Path:
    """A model of the same shapes, whose config and tokenizer could stand beside the shards."""
    write_config(tmp_path / "base")
    model = LlamaForCausalLM(LlamaForCausalLM.config_class.from_pretrained(tmp_path / "base"))
    model.to(torch.bfloat16).save_pretrained(tmp_path / "base")
    (tmp_path / "base" / "tokenizer_config.json").write_text("{}")
    (tmp_path / "base" / "tokenizer.json").write_text('{"of": "the base"}')
    return tmp_path / "base"


def test_command_makes_the_weights_and_says_what_it_did(checkpoint, tmp_path):
    ran = run(checkpoint, tmp_path / "out")

    assert ran.returncode == 0, ran.stderr
    assert "ZeRO-3 shards of 3 ranks in global_step10" in ran.stderr
    assert "not tried whether transformers loads it, since torch is not here" in ran.stderr
    assert_same(load(tmp_path / "out"), llama().tensors())


def test_command_writes_the_dtype_that_is_asked_for(checkpoint, tmp_path):
    assert run(checkpoint, tmp_path / "out", "--dtype", "fp32").returncode == 0

    assert {each.dtype for each in load(tmp_path / "out").values()} == {torch.float32}


def test_tag_folder_names_its_checkpoint(checkpoint, tmp_path):
    consolidate_alone(checkpoint / "global_step10", tmp_path / "out", None, None)

    assert_same(load(tmp_path / "out"), llama().tensors())


def test_config_and_tokenizer_come_from_the_base_where_there_are_none(checkpoint, base, tmp_path):
    (checkpoint / "config.json").unlink()

    consolidate_alone(checkpoint, tmp_path / "out", None, base)

    assert json.loads((tmp_path / "out" / "tokenizer.json").read_text()) == {"of": "the base"}
    assert_same(load(tmp_path / "out"), llama().tensors())


def test_without_a_config_anywhere_the_base_is_asked_for(checkpoint, tmp_path):
    (checkpoint / "config.json").unlink()

    with pytest.raises(SftError, match=r"no config.json in .*name the base model's folder"):
        consolidate_alone(checkpoint, tmp_path / "out", None, None)


def test_another_base_is_refused_before_anything_is_written(checkpoint, base, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(base, other)
    (other / "config.json").write_text((base / "config.json").read_text())
    model = LlamaForCausalLM(
        LlamaForCausalLM.config_class.from_pretrained(base, num_hidden_layers=1)
    )
    model.save_pretrained(other)

    with pytest.raises(SftError, match=r"the shards have model\.layers\.1\..*which the base"):
        consolidate_alone(checkpoint, tmp_path / "out", None, other)
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]


def test_wrong_shape_is_found_by_transformers(checkpoint, tmp_path):
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"intermediate_size": 48}))

    with pytest.raises(SftError, match=r"mismatched tensors .*of another shape than config.json"):
        consolidate_alone(checkpoint, tmp_path / "out", None, None)
    assert not (tmp_path / "out").exists()


def test_full_folder_is_never_replaced(checkpoint, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    ran = run(checkpoint, tmp_path / "out")

    assert ran.returncode == 1
    assert "is there and not empty; name a new folder" in ran.stderr
    assert (tmp_path / "out" / "thesis.tex").exists()


def test_folder_of_checkpoints_lists_them(checkpoint, tmp_path):
    ran = run(tmp_path, tmp_path / "out")

    assert ran.returncode == 1
    assert "it holds checkpoint-10: name one of them" in ran.stderr


def test_whole_weights_are_used_as_they_are(base, tmp_path):
    with pytest.raises(SftError, match=r"its weights are whole.*use them as they are"):
        consolidate_alone(base, tmp_path / "out", None, None)


def test_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SftError, match="nothing: no such folder"):
        consolidate_alone(tmp_path / "nothing", tmp_path / "out", None, None)


def test_full_disk_is_said_in_one_line_and_the_next_try_goes_on(checkpoint, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", small], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no small disk: {mounted.stderr.decode().strip()}")
    try:
        full = run(checkpoint, small / "out")
        subprocess.run(["mount", "-o", "remount,size=1m", small], check=True)
        again = run(checkpoint, small / "out")
        found = load(small / "out")
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)  # its files are mapped

    assert full.returncode == 1 and "the disk is full; make room" in full.stderr
    assert "Traceback" not in full.stderr
    assert again.returncode == 0, again.stderr
    assert_same(found, llama().tensors())
