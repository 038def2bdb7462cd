"""Pretokenize a mix once into a folder that is named by everything that decides its content."""

import json
import shutil
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from sft.backends import BACKENDS
from sft.conversations import write_conversations
from sft.environment import ask_environment, pin_faults, read_pins, run_in_environment
from sft.errors import SftError, raise_faults
from sft.experiment import Experiment
from sft.fetch import verify_fetched
from sft.files import (
    hash_json,
    manifest,
    new_folder,
    read_json,
    remove_abandoned,
    write_json,
    write_yaml,
)
from sft.gate.roles import find_fatal_rows, source_preflight
from sft.gate.rows import Part, list_source_files
from sft.gate.vocabulary import template_faults
from sft.site import Site
from sft.step import log

TOKENIZER_FILES = {
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "config.json"),
}


def pretokenize(
    experiment: Experiment,
    site: Site,
    model: Mapping[str, Any],
    datasets: Mapping[str, Mapping[str, Any]],
    root: Path,
    num_workers: int,
    output: Path,
) -> dict[str, Any]:
    """Tokenize the experiment's mix below `root`, or find that the same tokens are there.

    `model` and `datasets` (by name) are what was fetched. The data is hashed again and the model's
    files are held against their sizes and times, so that what is tokenized is what was pinned.
    Nothing is ever overwritten: other inputs are another folder. Returns `{"key", "folder",
    "tokens", "examples", "sources", "versions"}`; `output` takes the trainer's own lines.
    """
    for fetched in datasets.values():
        verify_fetched(fetched, thorough=True)
    verify_fetched(model, thorough=False)
    # Even where the same tokens are there: models that share a tokenizer differ in their weights.
    raise_faults(_template_faults(experiment, Path(model["path"])))
    versions = trainer_versions(experiment, site)
    identity = token_identity(experiment, model, datasets, versions)
    key = hash_json(identity)
    folder = root.resolve() / key[:16]
    if folder.exists():
        remove_abandoned(folder)
        log.info("the same tokens are there already: %s", folder)
    else:
        _tokenize(experiment, site, model, datasets, folder, identity, num_workers, output)
    made = read_tokens(folder)
    if made["key"] != key:
        raise SftError(f"{folder}: holds tokens of another key; move the folder away")
    return made | {"versions": versions}


def token_identity(
    experiment: Experiment,
    model: Mapping[str, Any],
    datasets: Mapping[str, Mapping[str, Any]],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Everything that decides the tokens and labels: contents by hash, options by value."""
    backend, mix = BACKENDS[experiment.backend], experiment.mix
    return {
        "backend": experiment.backend,
        "versions": {name: versions[name] for name in backend.TOKEN_VERSIONS},
        "tokenizer": {
            each["path"]: each["sha256"]
            for each in model["files"]
            if each["path"] in TOKENIZER_FILES
        },
        "template": backend.template_hash(experiment.template),
        "options": backend.token_options(experiment.config),
        "datasets": [
            [each.name, datasets[each.name]["sha256"], dict(each.options)] for each in mix.datasets
        ],
        "strategy": mix.strategy,
        "probabilities": list(mix.probabilities),
        "seed": mix.seed if mix.strategy != "concat" else None,
        "trust_remote_code": experiment.trust_remote_code,
    }


def trainer_versions(experiment: Experiment, site: Site) -> dict[str, str]:
    """The versions of the trainer's packages, asked in its own environment.

    Raises SftError where the environment does not hold what the site's pins ask for.
    """
    pins = read_pins(site, experiment.environment)
    command = BACKENDS[experiment.backend].versions_command([pin.name for pin in pins])
    versions = json.loads(ask_environment(site, experiment.environment, command))
    raise_faults(pin_faults(pins, versions, f"environment {experiment.environment!r}", site))
    return versions


def _template_faults(experiment: Experiment, model: Path) -> list[str]:
    backend, template = BACKENDS[experiment.backend], experiment.template
    return template_faults(
        model,
        backend.template_description(template),
        template,
        experiment.model.name,
        backend.shipped_templates() | backend.template_descriptions(),
    )


def _tokenize(
    experiment: Experiment,
    site: Site,
    model: Mapping[str, Any],
    datasets: Mapping[str, Mapping[str, Any]],
    folder: Path,
    identity: Mapping[str, Any],
    num_workers: int,
    output: Path,
) -> None:
    backend, rows = BACKENDS[experiment.backend], list_rows(experiment, datasets)
    for name, (files, options) in rows.items():
        source_preflight(files, options, name)
    with new_folder(folder, keep=True) as partial:
        request = partial / "request"
        if backend.READS_CONVERSATIONS:
            write_conversations(rows, experiment.config.get("max_samples"), request)
        else:
            write_json(request / "dataset_info.json", backend.render_registry(experiment, datasets))
        write_yaml(
            request / "tokenize.yaml",
            backend.render_pretokenize(experiment, Path(model["path"]), request, num_workers),
        )
        log.info("tokenizing %s with %d processes", experiment.mix.name, num_workers)
        try:
            run_in_environment(
                site,
                experiment.environment,
                backend.pretokenize_command(request, partial / "tokens"),
                output,
                # A cache of its own: other jobs' locks and leftovers cannot meet it.
                {"HF_DATASETS_CACHE": str(partial / "cache")},
            )
        except SftError as error:
            fatal = [find_fatal_rows(*of, name) for name, of in rows.items()]
            raise SftError(*chain.from_iterable(fatal), *error.args) from None
        for left in ("cache", "request/sources"):
            shutil.rmtree(partial / left, ignore_errors=True)
        write_json(
            partial / "manifest.json",
            {
                "key": hash_json(identity),
                "identity": identity,
                **read_json(partial / "counts.json"),
                "files": manifest(partial / "tokens"),
            },
        )


def list_rows(
    experiment: Experiment, datasets: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[list[Path | Part], Mapping[str, Any]]]:
    """The files of each source of the mix, and the words of the registry that read them."""
    return {
        each.name: (list_source_files(datasets[each.name], each.options), each.options)
        for each in experiment.mix.datasets
    }


def read_tokens(folder: Path) -> dict[str, Any]:
    """What a tokens folder holds; SftError where a file is missing or has another size."""
    content = read_json(folder / "manifest.json")
    for each in content["files"]:
        path = folder / "tokens" / each["path"]
        size = path.stat().st_size if path.exists() else None
        if size != each["size"]:
            raise SftError(
                f"{path}: found {size} bytes, expected {each['size']}; "
                f"move {folder} away and run again"
            )
    return {
        "key": content["key"],
        "folder": str(folder),
        "tokens": str(folder / "tokens"),
        "examples": content["examples"],
        "sources": content["sources"],
    }
