"""Run a trainer's command in the environment that the site activates for it."""

import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from sft.errors import SftError
from sft.site import Site

REPOSITORY = Path(__file__).resolve().parent.parent

# Inputs are fetched before; a trainer that asks the hub for more would hang on most sites.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "SFT_REGISTRY_URL")


def prologue(site: Site, environment: str) -> list[str]:
    """Lines of shell that enter an environment of the site and make `sft` importable there."""
    lines = [site.setup] if site.setup else []
    lines.append(site.activation(environment).replace("{repository}", str(REPOSITORY)))
    lines.append(f"export PYTHONPATH={shlex.quote(str(REPOSITORY))}")
    return lines


def use_hub_cache(site: Site) -> None:
    """Let what this process and its jobs download land in the site's cache.

    HF_HOME stays as it is, since the user's token lies there.
    """
    if site.hf_home:
        os.environ["HF_HUB_CACHE"] = f"{site.hf_home}/hub"


def job_variables(site: Site) -> dict[str, str]:
    """The environment variables of a training job at the site."""
    threads = max(1, site.cpus_per_node // site.processes_per_node)
    variables: dict[str, str] = {}
    if not site.compute_internet:
        variables |= OFFLINE
    if site.hf_home:
        variables["HF_HOME"] = site.hf_home
    variables |= {
        "WANDB_MODE": site.wandb_mode,
        "OMP_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    if not site.gpus_per_node:
        variables["SFT_ON_CPU"] = "1"
    return variables | dict(site.variables)


def without_secrets() -> dict[str, str]:
    """The environment variables of this process that a trainer may see."""
    return {key: value for key, value in os.environ.items() if key not in SECRETS}


def ask_environment(site: Site, environment: str, command: str) -> str:
    """The last line that a line of shell prints in an environment of the site.

    Raises SftError with what it says where it fails or prints nothing.
    """
    done = subprocess.run(
        ["bash", "-c", _script(site, environment, command)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=without_secrets(),
        check=False,
    )
    if done.returncode or not done.stdout.strip():
        raise SftError(
            f"environment {environment!r} at {site.name} does not start: exit code "
            f"{done.returncode} of {command}\n{done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout.splitlines()[-1]


def read_pins(site: Site, environment: str) -> list[Requirement]:
    """What the site's profile says that an environment must hold."""
    where = f"profiles/{site.name}/config.yaml, environment_pins, {environment}"
    pins = []
    for text in site.environment_pins.get(environment, "").split():
        try:
            pins.append(Requirement(text))
        except InvalidRequirement as error:
            raise SftError(f"{where}: found {text!r}, expected e.g. torch==2.9.1") from error
    return pins


def pin_faults(
    pins: Iterable[Requirement], versions: Mapping[str, str], where: str, site: Site
) -> list[str]:
    """One line for each pin that the installed `versions` do not keep."""
    remedy = f"repair it, or correct environment_pins in profiles/{site.name}/config.yaml"
    return [
        f"{where} at {site.name}: {pin.name}: found {versions.get(pin.name, 'none')}, "
        f"expected {pin.specifier or 'any version'}; {remedy}"
        for pin in pins
        if pin.name not in versions
        or not pin.specifier.contains(versions[pin.name], prereleases=True)
    ]


def run_in_environment(
    site: Site, environment: str, command: list[str], log: Path, variables: dict[str, str]
) -> None:
    """Run a command to its end, its output appended to `log`.

    The command gets no secrets and no network switches of ours but `OFFLINE`. Raises SftError with
    the last lines of its output where it fails.
    """
    with open(log, "a", encoding="utf-8") as output:
        start = output.tell()
        output.write(f"$ {shlex.join(command)}\n")
        output.flush()
        code = subprocess.run(
            ["bash", "-c", _script(site, environment, shlex.join(command))],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=without_secrets() | OFFLINE | variables,
            check=False,
        ).returncode
    if code:
        raise SftError(
            f"environment {environment!r} at {site.name}: exit code {code} of "
            f"{shlex.join(command)}\n{tail(log, start)}\nthe whole output: {log}"
        )


def _script(site: Site, environment: str, command: str) -> str:
    return "\n".join(["set -e", *prologue(site, environment), f"exec {command}"])


def tail(log: Path, start: int = 0, most: int = 15) -> str:
    """The last lines of a log after byte `start`, indented."""
    with open(log, "rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(f"  | {line}" for line in lines[-most:])
