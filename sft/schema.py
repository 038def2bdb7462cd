"""Check what people write against the JSON schemas in workflow/schemas, in words they can use."""

from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from sft.errors import nearest
from sft.files import read_yaml

SCHEMAS = Path(__file__).parent.parent / "workflow" / "schemas"


@cache
def _validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(read_yaml(SCHEMAS / f"{name}.schema.yaml"))


def faults(content: Any, schema: str, where: str) -> list[str]:
    """One line for each way in which `content` breaks the schema; empty where it keeps it.

    A line names `where` (file, row), the key, the value found, the value expected and the remedy.
    """
    errors = _validator(schema).iter_errors(content)
    return [line for error in sorted(errors, key=_position) for line in _lines(error, where)]


def _position(error: ValidationError) -> list[str]:
    return [str(part) for part in error.absolute_path]


def _lines(error: ValidationError, where: str) -> list[str]:
    path = ".".join(_position(error))
    place = f"{where}, {path}" if path else where
    if error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        unknown = sorted(set(error.instance) - set(known))
        return [f"{place}: unknown key {key!r}; {nearest(key, known)}" for key in unknown]
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        return [f"{place}: {key!r} is missing; {_describe(error.schema, key)}" for key in missing]
    found = repr(error.instance)
    if error.validator == "enum":
        choices = [str(choice) for choice in error.validator_value]
        return [f"{place}: found {found}; {nearest(str(error.instance), choices)}"]
    expected = error.schema.get("description") or error.message
    return [f"{place}: found {found}, expected {_first_lower(expected)}"]


def _describe(schema: dict, key: str) -> str:
    description = schema.get("properties", {}).get(key, {}).get("description")
    return f"expected {_first_lower(description)}" if description else "give it a value"


def _first_lower(text: str) -> str:
    return text[0].lower() + text[1:] if text[1:2].islower() else text
