"""The small JSON that a finished stage leaves: what it made, from what, with what, when."""

import importlib.metadata
import platform
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sft.errors import SftError
from sft.files import hash_file, read_json, write_json

WORKFLOW_PACKAGES = ("snakemake", "huggingface_hub", "SQLAlchemy", "pandas")


def now() -> str:
    """The present in UTC, ISO 8601 with seconds."""
    return utc(time.time())


def utc(timestamp_s: float) -> str:
    """A time of the clock, in seconds since 1970, in UTC, ISO 8601 with seconds."""
    return datetime.fromtimestamp(timestamp_s, UTC).isoformat(timespec="seconds")


class Clock:
    """When a stage began, and how long it has taken since."""

    def __init__(self) -> None:
        self.started = now()
        self._start_s = time.monotonic()

    def taken_s(self) -> float:
        """Seconds since the clock was made."""
        return round(time.monotonic() - self._start_s, 1)


def write_receipt(
    path: Path, clock: Clock, made: Mapping[str, Any], inputs: Mapping[str, Path]
) -> None:
    """Write a stage's receipt atomically: the last thing that a stage does.

    `made` is what later stages read. `inputs` are earlier receipts and rendered files; each is
    recorded by its SHA-256.
    """
    write_json(
        path,
        {
            "stage": Path(path).stem,
            "made": dict(made),
            "inputs": {
                name: {"path": str(file), "sha256": hash_file(file)}
                for name, file in inputs.items()
            },
            "versions": versions(),
            "started": clock.started,
            "finished": now(),
            "taken_s": clock.taken_s(),
        },
    )


def read_receipt(path: Path) -> dict[str, Any]:
    """What the stage made; SftError where the file is not a receipt."""
    content = read_json(path)
    if not isinstance(content, dict) or "made" not in content:
        raise SftError(f"{path}: not a receipt; delete it and run again")
    return content["made"]


def read_receipts(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """What each of several stages made."""
    return [read_receipt(path) for path in paths]


def versions() -> dict[str, str]:
    """The versions of Python and of the workflow's own packages."""
    found = {"python": platform.python_version()}
    for name in WORKFLOW_PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
