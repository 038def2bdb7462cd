"""This host, this checkout, and the way out to the network."""

import importlib.metadata
import os
import platform
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from packaging.requirements import Requirement

from sft.commands import ask
from sft.doctor.check import Check, Verdict
from sft.doctor.folders import check_sight, read_mounts
from sft.environment import REPOSITORY, without_secrets
from sft.hub_token import read_token, token_origins
from sft.network import read_validity
from sft.revision import UNKNOWN, git_state, tree_faults
from sft.site import PLACEHOLDER, Site

UPLOAD_TIME = timedelta(hours=1)  # 131 GB have taken 4 minutes on a good way, and far more on bad
NETWORK_S = 10.0
HUB = "https://huggingface.co"

host_check = partial(Check, "this host")
checkout_check = partial(Check, "checkout")
network_check = partial(Check, "network")


def check_host(site: Site) -> Iterator[Check]:
    """The architecture, and how long a process may live here."""
    machine = platform.machine()
    if machine == site.arch:
        yield host_check("arch", Verdict.OK, machine)
    else:
        yield host_check(
            "arch",
            Verdict.WARNING if site.launcher == "slurm" else Verdict.FAULT,
            f"{machine} here, {site.arch} in the profile: environments for one do not start on the "
            "other",
            "correct arch; where a login node differs from compute nodes, run this in a job",
        )
    if site.login_minutes:
        yield host_check(
            "login_minutes",
            Verdict.OK,
            f"a process on a login node lives {site.login_minutes:g} minutes",
            "start with python -m sft drive, which puts the driver into a job",
        )


def check_checkout(site: Site) -> Iterator[Check]:
    """The commit, and the environment that the workflow runs in."""
    try:
        git = git_state(REPOSITORY)
    except OSError as error:  # this host may be out of processes
        git = UNKNOWN
        yield checkout_check("git", Verdict.WARNING, f"does not start: {error.strerror}")
    if site.require_clean_git and (faults := list(tree_faults(git, "require_clean_git"))):
        yield checkout_check(
            "commit",
            Verdict.FAULT,
            "; ".join(faults),
            "or let the profile say require_clean_git: false",
        )
    elif not git["commit"]:
        yield checkout_check("commit", Verdict.UNCHECKED, "git does not know this folder")
    elif git["dirty"]:
        yield checkout_check(
            "commit",
            Verdict.WARNING,
            f"{git['commit'][:12]} with changes: a release cannot say what code made it",
            "commit them before you train what is to be published",
        )
    else:
        yield checkout_check("commit", Verdict.OK, git["commit"][:12])
    wrong = requirement_faults()
    if wrong:
        yield checkout_check(
            "packages", Verdict.FAULT, "; ".join(wrong), "make setup installs what is needed"
        )
    else:
        snakemake = importlib.metadata.version("snakemake")
        yield checkout_check(
            "packages", Verdict.OK, f"as pyproject.toml asks, snakemake {snakemake} among them"
        )
    if site.launcher == "slurm":
        sight = check_sight("python", Path(sys.prefix), read_mounts())
        yield checkout_check("python", sight.verdict, sight.found, sight.remedy)


def requirement_faults() -> list[str]:
    """One line for each package that is not installed here as pyproject.toml asks."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    lines = []
    for requirement in map(Requirement, project["dependencies"]):
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = "none"
        if version == "none" or not requirement.specifier.contains(version, prereleases=True):
            lines.append(f"{requirement.name}: found {version}, expected {requirement.specifier}")
    return lines


def check_tunnel(site: Site) -> Iterator[Check]:
    """Whether the certificate of the tunnel outlives an upload."""
    if not site.tunnel_credential:
        if site.tunnel:
            yield network_check(
                "tunnel_credential",
                Verdict.UNCHECKED,
                "the profile names none",
                "write the path of the certificate that opens the tunnel, if there is one",
            )
        return
    path = Path(site.tunnel_credential)
    if PLACEHOLDER in str(path):
        yield network_check("tunnel_credential", Verdict.UNCHECKED, "is to be filled in")
    elif not os.path.isfile(path):
        yield network_check(
            "tunnel_credential",
            Verdict.FAULT,
            f"{path}: no such file",
            "get a certificate from the site, or correct the path",
        )
    else:
        answer = ask("ssh-keygen", "-L", "-f", str(path), env=without_secrets())
        if answer.code:
            yield network_check(
                "tunnel_credential",
                Verdict.FAULT,
                answer.last_word,
                "name the certificate (…-cert.pub), not the key",
            )
        else:
            yield judge_certificate(path, answer.output, datetime.now())


def judge_certificate(path: Path, shown: str, now: datetime) -> Check:
    """Whether a certificate, as ssh-keygen shows it, is valid now and for long enough."""
    start, end = read_validity(shown)
    if start and start > now:
        verdict, found = Verdict.FAULT, f"valid only from {start} on"
    elif not end:
        return network_check("tunnel_credential", Verdict.OK, f"{path}: valid for ever")
    else:
        left = end - now
        if left <= timedelta(0):
            verdict, found = Verdict.FAULT, f"expired at {end}"
        elif left < UPLOAD_TIME:
            verdict, found = Verdict.WARNING, f"valid until {end}, which an upload may outlast"
        else:
            verdict, found = Verdict.OK, f"valid until {end}"
    remedy = "" if verdict == Verdict.OK else "renew it before a job that uploads is submitted"
    return network_check("tunnel_credential", verdict, f"{path}: {found}", remedy)


def check_network(site: Site, uses_hub: bool, ask_hub: bool, endpoint: str) -> Iterator[Check]:
    """Whether the hub is reached from here and takes the token; asked only where it is wanted."""
    if not uses_hub or not site.login_internet:
        return
    if not ask_hub:
        yield network_check("hub", Verdict.UNCHECKED, "not asked", "--network asks it")
        return
    status = _request_status(endpoint)
    if isinstance(status, str):
        yield network_check(
            "hub",
            Verdict.FAULT,
            f"{endpoint} is not reached: {status}",
            "set login_internet: false, or HTTPS_PROXY where a proxy leads out",
        )
        return
    yield network_check("hub", Verdict.OK, f"{endpoint} is reached")
    if token := read_token():
        yield _check_token(endpoint, token)


def _check_token(endpoint: str, token: str) -> Check:
    origin = token_origins()[0]
    status = _request_status(f"{endpoint}/api/whoami-v2", {"Authorization": f"Bearer {token}"})
    if status == 200:
        return network_check("HF_TOKEN", Verdict.OK, f"the one from {origin} is accepted")
    if status == 401:
        return network_check(
            "HF_TOKEN",
            Verdict.FAULT,
            f"the one from {origin} is refused: it is stale, and public models fail with it too",
            "unset it, or make a new one",
        )
    return network_check("HF_TOKEN", Verdict.UNCHECKED, f"the hub says {status} to whoami")


def _request_status(url: str, headers: dict[str, str] | None = None) -> int | str:
    """The HTTP status of a short request, or the reason why there is none."""
    method = "GET" if headers else "HEAD"
    try:
        request = urllib.request.Request(url, headers=headers or {}, method=method)
        with urllib.request.urlopen(request, timeout=NETWORK_S) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError) as error:  # no way, a timeout, or an endpoint that is no URL
        return str(getattr(error, "reason", error))
