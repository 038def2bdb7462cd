"""What the entries of all trainers share: their command line, and which runs they leave alone.

An entry is a module that runs in its trainer's environment and has these functions:

    versions [NAME ...]                     prints versions as JSON
    pretokenize REQUEST_FOLDER TOKENS_FOLDER
    check TRAIN_YAML
    train TRAIN_YAML --world-size N
"""

import argparse
import importlib.metadata
import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType


def run(entry: ModuleType) -> None:
    """Do what the command line asks of an entry."""
    parser = argparse.ArgumentParser(prog=entry.__spec__.name)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("versions").add_argument("names", nargs="*")
    tokenizing = commands.add_parser("pretokenize")
    tokenizing.add_argument("request", type=Path)
    tokenizing.add_argument("tokens", type=Path)
    commands.add_parser("check").add_argument("config", type=Path)
    training = commands.add_parser("train")
    training.add_argument("config", type=Path)
    training.add_argument("--world-size", type=int, required=True)
    arguments = vars(parser.parse_args())
    command = arguments.pop("command")
    if command == "versions":
        print(json.dumps(installed_versions([*entry.PACKAGES, *arguments["names"]])))
    else:
        getattr(entry, command)(**arguments)


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """The version of each package by name; one that is not installed is absent."""
    found = {}
    for name in dict.fromkeys(names):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def is_first() -> bool:
    """Whether this is the process that writes what all share: the first that torchrun started."""
    return int(os.environ.get("RANK", "0")) == 0


def is_complete(output: Path) -> bool:
    """Whether a run's root or one of its checkpoints is of the last step.

    Resumed from its last checkpoint, it would train one step past its end.
    """
    return any(has_ended(folder) for folder in (output, *output.glob("checkpoint-*")))


def has_ended(folder: Path) -> bool:
    """Whether the trainer state in a run's root or checkpoint, saved last, is of the last step."""
    try:
        state = json.loads((folder / "trainer_state.json").read_text())
    except (FileNotFoundError, ValueError):
        return False
    return state["global_step"] >= state["max_steps"] > 0


def refuse_to_tokenize(tokens: Path) -> None:
    """A training job that finds no tokens would tokenize on each node and stall the others.

    Raises RuntimeError.
    """
    if not (tokens / "state.json").is_file():
        raise RuntimeError(f"{tokens}: no tokens there; a training job does not tokenize")
