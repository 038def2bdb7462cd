"""A saved tokenizer that serves the trained template, whichever loader reads it.

transformers 5 writes the chat template to chat_template.jinja alone. Servers that read only
tokenizer_config.json then chat without it, and where both are, the jinja file wins.

    python -m sft.trainers.served_tokenizer FOLDER      embeds it in a run that ended without
"""

import json
import os
import sys
from pathlib import Path

CONFIG, JINJA = "tokenizer_config.json", "chat_template.jinja"


def embed_template(folder: Path, template: str | None) -> None:
    """Write the template into a saved tokenizer's config, and over its jinja file where one is.

    `extra_special_tokens` becomes a mapping: transformers 4 dies of the list that 5 writes. Nothing
    is written where nothing changes, and nothing where there is no tokenizer or no template.
    """
    path = folder / CONFIG
    if template is None or not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    config = json.loads(text) | {"chat_template": template}
    if isinstance(config.get("extra_special_tokens"), list):
        named = [*(config.get("additional_special_tokens") or []), *config["extra_special_tokens"]]
        config["additional_special_tokens"] = list(dict.fromkeys(named))
        config["extra_special_tokens"] = {}
    _replace(path, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    if (folder / JINJA).exists():
        _replace(folder / JINJA, template)


def embed_templates(output: Path) -> None:
    """Embed in a tokenizer's folder, a run's root with its checkpoints, what each itself serves.

    Also for a run that ended before its root was embedded, and for one that was trained without us.
    """
    for folder in (output, *output.glob("checkpoint-*")):
        if (folder / JINJA).exists():
            embed_template(folder, (folder / JINJA).read_bytes().decode("utf-8"))
        elif (folder / CONFIG).exists():
            saved = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            embed_template(folder, saved.get("chat_template"))


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all, where it would change."""
    data = text.encode("utf-8")
    if path.exists() and path.read_bytes() == data:
        return
    partial = path.with_name(f".{path.name}")
    partial.write_bytes(data)
    os.replace(partial, path)


if __name__ == "__main__":
    embed_templates(Path(sys.argv[1]))
