"""An experiment on a site, for the tests that change one thing of it."""

from dataclasses import replace

from sft.experiment import Experiment
from sft.mix import Mix
from sft.model import Model
from sft.site import Site

SITE = Site(name="leonardo", gpus_per_node=4, max_nodes=64, environments={"otagent": "true"})
EXPERIMENT = Experiment(
    name="run",
    backend="llamafactory",
    base_config="base.yaml",
    config={
        "environment": "otagent",
        "global_batch_size": 96,
        "per_device_train_batch_size": 1,
        "learning_rate": 1e-5,
        "finetuning_type": "full",
        "cutoff_len": 4096,
        "bf16": True,
    },
    overrides={},
    model=Model("qwen3-8b", hub="Qwen/Qwen3-8B"),
    mix=Mix("demo", ()),
    num_nodes=4,
    hub_id="laion/run",
    where="t.tsv, line 2 (run)",
)


def with_config(**changes) -> Experiment:
    """The experiment with some keys changed, or left out where the change is None."""
    merged = EXPERIMENT.config | changes
    return replace(EXPERIMENT, config={k: v for k, v in merged.items() if v is not None})
