"""Config and tokenizer of a release, in words that each loader and server reads alike."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft.errors import SftError
from sft.files import read_json
from sft.publishable import TEMPLATE, without_paths

# What transformers 5 saves of where it had loaded a tokenizer from.
OF_THE_LOADER = {"is_local", "local_files_only", "name_or_path"}
ROPE_KEYS = {"rope_theta", "partial_rotary_factor"}
EXTRA, ADDITIONAL, NAMED = (
    *("extra_special_tokens", "additional_special_tokens", "model_specific_special_tokens"),
)


def read_chat_template(folder: Path) -> str:
    """The one chat template of a tokenizer, wherever it is written.

    transformers 5 writes chat_template.jinja alone, older servers read tokenizer_config.json
    alone, and where both are the first wins. Raises SftError where they differ or none is there.
    """
    embedded = read_json(folder / "tokenizer_config.json").get("chat_template")
    path = folder / TEMPLATE
    separate = path.read_bytes().decode() if path.exists() else None
    if embedded is None and separate is None:
        raise SftError(
            f"{folder}: no chat template, neither in tokenizer_config.json nor in {TEMPLATE}; "
            "nobody could chat with this model: train with a template"
        )
    if embedded is not None and not isinstance(embedded, str):
        raise SftError(f"{folder}/tokenizer_config.json: several chat templates; keep one")
    if None not in (embedded, separate) and embedded != separate:
        names = ("tokenizer_config.json", TEMPLATE)
        diff = difflib.unified_diff(embedded.splitlines(), separate.splitlines(), *names, "", "", 1)
        shown = "\n".join(list(diff)[:40]) or "(they differ in the ends of lines)"
        raise SftError(f"{folder}: two chat templates; delete the wrong one:\n{shown}")
    return embedded if separate is None else separate


def servable_tokenizer(config: Mapping[str, Any], template: str, with_code: bool) -> dict[str, Any]:
    """A tokenizer_config.json with its template that transformers 4.57 reads as 5 does."""
    kept = {key: value for key, value in config.items() if key not in OF_THE_LOADER}
    fixed = {**without_paths(kept), "chat_template": template}
    listed = config.get(EXTRA)
    if isinstance(listed, list):
        # 4.57 expects a mapping under this key, and the list under the older one, which 5 reads
        # where the newer holds no list.
        fixed[ADDITIONAL] = list(dict.fromkeys([*(config.get(ADDITIONAL) or []), *listed]))
        fixed[EXTRA] = {}
    if config.get(NAMED) and not fixed.get(EXTRA):
        fixed[EXTRA] = config[NAMED]  # such as image_token: where 4.57 looks for them
    if config.get("tokenizer_class") == "TokenizersBackend":
        # A class of transformers 5 alone; under the older name both load tokenizer.json.
        fixed["tokenizer_class"] = "PreTrainedTokenizerFast"
    return fixed if with_code else without_code(fixed)


def servable_config(config: Mapping[str, Any], with_code: bool) -> dict[str, Any]:
    """A config.json that transformers 4.57 reads as 5 does.

    4.57 does not know `rope_parameters`: it silently takes a `rope_theta` of 10000 where none
    stands beside them, and a model trained with another one serves nonsense.
    """
    fixed = {}
    for key, value in without_paths(config).items():
        nested = isinstance(value, Mapping)
        fixed[key] = servable_config(value, with_code=True) if nested else value
    rope = config.get("rope_parameters") or {}
    for key in ROPE_KEYS & rope.keys():
        fixed.setdefault(key, rope[key])
    if rope.get("rope_type", "default") != "default":
        scaling = {key: value for key, value in rope.items() if key not in ROPE_KEYS}
        fixed.setdefault("rope_scaling", scaling)
    fixed.pop("_name_or_path", None)
    return fixed if with_code else without_code(fixed)


def servable_generation(
    saved: Mapping[str, Any] | None, base: Mapping[str, Any] | None, config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The generation_config.json: what the trainer saved, else the base's; None without both.

    To what the base stops at, what the trained config stops at is added: servers read this file in
    the place of that one.
    """
    if saved is not None or base is None:
        return None if saved is None else without_paths(saved)
    stops = dict.fromkeys(
        [*_listed(config.get("eos_token_id")), *_listed(base.get("eos_token_id"))]
    )
    return {**without_paths(base), "eos_token_id": list(stops)}


def servable_processor(base: Mapping[str, Any]) -> dict[str, Any]:
    """The base's processor without a chat template: it would be served before the trained one."""
    return {key: value for key, value in base.items() if key != "chat_template"}


def without_code(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config that names no Python file: none comes with it."""
    return {key: value for key, value in config.items() if key != "auto_map"}


def _listed(value: int | list[int] | None) -> list[int]:
    return value if isinstance(value, list) else [] if value is None else [value]
