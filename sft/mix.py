"""Datasets, and the mixes in which experiments train on them."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sft.errors import SftError, nearest
from sft.files import read_yaml
from sft.schema import faults

UNSUPPORTED_SOURCES = ("ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
SOURCE_KEYS = ("hf_hub_url", "revision", "file_name", *UNSUPPORTED_SOURCES)


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


def read_datasets(paths: Iterable[Path]) -> Mapping[str, Mapping]:
    """The entries of all registry files by name, each with its file under `registry`.

    A registry is YAML, or a dataset_info.json as LLaMA-Factory reads it. An entry is checked when
    a mix names it, so that a team's old registry may hold what this workflow cannot train.
    Raises SftError with every fault, or where two files declare the same name.
    """
    found: dict[str, Mapping] = {}
    lines: list[str] = []
    for path in paths:
        content = read_yaml(path)
        lines += faults(content, "datasets", str(path))
        for name, entry in content.items():
            if name in found:
                first = found[name]["registry"]
                lines.append(f"{path}, {name}: {first} declares it too; rename one of them")
            else:
                found[name] = {"registry": str(path), "entry": entry}
    if lines:
        raise SftError("\n".join(lines))
    return found


def build_dataset(name: str, registry: str, entry: Mapping) -> Dataset:
    """The dataset that a registry's entry describes; SftError where it cannot be trained here."""
    where = f"{registry}, {name}"
    if entry.get("ranking"):
        raise SftError(f"{where}, ranking: a preference set cannot be used for SFT")
    hub, file_name = entry.get("hf_hub_url"), entry.get("file_name")
    if not hub and not file_name:
        other = [key for key in UNSUPPORTED_SOURCES if key in entry]
        found = f"only {', '.join(other)}" if other else "neither"
        raise SftError(f"{where}: expected hf_hub_url or file_name, found {found}")
    path = None if hub else os.path.normpath(Path(registry).parent / file_name)
    if path and "revision" in entry:
        raise SftError(f"{where}, revision: a file has no revision; leave it out")
    options = {key: value for key, value in entry.items() if key not in SOURCE_KEYS}
    return Dataset(name, registry, hub, entry.get("revision"), path, options)


def read_mixes(path: Path, datasets: Mapping[str, Mapping]) -> Mapping[str, Mix]:
    """The mixes of a file by name; SftError with every fault of the file."""
    content = read_yaml(path)
    if lines := faults(content, "mixes", str(path)):
        raise SftError("\n".join(lines))
    mixes = {}
    for name, entry in content.items():
        try:
            mixes[name] = _build_mix(name, entry, datasets, where=f"{path}, {name}")
        except SftError as error:
            lines.append(str(error))
    if lines:
        raise SftError("\n".join(lines))
    return mixes


def _build_mix(name: str, entry: Mapping, datasets: Mapping[str, Mapping], where: str) -> Mix:
    for dataset in entry["datasets"]:
        if dataset not in datasets:
            raise SftError(f"{where}: unknown dataset {dataset!r}; {nearest(dataset, datasets)}")
    mix = Mix(
        name=name,
        datasets=tuple(build_dataset(each, **datasets[each]) for each in entry["datasets"]),
        strategy=entry.get("strategy", "concat"),
        probabilities=tuple(entry.get("probabilities", ())),
        seed=entry.get("seed", 42),
    )
    _check_weights(mix, where)
    return mix


def _check_weights(mix: Mix, where: str) -> None:
    if mix.strategy == "concat":
        if mix.probabilities:
            raise SftError(
                f"{where}, probabilities: a concat takes every row once; "
                "leave them out or choose interleave_under or interleave_over"
            )
        return
    if len(mix.datasets) < 2:
        raise SftError(f"{where}, strategy: {mix.strategy} needs at least two datasets")
    found, expected = len(mix.probabilities), len(mix.datasets)
    if found != expected:
        raise SftError(f"{where}, probabilities: found {found}, expected {expected}, one a dataset")
    total = sum(mix.probabilities)
    if abs(total - 1) > 1e-6:
        raise SftError(f"{where}, probabilities: they sum to {total:g}, expected 1")
