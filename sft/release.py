"""A release: the folder that serving needs and nothing else, with the record of what made it."""

import difflib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sft.card import read_license, write_card
from sft.checkpoint import Layout, detect_layout
from sft.errors import SftError
from sft.files import link_or_copy, manifest, new_folder, read_json, write_json, write_text
from sft.weights import INDEX, count_parameters, read_weights_index, weights_dtype

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt")
AS_THEY_ARE = (*VOCABULARIES, "special_tokens_map.json", "added_tokens.json", INDEX)
# Trainers of text save none, and vLLM does not start a hybrid model without them.
FROM_BASE = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
TEMPLATE = "chat_template.jinja"
TEXT = (".json", ".jinja", ".md", ".txt")
# Slashes are ordinary in these: vocabularies and templates, not places on a disk.
MAY_HOLD_SLASHES = (*VOCABULARIES, TEMPLATE, "tokenizer_config.json")
ROPE_KEYS = {"rope_theta", "partial_rotary_factor"}

PATH = re.compile(r"(?<![\w/.<|])~?/(?:[\w.@+=,%-]+/)+[\w.@+=,%-]*")
SECRETS = {
    "a Hugging Face token": re.compile(r"hf_[A-Za-z0-9]{20,}"),
    "an API key (sk-…)": re.compile(r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{20,}"),
    "an AWS key": re.compile(r"AKIA[0-9A-Z]{16}"),
    "a GitHub token": re.compile(r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"),
    "a JSON web token": re.compile(r"eyJ[\w-]{8,}\.[\w-]{8,}"),
    "a URL with a password": re.compile(r"://[^\s:/@\"']+:[^\s/@\"']+@"),
}


@dataclass(frozen=True)
class Provenance:
    """What made a model, as plain values; provenance.json holds all of it.

    `experiment` has name, hub_id, backend, template and what else is worth keeping.
    `base_model` and each of `datasets` have name, source (`hub:<id>` or `local:<path>`), revision
    (a commit, for a hub source) and sha256; a dataset has rows and tokens too. `config` is the
    rendered train.yaml. `training` has global_step, losses as (step, loss) pairs, started,
    finished, world_size and num_nodes. `accepted` are the faults of the data that the config
    accepted, with their counts by source. `git` is what `git_state` returns.
    """

    experiment: Mapping[str, Any]
    base_model: Mapping[str, Any]
    datasets: Sequence[Mapping[str, Any]]
    accepted: Sequence[Mapping[str, Any]]
    config: Mapping[str, Any]
    training: Mapping[str, Any]
    versions: Mapping[str, str]
    git: Mapping[str, Any]
    site: str
    job_ids: Sequence[str]


def assemble_release(
    weights: Path,
    base_model: Path,
    release: Path,
    provenance: Provenance,
    prove: Callable[[Path], object],
) -> list[dict]:
    """Make the folder `release` and return its manifest (see `files.manifest`).

    `weights` is a folder in the transformers layout; its weights are linked, not copied. The folder
    appears whole or not at all, after `prove` has looked at it and raised nothing. Raises SftError
    where weights, tokenizer or chat template are not whole, or where a local path or a secret would
    be published.
    """
    layout, found = detect_layout(weights)
    if layout is not Layout.SAFETENSORS:
        raise SftError(f"{weights}: found {found}; consolidate or merge it before a release")
    template = read_chat_template(weights)
    made = _public(provenance)
    with new_folder(release) as partial:
        for name in sorted({tensor.file for tensor in read_weights_index(weights).values()}):
            link_or_copy(weights / name, partial / name)
        _copy(AS_THEY_ARE, weights, partial)
        _copy(FROM_BASE, base_model, partial)
        if not any((partial / name).exists() for name in VOCABULARIES):
            raise SftError(f"{weights}: no vocabulary, expected one of {', '.join(VOCABULARIES)}")
        tokenizer = read_json(weights / "tokenizer_config.json")
        write_json(partial / "tokenizer_config.json", servable_tokenizer(tokenizer, template))
        write_text(partial / TEMPLATE, template)
        write_json(partial / "config.json", servable_config(read_json(weights / "config.json")))
        if (weights / "generation_config.json").exists():
            generation = without_paths(read_json(weights / "generation_config.json"))
            write_json(partial / "generation_config.json", generation)
        size = f"{count_parameters(weights):,} parameters in {weights_dtype(weights)}"
        write_card(partial, made, size, read_license(base_model))
        write_json(partial / "provenance.json", made)
        check_publishable(partial, [weights, base_model, release])
        prove(partial)
        return manifest(partial)


def git_state(folder: Path) -> dict:
    """`{"commit", "dirty"}` of the work tree around `folder`; both None outside of git."""
    commit = _git(folder, "rev-parse", "HEAD")
    status = _git(folder, "status", "--porcelain")
    return {"commit": commit, "dirty": bool(status) if commit else None}


def _git(folder: Path, *command: str) -> str | None:
    try:
        ran = subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True)
    except FileNotFoundError:  # git is not installed
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None


def _copy(names: Iterable[str], source: Path, target: Path) -> None:
    for name in names:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


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


def servable_tokenizer(config: Mapping[str, Any], template: str) -> dict[str, Any]:
    """A tokenizer_config.json with its template that transformers 4.57 reads as 5 does."""
    fixed = {**without_paths(config), "chat_template": template}
    listed = config.get("extra_special_tokens")
    if isinstance(listed, list):
        # 4.57 expects a mapping under this key, and the list under the older one, which 5 reads.
        fixed |= {"extra_special_tokens": {}, "additional_special_tokens": listed}
    if config.get("tokenizer_class") == "TokenizersBackend":
        # A class of transformers 5 alone; under the older name both load tokenizer.json.
        fixed["tokenizer_class"] = "PreTrainedTokenizerFast"
    return fixed


def servable_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json that transformers 4.57 reads as 5 does.

    4.57 does not know `rope_parameters`: it silently takes a `rope_theta` of 10000 where none
    stands beside them, and a model trained with another one serves nonsense.
    """
    fixed = {}
    for key, value in without_paths(config).items():
        fixed[key] = servable_config(value) if isinstance(value, Mapping) else value
    rope = config.get("rope_parameters") or {}
    for key in ROPE_KEYS & rope.keys():
        fixed.setdefault(key, rope[key])
    if rope.get("rope_type", "default") != "default":
        scaling = {key: value for key, value in rope.items() if key not in ROPE_KEYS}
        fixed.setdefault("rope_scaling", scaling)
    fixed.pop("_name_or_path", None)
    return fixed


def without_paths(value: Any) -> Any:
    """A JSON value whose local paths are cut down to their last part."""
    if isinstance(value, Mapping):
        return {key: without_paths(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(each) for each in value]
    if isinstance(value, str):
        return PATH.sub(lambda match: PurePosixPath(match[0]).name, value)
    return value


def _public(provenance: Provenance) -> dict[str, Any]:
    made = without_paths(asdict(provenance))
    for key in ("model_name_or_path", "base_model"):  # LLaMA-Factory's key, axolotl's key
        if key in made["config"]:
            made["config"][key] = provenance.base_model["name"]
    return made


def check_publishable(folder: Path, local: Iterable[Path]) -> None:
    """Refuse a folder with a local path or a secret in a text file; the secret is not shown.

    The paths `local` are looked for everywhere, others where a slash means a path.
    """
    known = {str(path.absolute()) for path in local} | {str(path.resolve()) for path in local}
    faults = []
    for path in sorted(folder.rglob("*")):
        if path.suffix not in TEXT:
            continue
        text = path.read_text(encoding="utf-8")
        kinds = [kind for kind, pattern in SECRETS.items() if pattern.search(text)]
        faults += [f"{path.name}: {kind}" for kind in kinds]
        paths = [each for each in known if each in text]
        if path.name not in MAY_HOLD_SLASHES:
            paths += PATH.findall(text)
        faults += [f"{path.name}: the local path {each}" for each in dict.fromkeys(paths)]
    if faults:
        listed = "\n".join(faults)
        raise SftError(f"this must not be published; remove it where it comes from:\n{listed}")
