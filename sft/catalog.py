"""Everything that the table, its registries and the profile say, checked before any job."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from sft.backends import BACKENDS, DEFAULT_BACKEND
from sft.environment import job_variables
from sft.errors import SftError, gathered, nearest, raise_faults
from sft.experiment import (
    NEEDED_COLUMNS,
    ROW_COLUMNS,
    Experiment,
    Row,
    Table,
    read_table,
    row_values,
)
from sft.files import hash_file, hash_json, list_files, read_yaml
from sft.gate.checks import PACKS, acceptance_faults, check_limit_faults
from sft.limits import limit_faults
from sft.mix import Dataset, Mix, read_datasets, read_mixes
from sft.model import Model, read_models
from sft.names import name_faults
from sft.schema import faults
from sft.site import Site, build_site


@dataclass(frozen=True)
class Catalog:
    """The experiments of a site by name, and the models, datasets and tokens that they need.

    `tokens` maps the name of a pretokenized mix to one of the experiments that train on it.
    """

    site: Site
    experiments: Mapping[str, Experiment]
    models: Mapping[str, Model]
    datasets: Mapping[str, Dataset]
    tokens: Mapping[str, Experiment]


def read_catalog(config: Mapping[str, Any], site_names: list[str]) -> Catalog:
    """The catalog that a workflow config describes.

    Reads the table and its registries, no dataset and no network. Raises SftError with every fault
    of the config, or else of the registries, or else of the table: place, key, value and remedy.
    """
    _check_config(config, site_names)
    site = build_site(config)
    lines: list[str] = []
    with gathered(lines):
        models = read_models(Path(config["models"]))
    with gathered(lines):
        mixes = read_mixes(Path(config["mixes"]), read_datasets(map(Path, config["datasets"])))
    raise_faults(lines)
    builder = _Builder(config, site_names, models, mixes)
    experiments = _read_experiments(read_table(Path(config["experiments"])), builder, site)
    return Catalog(
        site=site,
        experiments=experiments,
        models={each.model.name: each.model for each in experiments.values()},
        datasets={each.name: each for one in experiments.values() for each in one.mix.datasets},
        tokens={tokens_name(each): each for each in reversed(experiments.values())},
    )


def _check_config(config: Mapping[str, Any], site_names: list[str]) -> None:
    if "site" not in config:
        raise SftError(
            "no site is chosen: run snakemake with --profile profiles/<site>, one of "
            f"{', '.join(site_names)}; with --config on the command line, repeat the profile's keys"
        )
    where = f"config (config/config.yaml or profiles/{config['site']}/config.yaml)"
    raise_faults(faults(dict(config), "config", where))
    paths = [(key, config[key]) for key in ("experiments", "models", "mixes")]
    paths += [("datasets", path) for path in config["datasets"]]
    lines = [
        f"{where}, {key}: no file {path!r}; {_nearest_path(path)}"
        for key, path in paths
        if not os.path.isfile(path)
    ]
    lines += check_limit_faults(config.get("check_limits", {}), where)
    if config["site"] not in site_names:
        lines.append(
            f"{where}, site: found {config['site']!r}, expected the name of a folder in profiles; "
            f"{nearest(config['site'], site_names)}"
        )
    raise_faults(lines)


def _nearest_path(path: str) -> str:
    folder = Path(path).parent
    if not os.path.isdir(folder):  # Path.is_dir() raises where a name is too long
        return f"there is no folder {str(folder)!r}"
    return nearest(Path(path).name, (each.name for each in folder.iterdir() if each != Path(path)))


def _read_experiments(table: Table, builder: "_Builder", site: Site) -> dict[str, Experiment]:
    """The site's experiments by name, in the order of the table; all rows are checked."""
    unknown = _unknown_columns(table)
    missing = [
        f"{table.header}, {name}: the column is missing"
        for name in NEEDED_COLUMNS
        if name not in table.columns
    ]
    if missing:  # then no row is whole
        raise SftError(*unknown.values(), *missing)
    rows = [row.without(unknown) for row in table.rows]
    lines = [*unknown.values(), *table.faults, *_twin_faults(rows, builder.config["namespace"])]
    experiments = {}
    for row in rows:
        with gathered(lines):
            experiment = builder.build(row)
            if site.name in (experiment.sites or (site.name,)):
                experiments[experiment.name] = experiment
                raise_faults(limit_faults(experiment, site))
    lines += _missing_files(experiments.values(), builder.config)
    raise_faults(lines)
    return experiments


def _unknown_columns(table: Table) -> dict[str, str]:
    """A line for each column that is neither the row's own nor a key of any backend."""
    backends = BACKENDS.values()
    known = {*ROW_COLUMNS}.union(*(each.known_keys().keys() - each.OWNED_KEYS for each in backends))
    owned = {
        key: reason
        for each in backends
        for key, reason in each.OWNED_KEYS.items()
        if key not in known
    }
    found = {}
    for column in table.columns:
        if column in owned:
            found[column] = f"{table.header}, {column}: leave it out; {owned[column]}"
        elif column not in known:
            remedy = nearest(column, known)
            found[column] = f"{table.header}, {column}: unknown column; {remedy}"
    return found


def _twin_faults(rows: Iterable[Row], namespace: str) -> list[str]:
    """One line for each row whose name or hub id another row has, in whatever case.

    The hub, and file systems that rows may meet, take names that differ in case for one.
    """
    lines: list[str] = []
    names: dict[str, Row] = {}
    hub_ids: dict[str, Row] = {}
    for row in rows:
        if "name" not in row.cells:
            continue
        name = row.cells["name"]
        hub_id = row.cells.get("hub_id", f"{namespace}/{name}")
        first = names.setdefault(name.casefold(), row)
        if first is not row:
            lines.append(
                f"{row.where}, name: {name!r} is taken by {first.where}; rename one of them "
                "(upper and lower case count as the same)"
            )
        elif (first := hub_ids.setdefault(hub_id.casefold(), row)) is not row:
            lines.append(
                f"{row.where}, hub_id: {hub_id!r} is taken by {first.where}; two runs cannot be "
                "published under one name (upper and lower case count as the same)"
            )
    return lines


@dataclass(frozen=True)
class _Builder:
    """Builds experiments from rows: the config, and what cells may name."""

    config: Mapping[str, Any]
    site_names: list[str]
    models: Mapping[str, Model]
    mixes: Mapping[str, Mix]
    read_base_config: Callable = field(default_factory=lambda: cache(_read_base_config))

    def build(self, row: Row) -> Experiment:
        """The row's experiment, whatever its sites; SftError with every fault of the row."""
        values = row_values(row)
        lines = self._row_faults(values, row.where)
        backend_name = values.get("backend", DEFAULT_BACKEND)
        if backend_name in BACKENDS and "base_config" in values:
            with gathered(lines):
                path, overrides, config = self._configure(row, backend_name)
        raise_faults(lines)
        experiment = Experiment(
            name=values["name"],
            backend=backend_name,
            base_config=str(path),
            config=config,
            overrides=overrides,
            model=self.models[values["model"]],
            mix=self.mixes[values["mix"]],
            num_nodes=values["num_nodes"],
            hub_id=self._hub_id(values),
            private=values.get("private", False),
            register=values.get("register", False),
            agent=values.get("agent", ""),
            take_over=values.get("take_over", False),
            trust_remote_code=values.get("trust_remote_code", False),
            sites=tuple(values.get("sites", ())),
            where=row.where,
        )
        raise_faults([*name_faults(experiment), *_acceptance_faults(experiment)])
        return experiment

    def _row_faults(self, values: Mapping[str, Any], where: str) -> list[str]:
        """What is wrong with the row's own columns."""
        lines = faults(values, "experiments", where)
        if not lines:
            made = {**values, "hub_id": self._hub_id(values)}
            lines = [
                f"{line}; it is made of namespace and name: give another in the column hub_id"
                for line in faults(made, "experiments", where)
            ]
        named = {
            "backend": (BACKENDS, ""),
            "model": (self.models, f" in {self.config['models']}"),
            "mix": (self.mixes, f" in {self.config['mixes']}"),
        }
        lines += [
            f"{where}, {kind}: unknown {kind} {values[kind]!r}{file}; "
            f"{nearest(values[kind], known)}"
            for kind, (known, file) in named.items()
            if kind in values and values[kind] not in known
        ]
        lines += [
            f"{where}, sites: unknown site {name!r}; {nearest(name, self.site_names)}"
            for name in values.get("sites", [])
            if name not in self.site_names
        ]
        return lines

    def _hub_id(self, values: Mapping[str, Any]) -> str:
        return values.get("hub_id", f"{self.config['namespace']}/{values['name']}")

    def _configure(self, row: Row, backend_name: str) -> tuple[Path, dict, dict]:
        """The base config's path, the row's overrides, both merged; SftError with their faults."""
        backend = BACKENDS[backend_name]
        cells = {key: cell for key, cell in row.cells.items() if key not in ROW_COLUMNS}
        overrides, lines = backend.read_overrides(cells, row.where)
        lines += backend.config_faults(overrides, row.where)
        with gathered(lines):
            path = _find_base_config(row, backend)
            merged = {**self.read_base_config(path, backend_name), **overrides}
            lines += backend.whole_config_faults(merged, f"{row.where}, with {path.name}")
        raise_faults(lines)
        return path, overrides, merged


def _acceptance_faults(experiment: Experiment) -> list[str]:
    """What is wrong with its `accept`; that of a base config may name sources of other mixes."""
    sources = [*(each.name for each in experiment.mix.datasets), PACKS]
    of_row = "accept" in experiment.overrides
    return acceptance_faults(experiment.accepted, sources, of_row, experiment.where)


def _find_base_config(row: Row, backend: ModuleType) -> Path:
    """A base config that is shipped, or a YAML file of the user's own."""
    name = row.cells["base_config"]
    for path in (backend.CONFIG_FOLDER / f"{name}.yaml", Path(name)):
        if os.path.isfile(path) and path.suffix == ".yaml":
            return path
    shipped = [
        path.relative_to(backend.CONFIG_FOLDER) for path in backend.CONFIG_FOLDER.rglob("*.yaml")
    ]
    known = [path.with_suffix("").as_posix() for path in shipped]
    known += map(str, Path(name).parent.glob("*.yaml"))
    raise SftError(f"{row.where}, base_config: no file {name!r}; {nearest(name, known)}")


def _read_base_config(path: Path, backend: str) -> Mapping[str, Any]:
    content = read_yaml(path)
    raise_faults(BACKENDS[backend].config_faults(content, str(path)))
    return content


def _missing_files(experiments: Iterable[Experiment], config: Mapping[str, Any]) -> list[str]:
    """One line for each local model or dataset that is not there."""
    places: dict[str, tuple[str, str]] = {}
    for experiment in experiments:
        model = experiment.model
        if model.folder and not os.path.isdir(model.folder):
            place = f"{config['models']}, {model.name}, folder: no folder"
            places.setdefault(model.folder, (place, experiment.where))
        for dataset in experiment.mix.datasets:
            if dataset.path and not os.path.exists(dataset.path):
                place = f"{dataset.registry}, {dataset.name}, file_name: no file"
                places.setdefault(dataset.path, (place, experiment.where))
    return [
        f"{place} {path!r}; {_nearest_path(path)} (needed by {where})"
        for path, (place, where) in places.items()
    ]


def token_science(experiment: Experiment) -> dict[str, Any]:
    """Everything that decides an experiment's tokens and is known before anything is fetched."""
    mix, model, backend = experiment.mix, experiment.model, BACKENDS[experiment.backend]
    return {
        "backend": experiment.backend,
        "model": model.hub or model.folder,
        "model.revision": model.revision,
        **({"model.prepare": model.prepare} if model.prepare else {}),
        "mix.strategy": mix.strategy,
        "mix.probabilities": list(mix.probabilities),
        "mix.seed": mix.seed if mix.strategy != "concat" else None,
        "trust_remote_code": experiment.trust_remote_code,
        **{
            f"dataset.{position}": [
                each.name,
                each.hub or each.path,
                each.revision,
                dict(each.options),
            ]
            for position, each in enumerate(mix.datasets)
        },
        **backend.token_options(experiment.config),
        "template.sha256": _template_hash(experiment.backend, experiment.template),
    }


@cache
def _template_hash(backend: str, template: str) -> str | None:
    return BACKENDS[backend].template_hash(template)


def decisions_name(experiment: Experiment) -> str:
    """A name for what an experiment accepts: strict where it accepts nothing."""
    return hash_json(list(experiment.accepted))[:8] if experiment.accepted else "strict"


def tokens_name(experiment: Experiment) -> str:
    """A readable name for an experiment's tokens, with 8 hex digits of what decides them."""
    digits = hash_json(token_science(experiment))[:8]
    return f"{experiment.mix.name}-{experiment.model.name}-{experiment.template}-{digits}"


def science(experiment: Experiment) -> dict[str, Any]:
    """Everything that decides an experiment's weights and is known before anything is fetched."""
    return token_science(experiment) | BACKENDS[experiment.backend].science(experiment.config)


def published_facts(experiment: Experiment) -> dict[str, Any]:
    """Everything that decides what is published of an experiment, and as what."""
    return science(experiment) | {
        "accepted": list(experiment.accepted),
        "hub_id": experiment.hub_id,
        "private": experiment.private,
        "register": experiment.register,
        "agent": experiment.agent,
        "base_model": experiment.model.registry_name,
    }


def rendered_facts(experiment: Experiment, site: Site) -> dict[str, Any]:
    """Everything that train.yaml and launch.sh say and that is known before anything is fetched."""
    config = experiment.config
    launcher_keys = BACKENDS[experiment.backend].LAUNCHER_KEYS
    facts = science(experiment) | {
        key: value for key, value in config.items() if key not in launcher_keys
    }
    if "deepspeed" in config:
        folder = BACKENDS[experiment.backend].DEEPSPEED_FOLDER
        facts["deepspeed.sha256"] = _deepspeed_hash(folder / config["deepspeed"])
    variables = {f"site.variables.{key}": value for key, value in job_variables(site).items()}
    return (
        facts
        | variables
        | {
            "num_nodes": experiment.num_nodes,
            "site.processes_per_node": site.processes_per_node,
            "site.cpus_per_node": site.cpus_per_node,
            "site.attn": site.attn,
            "site.rendezvous": site.rendezvous,
            "site.setup": site.setup,
            "site.activation": site.environments.get(experiment.environment),
            "site.spill_folder": site.spill_folder,
        }
    )


@cache
def _deepspeed_hash(path: Path) -> str:
    return hash_file(path)


def local_files(source: str | None) -> list[str]:
    """The files of a local model or dataset, which a job waits for; none for one from the hub."""
    if source is None:
        return []
    path = Path(source)
    return [str(path / name) for name in list_files(path)] if path.is_dir() else [source]
