"""Shards as torch and DeepSpeed write them become the tensors that DeepSpeed itself would make."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import pytest
import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from safetensors.torch import load_file
from transformers import LlamaConfig

from sft.checkpoint import Layout, detect_layout
from sft.consolidation.archive import Record, read_archive
from sft.consolidation.checksums import combine
from sft.consolidation.gather import gather, plan_weights
from sft.consolidation.numbers import convert, not_finite
from sft.errors import SftError
from sft.files import manifest
from tests.trainer.demo_data import CHECKOUT
from tests.trainer.zero_checkpoint import (
    HIDDEN,
    LAYERS,
    WORDS,
    Model,
    llama,
    write_stage2,
    write_stage3,
)

TORCH = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write_config(folder: Path, tied: bool = False) -> None:
    widths = {"hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_attention_heads": 2}
    config = LlamaConfig(
        vocab_size=WORDS, num_hidden_layers=LAYERS, tie_word_embeddings=tied, **widths
    )
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = "bfloat16"
    config.save_pretrained(folder)


def consolidate(
    checkpoint: Path,
    folder: Path,
    dtype: str | None = None,
    layout: Layout | None = None,
    **options: str,
) -> list[dict]:
    layout = layout or detect_layout(checkpoint)[0]
    return gather(plan_weights(checkpoint, layout, None, dtype), folder, lambda _: None, **options)


def load(folder: Path) -> dict[str, torch.Tensor]:
    files = folder.glob("*.safetensors")
    return {name: tensor for path in files for name, tensor in load_file(path).items()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor), name


MIXED = {
    "frozen": {"visual.proj.weight": torch.randn(7, 13), "visual.proj.bias": torch.randn(7)},
    "buffers": {"inv_freq": torch.arange(5.0), "positions": torch.arange(9)},
}
MODELS = {
    "plain": llama,
    "tied": lambda: llama(tied=True),
    "frozen and buffers": lambda: llama(**MIXED),
    "fp16": lambda: llama(dtype=torch.float16),
}


STAGES = {"stage 3": (write_stage3, (1, 2, 3, 8, 64)), "stage 2": (write_stage2, (1, 3, 8))}


@pytest.mark.parametrize(
    ("write", "ranks"),
    [(write, ranks) for write, numbers in STAGES.values() for ranks in numbers],
    ids=[f"{stage}, {ranks} ranks" for stage, (_, numbers) in STAGES.items() for ranks in numbers],
)
@pytest.mark.parametrize("kind", MODELS)
def test_shards_give_what_was_trained(kind, write, ranks, tmp_path):
    model = MODELS[kind]()
    write(tmp_path / "shards", model, ranks)
    write_config(tmp_path / "shards", tied=kind == "tied")

    consolidate(tmp_path / "shards", tmp_path / "out")

    assert_same(load(tmp_path / "out"), model.tensors())


@pytest.mark.parametrize("sub_group", [50, 333, 4096])
def test_parameters_that_cross_sub_groups_are_whole(sub_group, tmp_path):
    model = llama()
    write_stage3(tmp_path / "shards", model, ranks=3, sub_group=sub_group)
    write_config(tmp_path / "shards")

    consolidate(tmp_path / "shards", tmp_path / "out")

    assert_same(load(tmp_path / "out"), model.tensors())


@pytest.mark.parametrize("write", [write_stage3, write_stage2])
def test_fp32_is_what_deepspeed_itself_makes(write, tmp_path):
    write(tmp_path / "shards", llama(tied=True, **MIXED), 3)
    write_config(tmp_path / "shards", tied=True)

    consolidate(tmp_path / "shards", tmp_path / "out", "F32")

    expected = get_fp32_state_dict_from_zero_checkpoint(str(tmp_path / "shards"))
    del expected["lm_head.weight"]
    found = load(tmp_path / "out")
    assert found.pop("positions").dtype == torch.int64
    assert_same(found, {name: each.float() for name, each in expected.items() if name in found})
    assert found.keys() == expected.keys() - {"positions"}


def test_tied_weights_are_written_twice_where_the_config_does_not_tie_them(tmp_path):
    write_stage3(tmp_path / "shards", llama(tied=True), 2)
    write_config(tmp_path / "shards", tied=False)

    consolidate(tmp_path / "shards", tmp_path / "out")

    found = load(tmp_path / "out")
    assert torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])


def test_wrappers_in_names_are_left_out(tmp_path):
    model = llama()
    wrapped = [
        {name.replace("mlp.", "_checkpoint_wrapped_module.mlp."): each for name, each in g.items()}
        for g in model.groups
    ]
    write_stage3(tmp_path / "shards", Model(wrapped), 2)
    write_config(tmp_path / "shards")

    consolidate(tmp_path / "shards", tmp_path / "out")

    assert_same(load(tmp_path / "out"), model.tensors())


def test_several_files_have_an_index_that_transformers_reads(tmp_path):
    model = llama()
    write_stage3(tmp_path / "shards", model, 3)
    write_config(tmp_path / "shards")

    files = consolidate(tmp_path / "shards", tmp_path / "out", max_shard="2KB")

    assert len(files) > 3
    assert json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert loading(tmp_path / "out") == {
        "missing": [],
        "unexpected": [],
        "mismatched": [],
        "renamed": [],
    }
    assert_same(load(tmp_path / "out"), model.tensors())


def test_hashes_are_those_of_the_files(tmp_path):
    write_stage3(tmp_path / "shards", llama(), 2)
    write_config(tmp_path / "shards")

    files = consolidate(tmp_path / "shards", tmp_path / "out", max_shard="2KB")

    times = [entry.pop("mtime_ns") for entry in files]
    assert files == manifest(tmp_path / "out", [entry["path"] for entry in files])
    assert times == [(tmp_path / "out" / entry["path"]).stat().st_mtime_ns for entry in files]


def loading(folder: Path) -> dict:
    ran = subprocess.run(
        [sys.executable, "-m", "sft.trainers.loading", folder],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout.splitlines()[-1])


def test_config_names_the_dtype_that_was_written(tmp_path):
    write_stage3(tmp_path / "shards", llama(), 2)
    write_config(tmp_path / "shards")

    consolidate(tmp_path / "shards", tmp_path / "out", "F32")

    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


# --- numbers ----------------------------------------------------------------------------------


def numbers(dtype: str) -> torch.Tensor:
    """All bit patterns of 16 bits, or as many of more, as finite numbers of `dtype`."""
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32)
    if dtype in ("F16", "BF16"):
        made = bits.to(torch.int16).view(TORCH[dtype])
    else:
        made = ((bits << 16) | (bits * 40503 & 0xFFFF)).view(torch.float32).to(TORCH[dtype])
    return made[torch.isfinite(made)]


@pytest.mark.parametrize("wanted", TORCH)
@pytest.mark.parametrize("dtype", TORCH)
def test_numbers_are_rounded_as_torch_rounds_them(dtype, wanted):
    made = numbers(dtype)
    if dtype in ("F32", "F64", "BF16") and wanted == "F16":
        made = made[made.abs() < 65504]
    if dtype == "F64" or wanted == "F64":
        made = made.float().to(TORCH[dtype])
    output = bytearray(made.numel() * TORCH[wanted].itemsize)

    convert(bytearray(made.view(torch.uint8).numpy().tobytes()), dtype, wanted, memoryview(output))

    assert bytes(output) == made.to(TORCH[wanted]).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", TORCH)
def test_numbers_that_are_not_finite_are_seen(dtype, value):
    made = torch.ones(100_000, dtype=TORCH[dtype])
    assert not not_finite(bytearray(made.view(torch.uint8).numpy().tobytes()), dtype)
    made[70_000] = value

    assert not_finite(bytearray(made.view(torch.uint8).numpy().tobytes()), dtype)


def test_finite_numbers_whose_sum_is_not_are_finite():
    made = torch.full((100_000,), 3e38)

    assert not not_finite(bytearray(made.view(torch.uint8).numpy().tobytes()), "F32")


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (1, 1), (1000, 7), (123_456, 654_321)])
def test_checksum_of_two_parts_is_that_of_the_whole(sizes):
    first, second = (os.urandom(size) for size in sizes)

    assert combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


# --- archives -----------------------------------------------------------------------------------


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def test_no_code_of_a_pickle_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Harmful(), "b": torch.ones(2)}, tmp_path / "harmful.pt")

    found = read_archive(tmp_path / "harmful.pt")

    assert not (tmp_path / "harmed").exists()
    assert isinstance(found["a"], Record) and found["b"].shape == (2,)


def test_view_that_is_not_contiguous_is_refused(tmp_path):
    torch.save(torch.randn(3, 4).t(), tmp_path / "view.pt")

    with pytest.raises(SftError, match="not contiguous"):
        read_archive(tmp_path / "view.pt")


# --- damage -------------------------------------------------------------------------------------


def of_rank(rank: int, kind: str) -> str:
    start = "bf16_" if kind == "optim" else ""
    return f"{start}zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt"


def flip_in_numbers(path: Path) -> None:
    """Change one bit of the trained numbers, as a bad disk does."""
    flat = read_archive(path)["optimizer_state_dict"]["fp32_flat_groups"][0]
    with open(path, "r+b") as file:
        file.seek(flat.start + 40)
        byte = file.read(1)[0]
        file.seek(flat.start + 40)
        file.write(bytes([byte ^ 1]))


def fill_with_zeros(path: Path) -> None:
    """Lose the trained numbers, and keep the size: what a crash of a file system leaves."""
    flat = read_archive(path)["optimizer_state_dict"]["fp32_flat_groups"][0]
    with open(path, "r+b") as file:
        file.seek(flat.start)
        file.write(bytes(flat.storage.size))


def swap(first: Path, second: Path) -> None:
    aside = first.with_suffix(".aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def spoil(path: Path) -> None:
    """Write a number that is none, whole and with the right checksum."""
    states = torch.load(path, weights_only=False)
    states["optimizer_state_dict"]["fp32_flat_groups"][0][3] = float("nan")
    torch.save(states, path)


def restate(path: Path, **changes: object) -> None:
    torch.save(torch.load(path, weights_only=False) | changes, path)


MODEL_1, OPTIM_1, OPTIM_2 = of_rank(1, "model"), of_rank(1, "optim"), of_rank(2, "optim")
DAMAGES = {
    "missing optimizer": (lambda t: (t / OPTIM_1).unlink(), "optim_states missing for rank 1"),
    "missing model": (lambda t: (t / MODEL_1).unlink(), "model_states missing for rank 1"),
    "missing last rank": (lambda t: (t / OPTIM_2).unlink(), "optim_states missing for rank 2"),
    "truncated": (lambda t: os.truncate(t / OPTIM_1, 900), "optim_states truncated for rank 1"),
    "empty": (lambda t: os.truncate(t / OPTIM_1, 0), "optim_states truncated for rank 1"),
    "extra": (lambda t: shutil.copy(t / OPTIM_1, t / of_rank(3, "optim")), "for rank 3"),
    "copied": (lambda t: shutil.copy(t / OPTIM_2, t / OPTIM_1), "rank_1.*was saved as .*rank_2"),
    "swapped": (lambda t: swap(t / OPTIM_1, t / OPTIM_2), "was saved as .*renamed or swapped"),
    "stale": (lambda t: restate(t / MODEL_1, global_steps=5), r"rank 1 \(of 5\), expected 10"),
    "flipped": (lambda t: flip_in_numbers(t / OPTIM_1), f"{OPTIM_1}: damaged.*CRC-32"),
    "zeros": (lambda t: fill_with_zeros(t / OPTIM_2), f"{OPTIM_2}: damaged.*CRC-32"),
    "not finite": (lambda t: spoil(t / OPTIM_1), f"{OPTIM_1}: .*not finite"),
    "other model": (lambda t: restate(t / MODEL_1, param_shapes=[]), "rank 1 have another param_s"),
    "parallel": (lambda t: restate(t / of_rank(0, "model"), mp_world_size=2), "tensor-parallel"),
    "latest": (
        lambda t: (t.parent / "latest").write_text("global_step11"),
        "names 'global_step1",
    ),
    "no latest": (lambda t: (t.parent / "latest").unlink(), "without `latest`"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_by_name_and_nothing_appears(damage, tmp_path):
    write_stage3(tmp_path / "shards", llama(), 3)
    write_config(tmp_path / "shards")
    do, words = DAMAGES[damage]
    do(tmp_path / "shards" / "global_step10")

    with pytest.raises(SftError, match=words):
        consolidate(tmp_path / "shards", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_file_of_another_world_size_is_refused(tmp_path):
    write_stage3(tmp_path / "shards", llama(), 3)
    write_stage3(tmp_path / "other", llama(), 4)
    write_config(tmp_path / "shards")
    for folder in ("global_step10",):
        shutil.copy(tmp_path / "other" / folder / OPTIM_1, tmp_path / "shards" / folder / OPTIM_1)

    with pytest.raises(SftError, match="rank 1 are one of 4 parts, expected 3"):
        consolidate(tmp_path / "shards", tmp_path / "out")


def test_what_a_proof_refuses_does_not_appear_and_is_not_made_again(tmp_path):
    write_stage3(tmp_path / "shards", llama(), 2)
    write_config(tmp_path / "shards")
    plan = plan_weights(tmp_path / "shards", Layout.ZERO3, None, None)

    def refuse(folder: Path) -> None:
        raise SftError("not what was trained")

    with pytest.raises(SftError, match="not what was trained"):
        gather(plan, tmp_path / "out", refuse)
    assert not (tmp_path / "out").exists()
    made = (tmp_path / ".out.unfinished" / "model.safetensors").stat().st_ino

    gather(plan, tmp_path / "out", lambda _: None)

    assert (tmp_path / "out" / "model.safetensors").stat().st_ino == made
    assert not (tmp_path / ".out.unfinished").exists()


# --- kills --------------------------------------------------------------------------------------

KILLED = """
import sys, time
from pathlib import Path
from sft.checkpoint import Layout
from sft.consolidation import gather, writer
made = writer.write_shard
def slow(*arguments, **options):
    time.sleep(0.05)
    return made(*arguments, **options)
gather.write_shard = slow
plan = gather.plan_weights(Path(sys.argv[1]), Layout.ZERO3, None, None)
gather.gather(plan, Path(sys.argv[2]), lambda _: time.sleep(0.5), max_shard="2KB")
"""


@pytest.mark.parametrize("files", [1, 3, 6])
def test_killed_consolidation_goes_on_with_the_next_file(files, tmp_path):
    write_stage3(tmp_path / "shards", llama(), 3)
    write_config(tmp_path / "shards")
    undisturbed = consolidate(tmp_path / "shards", tmp_path / "whole", max_shard="2KB")
    work = tmp_path / ".out.unfinished"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path / "shards", tmp_path / "out"], cwd=CHECKOUT
    )
    deadline = time.monotonic() + 60
    while not (work / "done.json").exists() or done(work) < files:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = json.loads((work / "done.json").read_text())["files"]
    inodes = {entry["path"]: (work / entry["path"]).stat().st_ino for entry in kept}

    made = consolidate(tmp_path / "shards", tmp_path / "out", max_shard="2KB")

    assert hashes(made) == hashes(undisturbed)
    assert manifest(tmp_path / "out") == manifest(tmp_path / "whole")
    assert {name: (tmp_path / "out" / name).stat().st_ino for name in inodes} == inodes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "shards", "whole"]


def hashes(entries: list[dict]) -> dict[str, str]:
    return {entry["path"]: entry["sha256"] for entry in entries}


def done(work: Path) -> int:
    return len(json.loads((work / "done.json").read_text())["files"])


def test_shards_that_changed_meanwhile_start_anew(tmp_path):
    write_stage3(tmp_path / "shards", llama(), 3)
    write_config(tmp_path / "shards")
    work = tmp_path / ".out.unfinished"
    work.mkdir()
    (work / "model.safetensors").write_bytes(b"old")
    record = {"plan": "another", "files": [{"path": "model.safetensors", "size": 3}]}
    (work / "done.json").write_text(json.dumps(record | {"checksums": {}}))

    consolidate(tmp_path / "shards", tmp_path / "out")

    assert_same(load(tmp_path / "out"), llama().tensors())
