"""The registry as a person reads it: one line a model."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from tabulate import tabulate


def models_text(models: Iterable[Mapping[str, Any]], patterns: Sequence[str] = ()) -> str:
    """A table of the models whose names fit a pattern, of all without any; times are in UTC.

    `models` come from `registry.list_models`. Of a model that was trained elsewhere no time is
    shown: its row has that of another, because it may not have none.
    """
    lines = [
        _line(each)
        for each in models
        if not patterns or any(fnmatchcase(each["name"], pattern) for pattern in patterns)
    ]
    if not lines:
        return "no model of that name" if patterns else "no model is registered"
    return tabulate(lines, headers="keys")


def _line(model: Mapping[str, Any]) -> dict[str, str]:
    elsewhere = model["is_external"]
    return {
        "model": model["name"],
        "base": model["base_model"] or "",
        "datasets": "\n".join(model["datasets"]),
        "creator": model["created_by"],
        "weights": model["weights_location"],
        "trained from": "elsewhere" if elsewhere else _minute(model["training_start"]),
        "to": "" if elsewhere else _minute(model.get("training_end")),
    }


def _minute(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d %H:%M}" if time else ""
