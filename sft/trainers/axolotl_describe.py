"""Describe axolotl, for a workflow that never imports it: the keys of its schema, and what its chat
templates put between the words of a conversation.

    python -m sft.trainers.axolotl_describe > sft/backends/axolotl.json

Run it in the axolotl environment after changing its version.
"""

import os
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sft.trainers.axolotl import SETTINGS
from sft.trainers.describe import BARRED, JINJA_COMMENT, TAG, describe_key, print_description

# A template may ask for tools, reasoning or images; what ends an answer shows without them.
QUESTION, ANSWER = "(question)", "(answer)"
BOS, EOS = "(bos)", "(eos)"
# Integrations whose keys a config may hold; each is a plugin that has to be named too.
INTEGRATIONS = {
    "axolotl.integrations.liger.LigerPlugin": "axolotl.integrations.liger.args.LigerArgs",
    "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin": (
        "axolotl.integrations.cut_cross_entropy.args.CutCrossEntropyArgs"
    ),
}


def describe() -> dict[str, Any]:
    """{"version": …, "transformers": …, "keys": {name: …}, "plugins": {…}, "templates": {name: …}}.

    Keys and templates are described as in `sft.trainers.llamafactory_describe`; `plugins` maps an
    integration to the keys that it brings.
    """
    os.environ |= SETTINGS
    from pydoc import locate

    from axolotl.utils import chat_templates
    from axolotl.utils.schemas.config import AxolotlInputConfig

    plugins = {name: locate(arguments) for name, arguments in INTEGRATIONS.items()}
    keys = {}
    for schema in (AxolotlInputConfig, *plugins.values()):
        for name, field in schema.model_fields.items():
            keys[name] = describe_key(field.annotation, {}) | describe_nested(field.annotation)
    folder = Path(chat_templates.__file__).parent / "templates"
    described = {path.stem: describe_template(path) for path in sorted(folder.glob("*.jinja"))}
    return {
        "version": version("axolotl"),
        "transformers": version("transformers"),
        "keys": dict(sorted(keys.items())),
        "plugins": {name: sorted(schema.model_fields) for name, schema in plugins.items()},
        "templates": {name: each for name, each in described.items() if each},
    }


def describe_nested(hint: Any) -> dict[str, Any]:
    """{"keys": […], "type": "dict"} of a key that holds a table, where axolotl drops others unseen.

    Only "keys" where something else than a table can stand there too.
    """
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not NoneType]
    for kind in kinds:
        if hasattr(kind, "model_fields"):  # a schema of pydantic
            described = {"keys": sorted(kind.model_fields)}
            return described | ({"type": "dict"} if len(kinds) == 1 else {})
    return {}


def describe_template(path: Path) -> dict[str, Any] | None:
    """What a jinja template needs of a tokenizer; None where it renders no plain conversation.

    In the words of `sft.trainers.llamafactory_describe.describe_template`: strings, tags, end, eos
    and bos. The end of an answer becomes the tokenizer's end token.
    """
    jinja = JINJA_COMMENT.sub("", path.read_text(encoding="utf-8"))
    try:
        text = render(jinja)
    except (TemplateError, TypeError):
        return None
    if ANSWER not in text:
        return None
    strings = set(BARRED.findall(jinja)) | {tag for tag in TAG.findall(text) if tag.startswith("<")}
    end = find_end(text.partition(ANSWER)[2], strings)
    description = {
        "strings": sorted(strings),
        "tags": sorted(set(TAG.findall(jinja)) - strings),
        "end": end,
        "eos": end if end != "eos_token" else None,
        "bos": text.startswith(BOS),
    }
    return {key: value for key, value in description.items() if value}


def render(jinja: str) -> str:
    """A question and its answer."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda _: "(today)"}
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    return environment.from_string(jinja).render(messages=messages, bos_token=BOS, eos_token=EOS)


def refuse(message: str) -> None:
    raise TemplateError(message)


def find_end(tail: str, strings: set[str]) -> str | None:
    """The control string, or "eos_token", that comes first after an answer."""
    found = [each for each in (*strings, EOS) if each in tail]
    first = min(found, key=tail.index, default=None)
    return "eos_token" if first == EOS else first


if __name__ == "__main__":
    print_description(describe)
