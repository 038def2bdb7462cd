"""What reading the Snakefile costs: every job of a cluster does it again."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.workflow.conftest import Project

# pyarrow and SQLAlchemy are not here: pandas 3 imports the one, Snakemake itself the other.
HEAVY = ("torch", "transformers", "datasets", "huggingface_hub", "matplotlib", "safetensors")

# What stages import may be heavy: none is loaded.
STAGES = {
    *("sft.fetch", "sft.sources", "sft.tokens", "sft.render", "sft.train", "sft.local"),
    *("sft.checkpoint", "sft.shards", "sft.release", "sft.card", "sft.plot", "sft.provenance"),
    *("sft.assembly", "sft.placement", "sft.metadata", "sft.throughput", "sft.tensor_names"),
    *("sft.upload", "sft.registry", "sft.registration"),
}

SITECUSTOMIZE = """
import atexit, json, os, sys

opened, connected = [], []


def watch(event, arguments):
    if event == "open":
        opened.append(str(arguments[0]))
    elif event in ("socket.connect", "socket.getaddrinfo"):
        connected.append(repr(arguments[1:]))


@atexit.register
def tell():
    seen = {"modules": list(sys.modules), "opened": list(opened), "connected": connected}
    with open(os.environ["SEEN"], "w") as file:
        json.dump(seen, file)


sys.addaudithook(watch)
"""


@pytest.fixture(scope="module")
def seen(shared_project: Project) -> Mapping[str, list[str]]:
    """What a process that reads the Snakefile imports, opens and connects to.

    A dry run would do more: its plan counts rows and reads the configs of models.
    """
    record = shared_project.root / "seen.json"
    (shared_project.root / "sitecustomize.py").write_text(SITECUSTOMIZE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEEN", str(record))
        ran = shared_project.snakemake("--summary")
    assert ran.code == 0, ran.text
    return json.loads(record.read_text())


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_package_is_not_imported(seen, package):
    assert package not in seen["modules"]


def test_no_stage_is_imported(seen):
    assert not STAGES.intersection(seen["modules"])


def test_nothing_is_asked_of_the_network(seen):
    assert seen["connected"] == []


def test_the_table_is_read(seen):
    assert "config/experiments.tsv" in seen["opened"]


def test_no_dataset_and_no_model_is_read(seen):
    data = [path for path in seen["opened"] if "demo" in Path(path).parts]

    assert data == []
