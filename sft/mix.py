"""Datasets, and the mixes in which experiments train on them."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sft.errors import SftError, gathered, nearest, raise_faults
from sft.files import read_yaml
from sft.schema import faults

SOURCES = ("hf_hub_url", "file_name")
OTHER_SOURCES = ("script_url", "cloud_file_name")  # LLaMA-Factory prefers them to a file
MIRRORS = ("ms_hub_url", "om_hub_url")  # where else a dataset of the hub can be had

# What a conversation cannot be read without, and LLaMA-Factory's default of it, which it forgets
# where `columns` (or `tags`) names any other.
NEEDED_COLUMNS = {
    "alpaca": {"prompt": "instruction", "response": "output"},
    "sharegpt": {"messages": "conversations"},
}
NEEDED_TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
}
OPENAI_TAGS = (
    "{role_tag: role, content_tag: content, user_tag: user, assistant_tag: assistant, "
    "observation_tag: tool, system_tag: system}"
)
PREFERENCE_COLUMNS = ("chosen", "rejected", "kto_tag")

SUM_TOLERANCE = 1e-8  # numpy draws by the shares, and is as strict

Registries = Mapping[str, list[tuple[str, Any]]]


@dataclass(frozen=True)
class Dataset:
    """One source of conversations.

    Either `hub` (at `revision`) or `path` (a file or folder) is set. `options` are the remaining
    words of LLaMA-Factory's dataset_info.json (formatting, columns, tags, subset, split, …), as
    written; `registry` is the file that declares it.
    """

    name: str
    registry: str
    hub: str | None = None
    revision: str | None = None
    path: str | None = None
    options: Mapping = field(default_factory=dict)


@dataclass(frozen=True)
class Mix:
    """Datasets in order and how they are weighed; `seed` decides the order of an interleave."""

    name: str
    datasets: tuple[Dataset, ...]
    strategy: str = "concat"
    probabilities: tuple[float, ...] = ()
    seed: int = 42


def read_datasets(paths: Iterable[Path]) -> Registries:
    """What registry files declare under each name: the file, and the entry as it stands there.

    A registry is YAML, or a dataset_info.json as LLaMA-Factory reads it. An entry is judged when
    a mix names it, so that a team's old registry may hold what this workflow cannot train.
    """
    found: dict[str, list[tuple[str, Any]]] = {}
    for path in paths:
        for name, entry in read_yaml(path).items():
            found.setdefault(name, []).append((str(path), entry))
    return found


def build_dataset(name: str, registries: Registries) -> Dataset:
    """The dataset that the registries declare; SftError where it cannot be trained here."""
    (registry, entry), *others = registries[name]
    where = f"{registry}, {name}"
    if others:
        raise SftError(f"{where}: {others[0][0]} declares it too; rename one of them")
    raise_faults(faults({name: entry}, "datasets", registry))
    raise_faults([*_source_faults(entry, where), *_format_faults(entry, where)])
    path = None
    if "file_name" in entry:
        path = os.path.normpath(Path(registry).parent / entry["file_name"])
    apart = {*SOURCES, *MIRRORS, "revision"}
    options = {key: value for key, value in entry.items() if key not in apart}
    return Dataset(name, registry, entry.get("hf_hub_url"), entry.get("revision"), path, options)


def _source_faults(entry: Mapping, where: str) -> list[str]:
    """What is wrong with the place that a dataset comes from."""
    named = [key for key in (*SOURCES, *OTHER_SOURCES) if key in entry]
    if len(named) != 1 or named[0] not in SOURCES:
        found = " and ".join(named or [key for key in MIRRORS if key in entry]) or "neither"
        return [f"{where}: found {found}, expected either hf_hub_url or file_name"]
    if named == ["hf_hub_url"]:
        return []
    return [
        f"{where}, {key}: leave it out; a file has none"
        for key in ("revision", "subset", "folder")
        if key in entry
    ]


def _format_faults(entry: Mapping, where: str) -> list[str]:
    """What would keep LLaMA-Factory from finding conversations in a dataset's rows."""
    if "num_samples" in entry:
        return [
            f"{where}, num_samples: leave it out: nobody could say which rows it drew; write the "
            "rows to a file of their own, or set max_samples"
        ]
    columns = entry.get("columns", {})
    preference = ["ranking"] if entry.get("ranking") else []
    preference += [f"columns, {key}" for key in PREFERENCE_COLUMNS if key in columns]
    if preference:
        return [f"{where}, {preference[0]}: a preference set cannot be used for SFT"]
    if entry.get("formatting") == "openai":
        return [
            f"{where}, formatting: openai writes 'detailed thinking off' into system prompts and "
            f"drops tool results at the end; use formatting: sharegpt with tags: {OPENAI_TAGS}"
        ]
    needed = {
        "columns": NEEDED_COLUMNS[entry.get("formatting", "alpaca")],
        "tags": NEEDED_TAGS,
    }
    return [
        f"{where}, {group}, {key}: missing; {default!r} is its default only where `{group}` is "
        "left out altogether"
        for group, defaults in needed.items()
        for key, default in defaults.items()
        if group in entry and key not in entry[group]
    ]


def read_mixes(path: Path, registries: Registries) -> Mapping[str, Mix]:
    """The mixes of a file by name; SftError with every fault of the file and of their datasets."""
    content = read_yaml(path)
    raise_faults(faults(content, "mixes", str(path)))
    mixes, lines = {}, []
    for name, entry in content.items():
        with gathered(lines):
            mixes[name] = _build_mix(name, entry, registries, where=f"{path}, {name}")
    raise_faults(lines)
    return mixes


def _build_mix(name: str, entry: Mapping, registries: Registries, where: str) -> Mix:
    datasets, lines = [], _weight_faults(entry, where)
    for dataset in entry["datasets"]:
        if dataset not in registries:
            remedy = nearest(dataset, map(str, registries))
            lines.append(f"{where}, datasets: unknown dataset {dataset!r}; {remedy}")
            continue
        with gathered(lines):
            datasets.append(build_dataset(dataset, registries))
    raise_faults(lines)
    return Mix(
        name=name,
        datasets=tuple(datasets),
        strategy=entry.get("strategy", "concat"),
        probabilities=tuple(entry.get("probabilities", ())),
        seed=entry.get("seed", 42),
    )


def _weight_faults(entry: Mapping, where: str) -> list[str]:
    strategy, shares = entry.get("strategy", "concat"), entry.get("probabilities", [])
    if strategy == "concat":
        if shares:
            return [
                f"{where}, probabilities: a concat takes every row once; "
                "leave them out or choose interleave_under or interleave_over"
            ]
        return []
    expected = len(entry["datasets"])
    if expected < 2:
        return [f"{where}, strategy: {strategy} needs at least two datasets"]
    if len(shares) != expected:
        return [f"{where}, probabilities: found {len(shares)}, expected {expected}, one a dataset"]
    if abs(sum(shares) - 1) > SUM_TOLERANCE:
        return [f"{where}, probabilities: they sum to {sum(shares):.9g}, expected 1"]
    return []
