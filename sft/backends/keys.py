"""Check keys and values of a base config against what a backend's parser accepts."""

import math
from collections.abc import Mapping
from typing import Any

from sft.errors import SftError, nearest
from sft.files import parse_value

TYPES = {
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("a whole number", lambda value: type(value) is int),
    "float": ("a finite number", lambda value: _is_number(value)),
    "str": ("text", lambda value: isinstance(value, str)),
    "list": ("a list or text with commas", lambda value: isinstance(value, list | str)),
    "dict": ("`key: value` pairs or text", lambda value: isinstance(value, dict | str)),
    "any": ("a value", lambda value: value is not None),
}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def parse_cell(key: str, cell: str, keys: Mapping[str, Mapping]) -> Any:
    """The value that a cell of the table spells for `key`; text stays text where text is meant."""
    if keys.get(key, {}).get("type") == "str":
        return cell
    return parse_value(cell)


def value_faults(
    config: Mapping[str, Any], keys: Mapping[str, Mapping], limits: Mapping[str, tuple], where: str
) -> list[str]:
    """One line for each unknown key, wrong type, unknown choice or impossible value.

    `keys` maps a key to `{"type", "choices"?, "null"?}`; `limits` maps a key to its least and greatest
    value (None where there is none).
    """
    lines = []
    for key, value in config.items():
        if key not in keys:
            lines.append(f"{where}, {key}: unknown key; {nearest(key, keys)}")
        elif fault := _fault(value, keys[key], limits.get(key, (None, None))):
            lines.append(f"{where}, {key}: found {value!r}, {fault}")
    return lines


def _fault(value: Any, key: Mapping, limits: tuple) -> str | None:
    if value is None and key.get("null"):
        return None
    expected, fits = TYPES[key["type"]]
    if not fits(value):
        return f"expected {expected}"
    choices = key.get("choices")
    if choices and value not in choices:
        return f"expected one of {', '.join(map(str, choices))}; {nearest(str(value), map(str, choices))}"
    least, greatest = limits
    if least is not None and value < least or greatest is not None and value > greatest:
        upper = f" and at most {greatest}" if greatest is not None else ""
        return f"expected at least {least}{upper}"
    return None


def refuse_owned(config: Mapping[str, Any], owned: Mapping[str, str], where: str) -> list[str]:
    """One line for each key that the workflow sets itself; `owned` says where it comes from."""
    return [f"{where}, {key}: leave it out; {owned[key]}" for key in config if key in owned]


def raise_faults(lines: list[str], most: int = 10) -> None:
    """Raise SftError with the first faults and the number of the others; nothing for no fault."""
    if lines:
        rest = len(lines) - most
        raise SftError("\n".join(lines[:most] + ([f"… and {rest} more"] if rest > 0 else [])))
