"""What the profile, the table and the environment of this shell say, without asking anybody."""

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from sft.catalog import Catalog
from sft.doctor.check import Check, Verdict
from sft.environment import job_variables
from sft.hub_token import NO_TOKEN, NO_TOKEN_REMEDY, token_origins
from sft.limits import request_faults
from sft.registration import URL_VARIABLE
from sft.request import Request
from sft.site import Site, placeholders

# Settings of Snakemake's Slurm executor that measured faults ask for, and what happens without.
EXECUTOR_SETTINGS = {
    ("slurm-status-command", "squeue"): "with sacct some cancelled jobs are never seen as ended",
    ("slurm-no-requeue", True): "what Slurm starts again has failed for Snakemake already",
    ("slurm-keep-successful-logs", True): "logs of jobs that succeeded are deleted",
}
NEEDED_RESOURCES = ("slurm_account", "slurm_partition", "runtime")

profile_check = partial(Check, "profile")
secret_check = partial(Check, "secrets")


def check_profile(
    profile: Mapping[str, Any], config: Mapping[str, Any], site: Site, where: str
) -> Iterator[Check]:
    """Placeholders, Snakemake's settings, and facts that contradict each other.

    `profile` is the file `where` as it is written, `config` what Snakemake makes of it.
    """
    asked = {key: profile.get(key, {}) for key in ("default-resources", "set-resources")}
    waiting = placeholders(config) + placeholders(asked)
    if waiting:
        yield profile_check(
            "placeholders",
            Verdict.FAULT,
            f"still to be filled in: {', '.join(waiting)}",
            f"replace FILL_IN in {where} by your own account and folders",
        )
    else:
        yield profile_check("placeholders", Verdict.OK, "none left")
    if profile.get("executor") == "slurm" or site.launcher == "slurm":
        yield from _check_executor(profile, site, where)
    yield from _check_network_facts(site)


def _check_executor(profile: Mapping[str, Any], site: Site, where: str) -> Iterator[Check]:
    if profile.get("executor") != "slurm":
        yield profile_check(
            "executor",
            Verdict.WARNING,
            f"found {profile.get('executor', 'none')}, and launcher: slurm: all but training runs "
            "on this computer",
            f"write executor: slurm in {where} if that is not meant",
        )
        return
    if site.launcher != "slurm":
        yield profile_check(
            "launcher",
            Verdict.WARNING,
            "found local, and executor: slurm: training runs on this computer",
            f"write launcher: slurm under config: in {where}",
        )
    for (key, wanted), reason in EXECUTOR_SETTINGS.items():
        if profile.get(key) != wanted:
            yield profile_check(
                key,
                Verdict.WARNING,
                f"found {profile.get(key, 'nothing')}, expected {str(wanted).lower()}",
                f"{reason}; set it in {where}",
            )
    jobs, cores = profile.get("jobs"), profile.get("cores")
    if isinstance(jobs, int) and isinstance(cores, int) and cores < jobs:
        yield profile_check(
            "cores",
            Verdict.WARNING,
            f"found {cores}, with jobs: {jobs}: only {cores} trainings wait at once, the others "
            "are not submitted",
            f"set cores to at least {jobs} in {where}",
        )
    default = profile.get("default-resources", {})
    missing = [key for key in NEEDED_RESOURCES if key not in default]
    if missing:
        yield profile_check(
            "default-resources",
            Verdict.WARNING,
            f"without {', '.join(missing)}: Slurm's own defaults decide",
            f"write them in {where}",
        )


def _check_network_facts(site: Site) -> Iterator[Check]:
    """Contradictions between where network stages run and where the network is."""
    if site.network_on == "here" and not site.login_internet:
        yield profile_check(
            "network_on",
            Verdict.FAULT,
            "found here, with login_internet: false: fetch and upload reach nothing",
            "set network_on: batch",
        )
    elif site.network_on == "here" and site.login_minutes:
        yield profile_check(
            "network_on",
            Verdict.WARNING,
            f"found here, where a process lives {site.login_minutes:g} minutes: long downloads "
            "and uploads are killed",
            "set network_on: batch",
        )
    if site.network_on == "batch" and not (site.compute_internet or site.network_prefix):
        yield profile_check(
            "network_prefix",
            Verdict.FAULT,
            "found none, with network_on: batch and compute_internet: false: fetch and upload "
            "reach nothing",
            "give the command that opens a way out, see docs/add_a_site.md",
        )
    if site.tunnel and not site.network_prefix:
        yield profile_check(
            "network_prefix",
            Verdict.FAULT,
            "found none, with tunnel: true",
            "give the command that opens the tunnel, see docs/add_a_site.md",
        )
    mode = job_variables(site)["WANDB_MODE"]
    if mode == "online" and not site.compute_internet:
        yield profile_check(
            "wandb_mode",
            Verdict.FAULT,
            "found online, with compute_internet: false: training hangs at its start",
            "set wandb_mode: offline",
        )


def check_table(
    catalog: Catalog, faults: list[str], requests: Mapping[str, Request]
) -> Iterator[Check]:
    """What keeps the table's experiments from running at the site; `faults` are of reading it."""
    table_check = partial(Check, "experiments")
    limits = request_faults(catalog.site, requests, catalog.experiments.values())
    for line in [*faults, *limits]:
        yield table_check(line, Verdict.FAULT, "")
    if not faults:
        count, name = len(catalog.experiments), catalog.site.name
        if count:
            yield table_check("table", Verdict.OK, f"{count} of its rows run at {name}")
        else:
            yield table_check(
                "table", Verdict.WARNING, f"no row runs at {name}", "see its column sites"
            )


def check_secrets(catalog: Catalog, publishes: bool) -> Iterator[Check]:
    """Where the hub's token and the registry's address come from; never what they are.

    `publishes` where releases go to the hub.
    """
    origins = token_origins()
    if publishes and not origins:
        yield secret_check("HF_TOKEN", Verdict.FAULT, NO_TOKEN, NO_TOKEN_REMEDY)
    elif not (publishes or uses_hub(catalog)):
        if origins:
            yield secret_check("HF_TOKEN", Verdict.OK, f"from {origins[0]}; nothing here needs it")
    elif not origins:
        yield secret_check(
            "HF_TOKEN",
            Verdict.OK,
            "none; public models and datasets do without",
            "for gated or private ones export HF_TOKEN",
        )
    else:
        hidden = f", which hides that of {' and '.join(origins[1:])}" if origins[1:] else ""
        yield secret_check("HF_TOKEN", Verdict.OK, f"from {origins[0]}{hidden}")
    if any(each.register for each in catalog.experiments.values()):
        yield _registry_check()


def _registry_check() -> Check:
    url = os.environ.get(URL_VARIABLE, "")
    if not url:
        return secret_check(URL_VARIABLE, Verdict.OK, "not set: models go to the SQLite file")
    if "://" not in url:
        return secret_check(
            URL_VARIABLE,
            Verdict.FAULT,
            "set, but no URL of a database",
            "write it as postgresql://user:password@host/database",
        )
    return secret_check(URL_VARIABLE, Verdict.OK, "set: models go to that database")


def uses_hub(catalog: Catalog) -> bool:
    """Whether an experiment starts from something of the hub."""
    sources = [*catalog.models.values(), *catalog.datasets.values()]
    return any(each.hub for each in sources)
