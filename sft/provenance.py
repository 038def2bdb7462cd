"""The record of what made a model, gathered from the receipts of its stages."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sft.backends import BACKENDS
from sft.environment import REPOSITORY
from sft.experiment import Experiment
from sft.files import read_yaml
from sft.progress import read_events
from sft.receipt import versions
from sft.release import Provenance
from sft.revision import git_state
from sft.site import Site
from sft.sizes import read_size
from sft.throughput import read_throughput

# Of an attempt, without the places of its computers, and without lines of its log.
OF_ATTEMPT = (
    *("launcher", "job_id", "started", "finished", "ending", "from_step", "to_step"),
    *("world_size", "num_nodes"),
)


def gather_provenance(
    experiment: Experiment,
    site: Site,
    model: Mapping[str, Any],
    datasets: Iterable[Mapping[str, Any]],
    tokens: Mapping[str, Any],
    trained: Mapping[str, Any],
    checked: Mapping[str, Any],
    weights: Mapping[str, Any],
    served: Mapping[str, Any],
) -> Provenance:
    """The provenance of a trained experiment; the mappings are what earlier stages made.

    Config and nodes are those that it was trained with: a complete run stays as it is when other
    nodes or save steps are rendered.
    """
    attempts = trained["attempts"]
    jobs = [each["job_id"] for each in attempts if each["job_id"]]
    return Provenance(
        experiment={
            "name": experiment.name,
            "hub_id": experiment.hub_id,
            "backend": experiment.backend,
            "template": experiment.template,
            "base_config": Path(experiment.base_config).name,
            "fingerprint": trained["fingerprint"],
            "tokens": tokens["key"],
        },
        base_model=_pinned(model) | _preparation(model),
        datasets=[_pinned(each) | _counts(tokens["sources"][each["name"]]) for each in datasets],
        accepted=checked["accepted"],
        config=read_yaml(Path(trained["config"])),
        training=_training(experiment, site, model, tokens, trained),
        attempts=[_attempt(each) for each in attempts],
        weights={"merged": weights.get("merged", 0), "kept": weights.get("kept")},
        served={key: served[key] for key in ("conversations", "refused")},
        versions=versions() | tokens["versions"] | _training_versions(trained),
        git=git_state(REPOSITORY),
        site=site.name,
        job_ids=list(dict.fromkeys(jobs)),
    )


def _training(
    experiment: Experiment,
    site: Site,
    model: Mapping[str, Any],
    tokens: Mapping[str, Any],
    trained: Mapping[str, Any],
) -> dict[str, Any]:
    last = trained["attempts"][-1]
    config = read_yaml(Path(trained["config"]))
    _, sequences = BACKENDS[experiment.backend].read_rendered(config)
    batch = sequences * last["world_size"]
    return {
        **{key: trained[key] for key in ("global_step", "losses", "started", "finished")},
        **{key: last[key] for key in ("world_size", "num_nodes")},
        "global_batch_size": batch,
        "throughput": read_throughput(
            experiment,
            site,
            size=read_size(Path(model["path"])),
            tokens=sum(each["tokens"] for each in tokens["sources"].values()),
            batch=batch,
            checkpoints=Path(trained["checkpoints"]),
        ),
    }


def _attempt(attempt: Mapping[str, Any]) -> dict[str, Any]:
    return {key: attempt[key] for key in OF_ATTEMPT} | {"code": attempt.get("code")}


def _training_versions(trained: Mapping[str, Any]) -> dict[str, str]:
    """The versions that the last training process noted; none where an older one noted none."""
    events = read_events(Path(trained["checkpoints"]))
    noted = next((each["versions"] for each in reversed(events) if "versions" in each), [])
    return dict(each.split("==") for each in noted)


def _pinned(made: Mapping[str, Any]) -> dict[str, Any]:
    return {key: made[key] for key in ("name", "source", "revision", "sha256")}


def _preparation(model: Mapping[str, Any]) -> dict[str, Any]:
    """What was done to the model after the fetch, and the hash of what was fetched, if anything."""
    return {key: model[key] for key in ("prepared", "fetched") if key in model}


def _counts(source: Mapping[str, Any]) -> dict[str, Any]:
    return {"rows": source["examples"], "tokens": source["tokens"]}
