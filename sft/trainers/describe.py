"""What the describing of all trainers shares: keys by their types, control strings, the JSON file.

A description serves a workflow that never imports the trainer.
"""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

# Written with bars, a string is meant as one token: <|im_start|>, <|turn>, <｜User｜>, [|user|].
BARRED = re.compile(r"<[|｜][^<>\s]*>|<[^<>\s]*[|｜]>|\[\|[^\[\]\s]*\|\]")
# Without, it can be one, or an ordinary tag: <start_of_turn>, <think>, [INST]; not <<SYS>>.
TAG = re.compile(r"(?<!<)</?[A-Za-z_][\w:.-]*>(?!>)|\[/?[A-Za-z_]+\]")
JINJA_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)

SIMPLE = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "dict"}


def describe_key(hint: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """{"type": …, "choices": […], "null": true} of one annotated key; the last two only if so."""
    is_union = get_origin(hint) in (Union, UnionType)
    kinds = [kind for kind in (get_args(hint) if is_union else (hint,)) if kind is not NoneType]
    # `SomeEnum | str` is how transformers spells "one of these names".
    if str in kinds and any(is_enum(kind) for kind in kinds):
        kinds.remove(str)
    description = describe_kind(kinds[0]) if len(kinds) == 1 else {"type": "any"}
    if "choices" in metadata:
        description["choices"] = sorted(metadata["choices"])
    if is_union and NoneType in get_args(hint):
        description["null"] = True
    return description


def describe_kind(kind: Any) -> dict[str, Any]:
    """{"type": …} of one alternative, with the "choices" of a Literal or an Enum."""
    if is_enum(kind):
        choices = [member.value for member in kind]
    elif get_origin(kind) is Literal:
        choices = list(get_args(kind))
    else:
        return {"type": SIMPLE.get(get_origin(kind) or kind, "any")}
    return {"type": SIMPLE[type(choices[0])], "choices": sorted(choices)}


def is_enum(kind: Any) -> bool:
    """Whether it is an Enum class (`issubclass` refuses what is no class)."""
    return isinstance(kind, type) and issubclass(kind, Enum)


def print_description(describe: Callable[[], Mapping[str, Any]]) -> None:
    """Print a description as JSON; what the trainer's import prints goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        description = describe()
    print(to_text(description))


def to_text(description: Mapping[str, Any]) -> str:
    """The description as JSON with a line for each key and each template."""
    members = [
        f'"{name}": {to_lines(value) if isinstance(value, dict) else to_json(value)}'
        for name, value in description.items()
    ]
    return "{\n" + ",\n".join(members) + "\n}"


def to_lines(entries: Mapping[str, Any]) -> str:
    """A JSON object with a line for each entry."""
    lines = [f"  {to_json(key)}: {to_json(value)}" for key, value in entries.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def to_json(value: Any) -> str:
    """JSON in one line, letters of other scripts as they are."""
    return json.dumps(value, ensure_ascii=False)
