"""Keys and values of base configs and rows: what a trainer takes, and what makes sense."""

import pytest

from sft.backends import keys, llamafactory
from sft.files import read_yaml

DESCRIPTION = {
    "flag": {"type": "bool"},
    "count": {"type": "int"},
    "rate": {"type": "float"},
    "word": {"type": "str"},
    "maybe": {"type": "str", "null": True},
    "choice": {"type": "str", "choices": ["no", "steps", "epoch"]},
    "items": {"type": "list"},
    "pairs": {"type": "dict"},
    "anything": {"type": "any"},
    "output": {"type": "str"},
}
SHIPPED = sorted(llamafactory.CONFIG_FOLDER.rglob("*.yaml"))
OWNED = {"output": "the workflow sets it"}
LIMITS = {"count": (1, None), "rate": (0, 1)}

WHOLE = {
    "environment": "otagent",
    "stage": "sft",
    "finetuning_type": "full",
    "template": "qwen3",
    "cutoff_len": 4096,
    "learning_rate": 1e-5,
    "global_batch_size": 96,
}


def faults(**config) -> list[str]:
    return keys.config_faults(config, DESCRIPTION, OWNED, LIMITS, "base.yaml")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("flag", False),
        ("count", 1),
        ("rate", 1e-5),
        ("rate", 1),
        ("rate", 0),
        ("word", "text"),
        ("maybe", None),
        ("maybe", "text"),
        ("choice", "no"),
        ("items", ["a"]),
        ("items", "a,b"),
        ("pairs", {"a": 1}),
        ("pairs", '{"a": 1}'),
        ("anything", 3),
        ("anything", {"a": 1}),
    ],
)
def test_value_of_the_right_type_is_no_fault(key, value):
    assert faults(**{key: value}) == []


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("flag", "yes", "true or false"),
        ("flag", "true", "true or false"),
        ("flag", 1, "true or false"),
        ("flag", None, "true or false"),
        ("count", True, "a whole number"),
        ("count", 2.5, "a whole number"),
        ("count", 2.0, "a whole number"),
        ("count", "2", "a whole number"),
        ("count", None, "a whole number"),
        ("count", 0, "at least 1"),
        ("rate", "fast", "a finite number"),
        ("rate", "nan", "a finite number"),
        ("rate", float("nan"), "a finite number"),
        ("rate", float("inf"), "a finite number"),
        ("rate", True, "a finite number"),
        ("rate", -1e-5, "at least 0 and at most 1"),
        ("rate", 1.5, "at least 0 and at most 1"),
        ("word", 5, "text, in quotes where YAML reads it otherwise"),
        ("word", None, "text, in quotes where YAML reads it otherwise"),
        ("choice", False, "text, in quotes where YAML reads it otherwise"),
        ("items", 3, "a list or text with commas"),
        ("pairs", ["a"], "`key: value` pairs or text"),
        ("anything", None, "a value"),
    ],
)
def test_value_is_refused_with_what_is_expected(key, value, expected):
    assert faults(**{key: value}) == [f"base.yaml, {key}: found {value!r}, expected {expected}"]


def test_unknown_choice_is_refused_with_the_nearest():
    assert faults(choice="step") == ["base.yaml, choice: found 'step'; did you mean 'steps'?"]


def test_misspelt_key_is_refused_with_the_nearest():
    assert faults(cuont=1) == ["base.yaml, cuont: unknown key; did you mean 'count'?"]


def test_key_that_is_no_text_is_refused():
    assert keys.config_faults({True: 1}, DESCRIPTION, OWNED, LIMITS, "base.yaml") == [
        "base.yaml, True: unknown key; known: anything, choice, count, flag, items, maybe, pairs, "
        "rate, word"
    ]


def test_key_of_the_workflow_is_refused_with_who_sets_it():
    assert faults(output="x") == ["base.yaml, output: leave it out; the workflow sets it"]


def test_key_of_the_workflow_is_never_suggested():
    assert "'output'" not in faults(outputs="x")[0]


def test_every_fault_is_named():
    assert len(faults(flag=1, count=0, cuont=1, output="x", word="right")) == 4


@pytest.mark.parametrize(
    ("key", "cell", "value"),
    [
        ("rate", "1e-5", 1e-5),
        ("count", "4", 4),
        ("flag", "true", True),
        ("flag", "yes", "yes"),
        ("word", "5", "5"),
        ("word", "null", "null"),
        ("maybe", "null", None),
        ("choice", "no", "no"),
        ("pairs", "{a: 1}", {"a": 1}),
        ("unknown", "1", 1),
    ],
)
def test_cell_is_read_as_its_key_means_it(key, cell, value):
    assert keys.parse_cell(key, cell, DESCRIPTION) == value


def test_whole_config_has_no_fault():
    assert llamafactory.config_faults(WHOLE, "") == []
    assert llamafactory.whole_config_faults(WHOLE, "") == []


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_base_config_has_no_fault(path):
    config = read_yaml(path)

    assert llamafactory.config_faults(config, "") == []
    assert llamafactory.whole_config_faults(config, "") == []


@pytest.mark.parametrize("key", llamafactory.NEEDED_KEYS)
def test_missing_key_is_a_fault(key):
    config = {name: value for name, value in WHOLE.items() if name != key}
    (fault,) = llamafactory.whole_config_faults(config, "t.tsv, line 2 (run), with base.yaml")

    assert fault == (
        f"t.tsv, line 2 (run), with base.yaml, {key}: missing; the base config has to say it"
    )


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps: leave it out; global"),
        ({"warmup_steps": 0.1, "warmup_ratio": 0.0}, "warmup_ratio: leave it out; warmup_steps"),
        ({"warmup_steps": 1.5}, "warmup_steps: found 1.5, expected whole steps or a share below 1"),
        ({"train_on_prompt": True, "mask_history": True}, "mask_history: leave it out"),
        ({"deepspeed": "ds_z3.json", "pure_bf16": True}, "pure_bf16: leave it out"),
        ({"bf16": True, "fp16": True}, "fp16: leave it out; bf16 decides"),
        ({"max_steps": 0}, "max_steps: found 0, expected at least 1, or -1 where epochs decide"),
        ({"neat_packing": True}, "neat_packing: it mixes sequences"),
        (
            {"template": "chatml_tools", "tool_format": "qwen"},
            "tool_format: leave it out; chatml_tools.jinja decides it",
        ),
        (
            {"template": "chatml_tools", "default_system": "Be brief."},
            "default_system: leave it out; chatml_tools.jinja decides it",
        ),
    ],
)
def test_contradiction_is_a_fault(changes, fault):
    (line,) = llamafactory.whole_config_faults(WHOLE | changes, "here")

    assert line.startswith(f"here, {fault}")


@pytest.mark.parametrize(
    "changes",
    [
        {"warmup_steps": 0.1},
        {"warmup_steps": 100},
        {"warmup_steps": 100.0},
        {"warmup_ratio": 0.1},
        {"train_on_prompt": True, "mask_history": False},
        {"deepspeed": "ds_z3.json", "pure_bf16": False},
        {"max_steps": -1},
        {"max_steps": 12},
        {"packing": True, "neat_packing": False},
        {"tool_format": "qwen", "default_system": "Be brief."},
        {"template": "chatml_tools"},
        {"template": "chatml_tools", "default_system": None},
    ],
)
def test_what_goes_together_is_no_fault(changes):
    assert llamafactory.whole_config_faults(WHOLE | changes, "here") == []


@pytest.mark.parametrize("key", [*llamafactory.OWNED_KEYS])
def test_key_that_the_workflow_sets_is_refused_in_a_base_config(key):
    (fault,) = llamafactory.config_faults({key: None}, "base.yaml")

    assert fault.startswith(f"base.yaml, {key}: leave it out; ")


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"learning_rat": 1e-5}, "learning_rat: unknown key; did you mean 'learning_rate'?"),
        ({"lr": 1e-5}, "lr: unknown key; did you mean 'learning_rate'"),
        ({"template": "qwn3"}, "template: found 'qwn3'; did you mean 'qwen3'"),
        ({"template": None}, "template: found None, expected text"),
        ({"deepspeed": "ds_z3.jsn"}, "deepspeed: found 'ds_z3.jsn'; did you mean 'ds_z3.json'"),
        ({"deepspeed": "../ds_z3.json"}, "deepspeed: found '../ds_z3.json'; did you mean"),
        ({"deepspeed": None}, "deepspeed: found None, expected text"),
        ({"stage": "dpo"}, "stage: found 'dpo'; known: sft"),
        ({"learning_rate": 0}, "learning_rate: found 0, expected at least 1e-09"),
        ({"learning_rate": 1e5}, "learning_rate: found 100000.0, expected at least 1e-09 and at"),
        ({"num_train_epochs": 0}, "num_train_epochs: found 0, expected at least 0.001"),
        ({"warmup_ratio": 1.1}, "warmup_ratio: found 1.1, expected at least 0 and at most 1"),
        ({"warmup_steps": -1}, "warmup_steps: found -1, expected at least 0"),
        ({"save_steps": 2.5}, "save_steps: found 2.5, expected a whole number"),
        ({"save_steps": 0.1}, "save_steps: found 0.1, expected a whole number"),
        ({"adam_beta2": 1.2}, "adam_beta2: found 1.2, expected at least 0 and at most 1"),
        ({"cutoff_len": 0}, "cutoff_len: found 0, expected at least 8"),
        ({"global_batch_size": 0}, "global_batch_size: found 0, expected at least 1"),
        ({"save_strategy": False}, "save_strategy: found False, expected text, in quotes"),
        ({"optim": "adam"}, "optim: found 'adam'; did you mean"),
        ({"bf16": "true"}, "bf16: found 'true', expected true or false"),
    ],
)
def test_base_config_is_refused(config, fault):
    (line,) = llamafactory.config_faults(config, "base.yaml")

    assert line.startswith(f"base.yaml, {fault}")


@pytest.mark.parametrize(
    "names",
    [
        llamafactory.LIMITS,
        llamafactory.NEEDED_KEYS,
        llamafactory.TOKEN_KEYS,
        llamafactory.PLACEMENT_KEYS,
        [key for pair in llamafactory.EXCLUSIVE_KEYS for key in pair],
    ],
    ids=["limits", "needed", "token", "placement", "exclusive"],
)
def test_keys_that_we_treat_apart_are_keys_of_the_parser(names):
    assert set(names) <= llamafactory.known_keys().keys()
