"""The models that experiments start from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sft.errors import SftError
from sft.files import read_yaml
from sft.schema import faults


@dataclass(frozen=True)
class Model:
    """A model that can be fetched: from the hub at a revision, or from a local folder.

    `registry_name` is its name in the registry; `declare` allows a registration to add it there.
    """

    name: str
    hub: str | None = None
    revision: str | None = None
    folder: str | None = None
    registry_name: str = ""
    declare: bool = False

    def __post_init__(self) -> None:
        if not self.registry_name:
            object.__setattr__(self, "registry_name", self.hub or self.name)
        if self.folder and self.revision:
            raise SftError(f"model {self.name}: a folder has no revision; leave `revision` out")


def read_models(path: Path) -> Mapping[str, Model]:
    """The models of a registry file by name; SftError with every fault of the file."""
    content = read_yaml(path)
    if lines := faults(content, "models", str(path)):
        raise SftError("\n".join(lines))
    return {name: Model(name=name, **entry) for name, entry in content.items()}
