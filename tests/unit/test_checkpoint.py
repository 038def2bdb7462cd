"""Checkpoint folders in every state that a killed trainer leaves."""

import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from sft.checkpoint import (
    Layout,
    detect_layout,
    finished_folder,
    is_complete_run,
    newest_complete_checkpoint,
    prune_checkpoints,
    resume_fault,
    set_aside_broken_checkpoints,
    weights_folder,
)
from sft.errors import SftError
from sft.shards import read_shards
from sft.weights import count_parameters, read_weights_index, weights_dtype
from tests.workflow import stub_trainer

CONFIG = {"vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 2}
SHAPES = {
    "model.embed_tokens.weight": (8, 4),
    "model.layers.0.mlp.weight": (4, 4),
    "model.layers.1.mlp.weight": (4, 4),
    "model.norm.weight": (4,),
}
BYTES = {"F32": 4, "BF16": 2}


def write_safetensors(path: Path, shapes: Mapping[str, tuple], dtype: str = "BF16") -> None:
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        start, size = end, BYTES[dtype]
        for dimension in shape:
            size *= dimension
        end = start + size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


def write_torch(path: Path, content: object) -> None:
    """What torch.save writes, in small: a zip around a pickle of protocol 2."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{path.stem}/data.pkl", pickle.dumps(content, protocol=2))
        archive.writestr(f"{path.stem}/data/0", bytes(64))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def write_config(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))


def write_weights(folder: Path, shapes: Mapping[str, tuple] = SHAPES) -> None:
    write_config(folder)
    write_safetensors(folder / "model.safetensors", shapes)


def write_sharded_weights(folder: Path) -> None:
    write_config(folder)
    names = list(SHAPES)
    files = {"model-00001-of-00002.safetensors": names[:2]}
    files["model-00002-of-00002.safetensors"] = names[2:]
    for file, held in files.items():
        write_safetensors(folder / file, {name: SHAPES[name] for name in held})
    weight_map = {name: file for file, held in files.items() for name in held}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def write_shards(folder: Path, step: int, world_size: int = 2) -> Path:
    write_config(folder)
    shards = folder / f"global_step{step}"
    states = {"module": {}, "dp_world_size": world_size, "mp_world_size": 1}
    for rank in range(world_size):
        write_torch(shards / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", states)
        write_torch(shards / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", {})
    (folder / "latest").write_text(shards.name)
    return shards


def write_state(folder: Path, step: int, max_steps: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = {"global_step": step, "max_steps": max_steps}
    (folder / "trainer_state.json").write_text(json.dumps(state))


def write_checkpoint(run: Path, step: int, world_size: int = 1) -> Path:
    """A checkpoint as the trainer leaves it without DeepSpeed."""
    folder = run / f"checkpoint-{step}"
    write_weights(folder)
    for name in ("optimizer.pt", "scheduler.pt"):
        write_torch(folder / name, {})
    ranks = [f"_{rank}" for rank in range(world_size)] if world_size > 1 else [""]
    for rank in ranks:
        write_torch(folder / f"rng_state{rank}.pth", {})
    write_state(folder, step, 300)
    return folder


def write_zero3_checkpoint(run: Path, step: int, world_size: int = 2) -> Path:
    folder = run / f"checkpoint-{step}"
    write_shards(folder, step, world_size)
    for rank in range(world_size):
        write_torch(folder / f"rng_state_{rank}.pth", {})
    write_torch(folder / "scheduler.pt", {})
    write_state(folder, step, 300)
    return folder


def layout_of(folder: Path) -> Layout:
    return detect_layout(folder)[0]


# --- layout --------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_weights, write_sharded_weights])
def test_layout_is_safetensors_when_root_weights_are_whole(tmp_path, write):
    write(tmp_path)
    assert layout_of(tmp_path) is Layout.SAFETENSORS


def test_layout_is_zero3_when_there_are_only_shards(tmp_path):
    write_shards(tmp_path, 10)
    assert layout_of(tmp_path) is Layout.ZERO3


def test_layout_is_zero3_when_root_weights_are_empty(tmp_path):
    write_weights(tmp_path, {name: (0,) for name in SHAPES})
    write_shards(tmp_path, 10)
    layout, sentence = detect_layout(tmp_path)
    assert layout is Layout.ZERO3
    assert "4 of 4 tensors are empty" in sentence


@pytest.mark.parametrize("lost", ["model.embed_tokens.weight", "model.layers.1.mlp.weight"])
def test_layout_is_zero3_when_root_weights_are_partial(tmp_path, lost):
    write_weights(tmp_path, {name: shape for name, shape in SHAPES.items() if name != lost})
    write_shards(tmp_path, 10)
    assert layout_of(tmp_path) is Layout.ZERO3


def test_layout_is_zero3_when_a_root_shard_is_missing_beside_shards(tmp_path):
    write_sharded_weights(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    write_shards(tmp_path, 10)
    assert layout_of(tmp_path) is Layout.ZERO3


def test_whole_safetensors_win_over_whole_shards_and_it_is_said(tmp_path):
    write_weights(tmp_path)
    write_shards(tmp_path, 10)
    layout, sentence = detect_layout(tmp_path)
    assert layout is Layout.SAFETENSORS
    assert "not used: ZeRO-3 shards of 2 ranks in global_step10" in sentence


def test_layout_is_lora_when_there_is_an_adapter(tmp_path):
    write_safetensors(tmp_path / "adapter_model.safetensors", {"q.lora_A.weight": (2, 4)})
    adapter = {"base_model_name_or_path": "org/base"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    assert layout_of(tmp_path) is Layout.LORA


def write_fsdp(folder: Path, name: str = "pytorch_model_fsdp_0") -> Path:
    shards = folder / name
    shards.mkdir(parents=True)
    files = [f"__{rank}_0.distcp" for rank in range(2)]
    for file in files:
        (shards / file).write_bytes(b"shard")
    (shards / ".metadata").write_bytes(pickle.dumps({"storage_data": files}))
    return shards


def test_layout_is_fsdp_when_there_are_distributed_shards(tmp_path):
    write_fsdp(tmp_path)
    assert layout_of(tmp_path) is Layout.FSDP


def test_a_missing_fsdp_shard_is_named(tmp_path):
    (write_fsdp(tmp_path) / "__1_0.distcp").unlink()
    with pytest.raises(SftError, match=r"__1_0\.distcp"):
        detect_layout(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    write_config(tmp_path)
    with pytest.raises(SftError, match="no weights"):
        detect_layout(tmp_path)


def test_empty_root_weights_without_shards_are_broken(tmp_path):
    write_weights(tmp_path, {name: (0,) for name in SHAPES})
    with pytest.raises(SftError, match="tensors are empty"):
        detect_layout(tmp_path)


def test_layout_is_zero2_when_only_the_optimizer_is_sharded(tmp_path):
    shards = write_shards(tmp_path, 10)
    for path in shards.glob("zero_*_model_states.pt"):
        path.unlink()
    write_torch(shards / "mp_rank_00_model_states.pt", {"dp_world_size": 2})
    assert detect_layout(tmp_path) == (
        Layout.ZERO2,
        "ZeRO-1 or ZeRO-2 shards of 2 ranks in global_step10",
    )


LLAMA = {
    **{"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "intermediate_size": 6, "tie_word_embeddings": True},
}
IN_A_LAYER = {
    **{f"self_attn.{name}_proj.weight": (4, 4) for name in "qkvo"},
    **{f"mlp.{name}_proj.weight": (6, 4) for name in ("gate", "up")},
    **{"mlp.down_proj.weight": (4, 6), "input_layernorm.weight": (4,)},
    "post_attention_layernorm.weight": (4,),
}


def write_llama(folder: Path, lost: str) -> None:
    shapes = {"model.embed_tokens.weight": (8, 4), "model.norm.weight": (4,)}
    shapes |= {f"model.layers.{n}.{name}": s for n in (0, 1) for name, s in IN_A_LAYER.items()}
    write_safetensors(folder / "model.safetensors", {n: s for n, s in shapes.items() if n != lost})
    (folder / "config.json").write_text(json.dumps(LLAMA))


def test_weights_with_all_parameters_of_the_config_are_whole(tmp_path):
    write_llama(tmp_path, lost="")
    assert layout_of(tmp_path) is Layout.SAFETENSORS


@pytest.mark.parametrize("lost", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_weights_that_lack_a_tensor_of_a_layer_are_partial(lost, tmp_path):
    write_llama(tmp_path, lost)
    with pytest.raises(SftError, match=r"partial weights: [\d,]+ parameters, .* asks for [\d,]+"):
        detect_layout(tmp_path)


# --- shards --------------------------------------------------------------------------------------


def test_the_missing_rank_is_named(tmp_path):
    shards = write_shards(tmp_path, 10, world_size=8)
    for path in shards.glob("*zero_pp_rank_5_*"):
        path.unlink()
    with pytest.raises(SftError, match="of 8 ranks, model_states missing for rank 5; optim"):
        detect_layout(tmp_path)


def test_the_last_rank_is_missed_by_the_recorded_world_size(tmp_path):
    shards = write_shards(tmp_path, 10, world_size=300)
    for path in shards.glob("*zero_pp_rank_299_*"):
        path.unlink()
    with pytest.raises(SftError, match="optim_states missing for rank 299"):
        detect_layout(tmp_path)


def test_a_truncated_shard_is_named(tmp_path):
    shards = write_shards(tmp_path, 10)
    truncate(shards / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt")
    with pytest.raises(SftError, match="optim_states truncated for rank 1"):
        detect_layout(tmp_path)


def test_ranks_of_another_world_size_are_refused(tmp_path):
    shards = write_shards(tmp_path, 10, world_size=2)
    write_torch(shards / "zero_pp_rank_2_mp_rank_00_model_states.pt", {})
    with pytest.raises(SftError, match="model_states of another world size for rank 2"):
        detect_layout(tmp_path)


def test_shards_without_latest_are_a_save_cut_short(tmp_path):
    write_shards(tmp_path, 10)
    (tmp_path / "latest").unlink()
    with pytest.raises(SftError, match="without `latest`"):
        detect_layout(tmp_path)


@pytest.mark.parametrize("tag", ["global_step20", ""])
def test_latest_must_name_a_folder_that_is_there(tmp_path, tag):
    write_shards(tmp_path, 10)
    (tmp_path / "latest").write_text(tag)
    with pytest.raises(SftError, match=f"names '{tag}', found global_step10"):
        detect_layout(tmp_path)


def test_the_shards_that_latest_names_are_read(tmp_path):
    write_shards(tmp_path, 10, world_size=4)
    write_shards(tmp_path, 20, world_size=2)
    assert read_shards(tmp_path) == ("global_step20", 2, True)


# --- safetensors ---------------------------------------------------------------------------------


def test_the_index_tells_file_dtype_and_shape(tmp_path):
    write_sharded_weights(tmp_path)
    tensors = read_weights_index(tmp_path)
    assert set(tensors) == set(SHAPES)
    assert tensors["model.norm.weight"] == ("model-00002-of-00002.safetensors", "BF16", (4,))


def test_an_index_that_lists_missing_files_names_all_of_them(tmp_path):
    write_sharded_weights(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(SftError, match=r"(?s)00001-of-00002\S+ missing.*00002-of-00002\S+ missing"):
        detect_layout(tmp_path)


def test_a_truncated_file_is_named(tmp_path):
    write_sharded_weights(tmp_path)
    truncate(tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(SftError, match=r"model-00002-of-00002\.safetensors: .* truncated"):
        read_weights_index(tmp_path)


@pytest.mark.parametrize("size", [0, 5, 20])
def test_a_file_cut_inside_its_header_is_truncated(tmp_path, size):
    write_weights(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(SftError, match=f"truncated at {size} bytes"):
        read_weights_index(tmp_path)


def test_a_file_that_lacks_a_tensor_of_the_index_is_refused(tmp_path):
    write_sharded_weights(tmp_path)
    kept = {"model.norm.weight": SHAPES["model.norm.weight"]}
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", kept)
    with pytest.raises(SftError, match=r"at odds with its files about model\.layers\.1"):
        read_weights_index(tmp_path)


def test_files_without_their_index_are_a_save_cut_short(tmp_path):
    write_sharded_weights(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(SftError, match="written last"):
        detect_layout(tmp_path)


def test_a_single_file_beside_another_index_is_refused(tmp_path):
    write_sharded_weights(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", SHAPES)
    with pytest.raises(SftError, match="different weights"):
        read_weights_index(tmp_path)


def test_an_embedding_of_another_size_is_refused(tmp_path):
    write_weights(tmp_path, {**SHAPES, "model.embed_tokens.weight": (9, 4)})
    with pytest.raises(SftError, match=r"embedding \(9, 4\), config.json says \(8, 4\)"):
        detect_layout(tmp_path)


def test_the_config_of_the_text_part_counts(tmp_path):
    write_weights(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": CONFIG}))
    assert layout_of(tmp_path) is Layout.SAFETENSORS


def test_parameters_are_counted_over_all_files(tmp_path):
    write_sharded_weights(tmp_path)
    assert count_parameters(tmp_path) == 8 * 4 + 2 * 4 * 4 + 4


def test_the_dtype_is_that_of_most_parameters(tmp_path):
    write_sharded_weights(tmp_path)
    held = {name: SHAPES[name] for name in list(SHAPES)[2:]}
    write_safetensors(tmp_path / "model-00002-of-00002.safetensors", held, dtype="F32")
    assert weights_dtype(tmp_path) == "bfloat16"


# --- runs and checkpoints ------------------------------------------------------------------------


def test_a_run_is_complete_at_its_last_step_with_whole_weights(tmp_path):
    write_weights(tmp_path)
    write_state(tmp_path, 20, 20)
    assert is_complete_run(tmp_path)


def test_a_run_stopped_early_is_incomplete_though_it_left_weights(tmp_path):
    write_weights(tmp_path)
    write_state(tmp_path, 11, 20)
    assert not is_complete_run(tmp_path)


def test_a_run_of_no_steps_is_incomplete(tmp_path):
    write_weights(tmp_path)
    write_state(tmp_path, 0, 0)
    assert not is_complete_run(tmp_path)


def test_a_run_without_a_state_is_incomplete(tmp_path):
    write_weights(tmp_path)
    assert not is_complete_run(tmp_path)


def test_a_run_with_truncated_weights_is_incomplete(tmp_path):
    write_weights(tmp_path)
    truncate(tmp_path / "model.safetensors")
    write_state(tmp_path, 20, 20)
    assert not is_complete_run(tmp_path)


def test_a_sharded_run_is_complete_with_the_shards_of_its_last_step(tmp_path):
    write_shards(tmp_path, 20)
    write_state(tmp_path, 20, 20)
    assert is_complete_run(tmp_path)


def test_a_sharded_run_is_incomplete_with_the_shards_of_an_earlier_step(tmp_path):
    write_shards(tmp_path, 11)
    write_state(tmp_path, 20, 20)
    assert not is_complete_run(tmp_path)


def test_a_run_without_root_weights_has_them_in_its_last_checkpoint(tmp_path):
    write_state(tmp_path, 20, 20)
    write_fsdp(tmp_path / "checkpoint-20")
    assert weights_folder(tmp_path) == tmp_path / "checkpoint-20"
    assert is_complete_run(tmp_path)


@pytest.mark.parametrize("write", [write_checkpoint, write_zero3_checkpoint])
def test_the_newest_checkpoint_counts_by_number(tmp_path, write):
    for step in (90, 100):
        write(tmp_path, step)
    assert newest_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-100"


def test_there_is_no_checkpoint_in_a_fresh_run(tmp_path):
    assert newest_complete_checkpoint(tmp_path) is None


PARTS = ["trainer_state.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("harm", [truncate, Path.unlink])
def test_a_checkpoint_that_lacks_a_part_cannot_be_resumed(tmp_path, part, harm):
    write_checkpoint(tmp_path, 100)
    harm(write_checkpoint(tmp_path, 200) / part)
    assert resume_fault(tmp_path / "checkpoint-200")
    assert newest_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-100"


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_each_rank_of_a_sharded_checkpoint_has_its_random_state(tmp_path, rank):
    checkpoint = write_zero3_checkpoint(tmp_path, 100, world_size=3)
    (checkpoint / f"rng_state_{rank}.pth").unlink()
    assert f"rng_state_{rank}.pth: missing" in resume_fault(checkpoint)


def test_a_rank_without_a_random_state_is_seen_without_shards(tmp_path):
    checkpoint = write_checkpoint(tmp_path, 100, world_size=3)
    assert resume_fault(checkpoint) is None
    (checkpoint / "rng_state_1.pth").unlink()
    assert "rng_state_1.pth: missing" in resume_fault(checkpoint)


def test_deepspeed_may_keep_the_scheduler_itself(tmp_path):
    checkpoint = write_zero3_checkpoint(tmp_path, 100)
    (checkpoint / "scheduler.pt").unlink()
    assert resume_fault(checkpoint) is None


def test_gathered_weights_do_not_excuse_a_missing_shard(tmp_path):
    checkpoint = write_zero3_checkpoint(tmp_path, 100)
    write_weights(checkpoint)
    (checkpoint / "global_step100" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert "optim_states missing for rank 1" in resume_fault(checkpoint)


def test_a_checkpoint_with_fsdp_shards_can_be_resumed(tmp_path):
    checkpoint = write_checkpoint(tmp_path, 100)
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "optimizer.pt").unlink()
    write_fsdp(checkpoint)
    write_fsdp(checkpoint, "optimizer_0")
    assert resume_fault(checkpoint) is None


def test_a_broken_checkpoint_is_set_aside_and_a_whole_one_stays(tmp_path):
    write_checkpoint(tmp_path, 100)
    (write_checkpoint(tmp_path, 200) / "trainer_state.json").unlink()
    (sentence,) = set_aside_broken_checkpoints(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "broken-checkpoint-200",
        "checkpoint-100",
    ]
    assert "checkpoint-200 cannot be resumed and is now broken-checkpoint-200" in sentence


def test_a_checkpoint_that_breaks_again_gets_a_number(tmp_path):
    for _ in range(2):
        (write_checkpoint(tmp_path, 200) / "optimizer.pt").unlink()
        set_aside_broken_checkpoints(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "broken-checkpoint-200",
        "broken-checkpoint-200-2",
    ]


def test_a_finished_run_is_found_in_its_root(tmp_path):
    write_weights(tmp_path)
    write_state(tmp_path, 200, 200)
    assert finished_folder(tmp_path) == tmp_path


def test_a_run_killed_before_its_root_was_saved_is_found_in_its_last_checkpoint(tmp_path):
    last = write_checkpoint(tmp_path, 200)
    write_state(last, 200, 200)
    assert finished_folder(tmp_path) == last


def test_a_run_with_an_earlier_checkpoint_is_not_finished(tmp_path):
    write_state(write_checkpoint(tmp_path, 100), 100, 200)
    assert finished_folder(tmp_path) is None


# --- old checkpoints -----------------------------------------------------------------------------


def write_checkpoints(folder, *steps):
    for step in steps:
        stub_trainer.write_checkpoint(folder / f"checkpoint-{step}", step)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_newest_whole_checkpoints_stay(tmp_path):
    write_checkpoints(tmp_path, 2, 4, 6, 10)

    assert prune_checkpoints(tmp_path, keep=2) == ["checkpoint-4", "checkpoint-2"]
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-6"]


def test_checkpoint_that_is_being_written_takes_no_whole_ones_place(tmp_path):
    write_checkpoints(tmp_path, 2, 4)
    (tmp_path / "checkpoint-6").mkdir()

    assert prune_checkpoints(tmp_path, keep=1) == ["checkpoint-2"]
    assert names(tmp_path) == ["checkpoint-4", "checkpoint-6"]


def test_nothing_is_deleted_where_too_few_are_whole(tmp_path):
    write_checkpoints(tmp_path, 2)
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-6").mkdir()

    assert prune_checkpoints(tmp_path, keep=2) == []
    assert len(names(tmp_path)) == 3


def test_what_a_killed_deletion_left_goes_with_the_next(tmp_path):
    write_checkpoints(tmp_path, 2)
    (tmp_path / "pruned-checkpoint-1").mkdir()
    prune_checkpoints(tmp_path, keep=1)

    assert names(tmp_path) == ["checkpoint-2"]
