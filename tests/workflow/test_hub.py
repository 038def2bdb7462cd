"""From the table to a repository of a hub on this host, with the real client."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from sft.files import manifest, read_json
from sft.receipt import read_receipt
from tests.hub import Hub
from tests.workflow.conftest import Project, copy_checkout, install_stub
from tests.workflow.test_kill import kill_tree, wait_until

TOKEN = "hf_ThisIsATokenThatNobodyMaySee"
TABLE = (
    "name\tbase_config\tmodel\tmix\tnum_nodes\tregister\tprivate\n"
    "sent\tsmoke\tsmollm2-135m\tdemo\t1\ttrue\ttrue\n"
)
DOWNLOAD = """
import sys
from huggingface_hub import ModelCard, snapshot_download
folder = snapshot_download("laion/sent", local_dir=sys.argv[1])
print(ModelCard.load(f"{folder}/README.md").data.library_name)
"""


@dataclass(frozen=True)
class Published(Project):
    """A project with one experiment, the stub for a trainer, and a hub to publish on."""

    hub: Hub

    def environment(self) -> dict[str, str]:
        return super().environment() | {
            **{"HF_ENDPOINT": self.hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN},
            **{"HF_HOME": str(self.root / "hf"), "HF_HUB_OFFLINE": "0"},
        }

    @property
    def run(self) -> Path:
        return self.root / "results" / "runs" / "sent"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    """A run whose first upload was killed, with its snakemake, in the middle of the weights."""
    root = tmp_path_factory.mktemp("published")
    with Hub(tmp_path_factory.mktemp("hub")) as hub:
        project = Published(copy_checkout(root).root, hub)
        install_stub(project)
        project.replace("config/config.yaml", "upload_to: folder", "upload_to: hub")
        (root / "config" / "experiments.tsv").write_text(TABLE)
        hub.stall_at = 1
        with open(root / "first.log", "w") as log:
            first = subprocess.Popen(
                project.command("--cores", "1"),
                cwd=root,
                env=project.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(lambda: hub.received or first.poll() is not None)
            assert first.poll() is None, (root / "first.log").read_text()
        finally:
            kill_tree(psutil.Process(first.pid))
            first.wait()
            hub.stall_at = None
        ran = project.snakemake("--cores", "1")
        assert ran.code == 0, ran.text
        yield project


def test_repository_is_private_as_its_row_says(published):
    assert published.hub.repository("model", "laion/sent")["private"]


def test_release_is_one_commit(published):
    assert published.hub.titles("laion/sent") == ["Release of sent", "initial commit"]


def test_snapshot_is_the_release_and_its_card_is_read(published, tmp_path):
    command = [sys.executable, "-c", DOWNLOAD, str(tmp_path)]
    ran = subprocess.run(command, env=published.environment(), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert manifest(tmp_path) == manifest(published.run / "release")
    assert ran.stdout.strip() == "transformers"


def test_receipt_names_the_commit(published):
    made = read_receipt(published.run / "uploaded.json")
    assert made["location"] == f"{published.hub.url}/laion/sent"
    branches = published.hub.repository("model", "laion/sent")["branches"]
    assert made["commit"] == branches["main"]
    assert made["files"] == len(manifest(published.run / "release"))


def test_registry_has_the_model_where_it_was_sent(published):
    with closing(sqlite3.connect(published.root / "results" / "registry.db")) as registry:
        question = "SELECT weights_location FROM models WHERE name = 'laion/sent'"
        [(location,)] = registry.execute(question)
    assert location.endswith("/laion/sent")


def test_upload_that_is_run_again_sends_nothing(published):
    published.hub.requests.clear()
    ran = published.snakemake("--cores", "1", "-R", "upload", "--until", "upload")
    assert ran.code == 0, ran.text
    asked = published.hub.requests
    assert asked
    assert not [each for each in asked if "/commit/" in each or each.startswith("PUT")]


def test_plan_tells_the_repository(published):
    ran = published.run_cli("plan", "sent")
    assert "hub: laion/sent, private" in ran.text


def test_token_stands_in_no_file(published):
    for folder, _, names in os.walk(published.root):
        for name in names:
            content = Path(folder, name).read_bytes()
            assert TOKEN.encode() not in content, Path(folder, name)


def test_row_that_turns_public_is_refused_and_the_repository_stays_private(published):
    table = TABLE.replace("\ttrue\ttrue\n", "\ttrue\tfalse\n")
    (published.root / "config" / "experiments.tsv").write_text(table)
    ran = published.snakemake("--cores", "1", "--until", "upload")
    assert ran.code != 0
    assert f"laion/sent: it is private on {published.hub.url}, and to be public" in ran.text
    assert published.hub.repository("model", "laion/sent")["private"]
    assert read_json(published.run / "release.json")["made"]["files"]


def test_run_without_a_token_is_refused_before_any_job(project):
    project.replace("config/config.yaml", "upload_to: folder", "upload_to: hub")
    nobody = os.environ | {"HF_TOKEN": "", "HF_HOME": str(project.root / "hf")}
    command = [*project.command("--cores", "1"), "--until", "fetch_model"]
    ran = subprocess.run(command, cwd=project.root, env=nobody, capture_output=True, text=True)
    assert ran.returncode != 0
    assert "the hub's token: none, and `upload_to: hub` sends releases to the hub" in ran.stderr
    assert not (project.root / "results" / "models").exists()
