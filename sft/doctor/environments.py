"""Whether trainers' environments start as a job starts them, and hold what the table needs."""

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from getpass import getuser
from typing import Any

from sft.backends import BACKENDS
from sft.catalog import Catalog
from sft.commands import Answer, ask
from sft.doctor.check import Check, Verdict
from sft.environment import OFFLINE, job_variables, pin_faults, prologue, read_pins
from sft.errors import SftError
from sft.experiment import Experiment
from sft.site import PLACEHOLDER, Site

IMPORT_S = 300.0  # torch from a cold parallel file system takes minutes
OLDEST_PYTHON = (3, 11)
PACKAGES = ("torch", "transformers", "datasets", "accelerate")
ENTERED = "the environment is entered"
# What programs say when an environment does not start, and what to do.
REMEDIES = (
    (
        r"active drivers|libcuda\.so|NVIDIA driver|No CUDA GPUs",
        "it imports only where a GPU is: run this in a short job on a compute node",
    ),
    (
        r"Exec format error|cannot execute binary file",
        "it is built for another CPU architecture: run this on a compute node, or correct the path",
    ),
    (
        r"module: command not found",
        "`setup` calls module, which the shell of a job does not have here: let `setup` source the "
        "file that defines it first",
    ),
    (
        r"modules? (?:\(s\) )?(?:are|is) unknown|Unable to locate a modulefile|following module",
        "correct `setup`: module avail lists what there is",
    ),
    (
        r"conda: command not found|conda init",
        "enter conda by the path of its activate: source <folder>/bin/activate <name>",
    ),
    (r"EnvironmentNameNotFound|EnvironmentLocationNotFound", "conda env list shows the names"),
    (r"No such file or directory", "correct its line under `environments`, or make it"),
    (
        r"GLIBC(?:XX)?_",
        "its wheels are newer than this host's libraries: load a newer gcc in setup",
    ),
    (r"no answer in", "its file system is slow or this host is full: try again"),
)

environment_check = partial(Check, "environments")


def check_environments(catalog: Catalog) -> Iterator[Check]:
    """Each environment that an experiment of the site needs; all of them where there is none."""
    site, needing = catalog.site, {}
    for each in catalog.experiments.values():
        needing.setdefault(each.environment, []).append(each)
    for name in site.environments:
        if name in needing or not needing:
            yield from _check_environment(site, name, needing.get(name, []))
        else:
            yield environment_check(name, Verdict.UNCHECKED, "no experiment needs it")


def _check_environment(site: Site, name: str, experiments: list[Experiment]) -> Iterator[Check]:
    if PLACEHOLDER in f"{site.environments[name]}{site.setup}":
        yield environment_check(name, Verdict.UNCHECKED, "its line is still to be filled in")
        return
    needed = needed_packages(experiments, site)
    try:
        pins = read_pins(site, name)
    except SftError as error:
        yield environment_check(name, Verdict.FAULT, str(error))
        pins = []
    answer = probe(site, name, needed, [pin.name for pin in pins])
    found = _read_answer(answer)
    if found is None:
        yield environment_check(name, *_explain_failure(answer))
        return
    yield environment_check(name, *_judge_python(found))
    for package, error in found["failed"].items():
        yield environment_check(
            name,
            *_judge_failure(package, error, needed[package]),
        )
    for line in pin_faults(pins, found["versions"], "environment_pins", site):
        yield environment_check(name, Verdict.FAULT, line)
    yield from _judge_torch(site, name, found)
    yield from _judge_compilers(site, name, found, experiments)


def needed_packages(experiments: Iterable[Experiment], site: Site) -> dict[str, str]:
    """What has to be importable, with what asks for it."""
    needed = dict.fromkeys(PACKAGES, "each run")
    for each in experiments:
        needed.setdefault(each.backend, "each run")
        asked = BACKENDS[each.backend].needed_packages(each.config, site.attn)
        for package, key in asked.items():
            needed.setdefault(package, f"{key} of {each.name}")
    return needed


def probe(site: Site, name: str, packages: Iterable[str], versions: Iterable[str]) -> Answer:
    """What sft.trainers.probe says in an environment that is entered as a job enters it.

    Nothing comes from this shell, as with sbatch --export=NIL, but what each login shell has.
    """
    # A trainer itself is only looked for: its import takes long and needs our own patches.
    imported = [each for each in packages if each not in BACKENDS]
    command = ["python", "-m", "sft.trainers.probe", "--import", *imported]
    command += ["--find", *(each for each in packages if each in BACKENDS)]
    command += ["--version", *versions]
    exports = [
        f"export {key}={shlex.quote(value)}"
        for key, value in (OFFLINE | job_variables(site)).items()
    ]
    lines = [
        "[ ! -r /etc/profile ] || source /etc/profile",
        "set -eo pipefail",
        *prologue(site, name),
        *exports,
        f"echo {shlex.quote(ENTERED)}",
        f"exec {shlex.join(command)}",
    ]
    return ask("bash", "-c", "\n".join(lines), env=_empty_environment(), timeout_s=IMPORT_S)


def _empty_environment() -> dict[str, str]:
    """What Slurm gives a job that takes over no variable."""
    home, name = os.path.expanduser("~"), getuser()
    path = "/usr/local/bin:/usr/bin:/bin"
    return {"HOME": home, "USER": name, "LOGNAME": name, "PATH": path}


def _read_answer(answer: Answer) -> Mapping[str, Any] | None:
    """What the probe found, if it came to its end."""
    lines = [line for line in answer.output.splitlines() if line.startswith('{"python"')]
    return json.loads(lines[-1]) if lines else None


def _explain_failure(answer: Answer) -> tuple[Verdict, str, str]:
    """Why an environment gave no answer: its activation, its python, or an import that crashed."""
    if ENTERED not in answer.output:
        found = f"cannot be entered: {answer.last_word}"
    elif "importing " in answer.errors:
        package = re.findall(r"^importing (\S+)$", answer.errors, re.MULTILINE)[-1]
        found = f"exit code {answer.code} while {package} is imported: {answer.last_word}"
    else:
        found = f"its python does not run sft: {answer.last_word}"
    return Verdict.FAULT, found, _remedy(answer.said)


def _remedy(text: str) -> str:
    remedies = (remedy for pattern, remedy in REMEDIES if re.search(pattern, text))
    return next(remedies, "see docs/add_a_site.md, Environments; try the line in a fresh shell")


def _judge_python(found: Mapping[str, Any]) -> tuple[Verdict, str, str]:
    versions = found["versions"]
    words = [f"python {found['python']}", *(f"{key} {each}" for key, each in versions.items())]
    if tuple(map(int, found["python"].split(".")[:2])) < OLDEST_PYTHON:
        expected = ".".join(map(str, OLDEST_PYTHON))
        return Verdict.WARNING, ", ".join(words), f"make it with python {expected} or newer"
    return Verdict.OK, ", ".join(words), ""


def _judge_failure(package: str, error: str, reason: str) -> tuple[Verdict, str, str]:
    """An import that failed; one that only wants a GPU is no fault of the environment."""
    if "No module named" in error:
        return (
            Verdict.FAULT,
            f"{package} is missing, which is needed for {reason}",
            "install it there, or change what asks for it (attn: sdpa does without flash_attn)"
            if package == "flash_attn"
            else "install it there",
        )
    wants_gpu = re.search(REMEDIES[0][0], error)
    return (
        Verdict.WARNING if wants_gpu else Verdict.FAULT,
        f"{package} does not import: {error}",
        _remedy(error),
    )


def _judge_torch(site: Site, name: str, found: Mapping[str, Any]) -> Iterator[Check]:
    """Whether torch is built for this site's GPUs, and sees them where there are some."""
    torch = found["torch"]
    if not torch or not site.gpus_per_node:
        return
    if not torch["gpu_toolkit"]:
        yield environment_check(
            name,
            Verdict.FAULT,
            f"torch is a build for the CPU, and the site has {site.gpus_per_node} GPUs a node",
            f"install a build with CUDA for {site.arch}",
        )
    elif not torch["gpus"]:
        yield environment_check(
            name,
            Verdict.UNCHECKED,
            f"torch is built with {torch['gpu_toolkit']}; there is no GPU on this host to try it",
            "run this in a short job to see it work",
        )
    elif torch["unserved"]:
        yield environment_check(
            name,
            Verdict.FAULT,
            f"torch has no code for {', '.join(torch['unserved'])}, the GPUs of this host",
            "install a build for them",
        )
    else:
        yield environment_check(
            name, Verdict.OK, f"torch with {torch['gpu_toolkit']} sees {torch['gpus']} GPUs"
        )


def _judge_compilers(
    site: Site, name: str, found: Mapping[str, Any], experiments: Iterable[Experiment]
) -> Iterator[Check]:
    """DeepSpeed compiles its Adam for the CPU when a run begins; nvc++ and no ninja end it."""
    offloading = [each.name for each in experiments if _offloads(each)]
    if not offloading:
        return
    for variable, compiler in found["compilers"].items():
        told = f"{variable}={site.variables[variable]}" if variable in site.variables else variable
        if not compiler["path"]:
            yield environment_check(
                name,
                Verdict.FAULT,
                f"{told}: {compiler['command']} is not found, and {offloading[0]} offloads its "
                "optimizer, for which DeepSpeed compiles",
                f"set {variable} under `variables` to a gcc of the environment or of `setup`",
            )
        elif re.match(r"nvc", compiler["version"]):
            yield environment_check(
                name,
                Verdict.FAULT,
                f"{told}: {compiler['path']} is NVIDIA's, with which DeepSpeed's build fails",
                f"set {variable} under `variables` to gcc or g++",
            )
    if not found["ninja"]:
        yield environment_check(
            name,
            Verdict.FAULT,
            f"ninja is not found, and {offloading[0]} offloads its optimizer, for which DeepSpeed "
            "compiles",
            "pip install ninja there",
        )


def _offloads(experiment: Experiment) -> bool:
    recipe = BACKENDS[experiment.backend].read_recipe(experiment.config)
    return recipe.states.optimizer_on_cpu
