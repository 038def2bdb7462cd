"""Check what people write against the JSON schemas in workflow/schemas, in words they can use."""

import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from sft.errors import nearest
from sft.files import read_yaml

SCHEMAS = Path(__file__).parent.parent / "workflow" / "schemas"


def _match_whole(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    """As JSON schema's `pattern`; but Python's $ also matches before a newline at the end."""
    if isinstance(value, str) and not re.fullmatch(pattern, value):
        yield ValidationError(f"text that matches {pattern}")


# JSON schema takes 4.0 for an integer, and .nan and .inf of YAML for numbers.
_STRICT_TYPES = Draft202012Validator.TYPE_CHECKER.redefine_many(
    {
        "integer": lambda _, value: type(value) is int,
        "number": lambda _, value: type(value) in (int, float) and math.isfinite(value),
    }
)
_Validator = extend(Draft202012Validator, {"pattern": _match_whole}, type_checker=_STRICT_TYPES)


@cache
def _validator(name: str) -> Draft202012Validator:
    return _Validator(read_yaml(SCHEMAS / f"{name}.schema.yaml"))


def faults(content: Any, schema: str, where: str) -> list[str]:
    """One line for each way in which `content` breaks the schema; empty where it keeps it.

    A line names `where` (file, row), the key, the value found, the value expected and the remedy.
    """
    errors = sorted(_validator(schema).iter_errors(content), key=_position)
    return list(dict.fromkeys(line for error in errors for line in _lines(error, where)))


def show(value: Any) -> str:
    """A value as a message shows it: long ones are cut, long text is counted."""
    text = repr(value)
    if len(text) <= 80:
        return text
    count = f" ({len(value)} characters)" if isinstance(value, str) else ""
    return f"{text[:160]}{'…' if len(text) > 160 else ''}{count}"


def _position(error: ValidationError) -> list[str]:
    return [str(part) for part in error.absolute_path]


def _lines(error: ValidationError, where: str) -> list[str]:
    place = ", ".join([where, *_position(error)])
    if error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        unknown = [key for key in error.instance if key not in known]
        return [f"{place}, {key}: unknown key; {nearest(key, known)}" for key in unknown]
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        return [f"{place}, {key}: missing; {_describe(error.schema, key)}" for key in missing]
    if error.validator == "enum":
        choices = [str(choice) for choice in error.validator_value]
        remedy = nearest(error.instance, choices)
        return [f"{place}: found {show(error.instance)}; {remedy}"]
    expected = error.schema.get("description", error.message)
    return [f"{place}: found {show(error.instance)}, expected {_first_lower(expected)}"]


def _describe(schema: dict, key: str) -> str:
    return f"expected {_first_lower(schema['properties'][key]['description'])}"


def _first_lower(text: str) -> str:
    return text[0].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
