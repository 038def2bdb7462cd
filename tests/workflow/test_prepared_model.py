"""A model whose tokenizer is prepared, from the checkpoint to the release, trained by the stub."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from sft.files import hash_file, read_json, write_json
from sft.receipt import read_receipt
from tests.delphi_checkpoint import write_checkpoint
from tests.workflow import stub_trainer
from tests.workflow.conftest import Project, copy_checkout

TABLE = (
    "name\tbase_config\tmodel\tmix\tnum_nodes\ttemplate\tcutoff_len\n"
    "cell\tsmoke\tdelphi\tdemo\t1\tdelphi\t2048\n"
)
MODELS = "delphi: {folder: checkpoint, prepare: delphi}\n"


@dataclass(frozen=True)
class Done:
    """A finished project, and the receipt of its prepared model."""

    project: Project
    prepared: Mapping

    def read(self, path: str) -> dict:
        """A file of the results, as JSON or YAML."""
        return yaml.safe_load((self.project.root / "results" / path).read_text())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    project = copy_checkout(tmp_path_factory.mktemp("prepared"))
    root = project.root
    (root / "config" / "experiments.tsv").write_text(TABLE)
    (root / "config" / "models.yaml").write_text(MODELS)
    (root / "checkpoint").mkdir()
    write_checkpoint(root / "checkpoint")
    config = read_json(root / "checkpoint" / "config.json") | stub_trainer.CONFIG
    write_json(root / "checkpoint" / "config.json", config | {"vocab_size": 128256})
    environment = root / ".venv-llamafactory" / "bin"
    environment.mkdir(parents=True)
    (environment / "activate").write_text(f'PATH="{environment}:$PATH"\n')
    python = environment / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{stub_trainer.__file__}" "$@"\n')
    python.chmod(0o755)
    ran = project.snakemake("--cores", "2")
    assert ran.code == 0, ran.text
    receipt = root / "results" / "models" / "delphi" / "prepared.json"
    return Done(project, read_receipt(receipt))


def test_prepared_model_is_what_is_trained(done):
    config = done.read("runs/cell/train.yaml")

    assert config["model_name_or_path"] == done.prepared["path"]


def test_tokens_are_keyed_by_the_prepared_tokenizer(done):
    (manifest,) = done.project.root.glob("results/tokens/*/*/manifest.json")
    tokenizer = read_json(manifest)["identity"]["tokenizer"]

    assert tokenizer["tokenizer.json"] == hash_file(Path(done.prepared["path"], "tokenizer.json"))


def test_release_names_the_source_and_the_preparation(done):
    base = done.read("runs/cell/release/provenance.json")["base_model"]

    assert base["source"].startswith("local:")
    assert base["sha256"] == done.prepared["sha256"] != base["fetched"]
    assert base["prepared"]["slots"]["<|start_think|>"] == 128002


def test_nothing_is_done_a_second_time(done):
    assert "Nothing to be done" in done.project.snakemake("--dry-run").text


def test_model_that_is_no_longer_prepared_is_trained_anew(done):
    (done.project.root / "config" / "models.yaml").write_text("delphi: {folder: checkpoint}\n")
    ran = done.project.snakemake("--dry-run")

    counts = [ran.count(rule) for rule in ("prepare_tokenizer", "pretokenize", "train")]
    assert counts == [0, 1, 1]
