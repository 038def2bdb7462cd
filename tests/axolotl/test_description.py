"""What the workflow reads of axolotl is what the installed version says of itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sft.trainers.axolotl import check

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "sft" / "axolotl_configs").rglob("*.yaml"))
LAUNCHER_KEYS = ("environment", "template", "accept", "global_batch_size", "max_samples")


def test_shipped_description_equals_the_installed_version():
    command = [sys.executable, "-m", "sft.trainers.axolotl_describe"]
    installed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    shipped = ROOT / "sft" / "backends" / "axolotl.json"
    assert json.loads(shipped.read_text()) == json.loads(installed), (
        f"python -m sft.trainers.axolotl_describe > {shipped.relative_to(ROOT)}"
    )


def completed(path: Path, folder: Path) -> Path:
    """A base config with the few keys that every rendered run has."""
    config = yaml.safe_load(path.read_text())
    config = {key: value for key, value in config.items() if key not in LAUNCHER_KEYS}
    if "deepspeed" in config:
        config["deepspeed"] = str(ROOT / "sft" / "deepspeed" / config["deepspeed"])
    plugins = ["sft.trainers.axolotl_plugin.Plugin"]
    if "liger_rope" in config:
        plugins.append("axolotl.integrations.liger.LigerPlugin")
    config |= {
        **{"base_model": "/models/m", "datasets": [{"path": "/tokens/t", "type": None}]},
        **{"gradient_accumulation_steps": 2, "attn_implementation": "sdpa", "val_set_size": 0},
        **{"plugins": plugins, "skip_prepare_dataset": True, "output_dir": str(folder / "out")},
    }
    (folder / "train.yaml").write_text(yaml.safe_dump(config))
    return folder / "train.yaml"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_base_config_is_accepted_by_axolotl(path, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("SFT_ON_CPU", raising=False)
    check(completed(path, tmp_path))

    assert "the trainer's own schema accepts" in capsys.readouterr().out


def test_value_that_axolotl_refuses_is_refused_by_the_check(tmp_path):
    config = completed(CONFIGS[-1], tmp_path)
    config.write_text(config.read_text() + "\nlora_alpha: many\n")

    with pytest.raises(ValueError, match="lora_alpha"):
        check(config)
