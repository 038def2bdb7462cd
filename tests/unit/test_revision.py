"""Which commit a checkout is at, and whether others can read it."""

import subprocess
from pathlib import Path

import pytest

from sft.revision import UNKNOWN, git_state, tree_faults


def git(folder: Path, *command: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, "-C", str(folder), *command], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone with one commit that it pushed."""
    folder = tmp_path / "checkout"
    subprocess.run(["git", "init", "--bare", str(tmp_path / "remote")], check=True)
    subprocess.run(["git", "clone", str(tmp_path / "remote"), str(folder)], check=True)
    (folder / "file").write_text("1")
    git(folder, "add", "file")
    git(folder, "commit", "-m", "first")
    git(folder, "push", "origin", "HEAD")
    return folder


def test_pushed_tree_without_changes_has_no_fault(checkout):
    state = git_state(checkout)

    assert len(state["commit"]) == 40
    assert (state["dirty"], state["pushed"]) == (False, True)
    assert not list(tree_faults(state, "here"))


@pytest.mark.parametrize("name", ["file", "new"])
def test_tree_with_a_changed_or_a_new_file_is_dirty(checkout, name):
    (checkout / name).write_text("2")

    (fault,) = tree_faults(git_state(checkout), "here")
    assert fault.endswith("with changes; commit them, or remove what git status lists")


def test_commit_that_was_not_pushed_is_a_fault_until_it_is(checkout):
    (checkout / "file").write_text("2")
    git(checkout, "commit", "-am", "second")
    commit = git_state(checkout)["commit"][:12]

    assert list(tree_faults(git_state(checkout), "here")) == [
        f"here: {commit} is in no branch of a remote; git push"
    ]
    git(checkout, "push", "origin", "HEAD")
    assert git_state(checkout)["pushed"] is True


def test_older_commit_of_a_pushed_branch_is_pushed(checkout):
    (checkout / "file").write_text("2")
    git(checkout, "commit", "-am", "second")
    git(checkout, "push", "origin", "HEAD")
    git(checkout, "checkout", "HEAD~1")

    assert git_state(checkout)["pushed"] is True


def test_outside_of_git_nothing_is_known(tmp_path):
    assert git_state(tmp_path) == UNKNOWN
    assert list(tree_faults(git_state(tmp_path), "here")) == [
        "here: no commit is known; expected a git checkout, with git in PATH"
    ]


def test_looking_at_a_tree_leaves_its_index_alone(checkout):
    (checkout / "file").touch()  # git would note its new time
    before = (checkout / ".git" / "index").read_bytes()

    git_state(checkout)

    assert (checkout / ".git" / "index").read_bytes() == before
