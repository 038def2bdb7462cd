"""A release: the folder that serving needs and nothing else, with the record of what made it."""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sft.card import write_card
from sft.checkpoint import Layout, detect_layout
from sft.errors import SftError
from sft.files import list_files, manifest, new_folder, read_json, write_json, write_text
from sft.placement import place_weights, record_placement
from sft.publishable import PROCESSORS, TEMPLATE, VOCABULARIES, check_publishable, without_paths
from sft.servable import (
    read_chat_template,
    servable_config,
    servable_generation,
    servable_processor,
    servable_tokenizer,
)
from sft.weights import count_parameters, weights_dtype

AS_THEY_ARE = (*VOCABULARIES, "special_tokens_map.json", "added_tokens.json")
GENERATION = "generation_config.json"


@dataclass(frozen=True)
class Provenance:
    """What made a model, as plain values; provenance.json holds all of it.

    `experiment` has name, hub_id, backend, template and what else is worth keeping.
    `base_model` and each of `datasets` have name, source (`hub:<id>` or `local:<path>`), revision
    (a commit, for a hub source) and sha256; a dataset has rows and tokens too. `config` is the
    rendered train.yaml. `training` has global_step, losses as (step, loss) pairs, started,
    finished, world_size, num_nodes, global_batch_size and throughput (see `read_throughput`).
    `attempts` are the jobs that it took, each with `code`: the state of the checkout that it ran,
    None where it did not tell. `accepted` are the faults of the data that the config accepted, with
    their counts by source. `weights` says how many matrices an adapter was merged into, and how
    much of it was `kept`; `served` what was proven of the template. `git` is the state of the
    checkout that made the release (see `git_state`).
    """

    experiment: Mapping[str, Any]
    base_model: Mapping[str, Any]
    datasets: Sequence[Mapping[str, Any]]
    accepted: Sequence[Mapping[str, Any]]
    config: Mapping[str, Any]
    training: Mapping[str, Any]
    attempts: Sequence[Mapping[str, Any]]
    weights: Mapping[str, Any]
    served: Mapping[str, Any]
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
    known: Sequence[Mapping[str, Any]] = (),
    with_code: bool = False,
) -> list[dict[str, Any]]:
    """Make the folder `release` and return its manifest (see `files.manifest`).

    `weights` is a folder in the transformers layout; its weights are linked, not copied, but for
    wrapped names (see `place_weights`). `known` are manifest entries of weights that were hashed
    before. With `with_code` the Python files that the config names come too. The folder appears
    whole or not at all, after `prove` has looked at it and raised nothing. Raises SftError where
    weights, tokenizer or chat template are not whole, or where a local path, a secret or a file
    that serving does not need would be published.
    """
    layout, found = detect_layout(weights)
    if layout is not Layout.SAFETENSORS:
        raise SftError(f"{weights}: found {found}; consolidate or merge it before a release")
    template = read_chat_template(weights)
    made = _public(provenance)
    with new_folder(release) as partial:
        placed = place_weights(weights, partial, release, known)
        _copy(AS_THEY_ARE, weights, partial)
        for name in PROCESSORS:
            if processor := _read_if_there(base_model / name):
                write_json(partial / name, servable_processor(processor))
        if not any((partial / name).exists() for name in VOCABULARIES):
            raise SftError(f"{weights}: no vocabulary, expected one of {', '.join(VOCABULARIES)}")
        code = _copy_code(weights, base_model, partial) if with_code else []
        tokenizer = read_json(weights / "tokenizer_config.json")
        config = servable_config(read_json(weights / "config.json"), with_code)
        write_json(
            partial / "tokenizer_config.json", servable_tokenizer(tokenizer, template, with_code)
        )
        write_text(partial / TEMPLATE, template)
        write_json(partial / "config.json", config)
        generation = servable_generation(
            _read_if_there(weights / GENERATION), _read_if_there(base_model / GENERATION), config
        )
        if generation is not None:
            write_json(partial / GENERATION, generation)
        size = f"{count_parameters(partial):,} parameters in {weights_dtype(partial)}"
        write_card(partial, made, size, base_model)
        write_json(partial / "provenance.json", made)
        check_publishable(partial, [weights, base_model, release], code)
        prove(partial)
        files = _manifest(partial, placed)
    record_placement(release, placed)
    return files


def _manifest(folder: Path, placed: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The manifest of a release whose weights are hashed already."""
    hashed = [{key: each[key] for key in ("path", "size", "sha256")} for each in placed]
    others = set(list_files(folder)) - {each["path"] for each in hashed}
    return sorted([*hashed, *manifest(folder, others)], key=lambda each: each["path"])


def _copy(names: Iterable[str], source: Path, target: Path) -> None:
    for name in names:
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)


def _copy_code(weights: Path, base_model: Path, target: Path) -> list[str]:
    """Copy the Python files of a model's own code, from the base where training saved none."""
    home = next((each for each in (weights, base_model) if any(each.glob("*.py"))), base_model)
    names = sorted(path.name for path in home.glob("*.py"))
    _copy(names, home, target)
    return names


def _read_if_there(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.exists() else None


def _public(provenance: Provenance) -> dict[str, Any]:
    made = without_paths(asdict(provenance))
    for key in ("model_name_or_path", "base_model"):  # LLaMA-Factory's key, axolotl's key
        if key in made["config"]:
            made["config"][key] = provenance.base_model["name"]
    return made
