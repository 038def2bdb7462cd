"""ZeRO-3 shards of two ranks become published, registered models, in one start of snakemake.

The real trainer on a private Slurm, the hub's real client against a small hub, a real Postgres.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from sft.files import manifest, write_yaml
from sft.receipt import read_receipt
from sft.weights import read_weights_index
from tests.compiled import extensions
from tests.hub import Hub
from tests.postgres import PASSWORD, running_postgres
from tests.slurm.cluster import Cluster
from tests.slurm.project import TRAINER, Project, add_model, make_project

NAMES = ("tied", "untied")
ROWS = """\
name\tbase_config\tmodel\tmix\tnum_nodes\tsites\tregister\tdeepspeed\tmax_steps
tied\ttiny\ttiny\tdemo\t2\ttiny\ttrue\tds_z3_nogather.json\t6
untied\ttiny\tloose\tdemo\t2\ttiny\ttrue\tds_z3_nogather.json\t6
"""
TOKEN = "hf_ThisIsATokenThatNobodyMaySee"
DOWNLOAD = """
import sys
from huggingface_hub import snapshot_download
snapshot_download(f"laion/{sys.argv[1]}", local_dir=sys.argv[2])
"""
GENERATE = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto")
inputs = tokenizer.apply_chat_template(
    [{"role": "user", "content": "Hello!"}],
    add_generation_prompt=True, return_dict=True, return_tensors="pt",
)
length = inputs["input_ids"].shape[1]
print(model.generate(**inputs, max_new_tokens=5, do_sample=False).shape[1] - length)
"""


@dataclass(frozen=True)
class Published(Project):
    """A project whose models go to a hub and into a Postgres."""

    hub: Hub
    registry: str

    def environment(self) -> dict[str, str]:
        return super().environment() | {
            **{"HF_ENDPOINT": self.hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN},
            **{"HF_HOME": str(self.root / "hf"), "SFT_REGISTRY_URL": self.registry},
        }

    def run(self, name: str) -> Path:
        return self.root / "results" / "runs" / name


@pytest.fixture(scope="module")
def published(
    session_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Published]:
    """The project after one start of snakemake."""
    root = make_project(tmp_path_factory.mktemp("published") / "p", session_cluster).root
    add_model(root, "loose", "--untied")
    (root / "config" / "sharded.tsv").write_text(ROWS)
    changes = {"experiments": "config/sharded.tsv", "upload_to": "hub"}
    write_yaml(root / "sharded.yaml", changes | {"variables": extensions(TRAINER)})
    with (
        Hub(tmp_path_factory.mktemp("hub")) as hub,
        running_postgres() as server,
        server.database() as registry,
    ):
        project = Published(root, session_cluster, hub, registry)
        snakemake = project.snakemake("--configfile", "sharded.yaml")
        text = snakemake.communicate(timeout=500)[0]
        assert snakemake.returncode == 0, text
        yield project


@pytest.mark.parametrize("name", NAMES)
def test_shards_are_what_was_left_and_what_was_put_together(name, published):
    run = published.run(name)

    assert read_receipt(run / "layout.json")["layout"] == "zero3"
    assert not list(Path(read_receipt(run / "trained.json")["checkpoints"]).glob("*.safetensors"))
    assert read_receipt(run / "consolidated.json")["weights"] == str(run / "consolidated")


def test_head_is_a_tensor_of_its_own_where_it_is_not_tied(published):
    releases = [published.run(name) / "release" for name in NAMES]
    heads = ["lm_head.weight" in read_weights_index(release) for release in releases]

    assert heads == [False, True]


@pytest.mark.parametrize("name", NAMES)
def test_snapshot_is_the_release_and_generates(name, published, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", DOWNLOAD, name, tmp_path],
        env=published.environment() | {"HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert manifest(tmp_path) == manifest(published.run(name) / "release")

    said = subprocess.check_output(
        [TRAINER / "bin" / "python", "-c", GENERATE, tmp_path],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"},
        text=True,
    )
    assert 1 <= int(said.splitlines()[-1]) <= 5


@pytest.mark.parametrize("name", NAMES)
def test_release_is_one_commit(name, published):
    assert published.hub.titles(f"laion/{name}") == [f"Release of {name}", "initial commit"]


def test_registry_holds_each_model_once_with_its_base(published):
    question = (
        "SELECT m.name, b.name FROM models m JOIN models b ON b.id = m.base_model_id ORDER BY 1"
    )
    with psycopg.connect(published.registry) as registry:
        rows = registry.execute(question).fetchall()

    assert rows == [("laion/tied", "org/tiny"), ("laion/untied", "org/loose")]


def test_no_file_holds_the_token_or_the_password(published):
    secrets = (TOKEN.encode(), PASSWORD.encode())
    files = [path for path in published.root.rglob("*") if path.is_file() and not path.is_symlink()]
    holding = [path for path in files if any(secret in path.read_bytes() for secret in secrets)]

    assert not holding
