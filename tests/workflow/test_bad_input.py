"""Bad input stops a run before its first job, with words that help and nothing left behind."""

import json
from pathlib import Path

import pytest

TABLE = "config/experiments.tsv"
ROW = "smol-demo-low\t\tsmoke\tsmollm2-135m\tdemo\t1\tlocalhost\ttrue\t3e-5"
WHERE = f"{TABLE}, line 3 (smol-demo-low)"
CONFIG = "config (config/config.yaml or profiles/localhost/config.yaml)"
BASE = "sft/lf_configs/smoke.yaml"


def refusal(project, *arguments: str) -> str:
    """What a run says that is refused; it must end with an error and leave no results."""
    ran = project.snakemake(*arguments)

    assert ran.code != 0, ran.text
    assert "Traceback" not in ran.text
    assert not ran.rules(), "a job was started"
    assert not (project.root / "results").exists()
    return ran.text


@pytest.mark.parametrize(
    ("file", "old", "new", "fault"),
    [
        pytest.param(
            TABLE,
            "learning_rate\n",
            "learning_rat\n",
            f"{TABLE}, line 1 (header), learning_rat: unknown column; "
            "did you mean 'learning_rate'?",
            id="misspelt column",
        ),
        pytest.param(
            BASE,
            "cutoff_len:",
            "cutof_len:",
            f"{BASE}, cutof_len: unknown key; did you mean 'cutoff_len'?",
            id="misspelt key of a base config",
        ),
        pytest.param(
            TABLE,
            ROW,
            ROW.replace("demo\t1\t", "demo\t3\t"),
            "does not divide over 3 nodes × 1 processes × 2 a process at localhost; "
            "num_nodes that fit: 1\n"
            f"{WHERE}, num_nodes: found 3, expected at most 1 at localhost",
            id="nodes",
        ),
        pytest.param(
            TABLE,
            ROW,
            ROW.replace("smol-demo-low", "smol-lr1e-4"),
            f"{TABLE}, line 3 (smol-lr1e-4), name: 'smol-lr1e-4' says lr1e-4 = 0.0001, but the "
            "learning_rate is 3e-05; rename it, or set the learning_rate",
            id="learning rate in the name",
        ),
        pytest.param(
            TABLE,
            ROW,
            ROW.replace("\t3e-5", ""),
            f"{WHERE}: number of cells: found 8, expected 9 as in the header; put one tab",
            id="ragged row",
        ),
        pytest.param(
            TABLE,
            "smol-demo-high",
            "Smol-demo-LOW",
            f"name: 'Smol-demo-LOW' is taken by {WHERE}; rename one of them",
            id="name that differs in case alone",
        ),
        pytest.param(
            "config/mixes.yaml",
            "[0.6, 0.4]",
            "[0.6, 0.5]",
            "config/mixes.yaml, demo, probabilities: they sum to 1.1, expected 1",
            id="probabilities",
        ),
        pytest.param(
            "config/datasets.yaml",
            "chats_sharegpt.jsonl",
            "chats_sharegtp.jsonl",
            "config/datasets.yaml, demo_tools, file_name: no file 'demo/chats_sharegtp.jsonl'; "
            f"did you mean 'chats_sharegpt.jsonl'? (needed by {WHERE})",
            id="dataset file that is not there",
        ),
        pytest.param(
            "config/config.yaml",
            "namespace:",
            "nmaespace:",
            f"{CONFIG}, nmaespace: unknown key; did you mean 'namespace'?",
            id="misspelt key of the config",
        ),
        pytest.param(
            "profiles/localhost/config.yaml",
            "  max_nodes:",
            "  max_node:",
            f"{CONFIG}, max_node: unknown key; did you mean 'max_nodes'",
            id="misspelt key of a profile",
        ),
    ],
)
def test_run_is_refused(project, file, old, new, fault):
    project.replace(file, old, new)

    assert fault in refusal(project)


def test_table_with_spaces_is_refused(project):
    table = project.root / TABLE
    table.write_text(table.read_text().replace("\t", "  "))

    assert f"{TABLE}, line 1 (header): found no tab; put one tab, not spaces" in refusal(project)


def test_faults_of_the_whole_table_are_shown_at_once_and_counted_from_the_eleventh_on(project):
    rows = "".join(f"run{number}\t\tsmoke\tsmol\tdem\t1\t\t\t\n" for number in range(8))
    project.append(TABLE, rows)
    text = refusal(project)

    remedy = "unknown model 'smol' in config/models.yaml; did you mean 'smollm2-135m'?"
    assert text.count(remedy) == 5
    assert text.count("unknown mix 'dem' in config/mixes.yaml; did you mean 'demo'") == 5
    assert "… and 6 more" in text


def test_preference_set_of_a_teams_registry_is_refused_when_a_mix_names_it(project):
    entry = {"file_name": "dpo.json", "ranking": True, "columns": {"chosen": "chosen"}}
    registry = project.root / "config" / "dataset_info.json"
    registry.write_text(json.dumps({"dpo": entry, "unused": {"script_url": "folder"}}))
    project.replace(
        "config/config.yaml",
        "  - config/datasets.yaml",
        "  - config/datasets.yaml\n  - config/dataset_info.json",
    )
    project.append("config/mixes.yaml", "\nworse:\n  datasets: [demo_tools, dpo]\n")
    text = refusal(project)

    assert "config/dataset_info.json, dpo, ranking: a preference set cannot be used" in text
    assert "unused" not in text


def test_config_on_the_command_line_that_loses_the_site_is_refused(project):
    text = refusal(project, "--config", "namespace=mine")

    assert "no site is chosen: run snakemake with --profile profiles/<site>, one of" in text
    assert "with --config on the command line, repeat the profile's keys" in text


def test_table_of_a_spreadsheet_runs(project):
    table: Path = project.root / TABLE
    content = "# by hand\n\n" + table.read_text()
    table.write_bytes(b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode())
    ran = project.snakemake("--dry-run")

    assert ran.code == 0, ran.text
    assert ran.count("train") == 2
