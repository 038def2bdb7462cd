"""The gate between tokens and training, as a user meets it."""

import json
import re
from pathlib import Path

import pytest

from sft.files import read_json
from tests.workflow.conftest import Project, Ran, copy_checkout, install_stub

DATASET = """
shop:
  file_name: ../shop.jsonl
  formatting: sharegpt
"""
TABLE = """\
name\tbase_config\tmodel\tmix\tnum_nodes\taccept
strict\tsmoke\tsmollm2-135m\tshop\t1\t
lenient\tsmoke\tsmollm2-135m\tshop\t1\tshop:empty_answer
"""
ROWS = 20


def row(number: int, answer: str) -> dict:
    turns = {"human": f"What does lamp {number} cost?", "gpt": answer}
    return {"conversations": [{"from": role, "value": text} for role, text in turns.items()]}


def write_rows(project: Project, empty: int | None = None) -> None:
    """The data file; the answer of one row is empty."""
    answers = ["" if n == empty else f"Lamp {n} costs {n + 2} euros." for n in range(ROWS)]
    lines = [json.dumps(row(number, answer)) + "\n" for number, answer in enumerate(answers)]
    (project.root / "shop.jsonl").write_text("".join(lines))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose two experiments train on a source with one bad row."""
    project = copy_checkout(tmp_path_factory.mktemp("shop"))
    install_stub(project)
    project.append("config/datasets.yaml", DATASET)
    project.append("config/mixes.yaml", "\nshop: {datasets: [shop]}\n")
    project.replace("sft/lf_configs/smoke.yaml", "max_samples: 16  # of each source\n", "")
    (project.root / "config" / "experiments.tsv").write_text(TABLE)
    write_rows(project, empty=7)
    return project


@pytest.fixture(scope="module")
def refused(shop: Project) -> Ran:
    return shop.snakemake("--keep-going", "--cores", "2")


def tokens_folder(shop: Project) -> Path:
    [folder] = (shop.root / "results" / "tokens").iterdir()
    return folder


def test_refusal_names_source_row_and_remedy(refused):
    assert refused.code != 0
    assert "shop: empty_answer: 1 of 20" in refused.text
    assert re.search(r"row 7: found turn 2: '', expected an answer", refused.text)
    assert "accept: [shop:empty_answer]" in refused.text


def test_refused_experiment_is_not_rendered(shop, refused):
    assert not (shop.root / "results" / "runs" / "strict" / "train.yaml").exists()


def test_preview_of_a_refused_mix_is_there(shop, refused):
    assert "empty_answer" in (tokens_folder(shop) / "preview-strict.html").read_text()


def test_accepted_fault_is_trained_and_told_with_the_release(shop, refused):
    release = shop.root / "results" / "runs" / "lenient" / "release"

    assert read_json(release / "provenance.json")["accepted"] == [
        {
            **{"source": "shop", "fault": "empty_answer", "count": 1, "of": ROWS},
            "by": "accept: shop:empty_answer",
        }
    ]
    assert "accept: shop:empty_answer" in (release / "README.md").read_text()


def test_corrected_row_is_trained(shop, refused):
    write_rows(shop)
    ran = shop.snakemake("--cores", "2")

    assert ran.code == 0, ran.text
    assert (shop.root / "results" / "runs" / "strict" / "uploaded.json").exists()


def test_preview_of_what_is_not_tokenized_says_what_to_run(project):
    ran = project.run_cli("preview", "smol-demo-low")

    assert ran.code == 1
    assert "snakemake --profile profiles/localhost results/tokens/demo-" in ran.text


def test_unknown_fault_is_refused_with_the_nearest(project):
    project.append("sft/lf_configs/smoke.yaml", "accept: [empty_resoning]\n")
    ran = project.snakemake("--dry-run")

    assert ran.code != 0
    assert "accept: found 'empty_resoning'; did you mean 'empty_reasoning'" in ran.text
