"""Check a site before anything is submitted: what would fail, and what to do about it.

Nothing is changed but a small file that is written into each folder and deleted at once. Areas
come in the order of their cost: on some login nodes a process does not live to the end.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sft.catalog import Catalog, read_catalog
from sft.config import read_config, results_folder, site_names
from sft.doctor.check import Check, Printer, Verdict, has_fault, sum_up
from sft.doctor.environments import check_environments
from sft.doctor.folders import check_folders
from sft.doctor.host import HUB, check_checkout, check_host, check_network, check_tunnel
from sft.doctor.settings import check_profile, check_secrets, check_table, uses_hub
from sft.doctor.slurm import check_slurm
from sft.errors import SftError
from sft.files import read_yaml
from sft.request import read_requests
from sft.schema import faults
from sft.site import build_site

__all__ = ["Check", "Printer", "Verdict", "has_fault", "run_doctor", "sum_up"]


def run_doctor(
    profile: Path,
    configfiles: Iterable[Path],
    say: Callable[[Check], None],
    network: bool = False,
) -> list[Check]:
    """All checks of a site; each is handed to `say` as soon as it is done.

    With `network` the hub is asked too. Raises SftError where there is no profile to check.
    """
    checks = []
    for check in _all_checks(profile, configfiles, network):
        say(check)
        checks.append(check)
    return checks


def _all_checks(profile: Path, configfiles: Iterable[Path], network: bool) -> Iterator[Check]:
    config = read_config(profile, configfiles)
    file = profile / "config.yaml" if profile.is_dir() else profile
    settings = read_yaml(file)
    wrong = faults(config, "config", str(file))
    if not wrong:
        try:
            site = build_site(config)
        except SftError as error:  # what must last would lie on scratch
            wrong = list(error.args)
    if wrong:
        for line in wrong:
            yield Check("profile", line, Verdict.FAULT, "")
        yield Check("profile", "all else", Verdict.UNCHECKED, "waits for a profile without these")
        return
    try:
        catalog, table_faults = read_catalog(config, site_names()), []
    except SftError as error:
        catalog, table_faults = Catalog(site, {}, {}, {}, {}), list(error.args)
    requests = read_requests(settings)
    results = results_folder(config)
    yield from check_profile(settings, config, site, str(file))
    yield from check_table(catalog, table_faults, requests)
    publishes = config["upload_to"] == "hub"
    yield from check_secrets(catalog, publishes)
    yield from check_host(site)
    yield from check_checkout(site)
    yield from check_tunnel(site)
    endpoint = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
    yield from check_network(site, publishes or uses_hub(catalog), network, endpoint)
    yield from check_folders(settings, config, catalog)
    if _uses_slurm(settings, config):
        yield from check_slurm(settings, catalog, requests, results)
    yield from check_environments(catalog)


def _uses_slurm(settings: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    return "slurm" in (settings.get("executor"), config.get("launcher"))
