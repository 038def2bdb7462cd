"""An adapter that axolotl trained is merged as it was trained."""

from sft.adapter import read_scales
from sft.checkpoint import Layout, detect_layout, newest_complete_checkpoint
from tests.axolotl.tiny_run import make_inputs, train, write_config
from tests.merging import merge_and_judge

KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
LORA = {
    **{"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.0},
    **dict.fromkeys(KERNELS, False),
    "lora_target_linear": True,
}


def test_adapter_is_merged_into_its_base(tmp_path):
    make_inputs(tmp_path)
    config = write_config(tmp_path / "run", tmp_path, **LORA)
    assert train(config) == [0], (tmp_path / "run" / "0.log").read_text()[-3000:]
    adapter = tmp_path / "run" / "out"

    assert detect_layout(adapter)[0] is Layout.LORA
    assert newest_complete_checkpoint(adapter).name == "checkpoint-10"
    assert len(read_scales(adapter)) == 14  # seven matrices in each of two layers
    assert merge_and_judge(tmp_path / "model", adapter, tmp_path / "merged") == []
