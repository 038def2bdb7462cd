"""The workflow's config as Snakemake puts it together, for commands that run without Snakemake."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sft.errors import SftError
from sft.files import read_yaml

CONFIG = Path("config/config.yaml")
PROFILES = Path("profiles")


def read_config(profile: Path, configfiles: Iterable[Path] = ()) -> dict[str, Any]:
    """config/config.yaml, each of `configfiles` over it, and the profile's `config:` on top."""
    config = read_yaml(CONFIG)
    for path in configfiles:
        config = _overlay(config, read_yaml(path))
    file = profile / "config.yaml" if profile.is_dir() else profile
    facts = read_yaml(file).get("config")
    if facts is None:
        raise SftError(f"{file}: no `config:` block, so it is not the profile of a site")
    return _overlay(config, facts)


def _overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, mappings merged key by key."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _overlay(old, value) if both else value
    return merged


def results_folder(config: Mapping[str, Any]) -> Path:
    """Where everything of a site lands."""
    return Path(config["pathvars"]["results"])


def upload_folder(config: Mapping[str, Any]) -> Path:
    """Where releases are copied to, where that is what `upload_to` says."""
    return Path(config["upload_folder"] or results_folder(config) / "hub")


def registry_file(config: Mapping[str, Any]) -> Path:
    """The SQLite file of registered models."""
    return Path(config["registry_file"] or results_folder(config) / "registry.db")


def site_names(profiles: Path = PROFILES) -> list[str]:
    """The sites that have a profile."""
    return sorted(
        path.parent.name for path in profiles.glob("*/config.yaml") if path.parent.name != "default"
    )
