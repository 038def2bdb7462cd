"""The chat templates of our own, one jinja file each: what is trained is what is served."""

from pathlib import Path

TEMPLATE_FOLDER = Path(__file__).parent
CUSTOM_TEMPLATES = tuple(sorted(path.stem for path in TEMPLATE_FOLDER.glob("*.jinja")))
