"""A site that asks for code that others can read: what starts there, and what a release tells."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sft.files import read_json
from tests.workflow.conftest import CHECKOUT, Project, copy_checkout, install_stub

TABLE = "name\tbase_config\tmodel\tmix\tnum_nodes\nclean\tsmoke\tsmollm2-135m\tdemo\t1\n"


def git(project: Project, *command: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    ran = subprocess.run(
        ["git", *who, "-C", str(project.root), *command], check=True, capture_output=True, text=True
    )
    return ran.stdout.strip()


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project that is a checkout with all of it pushed, on a site that asks for that."""
    project = copy_checkout(tmp_path_factory.mktemp("clean"))
    install_stub(project)
    shutil.copy(CHECKOUT / ".gitignore", project.root)
    with open(project.root / ".venv-llamafactory" / "bin" / "activate", "a") as activate:
        activate.write('[ ! -e results/change ] || echo "# meanwhile" >> config/mixes.yaml\n')
    project.replace("config/config.yaml", "require_clean_git: false", "require_clean_git: true")
    (project.root / "config" / "experiments.tsv").write_text(TABLE)
    remote = tmp_path_factory.mktemp("remote")
    subprocess.run(["git", "init", "--bare", str(remote)], check=True)
    git(project, "init")
    git(project, "add", ".")
    git(project, "commit", "-m", "all of it")
    git(project, "remote", "add", "origin", str(remote))
    git(project, "push", "origin", "HEAD")
    return project


@pytest.fixture(scope="module")
def released(clean: Project) -> Path:
    """The release of its one experiment."""
    ran = clean.snakemake("--cores", "2", "results/runs/clean/release.json")
    assert ran.code == 0, ran.text
    return clean.root / "results" / "runs" / "clean" / "release"


@pytest.fixture
def changed(clean: Project):
    """The project with a change that is not committed."""
    clean.append("config/mixes.yaml", "# a change\n")
    yield clean
    git(clean, "checkout", "config/mixes.yaml")


def test_release_of_clean_code_says_what_trained_and_what_released_it(clean, released):
    made = read_json(released / "provenance.json")
    state = {"commit": git(clean, "rev-parse", "HEAD"), "dirty": False, "pushed": True}

    assert made["git"] == state
    assert [each["code"] for each in made["attempts"]] == [state]


def test_record_of_a_release_names_each_job_and_no_place_of_this_computer(clean, released):
    made = read_json(released / "provenance.json")

    assert made["job_ids"] == []  # no Slurm here
    assert [each["ending"] for each in made["attempts"]] == ["completed"]
    assert str(clean.root) not in (released / "provenance.json").read_text()
    assert made["served"]["conversations"] > 0
    assert made["training"]["throughput"]["step_s"] == 0.5


def test_release_that_is_made_anew_is_the_same_byte_for_byte(clean, released):
    before = read_json(released.parent / "release.json")["made"]

    ran = clean.snakemake("--cores", "1", "-R", "assemble_release", "--until", "assemble_release")

    assert ran.code == 0, ran.text
    assert read_json(released.parent / "release.json")["made"] == before
    assert "weights: 1 taken from the release of before" in ran.text


def test_dry_run_of_changed_code_warns(changed):
    ran = changed.snakemake("--dry-run")

    assert ran.code == 0, ran.text
    assert "require_clean_git: " in ran.text
    assert "with changes; commit them" in ran.text


def test_run_of_changed_code_is_refused_before_it_begins(changed, released):
    ran = changed.snakemake("--cores", "1", "-R", "assemble_release")

    assert ran.code != 0
    assert "with changes; commit them" in ran.text
    assert (released.parent / "release.json").exists()


def test_release_of_code_that_changes_after_the_start_is_refused(clean, released):
    change = clean.root / "results" / "change"
    change.touch()

    ran = clean.snakemake("--cores", "1", "results/runs/clean/release.json", "-R", "render")

    change.unlink()
    git(clean, "checkout", "config/mixes.yaml")
    assert ran.code != 0
    assert "clean, require_clean_git, the release: " in ran.text
    assert "attempt 1" not in ran.text


def test_run_of_code_that_is_not_pushed_is_refused(clean, released):
    git(clean, "commit", "--allow-empty", "-m", "here alone")

    ran = clean.snakemake("--cores", "1", "-R", "assemble_release")

    git(clean, "reset", "--hard", "HEAD~1")
    assert ran.code != 0
    assert "is in no branch of a remote; git push" in ran.text
