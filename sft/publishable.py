"""What may not be published: local paths, secrets, and files that serving does not need."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from sft.errors import raise_faults
from sft.weights import INDEX

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt")
TEMPLATE = "chat_template.jinja"
# Trainers of text save none, and vLLM does not start a model that sees or hears without them.
PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
KNOWN = {
    *VOCABULARIES,
    *PROCESSORS,
    *("special_tokens_map.json", "added_tokens.json", "tokenizer_config.json", TEMPLATE),
    *("config.json", "generation_config.json", INDEX),
    *("README.md", "provenance.json", "loss.png"),
}
WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
BINARY = (".safetensors", ".png", ".model")
# Slashes are ordinary in these: vocabularies and templates, not places on a disk.
MAY_HOLD_SLASHES = (*VOCABULARIES, TEMPLATE, "tokenizer_config.json")

PATH = re.compile(r"(?<![\w/.<|])~?/(?:[\w.@+=,%-]+/)+[\w.@+=,%-]*")
SECRETS = {
    "a Hugging Face token": re.compile(r"hf_[A-Za-z0-9]{20,}"),
    "an API key (sk-…)": re.compile(r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{20,}"),
    "an AWS key": re.compile(r"(?:AKIA|ASIA)[0-9A-Z]{16}"),
    "a GitHub token": re.compile(r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"),
    "a JSON web token": re.compile(r"eyJ[\w-]{8,}\.[\w-]{8,}"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a URL with a password": re.compile(r"://[^\s:/@\"']+:[^\s/@\"']+@"),
}


def check_publishable(folder: Path, local: Iterable[Path], code: Iterable[str] = ()) -> None:
    """Refuse a folder with a file that serving does not need, a local path, or a secret in a text.

    The paths `local` are looked for everywhere, others where a slash means a path. `code` are the
    names of the Python files that the model is made of. A secret is told by its kind alone.
    """
    known = {str(path.absolute()) for path in local} | {str(path.resolve()) for path in local}
    raise_faults(_faults(folder, known, set(code)))


def foreign_files(names: Iterable[str], code: Iterable[str] = ()) -> list[str]:
    """The names that no release has."""
    taken = KNOWN | set(code)
    return sorted(name for name in names if name not in taken and not WEIGHTS.fullmatch(name))


def without_paths(value: Any) -> Any:
    """A JSON value whose local paths are cut down to their last part."""
    if isinstance(value, Mapping):
        return {key: without_paths(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(each) for each in value]
    if isinstance(value, str):
        return PATH.sub(lambda match: PurePosixPath(match[0]).name, value)
    return value


def _faults(folder: Path, known: set[str], code: set[str]) -> Iterator[str]:
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    names = sorted(path.relative_to(folder).as_posix() for path in paths)
    foreign = foreign_files(names, code)
    for name in foreign:
        yield f"{name}: this must not be published: no file that serving needs has that name"
    for name in names:
        if name not in foreign and not name.endswith(BINARY):
            yield from _text_faults(name, (folder / name).read_bytes(), known)


def _text_faults(name: str, data: bytes, known: set[str]) -> Iterator[str]:
    text = data.decode(errors="replace")
    kinds = [kind for kind, pattern in SECRETS.items() if pattern.search(text)]
    paths = [each for each in known if each in text]
    if name not in MAY_HOLD_SLASHES:
        paths += PATH.findall(text)
    for found in dict.fromkeys([*kinds, *(f"the local path {each}" for each in paths)]):
        yield f"{name}: {found} must not be published; remove it where it comes from"
