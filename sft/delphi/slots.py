"""The six tokens that Delphi's template needs, in the files of a Llama-3 tokenizer."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sft.errors import SftError, raise_faults
from sft.files import read_json

TOKENS = {
    "<|start_think|>": 128002,
    "<|end_think|>": 128003,
    "<|tool_call|>": 128005,
    "<|tool_call_end|>": 128011,
    "<|tool_result|>": 128012,
    "<|tool_result_end|>": 128013,
}
VOCABULARY = 128256
RESERVED = re.compile(r"<\|reserved_special_token_\d+\|>")

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
# These may say the name of a slot too. One that is left there, and that tokenizer.json knows no
# more, would be added to the vocabulary as a new token.
SAY_NAMES = (TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json")
SAY_IDS = ("config.json", "generation_config.json")


def rename_slots(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The new text of each tokenizer file of `folder` that changes, and old names to new ones.

    Raises SftError where the tokenizer is not Llama-3's, or where a slot is in use.
    """
    tokenizer = _load_llama3(folder / TOKENIZER)
    contents = {
        name: read_json(folder / name)
        for name in (TOKENIZER, *SAY_NAMES)
        if (folder / name).exists()
    }
    renamed, lines = _match_slots(contents, folder)
    lines += [
        f"{folder / TOKENIZER}: found {name} as token {found}, expected it at {slot}; "
        "prepare the checkpoint that this one was made of"
        for name, slot in TOKENS.items()
        if (found := tokenizer.token_to_id(name)) not in (None, slot)
    ]
    raise_faults([*lines, *_role_faults(contents, renamed, folder), *_id_faults(folder)])
    texts = {file: _rename(folder / file, contents[file], renamed) for file in contents}
    return {file: text for file, text in texts.items() if text is not None}, renamed


def _rename(path: Path, content: Any, renamed: Mapping[str, str]) -> str | None:
    """The file's text with new names for old and every slot special; None where that is the same.

    Names are replaced in the text, so that whatever else it says keeps its bytes.
    """
    before = text = path.read_text(encoding="utf-8")
    for old, new in renamed.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    slots = _entries(path.name, content).keys() & TOKENS.values()
    if not all(_entries(path.name, content)[slot].get("special") for slot in slots):
        content = json.loads(text)
        for slot in slots:
            _entries(path.name, content)[slot]["special"] = True
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return None if text == before else text


def check_tokens(path: Path) -> None:
    """Refuse a tokenizer.json in which one of the six is not one token, or whose length changed."""
    tokenizer = _load_llama3(path)
    raise_faults(
        f"{path}: {name} becomes the tokens {found}, expected {[slot]}"
        for name, slot in TOKENS.items()
        if (found := tokenizer.encode(name, add_special_tokens=False).ids) != [slot]
    )


def _load_llama3(path: Path) -> Tokenizer:
    if not path.exists():
        raise SftError(
            f"{path}: missing; save the tokenizer with transformers' AutoTokenizer, which writes it"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises no narrower one
        raise SftError(f"{path}: not a tokenizer: {error}; fetch the file again") from error
    found = tokenizer.get_vocab_size()
    if found != VOCABULARY:
        raise SftError(
            f"{path}: found a vocabulary of {found} tokens, expected the {VOCABULARY} of Llama-3; "
            "only reserved slots of that one become Delphi's tokens, and none is added"
        )
    return tokenizer


def _entries(file: str, content: Any) -> dict[int, dict[str, Any]]:
    """The added tokens that a tokenizer file lists, by id."""
    if file == TOKENIZER:
        return {each["id"]: each for each in content["added_tokens"]}
    if file == TOKENIZER_CONFIG:  # transformers 5 writes no such block
        return {int(slot): each for slot, each in content.get("added_tokens_decoder", {}).items()}
    return {}


def _match_slots(contents: Mapping[str, Any], folder: Path) -> tuple[dict[str, str], list[str]]:
    """Old names of the slots to new ones, and a line for each slot that may not be renamed."""
    renamed, lines = {}, []
    for file, content in contents.items():
        if not (entries := _entries(file, content)):
            continue
        for name, slot in TOKENS.items():
            found = entries[slot]["content"] if slot in entries else "nothing"
            if found == name:
                continue
            if not RESERVED.fullmatch(found) or renamed.setdefault(found, name) != name:
                lines.append(
                    f"{folder / file}, token {slot}: found {found}, expected a reserved token or "
                    f"{name}; a token that has a use is never renamed: take another checkpoint"
                )
    return renamed, lines


def _role_faults(
    contents: Mapping[str, Any], renamed: Mapping[str, str], folder: Path
) -> Iterator[str]:
    """One line for each slot that already is the padding, the end or the like, by its name."""
    for file, content in contents.items():
        for key, value in content.items() if file in SAY_NAMES[:2] else ():
            name = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(name, str) and name in {*renamed, *TOKENS}:
                yield (
                    f"{folder / file}, {key}: found {name}, which is one of the slots for Delphi's "
                    "tokens; name another one, such as <|end_of_text|>"
                )


def _id_faults(folder: Path) -> Iterator[str]:
    """One line for each slot that already is the padding, the end or the like, by its id."""
    for file in SAY_IDS:
        content = read_json(folder / file) if (folder / file).exists() else {}
        for key, value in content.items():
            named = value if isinstance(value, list) else [value]
            if key.endswith("_token_id") and not {*TOKENS.values()}.isdisjoint(named):
                yield (
                    f"{folder / file}, {key}: found {value}, which is one of the slots for "
                    "Delphi's tokens; give the id of another one, such as 128001"
                )
