"""All that people write, read together: what is good passes, the rest is refused with a remedy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from sft.catalog import Catalog, local_files, read_catalog, tokens_name
from sft.errors import SftError

SITES = ["cluster", "elsewhere"]
BASE = {
    "environment": "otagent",
    "stage": "sft",
    "finetuning_type": "full",
    "template": "qwen3",
    "cutoff_len": 4096,
    "global_batch_size": 96,
    "learning_rate": 1e-5,
    "num_train_epochs": 3,
}
ROW = {
    "name": "run",
    "base_config": "base.yaml",
    "model": "small",
    "mix": "chats",
    "num_nodes": "1",
}
CONFIG = {
    "site": "cluster",
    "launcher": "slurm",
    "gpus_per_node": 4,
    "max_nodes": 16,
    "environments": {"otagent": "source activate"},
    "experiments": "t.tsv",
    "models": "models.yaml",
    "mixes": "mixes.yaml",
    "datasets": ["datasets.yaml"],
    "namespace": "laion",
    "upload_to": "folder",
    "upload_folder": "",
    "registry_file": "",
    "pathvars": {"results": "results"},
}
WHERE = "t.tsv, line 2 (run)"


class Inputs:
    """The files of a small workflow in the current folder, for a test to spoil."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = dict(CONFIG)
        Path("small").mkdir()
        Path("chats.jsonl").write_text("{}\n")
        self.write("base.yaml", BASE)
        self.write("models.yaml", {"small": {"folder": "small"}, "big": {"hub": "Qwen/Qwen3-8B"}})
        self.write(
            "datasets.yaml",
            {"chats": {"file_name": "chats.jsonl"}, "tools": {"hf_hub_url": "org/tools"}},
        )
        self.write(
            "mixes.yaml", {"chats": {"datasets": ["chats"]}, "tools": {"datasets": ["tools"]}}
        )
        self.rows({})

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a mapping as YAML."""
        Path(name).write_text(yaml.safe_dump(content, sort_keys=False))

    def rows(self, *changes: Mapping[str, str]) -> None:
        """Write a table with a row for each of some changes to the usual row."""
        columns = list(dict.fromkeys([*ROW, *(key for each in changes for key in each)]))
        lines = ["\t".join(columns)]
        lines += ["\t".join({**ROW, **each}.get(key, "") for key in columns) for each in changes]
        Path("t.tsv").write_text("\n".join(lines) + "\n")

    def read(self) -> Catalog:
        return read_catalog(self.config, SITES)

    def refusal(self) -> list[str]:
        """The lines of the refusal."""
        with pytest.raises(SftError) as caught:
            self.read()
        return str(caught.value).splitlines()


@pytest.fixture
def inputs(tmp_path, monkeypatch) -> Inputs:
    monkeypatch.chdir(tmp_path)
    return Inputs()


# Good input


def test_row_becomes_an_experiment(inputs):
    experiment = inputs.read().experiments["run"]

    assert experiment.config == BASE
    assert (experiment.hub_id, experiment.backend) == ("laion/run", "llamafactory")
    assert (experiment.model.folder, experiment.num_nodes) == ("small", 1)


def test_repository_is_public_unless_its_row_says_private(inputs):
    inputs.rows({"private": "true"}, {"name": "open"}, {"name": "open-too", "private": "false"})
    experiments = inputs.read().experiments

    assert [each.name for each in experiments.values() if each.private] == ["run"]


def test_cells_override_the_base_config_and_empty_ones_do_not(inputs):
    inputs.rows({"learning_rate": "2e-5", "bf16": "true"}, {"name": "other"})
    experiments = inputs.read().experiments

    assert experiments["run"].config == BASE | {"learning_rate": 2e-5, "bf16": True}
    assert experiments["run"].overrides == {"learning_rate": 2e-5, "bf16": True}
    assert experiments["other"].config == BASE


@pytest.mark.parametrize(
    "name",
    ["a1", "Qwen3-8B.v2_x", "nan", "0start", "x" * 90, "run-lr1e-5", "run_lr1e5", "run-bs96"],
)
def test_good_name_passes(inputs, name):
    inputs.rows({"name": name})

    assert list(inputs.read().experiments) == [name]


@pytest.mark.parametrize(
    "cells",
    [
        {"backend": "llamafactory"},
        {"sites": "cluster"},
        {"sites": "elsewhere, cluster"},
        {"hub_id": "org/my-model.v2"},
        {"hub_id": "org/" + "x" * 92},
        {"register": "true", "agent": "my agent"},
        {"register": "true", "take_over": "TRUE", "trust_remote_code": "false"},
        {"model": "big", "mix": "tools", "num_nodes": "8"},
        {"base_config": "smoke", "template": "qwen3", "per_device_train_batch_size": "1"},
        {"template": "chatml_tools"},
        {"deepspeed": "ds_z3.json"},
        {"global_batch_size": "32", "per_device_train_batch_size": "2"},
        {"warmup_steps": "100"},
        {"max_samples": "null"},
        {"save_strategy": "no"},
        {"lr_scheduler_kwargs": "{min_lr: 1e-6}"},
    ],
)
def test_good_row_passes(inputs, cells):
    inputs.rows(cells)

    assert list(inputs.read().experiments) == ["run"]


def test_rows_of_other_sites_are_left_out(inputs):
    inputs.rows({"sites": "elsewhere"}, {"name": "here", "sites": "cluster"})

    assert list(inputs.read().experiments) == ["here"]


def test_a_site_judges_nodes_and_files_of_its_own_rows_only(inputs):
    inputs.write("models.yaml", {"small": {"folder": "small"}, "far": {"folder": "/far/away"}})
    inputs.rows({}, {"name": "far", "model": "far", "num_nodes": "32", "sites": "elsewhere"})

    assert list(inputs.read().experiments) == ["run"]


def test_experiments_with_the_same_data_share_tokens(inputs):
    inputs.rows({}, {"name": "two", "learning_rate": "2e-5"}, {"name": "ten", "cutoff_len": "512"})

    assert len(inputs.read().tokens) == 2


def test_learning_rate_does_not_change_the_tokens(inputs):
    inputs.rows({}, {"name": "two", "learning_rate": "2e-5"})
    one, two = inputs.read().experiments.values()

    assert tokens_name(one) == tokens_name(two)


def test_catalog_holds_what_its_experiments_need(inputs):
    catalog = inputs.read()

    assert (list(catalog.models), list(catalog.datasets)) == (["small"], ["chats"])


@pytest.mark.parametrize("name", ["base.yaml", "models.yaml", "mixes.yaml", "datasets.yaml"])
def test_windows_line_ends_and_byte_order_mark_in_yaml_do_not_matter(inputs, name):
    content = Path(name).read_bytes()
    Path(name).write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))

    assert list(inputs.read().experiments) == ["run"]


def test_local_files_are_those_of_a_folder_or_the_file_itself(inputs):
    Path("small/config.json").write_text("{}")

    assert local_files("small") == ["small/config.json"]
    assert local_files("chats.jsonl") == ["chats.jsonl"]
    assert local_files(None) == []


# The table


@pytest.mark.parametrize(
    ("column", "fault"),
    [
        ("learning_rat", "unknown column; did you mean 'learning_rate'?"),
        ("num_node", "unknown column; did you mean 'num_nodes'?"),
        (
            "epochs",
            "unknown column; did you mean 'ppo_epochs' or 'num_epochs' or 'num_train_epochs'?",
        ),
        ("lr", "unknown column; did you mean 'learning_rate' or"),
        ("output_dir", "leave it out; the workflow sets it"),
        ("overwrite_output_dir", "leave it out; the workflow sets it"),
        ("dataset", "leave it out; it comes from the mix that the row names"),
        ("push_to_hub", "leave it out; training never uploads"),
        ("hub_token", "leave it out; a secret stands in no file"),
        ("model_name_or_path", "leave it out; the row's column `model` says it"),
    ],
)
def test_column_that_nobody_reads_is_refused_even_where_it_is_empty(inputs, column, fault):
    inputs.rows({column: ""})

    (line,) = inputs.refusal()
    assert line.startswith(f"t.tsv, line 1 (header), {column}: {fault}")


def test_column_that_is_needed_and_misspelt_is_refused_once(inputs):
    text = Path("t.tsv").read_text()
    Path("t.tsv").write_text(text.replace("num_nodes", "nodes"))

    assert inputs.refusal() == [
        "t.tsv, line 1 (header), nodes: unknown column; did you mean 'num_nodes'?",
        "t.tsv, line 1 (header), num_nodes: the column is missing",
    ]


@pytest.mark.parametrize("column", ["base_config", "model", "mix", "num_nodes"])
def test_empty_cell_in_a_column_that_is_needed_is_refused(inputs, column):
    inputs.rows({column: ""})

    (line,) = inputs.refusal()
    assert line.startswith(f"{WHERE}, {column}: missing; expected ")


def test_row_without_a_name_is_refused_by_its_line(inputs):
    inputs.rows({}, {"name": ""})

    (line,) = inputs.refusal()
    assert line.startswith("t.tsv, line 3, name: missing; expected a name of 2 to 96 letters")


@pytest.mark.parametrize(
    "name",
    ["a..b", "a/b", "a b", "-a", "a-", ".a", "a", "x" * 97, "a:b", "ä1", "a\\b", "${HOME}", "a;b"],
)
def test_name_that_cannot_be_a_folder_is_refused(inputs, name):
    inputs.rows({"name": name})

    (line,) = inputs.refusal()
    assert line.startswith(f"t.tsv, line 2 ({name}), name: found {name!r}")
    assert "expected a name of 2 to 96 letters, digits, '.', '_' or '-'" in line


@pytest.mark.parametrize("name", ["a--b", "x" * 92, "a.git"])
def test_name_that_makes_no_hub_id_is_refused_with_the_way_out(inputs, name):
    inputs.rows({"name": name})

    (line,) = inputs.refusal()
    assert line.startswith(f"t.tsv, line 2 ({name}), hub_id: found 'laion/{name}'")
    assert line.endswith("it is made of namespace and name: give another in the column hub_id")


def test_name_that_makes_no_hub_id_passes_with_a_hub_id_of_its_own(inputs):
    inputs.rows({"name": "a--b", "hub_id": "laion/ab"})

    assert inputs.read().experiments["a--b"].hub_id == "laion/ab"


@pytest.mark.parametrize(
    "hub_id",
    [
        *("org", "org/a--b", "org/a..b", "org/a/b", "org/-a", "org/a.", "/a", "org/", "org/a b"),
        "org/" + "x" * 93,
    ],
)
def test_hub_id_that_the_hub_would_refuse_is_refused(inputs, hub_id):
    inputs.rows({"hub_id": hub_id})

    (line,) = inputs.refusal()
    assert line.startswith(f"{WHERE}, hub_id: found {hub_id!r}")
    assert "of at most 96 characters, without '--' and '..'" in line


def test_length_of_a_long_hub_id_is_told(inputs):
    inputs.rows({"hub_id": "org/" + "x" * 93})

    assert "(97 characters)" in inputs.refusal()[0]


@pytest.mark.parametrize("name", ["run", "RUN"])
def test_second_row_of_a_name_is_refused_whatever_its_case(inputs, name):
    inputs.rows({}, {"name": name, "hub_id": "org/other"})

    assert inputs.refusal() == [
        f"t.tsv, line 3 ({name}), name: {name!r} is taken by {WHERE}; rename one of them "
        "(upper and lower case count as the same)"
    ]


@pytest.mark.parametrize("hub_id", ["laion/run", "LAION/Run"])
def test_second_row_of_a_hub_id_is_refused_whatever_its_case_or_site(inputs, hub_id):
    inputs.rows({}, {"name": "other", "hub_id": hub_id, "sites": "elsewhere"})

    (line,) = inputs.refusal()
    assert line.startswith(
        f"t.tsv, line 3 (other), hub_id: {hub_id!r} is taken by {WHERE}; two runs"
    )


@pytest.mark.parametrize(
    ("column", "cell", "fault"),
    [
        ("backend", "llamafactry", "unknown backend 'llamafactry'; did you mean 'llamafactory'?"),
        ("model", "smal", "unknown model 'smal' in models.yaml; did you mean 'small'?"),
        ("mix", "chat", "unknown mix 'chat' in mixes.yaml; did you mean 'chats'?"),
        ("base_config", "bse.yaml", "no file 'bse.yaml'; did you mean 'base.yaml'?"),
        ("base_config", "qwen3/32k_bse", "no file 'qwen3/32k_bse'; did you mean 'qwen3/32k_base'"),
        ("base_config", "base", "no file 'base'; did you mean 'base.yaml' or"),
        ("sites", "cluster,elswhere", "unknown site 'elswhere'; did you mean 'elsewhere'?"),
        ("template", "qwn3", "found 'qwn3'; did you mean 'qwen3'?"),
        ("environment", "otagnt", "cluster has no 'otagnt'; did you mean 'otagent'?"),
        ("deepspeed", "ds_z3", "found 'ds_z3'; did you mean 'ds_z3.json'"),
        ("deepspeed", "null", "found 'null'; known: ds_z3.json"),
        ("num_nodes", "2.5", "found 2.5, expected a whole number of at least 1"),
        ("num_nodes", "2.0", "found 2.0, expected a whole number of at least 1"),
        ("num_nodes", "0", "found 0, expected a whole number of at least 1"),
        ("num_nodes", "-1", "found -1, expected a whole number of at least 1"),
        ("num_nodes", "two", "found 'two', expected a whole number of at least 1"),
        ("num_nodes", "nan", "found 'nan', expected a whole number of at least 1"),
        ("num_nodes", ".inf", "found inf, expected a whole number of at least 1"),
        ("num_nodes", "true", "found True, expected a whole number of at least 1"),
        ("num_nodes", "010", "found '010', expected a whole number of at least 1"),
        ("num_nodes", "5", "a global batch of 96 sequences does not divide over 5 nodes"),
        ("num_nodes", "24", "found 24, expected at most 16 at cluster"),
        ("register", "yes", "found 'yes', expected true or false"),
        ("register", "1", "found 1, expected true or false"),
        ("private", "yes", "found 'yes', expected true or false"),
        ("trust_remote_code", "on", "found 'on', expected true or false"),
        ("learning_rate", "nan", "found 'nan', expected a finite number"),
        ("learning_rate", ".nan", "found nan, expected a finite number"),
        ("learning_rate", "inf", "found 'inf', expected a finite number"),
        ("learning_rate", "1e400", "found inf, expected a finite number"),
        ("learning_rate", "-1e-5", "found -1e-05, expected at least 1e-09 and at most 1.0"),
        ("learning_rate", "true", "found True, expected a finite number"),
        ("learning_rate", "1,5e-5", "found '1,5e-5', expected a finite number"),
        ("bf16", "yes", "found 'yes', expected true or false"),
        ("num_train_epochs", "0", "found 0, expected at least 0.001"),
        ("warmup_ratio", "1.5", "found 1.5, expected at least 0 and at most 1"),
        ("cutoff_len", "4k", "found '4k', expected a whole number"),
        ("stage", "dpo", "found 'dpo'; known: sft"),
        ("default_system", '"You are"', 'found "You are", expected a cell without quotes'),
    ],
)
def test_cell_is_refused_with_the_row_the_value_and_the_remedy(inputs, column, cell, fault):
    inputs.rows({column: cell})

    (line,) = inputs.refusal()
    assert line.startswith(f"{WHERE}, {column}: {fault}")


def test_batch_that_does_not_divide_is_refused_with_the_nodes_that_fit(inputs):
    inputs.rows({"num_nodes": "5"})

    assert inputs.refusal()[0].endswith("num_nodes that fit: 1, 2, 3, 4, 6, 8, 12")


@pytest.mark.parametrize(
    ("cells", "fault"),
    [
        ({"gradient_accumulation_steps": "2"}, "gradient_accumulation_steps: leave it out; global"),
        ({"neat_packing": "true"}, "neat_packing: it mixes sequences"),
        (
            {"template": "chatml_tools", "tool_format": "qwen"},
            "tool_format: leave it out; chatml_tools.jinja decides it",
        ),
        ({"warmup_ratio": "0.1", "warmup_steps": "10"}, "warmup_ratio: leave it out; warmup_steps"),
    ],
)
def test_row_that_contradicts_itself_or_its_base_config_is_refused(inputs, cells, fault):
    inputs.rows(cells)

    (line,) = inputs.refusal()
    assert line.startswith(f"{WHERE}, with base.yaml, {fault}")


def test_name_that_tells_another_learning_rate_is_refused(inputs):
    inputs.rows({"name": "run-lr2e5"})

    assert inputs.refusal() == [
        "t.tsv, line 2 (run-lr2e5), name: 'run-lr2e5' says lr2e5 = 2e-05, but the learning_rate "
        "is 1e-05; rename it, or set the learning_rate"
    ]


def test_faults_of_a_row_are_shown_at_once(inputs):
    inputs.rows({"model": "smal", "num_nodes": "x", "learning_rate": "fast", "sites": "nowhere"})

    assert [line.removeprefix(f"{WHERE}, ").partition(":")[0] for line in inputs.refusal()] == [
        "num_nodes",
        "model",
        "sites",
        "learning_rate",
    ]


def test_faults_of_a_table_are_shown_at_once(inputs):
    inputs.rows(
        {"mix": "chat"}, {"name": "a/b"}, {"name": "many", "num_nodes": "5"}, {"learning_rat": "1"}
    )
    Path("t.tsv").write_text(Path("t.tsv").read_text() + "short\tsmoke\n")

    assert [line.split(", ")[1] for line in inputs.refusal()] == [
        "line 1 (header)",
        "line 6 (short): number of cells: found 2",
        "line 5 (run)",
        "line 2 (run)",
        "line 3 (a/b)",
        "line 4 (many)",
    ]


def test_ten_faults_are_shown_and_the_others_counted(inputs):
    inputs.rows(*({"name": f"run{index}", "num_nodes": "x"} for index in range(13)))
    lines = inputs.refusal()

    assert len(lines) == 11
    assert lines[9].startswith("t.tsv, line 11 (run9), num_nodes: found 'x'")
    assert lines[10] == "… and 3 more"


def test_faults_of_rows_for_other_sites_are_shown_too(inputs):
    inputs.rows({}, {"name": "far", "sites": "elsewhere", "learning_rate": "fast"})

    assert inputs.refusal() == [
        "t.tsv, line 3 (far), learning_rate: found 'fast', expected a finite number"
    ]


# Base configs


def test_fault_of_a_base_config_is_shown_once_for_all_its_rows(inputs):
    inputs.write("base.yaml", BASE | {"learning_rat": 1e-5})
    inputs.rows({}, {"name": "two"}, {"name": "ten"})

    assert inputs.refusal() == [
        "base.yaml, learning_rat: unknown key; did you mean 'learning_rate'?"
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("- a\n", "base.yaml: expected `key: value` lines, found a list"),
        ("bf16: true\nbf16: false\n", "base.yaml, line 2: 'bf16' stands twice"),
        ("a: [1\n", "base.yaml: not YAML"),
        (b"# \xe4\n", "base.yaml: not YAML"),
    ],
)
def test_base_config_that_cannot_be_read_is_refused(inputs, content, fault):
    Path("base.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())

    assert inputs.refusal()[0].startswith(fault)


def test_key_that_the_base_config_lacks_is_refused_with_the_row(inputs):
    inputs.write("base.yaml", {key: value for key, value in BASE.items() if key != "template"})

    assert inputs.refusal() == [
        f"{WHERE}, with base.yaml, template: missing; the base config has to say it"
    ]


def test_key_that_the_base_config_lacks_may_stand_in_the_row(inputs):
    inputs.write("base.yaml", {key: value for key, value in BASE.items() if key != "template"})
    inputs.rows({"template": "qwen3"})

    assert inputs.read().experiments["run"].template == "qwen3"


def test_base_config_of_yaml_words_keeps_its_types(inputs):
    Path("base.yaml").write_text(Path("base.yaml").read_text().replace("1.0e-05", "1e-5"))

    assert inputs.read().experiments["run"].config["learning_rate"] == 1e-5


# Models and files


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({}, ": found neither, expected either hub or folder"),
        ({"hub": "o/m", "folder": "small"}, ": found both, expected either hub or folder"),
        ({"folder": "small", "revision": "v1"}, ", revision: leave it out; a folder has no"),
        ({"hub": "o/a--b"}, ", hub: found 'o/a--b', expected a hub id such as Qwen/Qwen3-8B"),
        ({"hub": "model"}, ", hub: found 'model', expected a hub id such as Qwen/Qwen3-8B"),
        ({"hub": "../m"}, ", hub: found '../m', expected a hub id such as Qwen/Qwen3-8B"),
        ({"hub": "o/m", "revision": "-x"}, ", revision: found '-x', expected a branch, tag"),
        ({"hub": "o/m", "declare": "yes"}, ", declare: found 'yes', expected true or false"),
        ({"hub": "o/m", "registry": "x"}, ", registry: unknown key; did you mean 'registry_name'?"),
        ("o/m", ": found 'o/m', expected `key: value` lines"),
    ],
)
def test_model_is_refused(inputs, entry, fault):
    inputs.write("models.yaml", {"small": entry})

    assert inputs.refusal()[0].startswith(f"models.yaml, small{fault}")


@pytest.mark.parametrize("name", ["a/b", "..", "-a", "a b", 3, "x" * 97])
def test_name_of_a_model_that_cannot_be_a_folder_is_refused(inputs, name):
    inputs.write("models.yaml", {"small": {"folder": "small"}, name: {"hub": "o/m"}})

    (line,) = inputs.refusal()
    assert line.startswith(f"models.yaml: found {name!r}")
    assert "expected a name of at most 96 letters" in line


def test_faults_of_both_registries_are_shown_at_once(inputs):
    inputs.write("models.yaml", {"small": {}})
    inputs.write("mixes.yaml", {"chats": {"datasets": ["chat"]}})

    assert inputs.refusal() == [
        "models.yaml, small: found neither, expected either hub or folder",
        "mixes.yaml, chats, datasets: unknown dataset 'chat'; did you mean 'chats'?",
    ]


def test_model_folder_that_is_not_there_is_refused(inputs):
    Path("small").rename("smal")

    assert inputs.refusal() == [
        f"models.yaml, small, folder: no folder 'small'; did you mean 'smal'? (needed by {WHERE})"
    ]


def test_dataset_file_that_is_not_there_is_refused(inputs):
    Path("chats.jsonl").rename("chat.jsonl")

    assert inputs.refusal() == [
        "datasets.yaml, chats, file_name: no file 'chats.jsonl'; did you mean 'chat.jsonl'? "
        f"(needed by {WHERE})"
    ]


def test_file_of_a_dataset_that_no_row_needs_may_be_missing(inputs):
    inputs.write("mixes.yaml", {"chats": {"datasets": ["chats"]}, "tools": {"datasets": ["gone"]}})
    inputs.write(
        "datasets.yaml", {"chats": {"file_name": "chats.jsonl"}, "gone": {"file_name": "gone"}}
    )

    assert list(inputs.read().experiments) == ["run"]


# The config


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"nmaespace": "x"}, "nmaespace: unknown key; did you mean 'namespace'?"),
        ({"gpu_per_node": 4}, "gpu_per_node: unknown key; did you mean 'gpus_per_node'?"),
        ({"experiments": "t.tvs"}, "experiments: no file 't.tvs'; did you mean 't.tsv'?"),
        ({"experiments": "small"}, "experiments: no file 'small'; "),
        ({"models": "model.yaml"}, "models: no file 'model.yaml'; did you mean 'models.yaml'?"),
        ({"mixes": "conf/m.yaml"}, "mixes: no file 'conf/m.yaml'; there is no folder 'conf'"),
        ({"datasets": ["dataset.yaml"]}, "datasets: no file 'dataset.yaml'; did you mean"),
        ({"datasets": []}, "datasets: found [], expected a list of paths"),
        ({"datasets": "datasets.yaml"}, "datasets: found 'datasets.yaml', expected a list"),
        ({"site": "clutser"}, "site: found 'clutser', expected the name of a folder in profiles"),
        ({"namespace": "a/b"}, "namespace: found 'a/b', expected an organisation"),
        ({"upload_to": "hubb"}, "upload_to: found 'hubb'; "),
        ({"gpus_per_node": "four"}, "gpus_per_node: found 'four', expected a whole number"),
        ({"gpus_per_node": 2.0}, "gpus_per_node: found 2.0, expected a whole number"),
        ({"max_nodes": True}, "max_nodes: found True, expected the most nodes"),
        ({"compute_internet": "no"}, "compute_internet: found 'no', expected true or false"),
        ({"tmp_gb": float("nan")}, "tmp_gb: found nan, expected room in /tmp"),
        ({"environments": {"otagent": ""}}, "environments, otagent: found ''"),
        ({"experiments": "/a/../t.tsv"}, "experiments: found '/a/../t.tsv', expected the path"),
        ({"datasets": ["/../d.yaml"]}, "datasets, 0: found '/../d.yaml', expected the path"),
        ({"pathvars": {"results": "/a/.."}}, "pathvars, results: found '/a/..', expected the f"),
        ({"pathvars": {"result": "x"}}, "pathvars, result: unknown key; did you mean 'results'?"),
        ({"upload_folder": "/a/../b"}, "upload_folder: found '/a/../b', expected a folder"),
        ({"upload_folder": "$WORK/b"}, "upload_folder: found '$WORK/b', expected a folder"),
    ],
)
def test_config_is_refused(inputs, change, fault):
    inputs.config |= change
    where = f"config (config/config.yaml or profiles/{inputs.config['site']}/config.yaml)"

    assert inputs.refusal()[0].startswith(f"{where}, {fault}")


@pytest.mark.parametrize(
    "change",
    [
        {"pathvars": {"results": "/data/team/results"}},
        {"pathvars": {"results": "../results"}},
        {"upload_folder": "/data/a..b/hub", "registry_file": "../registry.db"},
    ],
)
def test_other_paths_pass(inputs, change):
    inputs.config |= change

    assert list(inputs.read().experiments) == ["run"]


@pytest.mark.parametrize("key", ["experiments", "datasets", "namespace", "pathvars", "upload_to"])
def test_config_without_a_key_that_is_needed_is_refused(inputs, key):
    del inputs.config[key]

    assert f", {key}: missing; expected " in inputs.refusal()[0]


def test_config_without_a_site_is_refused_with_the_choices(inputs):
    del inputs.config["site"]

    (line,) = inputs.refusal()
    assert "--profile profiles/<site>, one of cluster, elsewhere" in line
    assert "with --config on the command line, repeat the profile's keys" in line
