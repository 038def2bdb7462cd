"""Which commit a checkout is at, and whether others can read that very code."""

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

UNKNOWN = {"commit": None, "dirty": None, "pushed": None}


def git_state(folder: Path) -> dict[str, Any]:
    """`{"commit", "dirty", "pushed"}` of the work tree around `folder`; all None outside of git.

    It is dirty with changes or new files, and pushed where a branch of a remote, as it was when
    git last spoke to that, contains the commit.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return dict(UNKNOWN)
    dirty = bool(_git(folder, "status", "--porcelain"))
    return {"commit": commit, "dirty": dirty, "pushed": is_pushed(folder, commit)}


def is_pushed(folder: Path, commit: str) -> bool:
    """Whether a branch of a remote contains a commit, as far as the work tree knows."""
    return bool(_git(folder, "for-each-ref", "--count=1", "--contains", commit, "refs/remotes"))


def tree_faults(state: Mapping[str, Any], where: str) -> Iterator[str]:
    """A line for each reason why nobody else could read the code that `where` runs."""
    if not state["commit"]:
        yield f"{where}: no commit is known; expected a git checkout, with git in PATH"
        return
    commit = state["commit"][:12]
    if state["dirty"]:
        yield f"{where}: {commit} with changes; commit them, or remove what git status lists"
    if not state["pushed"]:
        yield f"{where}: {commit} is in no branch of a remote; git push"


def _git(folder: Path, *command: str) -> str | None:
    """What git says; None where it fails or is not installed. It never writes its index."""
    try:
        ran = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(folder), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None
