"""The chat templates of our own, one jinja file each: what is trained is what is served."""

from pathlib import Path

_FOLDERS = (Path(__file__).parent, Path(__file__).parents[1] / "delphi")
_PATHS = {path.stem: path for folder in _FOLDERS for path in folder.glob("*.jinja")}

CUSTOM_TEMPLATES = tuple(sorted(_PATHS))


def template_path(name: str) -> Path:
    """The jinja file of one of CUSTOM_TEMPLATES."""
    return _PATHS[name]
