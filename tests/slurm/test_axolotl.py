"""The other backend on two nodes: the same table, the same jobs, another trainer."""

from pathlib import Path

import pytest

from sft.files import read_yaml, write_yaml
from sft.receipt import read_receipt
from tests.slurm.project import STEPS, Project

BASE_CONFIG = {
    **{"environment": "sft-axolotl", "template": "chatml_tools", "sequence_len": 512},
    **{"max_samples": 16, "global_batch_size": 4, "micro_batch_size": 2, "num_epochs": 2},
    **{"max_steps": STEPS, "learning_rate": 1e-3, "lr_scheduler": "constant_with_warmup"},
    **{"warmup_steps": 2, "optimizer": "adamw_torch", "bf16": False, "seed": 42},
    **{"save_strategy": "steps", "save_steps": 4, "save_total_limit": 2, "logging_steps": 1},
}
ROWS = """\
name\tbackend\tbase_config\tmodel\tmix\tnum_nodes\tsites\tregister
three\taxolotl\ttiny\ttiny\tdemo\t2\ttiny\ttrue
"""


@pytest.fixture
def trained(project: Project) -> Path:
    """The folder of a run that was trained and released by the workflow."""
    write_yaml(project.root / "sft" / "axolotl_configs" / "tiny.yaml", BASE_CONFIG)
    (project.root / "config" / "axolotl.tsv").write_text(ROWS)
    write_yaml(project.root / "axolotl.yaml", {"experiments": "config/axolotl.tsv"})
    snakemake = project.snakemake("--configfile", "axolotl.yaml")
    text = snakemake.communicate(timeout=400)[0]
    assert snakemake.returncode == 0, text
    return project.root / "results" / "runs" / "three"


def test_two_nodes_train_one_run_with_axolotl(trained):
    receipt = read_receipt(trained / "trained.json")
    [attempt] = receipt["attempts"]
    config = read_yaml(trained / "train.yaml")

    assert attempt["nodes"] == ["lrdn0001", "lrdn0002"]
    assert (attempt["world_size"], attempt["ending"]) == (2, "completed")
    assert receipt["global_step"] == STEPS
    assert config["micro_batch_size"] * config["gradient_accumulation_steps"] * 2 == 4
    # The first process of each node would have written the root's weights.
    assert read_receipt(trained / "layout.json")["layout"] == "safetensors"
    assert read_receipt(trained / "uploaded.json")["location"]
