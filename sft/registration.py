"""What an experiment says in the registry of models, gathered from its receipts."""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from sft.experiment import Experiment
from sft.registry import DatasetRow, Registration, register
from sft.site import Site
from sft.step import log

URL_VARIABLE = "SFT_REGISTRY_URL"
# What wandb prints when a run begins, and again when it ends.
WANDB_LINK = re.compile(rb"https?://[\w.:-]+/[\w.-]+/[\w.-]+/runs/[\w-]+")
LINK_BYTES = 4 << 20  # of an attempt's output, from its beginning


def registry_url(registry_file: Path) -> str:
    """The registry's URL: SFT_REGISTRY_URL, which may hold a password, or a SQLite file."""
    return os.environ.get(URL_VARIABLE) or f"sqlite:///{registry_file.resolve()}"


def registry_place(registry_file: Path) -> str:
    """Where the registry is, in words that hold no password."""
    named = os.environ.get(URL_VARIABLE)
    return f"the database of ${URL_VARIABLE}" if named else str(registry_file)


def register_experiment(
    experiment: Experiment,
    site: Site,
    uploaded: Mapping[str, Any],
    trained: Mapping[str, Any],
    model: Mapping[str, Any],
    datasets: Iterable[Mapping[str, Any]],
    tokens: Mapping[str, Any],
    registry_file: Path,
) -> dict[str, Any]:
    """Write an experiment's model into the registry and return the ids of its rows.

    The mappings are what earlier stages made. Running it twice leaves one row.
    """
    registration = build_registration(
        experiment, site, uploaded, trained, model, list(datasets), tokens
    )
    made = register(registry_url(registry_file), registration)
    log.info("%s is %s", registration.name, "registered" if made["created"] else "up to date")
    return made | {"registry": registry_place(registry_file), "name": registration.name}


def build_registration(
    experiment: Experiment,
    site: Site,
    uploaded: Mapping[str, Any],
    trained: Mapping[str, Any],
    model: Mapping[str, Any],
    datasets: list[Mapping[str, Any]],
    tokens: Mapping[str, Any],
) -> Registration:
    """The registration of an experiment, every field of it from a row or a receipt."""
    organisation = experiment.hub_id.partition("/")[0]
    rows = tuple(_dataset_row(each, tokens["sources"], organisation) for each in datasets)
    return Registration(
        name=experiment.hub_id,
        base_model=experiment.model.registry_name,
        declare_base=experiment.model.declare,
        datasets=rows,
        agent_name=experiment.agent or default_agent(experiment, rows),
        created_by=organisation,
        creation_location=site.name,
        weights_location=uploaded["location"],
        training_start=datetime.fromisoformat(trained["started"]),
        training_end=datetime.fromisoformat(trained["finished"]),
        training_parameters={
            "config_blob": config_link(uploaded["location"]),
            "hf_repo": experiment.hub_id,
            "config": dict(experiment.config),
            "num_nodes": trained["attempts"][-1]["num_nodes"],
            "base_revision": model["revision"] or model["sha256"],
            "dataset_revisions": [each["revision"] or each["sha256"] for each in datasets],
            "fingerprint": trained["fingerprint"],
        },
        wandb_link=wandb_link(trained["attempts"]),
        take_over=experiment.take_over,
    )


def default_agent(experiment: Experiment, datasets: tuple[DatasetRow, ...]) -> str:
    """The agent's name where its row gives none: the dataset's without its owner, or the mix's."""
    return datasets[0].name.rpartition("/")[2] if len(datasets) == 1 else experiment.mix.name


def config_link(location: str) -> str:
    """Where the config of an uploaded release is read: a page of the hub, or a file."""
    on_hub = location.startswith(("https://", "http://"))
    return f"{location}/blob/main/config.json" if on_hub else f"{location}/config.json"


def wandb_link(attempts: Iterable[Mapping[str, Any]]) -> str | None:
    """The page that the newest attempt's output names; None where no attempt had one."""
    for attempt in reversed(list(attempts)):
        with suppress(FileNotFoundError), open(attempt["log"], "rb") as output:
            output.seek(attempt["log_start"])
            if found := WANDB_LINK.search(output.read(LINK_BYTES)):
                return found[0].decode()
    return None


def _dataset_row(
    made: Mapping[str, Any], sources: Mapping[str, Mapping], organisation: str
) -> DatasetRow:
    kind, _, place = made["source"].partition(":")
    from_hub = kind == "hub"
    return DatasetRow(
        name=place if from_hub else made["name"],
        data_location=place if from_hub else made["path"],
        created_by=place.partition("/")[0] if from_hub else organisation,
        generation_parameters={},
        data_generation_hash=made["sha256"],
        hf_commit_hash=made["revision"],
        num_tasks=sources[made["name"]]["rows_in"],
    )
