"""Imports run one way, and each module imports only the packages that this table gives it."""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "sft"

# From the bottom to the top: a module imports from layers below its own, and from no other.
# A folder is one module here; sft/trainers has rules of its own, below.
LAYERS = (
    ("errors", "process", "plot", "templates", "recipe", "row_counts", "commands", "slurm_text"),
    ("gate.preview", "gate.conversation", "revision"),
    ("endings", "request", "rejection", "hub_token"),
    ("files", "step", "shards", "gate.checks", "gate.serving", "gate.structure", "gate.rows"),
    ("receipt", "cleaned", "schema", "config", "locks", "weights", "metadata"),
    ("gate.comparison", "gate.roles", "gate.verdict", "gate.tally"),
    ("progress", "chain", "attempts", "publishable"),
    ("tensor_names", "model", "mix", "site", "sizes", "gate.inspection", "gate.vocabulary"),
    ("experiment", "draws"),
    ("names", "steps", "memory", "mfu"),
    ("pace", "backends"),
    ("batch", "throughput"),
    ("environment", "network", "limits", "identity"),
    ("catalog", "slurm"),
    ("launch",),
    ("facts",),
    ("plan",),
    ("plan_text",),
    # Stages, and what they are made of.
    ("checkpoint", "sources", "card", "local", "registry", "served", "adapter"),
    ("servable", "placement"),
    ("hub", "hub_repository", "folder_upload"),
    ("consolidation",),
    ("hub_upload", "fetch", "release", "registration", "settle", "conversations", "consolidate"),
    ("attempt", "upload", "published"),
    ("links",),
    ("train", "status", "drive"),
    ("tokens", "render", "provenance", "delphi"),
    ("gate.gate", "assembly"),
    # What people call.
    ("results", "status_text", "registry_text", "clean", "doctor", "alone"),
    ("cli",),
    ("__main__",),
)

# Folders whose modules have layers of their own.
OPEN = {"gate"}

# What a module may import beside the standard library and `sft`.
PACKAGES = {
    "files": {"yaml"},
    "schema": {"jsonschema"},
    "environment": {"packaging"},
    "plot": {"matplotlib"},
    "card": {"huggingface_hub", "yaml"},
    "metadata": {"huggingface_hub"},
    "adapter": {"numpy"},
    "consolidation": {"huggingface_hub", "numpy"},
    "conversations": {"pyarrow"},
    "fetch": {"huggingface_hub", "httpx2", "tqdm"},
    "hub": {"huggingface_hub", "httpx2"},
    "hub_repository": {"huggingface_hub"},
    "hub_upload": {"huggingface_hub"},
    "published": {"huggingface_hub", "httpx2"},
    "sources": {"pyarrow"},
    "gate.rows": {"datasets", "pandas", "pyarrow"},
    "row_counts": {"pyarrow"},
    "draws": {"numpy"},
    "served": {"transformers"},
    "weights": {"numpy"},
    "delphi": {"numpy", "tokenizers"},
    "gate.serving": {"jinja2", "transformers"},
    "gate.structure": {"numpy"},
    "gate.vocabulary": {"numpy", "tokenizers"},
    "gate.tally": {"numpy"},
    "gate.inspection": {"datasets", "numpy", "pyarrow"},
    "gate.preview": {"jinja2", "markupsafe"},
    "plan_text": {"tabulate"},
    "registry": {"sqlalchemy"},
    "registry_text": {"tabulate"},
    "launch": {"jinja2"},
    "clean": {"tabulate"},
    "cli": {"tabulate"},
    "doctor": {"packaging"},
}

# Each job of a cluster reads the Snakefile again: what its rules import has to load fast.
LIGHT = {"yaml", "jsonschema", "pandas", "packaging", "numpy", "pyarrow", "tabulate"}

# Inside a trainer's environment: the trainer, and what it is made of itself.
TRAINERS = {
    "llamafactory": {
        *("llamafactory", "torch", "transformers", "datasets", "omegaconf"),
    },
    "axolotl": {
        *("axolotl", "torch", "transformers", "tokenizers", "datasets", "jinja2", "yaml"),
    },
    "token_folder": {"datasets", "numpy", "pyarrow"},
    "on_cpu": {"torch"},
    "callbacks": {"transformers"},
    "served_tokenizer": set(),
    "describe": set(),
    "merge": {"peft", "transformers"},
    "entry": set(),
    "keeper": {"torch", "transformers"},
    "loading": {"safetensors", "torch", "transformers"},
    "text_only": set(),
}

LEVELS = {name: level for level, layer in enumerate(LAYERS) for name in layer}


def module_of(path: Path) -> str:
    """The name of a file's module in LAYERS: of a folder, the folder's."""
    return name_in_layers(path.relative_to(PACKAGE).with_suffix("").parts)


def name_in_layers(parts: Sequence[str]) -> str:
    return ".".join(parts[:2]) if parts[0] in OPEN else parts[0]


def imports_of(path: Path) -> Iterator[str]:
    """The full names that a file imports anywhere in it, inside of functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}, line {node.lineno}: a relative import"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def own(path: Path) -> set[str]:
    """The modules of `sft` that a file imports, by their names in LAYERS, its own left out."""
    names = (name.split(".") for name in imports_of(path))
    found = {name_in_layers(parts[1:]) for parts in names if parts[0] == "sft"}
    return found - {module_of(path)}


def foreign(path: Path) -> set[str]:
    """The packages that a file imports beside the standard library and `sft`."""
    return {name.split(".")[0] for name in imports_of(path)} - sys.stdlib_module_names - {"sft"}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


ALL = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if ast.parse(path.read_text()).body and path != PACKAGE / "gate" / "__init__.py"
)
IN_TRAINERS = [path for path in ALL if module_of(path) == "trainers"]
ELSEWHERE = [path for path in ALL if path not in IN_TRAINERS and module_of(path) != "__init__"]


def test_each_module_has_a_layer():
    assert {module_of(path) for path in ELSEWHERE} == LEVELS.keys()


def test_the_package_itself_imports_nothing():
    assert not list(imports_of(PACKAGE / "__init__.py"))


@pytest.mark.parametrize("path", ELSEWHERE, ids=name_of)
def test_module_imports_from_lower_layers_only(path):
    level = LEVELS[module_of(path)]

    assert not [name for name in own(path) if LEVELS.get(name, level) >= level]


@pytest.mark.parametrize("path", ELSEWHERE, ids=name_of)
def test_module_imports_only_its_packages(path):
    assert foreign(path) <= PACKAGES.get(module_of(path), set())


@pytest.mark.parametrize("path", ALL, ids=name_of)
def test_nothing_imports_snakemake(path):
    assert "snakemake" not in foreign(path)


@pytest.mark.parametrize("path", IN_TRAINERS, ids=name_of)
def test_trainer_module_imports_only_its_trainer(path):
    allowed = next((TRAINERS[name] for name in TRAINERS if path.stem.startswith(name)), set())

    assert foreign(path) <= allowed


@pytest.mark.parametrize("path", IN_TRAINERS, ids=name_of)
def test_trainer_module_uses_nothing_of_the_workflow(path):
    assert own(path) <= {"templates"}


def test_what_the_rules_import_is_light():
    rules = [CHECKOUT / "Snakefile", *(CHECKOUT / "workflow" / "rules").glob("*.smk")]
    waiting = {
        name
        for path in rules
        for name in re.findall(r"^\s*from sft\.(\w+)", path.read_text(), re.MULTILINE)
    }
    loaded: set[str] = set()
    while waiting - loaded:
        loaded |= waiting
        waiting = {name for path in ELSEWHERE if module_of(path) in loaded for name in own(path)}
    packages = {name for path in ELSEWHERE if module_of(path) in loaded for name in foreign(path)}

    assert "catalog" in loaded
    assert packages <= LIGHT
