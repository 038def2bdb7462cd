"""The chat templates of our own, one jinja file each: what is trained is what is served."""

from pathlib import Path

CUSTOM_TEMPLATES = tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.jinja")))
