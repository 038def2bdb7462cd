"""Describe what LLaMA-Factory's own train parser accepts, for a workflow that never imports it.

    python -m sft.trainers.llamafactory_describe > sft/backends/llamafactory.json

Run it in the LLaMA-Factory environment after changing its version.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Mapping
from enum import Enum
from importlib.metadata import version
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sft.trainers.text_only import allow_text_only

SIMPLE = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "dict"}


def describe() -> dict[str, Any]:
    """{"version": …, "transformers": …, "keys": {name: description}, "templates": [name, …]}.

    A key's description is {"type": …}, with "choices" where only some values pass and
    "null": true where an empty value passes. The type is "any" where several kinds of value do
    (a path or a mapping, say). Half of the keys are transformers' own: hence its version.
    """
    allow_text_only()
    from llamafactory.data.template import TEMPLATES
    from llamafactory.hparams.parser import _TRAIN_ARGS

    keys = {}
    for arguments in _TRAIN_ARGS:
        hints = get_type_hints(arguments)
        for field in dataclasses.fields(arguments):
            if field.init:
                keys[field.name] = describe_key(hints[field.name], field.metadata)
    return {
        "version": version("llamafactory"),
        "transformers": version("transformers"),
        "keys": dict(sorted(keys.items())),
        "templates": sorted(TEMPLATES),
    }


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


def main() -> None:
    """Print the description as JSON; what the trainer's import prints goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        description = describe()
    print(json.dumps(description, indent=1))


if __name__ == "__main__":
    main()
