"""An adapter that LLaMA-Factory trained is merged as it was trained."""

from sft.adapter import read_scales
from sft.checkpoint import Layout, detect_layout, newest_complete_checkpoint
from tests.merging import merge_and_judge
from tests.trainer.tiny_run import make_inputs, train, write_config

LORA = {"finetuning_type": "lora", "lora_target": "all", "lora_rank": 4}


def test_adapter_is_merged_into_its_base(tmp_path):
    make_inputs(tmp_path)
    assert train(write_config(tmp_path / "run", tmp_path, **LORA)) == [0]
    adapter = tmp_path / "run" / "out"

    assert detect_layout(adapter)[0] is Layout.LORA
    assert newest_complete_checkpoint(adapter).name == "checkpoint-10"
    assert len(read_scales(adapter)) == 14  # seven matrices in each of two layers
    assert merge_and_judge(tmp_path / "model", adapter, tmp_path / "merged") == []
