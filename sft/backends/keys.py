"""Check keys and values of a base config against what a backend's parser accepts."""

import math
from collections.abc import Mapping
from typing import Any

from sft.errors import nearest
from sft.experiment import read_cell
from sft.schema import show

TYPES = {
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("a whole number", lambda value: type(value) is int),
    "float": ("a finite number", lambda value: _is_number(value)),
    "str": ("text, in quotes where YAML reads it otherwise", lambda value: isinstance(value, str)),
    "list": ("a list or text with commas", lambda value: isinstance(value, list | str)),
    "dict": ("`key: value` pairs or text", lambda value: isinstance(value, dict | str)),
    "any": ("a value", lambda value: value is not None),
}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def parse_cell(key: str, cell: str, keys: Mapping[str, Mapping]) -> Any:
    """The value that a cell of the table spells for `key`; text stays text where text is meant."""
    description = keys.get(key, {})
    is_null = cell == "null" and description.get("null")
    return cell if description.get("type") == "str" and not is_null else read_cell(cell)


def config_faults(
    config: Mapping[str, Any],
    keys: Mapping[str, Mapping],
    owned: Mapping[str, str],
    limits: Mapping[str, tuple],
    where: str,
) -> list[str]:
    """One line for each key that must not be there, wrong type, unknown choice, impossible value.

    `keys` maps a key to `{"type", "choices"?, "keys"?, "null"?}`, "keys" being those of a nested
    table, `owned` a key that the workflow sets to where that comes from, `limits` a key to its
    least and greatest value (None for no limit).
    """
    lines = []
    for key, value in config.items():
        if key in owned:
            lines.append(f"{where}, {key}: leave it out; {owned[key]}")
        elif key not in keys:
            lines.append(f"{where}, {key}: unknown key; {nearest(key, keys.keys() - owned.keys())}")
        elif fault := _value_fault(value, keys[key], limits.get(key, (None, None))):
            lines.append(f"{where}, {key}: found {show(value)}{fault}")
    return lines


def _value_fault(value: Any, key: Mapping, limits: tuple) -> str | None:
    if value is None and key.get("null"):
        return None
    expected, fits = TYPES[key["type"]]
    if not fits(value):
        return f", expected {expected}"
    if "choices" in key and value not in key["choices"]:
        return f"; {nearest(value, map(str, key['choices']))}"
    if "keys" in key and isinstance(value, Mapping) and (unknown := value.keys() - key["keys"]):
        first = min(unknown, key=str)
        return f", {first}: unknown key; {nearest(first, key['keys'])}"
    least, greatest = limits
    too_small = least is not None and value < least
    too_large = greatest is not None and value > greatest
    if too_small or too_large:
        upper = f" and at most {greatest}" if greatest is not None else ""
        return f", expected at least {least}{upper}"
    return None
