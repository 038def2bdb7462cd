"""The record of what made a model, gathered from the receipts of its stages."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sft.environment import REPOSITORY
from sft.experiment import Experiment
from sft.files import read_yaml
from sft.receipt import versions
from sft.release import Provenance, git_state
from sft.site import Site


def gather_provenance(
    experiment: Experiment,
    site: Site,
    model: Mapping[str, Any],
    datasets: Iterable[Mapping[str, Any]],
    tokens: Mapping[str, Any],
    trained: Mapping[str, Any],
    checked: Mapping[str, Any],
) -> Provenance:
    """The provenance of a trained experiment; the mappings are what earlier stages made.

    Config and nodes are those that it was trained with: a complete run stays as it is when other
    nodes or save steps are rendered.
    """
    return Provenance(
        experiment={
            "name": experiment.name,
            "hub_id": experiment.hub_id,
            "backend": experiment.backend,
            "template": experiment.template,
            "base_config": Path(experiment.base_config).name,
            "fingerprint": trained["fingerprint"],
        },
        base_model=_pinned(model) | _preparation(model),
        datasets=[_pinned(each) | _counts(tokens["sources"][each["name"]]) for each in datasets],
        accepted=checked["accepted"],
        config=read_yaml(Path(trained["config"])),
        training={
            "global_step": trained["global_step"],
            "losses": trained["losses"],
            "started": trained["started"],
            "finished": trained["finished"],
            "attempts": len(trained["attempts"]),
            "world_size": trained["attempts"][-1]["world_size"],
            "num_nodes": trained["attempts"][-1]["num_nodes"],
        },
        versions=versions() | tokens["versions"],
        git=git_state(REPOSITORY),
        site=site.name,
        job_ids=[],
    )


def _pinned(made: Mapping[str, Any]) -> dict[str, Any]:
    return {key: made[key] for key in ("name", "source", "revision", "sha256")}


def _preparation(model: Mapping[str, Any]) -> dict[str, Any]:
    """What was done to the model after the fetch, and the hash of what was fetched, if anything."""
    return {key: model[key] for key in ("prepared", "fetched") if key in model}


def _counts(source: Mapping[str, Any]) -> dict[str, Any]:
    return {"rows": source["examples"], "tokens": source["tokens"]}
