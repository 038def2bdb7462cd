"""A site with experiments, and results folders that hold what earlier stages leave."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sft.backends import llamafactory
from sft.catalog import Catalog, tokens_name
from sft.experiment import Experiment
from sft.facts import Facts
from sft.files import write_json, write_yaml
from sft.mix import Dataset, Mix
from sft.model import Model
from sft.plan import Plan, make_plan
from sft.request import Request
from sft.site import Site

LEONARDO = Site(
    name="leonardo",
    launcher="slurm",
    gpus_per_node=4,
    gpu_memory_gb=64,
    gpu_tflops=312,
    gpu_network_gbit=100,
    cpus_per_node=32,
    max_nodes=64,
    max_minutes=1440,
    environments={"otagent": "true"},
)
DAY = {"": Request(), "train": Request(1439, "normal")}
SHAREGPT = {"formatting": "sharegpt", "columns": {"messages": "conversations"}}
BIG, SMALL = (
    Dataset(name, "datasets.yaml", hub=f"org/{name}", options=SHAREGPT) for name in ("big", "small")
)
EXPERIMENT = Experiment(
    name="run",
    backend="llamafactory",
    base_config=str(llamafactory.CONFIG_FOLDER / "qwen3" / "32k_base.yaml"),
    config={
        "environment": "otagent",
        "stage": "sft",
        "finetuning_type": "full",
        "template": "qwen3",
        "cutoff_len": 4096,
        "global_batch_size": 16,
        "num_train_epochs": 1,
        "learning_rate": 1e-5,
        "bf16": True,
        "enable_liger_kernel": True,
        "deepspeed": "ds_z3.json",
        "save_steps": 2000,
        "save_total_limit": 3,
    },
    overrides={},
    model=Model("delphi", hub="org/delphi"),
    mix=Mix("mix", (BIG, SMALL), "interleave_under", (0.9, 0.1)),
    num_nodes=4,
    hub_id="laion/run",
    where="t.tsv, line 2 (run)",
)
# 9.7B parameters, of a model that is not here: the plan takes the config's word.
DELPHI_CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 3840,
    "num_hidden_layers": 37,
    "num_attention_heads": 30,
    "num_key_value_heads": 30,
    "head_dim": 128,
    "intermediate_size": 15360,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def changed(experiment: Experiment = EXPERIMENT, **config: Any) -> Experiment:
    """The experiment with some keys of its config changed."""
    return replace(experiment, config=experiment.config | config)


def catalog_of(*experiments: Experiment, site: Site = LEONARDO) -> Catalog:
    """A catalog of these experiments."""
    return Catalog(
        site=site,
        experiments={each.name: each for each in experiments},
        models={},
        datasets={},
        tokens={},
    )


def plan_of(experiment: Experiment, results: Path, site: Site = LEONARDO) -> Plan:
    """The plan of one experiment over a results folder."""
    return make_plan(experiment, site, DAY["train"], Facts(catalog_of(experiment), results))


def write_receipt(path: Path, made: Mapping[str, Any]) -> None:
    """A receipt of a stage, with what it made alone."""
    write_json(path, {"stage": path.stem, "made": dict(made)})


def fetch_model(results: Path, config: Mapping[str, Any], stage: str = "fetched") -> None:
    """Leave what fetching the model leaves, or preparing it; it has a config and no weights."""
    folder = results / "snapshots" / stage
    write_json(folder / "config.json", config)
    made = {"path": str(folder), "revision": "a" * 40, "sha256": "b" * 64}
    write_receipt(results / "models" / "delphi" / f"{stage}.json", made)


def tokenize(
    results: Path, experiment: Experiment, rows: list[int], taken: list[int], mean_tokens: int = 600
) -> dict[str, Any]:
    """Leave what tokenizing the experiment's mix leaves: rows and examples by source."""
    root = results / "tokens" / tokens_name(experiment)
    folder = root / "0123456789abcdef"
    sources = {
        dataset.name: {
            "rows_in": number,
            "rows_out": number,
            "examples": examples,
            "tokens": mean_tokens * examples,
            "trained_tokens": mean_tokens * examples // 2,
        }
        for dataset, number, examples in zip(experiment.mix.datasets, rows, taken, strict=True)
    }
    made = {
        "key": "0123456789abcdef",
        "folder": str(folder),
        "tokens": str(folder / "tokens"),
        "sources": sources,
    }
    write_json(folder / "manifest.json", made)
    write_receipt(root / "pretokenized.json", made)
    return made


def finish_run(
    results: Path,
    experiment: Experiment,
    tokens: Mapping[str, Any],
    steps: int,
    attempts: list[dict[str, Any]],
) -> None:
    """Leave what a finished training of one sequence a process leaves, in these attempts."""
    run = results / "runs" / experiment.name
    checkpoints = run / "checkpoints" / "89abcdef"
    config = {
        "tokenized_path": tokens["tokens"],
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 1,
    }
    write_yaml(checkpoints / "train.yaml", config)
    made = {
        "config": str(checkpoints / "train.yaml"),
        "global_step": steps,
        "max_steps": steps,
        "attempts": attempts,
    }
    write_receipt(run / "trained.json", made)


def attempt(hours: int, resumed: int | None = None, ending: str = "completed") -> dict[str, Any]:
    """An attempt of 16 processes that began at midnight."""
    return {
        "started": "2026-01-01T00:00:00+00:00",
        "finished": f"2026-01-01T{hours:02}:00:00+00:00",
        "resumed": resumed and f"checkpoint-{resumed}",
        "ending": ending,
        "world_size": 16,
    }


def stop_run(results: Path, experiment: Experiment, world_size: int) -> Path:
    """Leave what a training that was cut off leaves: a checkpoint of so many processes."""
    folder = Facts(catalog_of(experiment), results).checkpoints(experiment)
    state = {"global_step": 2000, "max_steps": 26_788}
    write_json(folder / "checkpoint-2000" / "trainer_state.json", state)
    stopped = attempt(1, ending="failed: exit code 1") | {"world_size": world_size}
    write_json(folder / "attempts.json", [stopped])
    return folder
