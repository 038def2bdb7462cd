"""Learning rates that names spell."""

from dataclasses import replace

import pytest

from sft.mix import Mix
from sft.model import Model
from sft.names import name_faults, named_rates
from tests.unit.experiments import EXPERIMENT


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("smol-lr1e-4", {"lr1e-4": 1e-4}),
        ("math_lr1e5-sft", {"lr1e5": 1e-5}),
        ("lr2e-5", {"lr2e-5": 2e-5}),
        ("a_LR4E5_b", {"LR4E5": 4e-5}),
        ("a-lr-4e-5", {"lr-4e-5": 4e-5}),
        ("a.lr_4e-05", {"lr_4e-05": 4e-5}),
        ("a-lr2.5e-5", {"lr2.5e-5": 2.5e-5}),
        ("a-lr2p5e5", {"lr2p5e5": 2.5e-5}),
        ("a-lr0.00002", {"lr0.00002": 2e-5}),
        ("a-lr0p002", {"lr0p002": 2e-3}),
        ("a-lr4e5bs96", {"lr4e5": 4e-5}),
        ("a-lr1e-4-lr1e5", {"lr1e-4": 1e-4, "lr1e5": 1e-5}),
    ],
)
def test_learning_rate_in_a_name_is_read(name, rates):
    assert named_rates(name) == pytest.approx(rates)


@pytest.mark.parametrize(
    "name",
    [
        "qwen3-8b-openthoughts-bs96",
        "delphi-3e18-447Mparams-k0p20-lr83-a002",
        "a-lr0.5",
        "a-lr0p83",
        "a-lr67",
        "a-lr-3e18-params",
        "a-min_lr1e-6",
        "a-min-lr-1e-6",
        "solr1e5",
        "lr",
        "lr-sweep-1",
        "lre5",
    ],
)
def test_what_is_no_learning_rate_is_not_taken_for_one(name):
    assert named_rates(name) == {}


@pytest.mark.parametrize("name", ["run", "run-lr1e-5", "run-lr1e5", "run_lr0.00001", "lr10e6"])
def test_name_that_tells_the_learning_rate_is_no_fault(name):
    assert name_faults(replace(EXPERIMENT, name=name, hub_id=f"laion/{name}")) == []


def test_name_that_tells_another_learning_rate_is_a_fault_with_both_numbers():
    experiment = replace(EXPERIMENT, name="run-lr2e5", hub_id="laion/run-lr2e5")

    assert name_faults(experiment) == [
        "t.tsv, line 2 (run), name: 'run-lr2e5' says lr2e5 = 2e-05, but the learning_rate is "
        "1e-05; rename it, or set the learning_rate"
    ]


def test_hub_id_that_tells_another_learning_rate_is_a_fault():
    (fault,) = name_faults(replace(EXPERIMENT, hub_id="laion/delphi_lr2e5-sft"))

    assert fault.startswith("t.tsv, line 2 (run), hub_id: 'delphi_lr2e5-sft' says lr2e5 = 2e-05")


@pytest.mark.parametrize(
    "model",
    [
        Model("base-lr3e-4", hub="org/base"),
        Model("base", hub="org/base-lr3e-4"),
        Model("base", folder="models/base-lr3e-4"),
    ],
    ids=["name", "hub", "folder"],
)
def test_learning_rate_in_the_name_of_the_model_is_the_models(model):
    assert name_faults(replace(EXPERIMENT, model=model, name="sft_base-lr3e-4_v1")) == []


def test_learning_rate_in_the_name_of_the_mix_is_the_mixs():
    experiment = replace(EXPERIMENT, mix=Mix("traces-lr3e-4", ()), name="run-on-traces-lr3e-4")

    assert name_faults(experiment) == []


def test_one_of_several_learning_rates_has_to_be_right():
    right = replace(EXPERIMENT, name="warm_lr3e-4-then-lr1e5")
    wrong = replace(EXPERIMENT, name="warm_lr3e-4-then-lr2e5")

    assert name_faults(right) == []
    assert "says lr3e-4 = 0.0003 and lr2e5 = 2e-05" in name_faults(wrong)[0]
