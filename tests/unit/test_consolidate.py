"""A merged adapter is the base plus its product, by our own reading of the files."""

import json
from pathlib import Path

import numpy as np
import pytest

from sft.adapter import kept_share, merge_faults, read_scales
from sft.backends import llamafactory
from sft.checkpoint import Layout
from sft.consolidate import consolidate
from sft.errors import SftError
from sft.site import Site
from tests.unit.experiments import EXPERIMENT

RANK, ALPHA, WIDTH, HEIGHT = 2, 8, 6, 8
ADAPTED, PLAIN, NORM = "model.layers.0.q_proj.weight", "lm_head.weight", "model.norm.weight"
PREFIX = "base_model.model.model.layers.0.q_proj"
CONFIG = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none"}


def write_tensors(path: Path, tensors: dict[str, np.ndarray], dtype: str = "F32") -> None:
    """Write safetensors in float32 or bfloat16."""
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.astype("<f4")
        raw = (raw.view("<u4") >> 16).astype("<u2") if dtype == "BF16" else raw
        place = [len(data), len(data) + raw.nbytes]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": place}
        data += raw.tobytes()
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


@pytest.fixture
def base(tmp_path) -> Path:
    tensors = {ADAPTED: numbers(1, HEIGHT, WIDTH), PLAIN: numbers(2, HEIGHT, WIDTH)}
    write_tensors(tmp_path / "base" / "model.safetensors", tensors | {NORM: numbers(3, WIDTH)})
    return tmp_path / "base"


@pytest.fixture
def adapter(tmp_path) -> Path:
    down, up = numbers(4, RANK, WIDTH), numbers(5, HEIGHT, RANK)
    names = {f"{PREFIX}.lora_A.weight": down, f"{PREFIX}.lora_B.weight": up}
    write_tensors(tmp_path / "adapter" / "adapter_model.safetensors", names)
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "adapter"


def merged(folder: Path, scale: float = ALPHA / RANK, dtype: str = "F32", **other) -> Path:
    """What a merging leaves that multiplies by `scale`."""
    added = scale * numbers(5, HEIGHT, RANK) @ numbers(4, RANK, WIDTH)
    tensors = {ADAPTED: numbers(1, HEIGHT, WIDTH) + added, PLAIN: numbers(2, HEIGHT, WIDTH)}
    tensors |= {NORM: numbers(3, WIDTH)} | other
    write_tensors(folder / "merged" / "model.safetensors", tensors, dtype)
    return folder / "merged"


def faults(base: Path, adapter: Path, folder: Path) -> list[str]:
    return list(merge_faults(base, adapter, folder, read_scales(adapter)))


def test_scale_is_alpha_by_rank(adapter):
    assert read_scales(adapter) == {ADAPTED: ALPHA / RANK}


def test_scale_of_a_stabilised_adapter_is_alpha_by_the_root_of_the_rank(adapter):
    (adapter / "adapter_config.json").write_text(json.dumps(CONFIG | {"use_rslora": True}))

    assert read_scales(adapter)[ADAPTED] == pytest.approx(ALPHA / RANK**0.5)


def test_right_sum_has_no_fault(base, adapter, tmp_path):
    assert faults(base, adapter, merged(tmp_path)) == []


def test_right_sum_in_bfloat16_has_no_fault(base, adapter, tmp_path):
    tensors = {ADAPTED: numbers(1, HEIGHT, WIDTH), PLAIN: numbers(2, HEIGHT, WIDTH)}
    tensors |= {NORM: numbers(3, WIDTH)}
    write_tensors(base / "model.safetensors", tensors, "BF16")

    assert faults(base, adapter, merged(tmp_path, dtype="BF16")) == []


@pytest.mark.parametrize("scale", [0.0, 1.0, -ALPHA / RANK, 1.05 * ALPHA / RANK])
def test_other_sum_is_a_fault(scale, base, adapter, tmp_path):
    [fault] = faults(base, adapter, merged(tmp_path, scale))

    assert ADAPTED in fault and "not the base's plus the adapter's" in fault


def test_changed_matrix_that_no_adapter_changes_is_a_fault(base, adapter, tmp_path):
    folder = merged(tmp_path, **{PLAIN: numbers(9, HEIGHT, WIDTH)})
    [fault] = faults(base, adapter, folder)

    assert f"{PLAIN}: not the base's, and no adapter changes it" in fault


@pytest.mark.parametrize("change", [np.zeros(WIDTH), np.full(WIDTH, np.nan)])
def test_changed_norm_is_a_fault(change, base, adapter, tmp_path):
    [fault] = faults(base, adapter, merged(tmp_path, **{NORM: change}))

    assert f"{NORM}: not the base's" in fault


def test_one_changed_row_of_many_is_a_fault(base, adapter, tmp_path):
    head = numbers(2, HEIGHT, WIDTH)
    head[3, 2] += 1e-3

    assert faults(base, adapter, merged(tmp_path, **{PLAIN: head}))


def test_scale_follows_a_pattern_of_names(adapter):
    pattern = {"layers.1.q_proj": 100, "q_proj": 4}
    (adapter / "adapter_config.json").write_text(json.dumps(CONFIG | {"alpha_pattern": pattern}))

    assert read_scales(adapter) == {ADAPTED: 4 / RANK}


def test_all_of_what_is_added_is_kept_in_float32(base, adapter, tmp_path):
    kept = kept_share(base, adapter, merged(tmp_path), read_scales(adapter))

    assert kept == pytest.approx(1, abs=1e-5)


def test_half_of_what_is_added_is_told(base, adapter, tmp_path):
    folder = merged(tmp_path, ALPHA / RANK / 2)

    assert kept_share(base, adapter, folder, read_scales(adapter)) == pytest.approx(0.5, abs=1e-5)


def test_other_dtype_is_a_fault(base, adapter, tmp_path):
    found = faults(base, adapter, merged(tmp_path, dtype="BF16"))

    assert len(found) == 3 and "expected ('F32'," in found[0]


def test_missing_tensor_is_a_fault(base, adapter, tmp_path):
    write_tensors(tmp_path / "merged" / "model.safetensors", {PLAIN: numbers(2, HEIGHT, WIDTH)})
    [fault] = faults(base, adapter, tmp_path / "merged")

    assert "other tensors than" in fault and ADAPTED in fault


@pytest.mark.parametrize(
    "changes",
    [
        {"modules_to_save": ["lm_head"]},
        {"use_dora": True},
        {"bias": "all"},
        {"peft_type": "LOHA"},
        {"lora_bias": True},
    ],
)
def test_adapter_that_is_no_plain_lora_is_refused(changes, adapter):
    (adapter / "adapter_config.json").write_text(json.dumps(CONFIG | changes))

    with pytest.raises(SftError, match="expected a plain LoRA"):
        read_scales(adapter)


def test_whole_weights_stay_where_they_are(base, tmp_path):
    made = consolidate(
        *(EXPERIMENT, Site("s"), Layout.SAFETENSORS, tmp_path / "run", base),
        *(tmp_path / "out", tmp_path / "log"),
    )

    assert made == {"weights": str(tmp_path / "run"), "merged": 0, "kept": None, "files": []}


@pytest.mark.parametrize("key", llamafactory.UNMERGED)
def test_adapter_that_could_not_be_released_is_refused_before_it_is_trained(key):
    config = {
        **{"environment": "e", "stage": "sft", "finetuning_type": "lora", "template": "qwen3"},
        **{"cutoff_len": 512, "learning_rate": 1e-4, key: True},
    }
    [line] = llamafactory.whole_config_faults(config, "row")

    assert line.startswith(f"row, {key}: leave it out; such an adapter cannot be merged")
