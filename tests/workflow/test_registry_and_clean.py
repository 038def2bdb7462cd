"""From the table to a row of a real Postgres, and what stays of a run that was cleaned up."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sft.files import list_files
from sft.registry import list_models
from tests.postgres import PASSWORD, running_postgres
from tests.workflow.conftest import Ran
from tests.workflow.test_kill import TABLE, Stub, make_stub

NAME = "killed"  # of the experiment in the stub's table
AWAY = f"postgresql://sft:{PASSWORD}@127.0.0.1:1/registry"
CONFIG = "sft/lf_configs/smoke.yaml"


@dataclass(frozen=True)
class Registered(Stub):
    """A project with one experiment, and the registry that its environment names."""

    url: str

    def environment(self) -> dict[str, str]:
        return super().environment() | {"SFT_REGISTRY_URL": self.url}

    @property
    def run(self) -> Path:
        return self.results / "runs" / NAME

    def names(self) -> list[str]:
        return [each["name"] for each in list_models(self.url)]


@dataclass(frozen=True)
class Through:
    """A project that is through, and what snakemake said while the registry was away."""

    project: Registered
    away: Ran
    after_kill: list[str]


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Through]:
    """A registry that is away at first; then the registration is killed in its transaction."""
    root = make_stub(tmp_path_factory.mktemp("registered")).root
    with running_postgres() as server, server.database() as url:
        away = Registered(root, AWAY).snakemake("--cores", "1")
        project = Registered(root, url)
        with project.paused("sft.registry:_write_rows"):
            pass
        after_kill = project.names()
        ran = project.snakemake("--cores", "1")
        assert ran.code == 0, ran.text
        yield Through(project, away, after_kill)


def test_registry_that_is_away_is_named_without_its_password(through):
    assert through.away.code != 0
    assert "postgresql+psycopg://sft:***@127.0.0.1:1/registry" in through.away.text
    assert "remove the cause and run it again" in through.away.text
    assert PASSWORD not in through.away.text


def test_registration_that_is_killed_leaves_no_row(through):
    assert through.after_kill == []


def test_rerun_leaves_one_row_of_each(through):
    assert through.project.names() == ["HuggingFaceTB/SmolLM2-135M-Instruct", "laion/killed"]


def test_registered_model_is_listed(through):
    ran = through.project.run_cli("registry", "list", "laion/*")
    assert ran.code == 0, ran.text
    line = next(each for each in ran.text.splitlines() if each.startswith("laion/killed"))
    assert line.split()[1:3] == ["HuggingFaceTB/SmolLM2-135M-Instruct", "demo_tools"]
    assert "registry  the database of $SFT_REGISTRY_URL" in ran.text
    assert PASSWORD not in ran.text


def test_password_is_in_no_file(through):
    root = through.project.root
    files = [path for path in root.rglob("*") if path.is_file()]
    assert any(".snakemake" in path.parts for path in files)
    assert [path for path in files if PASSWORD.encode() in path.read_bytes()] == []


# --- cleaned up ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cleaned:
    """A project whose run was cleaned up, and what was said before and then."""

    project: Registered
    listed: Ran
    deleted: Ran


@pytest.fixture(scope="module")
def cleaned(through: Through) -> Cleaned:
    """To be asked for after all tests of what was registered: most of the run is gone then."""
    project = through.project
    listed = project.run_cli("clean", NAME)
    deleted = project.run_cli("clean", NAME, "--yes")
    assert (listed.code, deleted.code) == (0, 0), listed.text + deleted.text
    return Cleaned(project, listed, deleted)


def test_weights_are_listed_and_then_deleted(cleaned):
    assert "nothing was deleted; with --yes it is" in cleaned.listed.text
    assert "deleted; receipts, logs and losses stay" in cleaned.deleted.text
    assert not [each for each in list_files(cleaned.project.run) if each.endswith(".safetensors")]


def test_nothing_is_left_to_do(cleaned):
    ran = cleaned.project.snakemake("--cores", "1")
    assert ran.code == 0, ran.text
    assert "Nothing to be done" in ran.text
    assert f"published and cleaned up, and left so: {NAME}" in ran.text


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (CONFIG, "save_steps: 6", "save_steps: 3"),
        ("profiles/localhost/config.yaml", "otagent: source", "otagent: true && source"),
    ],
)
def test_edit_that_changes_no_weights_does_nothing(cleaned, path, old, new):
    cleaned.project.replace(path, old, new)
    try:
        assert "Nothing to be done" in cleaned.project.snakemake("--dry-run").text
    finally:
        cleaned.project.replace(path, new, old)


def test_edit_that_changes_weights_trains(cleaned):
    table = cleaned.project.root / "config" / "experiments.tsv"
    header, row = TABLE.splitlines()
    table.write_text(f"{header}\tlearning_rate\n{row}\t5e-4\n")
    try:
        assert {"render", "train", "upload"} <= cleaned.project.snakemake("--dry-run").rules()
    finally:
        table.write_text(TABLE)


def test_new_row_beside_it_is_all_that_runs(cleaned):
    cleaned.project.append("config/experiments.tsv", "next\tsmoke\tsmollm2-135m\tdemo\t1\tfalse\n")
    try:
        ran = cleaned.project.snakemake("--dry-run")
        assert (ran.count("train"), ran.count("upload")) == (1, 1)
        assert f"wildcards: experiment={NAME}" not in ran.text
    finally:
        (cleaned.project.root / "config" / "experiments.tsv").write_text(TABLE)


def test_report_has_its_losses(cleaned):
    ran = cleaned.project.snakemake("--report", "report.html")
    assert ran.code == 0, ran.text
    assert "loss.png" in (cleaned.project.root / "report.html").read_text()


def test_results_and_status_know_it_as_published(cleaned):
    assert "registered" in cleaned.project.run_cli("results").text
    assert "registered" in cleaned.project.run_cli("status").text


def test_cleaned_run_cannot_be_published_under_another_name(cleaned):
    cleaned.project.replace("config/config.yaml", "namespace: laion", "namespace: mine")
    ran = cleaned.project.snakemake("--cores", "1")
    cleaned.project.replace("config/config.yaml", "namespace: mine", "namespace: laion")
    assert ran.code != 0
    assert "put its row back as it was" in ran.text.replace("\n", " ")
    assert "Nothing to be done" in cleaned.project.snakemake("--cores", "1").text


def test_run_that_is_asked_for_by_force_is_refused_and_not_trained(cleaned):
    starts = cleaned.project.starts()
    ran = cleaned.project.snakemake(
        *("--cores", "1", f"results/runs/{NAME}/uploaded.json", "--forcerun", "train")
    )
    assert ran.code != 0
    assert "published at" in ran.text and "move this folder away" in ran.text
    assert cleaned.project.starts() == starts
    after = cleaned.project.snakemake("--cores", "1")
    assert "Nothing to be done" in after.text
