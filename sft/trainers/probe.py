"""What an environment holds, told by itself: versions, imports, GPUs and compilers.

`python -m sft.trainers.probe` prints one line of JSON at its end. Imports are named on stderr
before they begin: one that crashes the interpreter is the last name there.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

# What builds take where CC and CXX are not set (torch.utils.cpp_extension).
COMPILERS = {"CC": "cc", "CXX": "c++"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="sft.trainers.probe")
    parser.add_argument("--import", dest="imported", nargs="*", default=[])
    parser.add_argument("--find", nargs="*", default=[])
    parser.add_argument("--version", nargs="*", default=[])
    arguments = parser.parse_args()
    failed = import_all(arguments.imported)
    for name in arguments.find:
        if importlib.util.find_spec(name) is None:
            failed[name] = f"No module named {name!r}"
    names = [*arguments.imported, *arguments.find, *arguments.version]
    found = {
        "python": platform.python_version(),
        "versions": find_versions(names),
        "failed": failed,
        "torch": describe_torch() if "torch" in sys.modules else None,
        "compilers": {variable: find_compiler(variable) for variable in COMPILERS},
        "ninja": shutil.which("ninja"),
    }
    sys.stdout.flush()
    print(f"\n{json.dumps(found)}")


def import_all(names: Iterable[str]) -> dict[str, str]:
    """The last line of the error of each package that does not import, by name."""
    failed = {}
    for name in names:
        print(f"importing {name}", file=sys.stderr, flush=True)
        try:
            importlib.import_module(name)
        except Exception as error:  # packages raise all kinds of them where no driver is
            failed[name] = f"{type(error).__name__}: {error}".strip().splitlines()[-1]
    return failed


def find_versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of what is installed, by the name that was asked for."""
    found = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe_torch() -> dict[str, Any]:
    """What torch was built with, the GPUs it sees, and the kinds of them it has no code for."""
    torch = sys.modules["torch"]
    toolkit = ""
    if torch.version.cuda:
        toolkit = f"CUDA {torch.version.cuda}"
    elif torch.version.hip:
        toolkit = f"ROCm {torch.version.hip}"
    gpus = torch.cuda.device_count() if toolkit else 0
    unserved: set[str] = set()
    if torch.version.cuda and gpus:
        served = torch.cuda.get_arch_list()
        kinds = {torch.cuda.get_device_capability(each) for each in range(gpus)}
        unserved = {f"sm_{a}{b}" for a, b in kinds if not serves(served, a, b)}
    return {"gpu_toolkit": toolkit, "gpus": gpus, "unserved": sorted(unserved)}


def serves(served: Iterable[str], major: int, minor: int) -> bool:
    """Whether code of one of the architectures runs on a GPU: same major, minor not above.

    What is in PTX (compute_90) is compiled for later GPUs too.
    """
    for each in served:
        kind, _, digits = each.partition("_")
        number = int("".join(filter(str.isdigit, digits)))
        if kind == "compute" and number <= 10 * major + minor:
            return True
        if number // 10 == major and number % 10 <= minor:
            return True
    return False


def find_compiler(variable: str) -> dict[str, Any]:
    """The command that builds take, where it is, and how it names itself."""
    command = os.environ.get(variable) or COMPILERS[variable]
    path = shutil.which(command.split()[0])
    version = ""
    if path:
        asked = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        version = next(iter(asked.stdout.strip().splitlines()), "")
    return {"command": command, "path": path, "version": version}


if __name__ == "__main__":
    main()
