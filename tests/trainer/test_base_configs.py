"""Each shipped base config passes LLaMA-Factory's own parser, and DeepSpeed's behind it."""

import json
import socket
from pathlib import Path

import pytest
import yaml

SFT = Path(__file__).parents[2] / "sft"
BASE_CONFIGS = sorted((SFT / "lf_configs").rglob("*.yaml"))
DEEPSPEED_CONFIGS = sorted((SFT / "deepspeed").glob("*.json"))

# The render step reads these two and never passes them on.
LAUNCHER_KEYS = {"environment", "global_batch_size"}
# Packages that the parser demands at once and that make sense on a GPU only.
GPU_PACKAGES = {"liger-kernel"}


@pytest.fixture
def get_train_args(monkeypatch):
    """LLaMA-Factory's parser in a world of one process, as on a machine with a bf16 GPU."""
    for name, value in world_of_one().items():
        monkeypatch.setenv(name, value)
    import deepspeed
    from llamafactory.hparams import parser

    check_version = parser.check_version

    def check_version_but_of_gpu_packages(requirement: str, mandatory: bool = False) -> None:
        if requirement not in GPU_PACKAGES:
            check_version(requirement, mandatory)

    monkeypatch.setattr(parser, "check_version", check_version_but_of_gpu_packages)
    monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: True)
    # One process needs no shared-memory collectives, which take a minute to compile.
    monkeypatch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", False)
    return parser.get_train_args


def world_of_one() -> dict[str, str]:
    """What torchrun sets for a single process, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def completed(base_config: Path, folder: Path) -> dict:
    """The base config with the few keys that every rendered run has."""
    config = yaml.safe_load(base_config.read_text())
    config = {key: value for key, value in config.items() if key not in LAUNCHER_KEYS}
    if "deepspeed" in config:
        config["deepspeed"] = str(SFT / "deepspeed" / config["deepspeed"])
    return config | {
        "model_name_or_path": str(folder / "model"),
        "dataset": "demo",
        "tokenized_path": str(folder / "tokens"),
        "output_dir": str(folder / "checkpoints"),
        "do_train": True,
        "gradient_accumulation_steps": 1,
        "report_to": "none",
    }


def config_name(path: Path) -> str:
    return path.relative_to(SFT).with_suffix("").as_posix()


@pytest.mark.parametrize("base_config", BASE_CONFIGS, ids=config_name)
def test_base_config_passes_the_trainers_parser(base_config, get_train_args, tmp_path):
    config = completed(base_config, tmp_path)
    training_args = get_train_args(config)[2]
    assert training_args.learning_rate == config["learning_rate"]


def test_misspelt_key_is_refused_by_the_trainers_parser(get_train_args, tmp_path):
    config = completed(SFT / "lf_configs" / "qwen3" / "32k_base.yaml", tmp_path)
    config["learning_rat"] = config.pop("learning_rate")
    with pytest.raises(ValueError, match="learning_rat"):
        get_train_args(config)


@pytest.mark.parametrize("base_config", BASE_CONFIGS, ids=config_name)
def test_base_config_holds_the_types_that_the_trainer_declares(base_config):
    # The trainer's parser lets a wrong type pass where it comes from YAML ("1e-5" is a string).
    python = {"bool": bool, "int": int, "float": (int, float), "str": str}
    keys = json.loads((SFT / "backends" / "llamafactory.json").read_text())["keys"]
    config = yaml.safe_load(base_config.read_text())
    wrong = {
        key: value
        for key, value in config.items()
        if key not in LAUNCHER_KEYS
        and keys[key]["type"] in python
        and not isinstance(value, python[keys[key]["type"]])
    }
    assert not wrong


@pytest.mark.parametrize("deepspeed_config", DEEPSPEED_CONFIGS, ids=config_name)
def test_zero_section_is_accepted_by_deepspeed(deepspeed_config):
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    assert DeepSpeedZeroConfig(**zero_section(deepspeed_config)).stage == 3


def test_misspelt_zero_key_is_refused_by_deepspeed():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    section = zero_section(SFT / "deepspeed" / "ds_z3.json")
    section["gather_16bit_weights"] = section.pop("stage3_gather_16bit_weights_on_model_save")
    with pytest.raises(ValueError, match="gather_16bit_weights"):
        DeepSpeedZeroConfig(**section)


def zero_section(deepspeed_config: Path) -> dict:
    return json.loads(deepspeed_config.read_text())["zero_optimization"]
