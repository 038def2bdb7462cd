"""The models that experiments start from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sft.errors import raise_faults
from sft.files import read_yaml
from sft.schema import faults


@dataclass(frozen=True)
class Model:
    """A model that can be fetched: from the hub at a revision, or from a local folder.

    `prepare` names what is done to its tokenizer after the fetch, None for nothing.
    `registry_name` is its name in the registry; `declare` allows a registration to add it there.
    """

    name: str
    hub: str | None = None
    revision: str | None = None
    folder: str | None = None
    prepare: str | None = None
    registry_name: str = ""
    declare: bool = False

    def __post_init__(self) -> None:
        if not self.registry_name:
            object.__setattr__(self, "registry_name", self.hub or self.name)


def read_models(path: Path) -> Mapping[str, Model]:
    """The models of a registry file by name; SftError with every fault of the file."""
    content = read_yaml(path)
    raise_faults(faults(content, "models", str(path)))
    raise_faults(
        line
        for name, entry in content.items()
        for line in _source_faults(entry, where=f"{path}, {name}")
    )
    return {name: Model(name=name, **entry) for name, entry in content.items()}


def _source_faults(entry: Mapping, where: str) -> list[str]:
    if ("hub" in entry) == ("folder" in entry):
        found = "both" if "hub" in entry else "neither"
        return [f"{where}: found {found}, expected either hub or folder"]
    if "folder" in entry and "revision" in entry:
        return [f"{where}, revision: leave it out; a folder has no revision"]
    return []
