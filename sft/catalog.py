"""Everything that the table, its registries and the profile say, checked before any job."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from sft.backends import BACKENDS, DEFAULT_BACKEND
from sft.backends.keys import raise_faults
from sft.environment import job_variables
from sft.errors import SftError, nearest
from sft.experiment import ROW_COLUMNS, Experiment, Row, read_rows, row_values
from sft.files import hash_json, list_files, read_yaml
from sft.mix import Dataset, Mix, read_datasets, read_mixes
from sft.model import Model, read_models
from sft.plan import derive_batch, limit_faults
from sft.schema import faults
from sft.site import Site, build_site

HUB_ID_LENGTH = 96  # the hub refuses longer ones


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
    found: file, row, key, value found, value expected.
    """
    if "site" not in config:
        raise SftError(
            "no site is chosen: run snakemake with --profile profiles/<site>, one of "
            f"{', '.join(site_names)}; with --config on the command line, repeat the profile's keys"
        )
    raise_faults(faults(dict(config), "config", "config"))
    site = build_site(config)
    models = read_models(Path(config["models"]))
    mixes = read_mixes(Path(config["mixes"]), read_datasets(map(Path, config["datasets"])))
    reader = _RowReader(config, site, models, mixes, site_names)
    experiments = reader.read(Path(config["experiments"]))
    raise_faults(_missing_files(experiments.values(), config))
    return Catalog(
        site=site,
        experiments=experiments,
        models={each.model.name: each.model for each in experiments.values()},
        datasets={each.name: each for one in experiments.values() for each in one.mix.datasets},
        tokens={tokens_name(each): each for each in reversed(experiments.values())},
    )


class _RowReader:
    """Builds experiments from rows, and gathers faults so that a person sees all at once."""

    def __init__(
        self,
        config: Mapping[str, Any],
        site: Site,
        models: Mapping[str, Model],
        mixes: Mapping[str, Mix],
        site_names: list[str],
    ) -> None:
        self.config, self.site, self.models, self.mixes = config, site, models, mixes
        self.site_names = site_names
        self.lines: list[str] = []

    def read(self, table: Path) -> dict[str, Experiment]:
        """The site's experiments by name, in the order of the table."""
        rows = read_rows(table)
        experiments: dict[str, Experiment] = {}
        hub_ids: dict[str, str] = {}
        places: dict[str, str] = {}
        for row in rows:
            name = row.cells.get("name", "")
            if name and name in places:
                self.lines.append(f"{row.where}, name: {name!r} stands in {places[name]} already")
                continue
            places[name] = row.where
            experiment = self._build(row)
            if experiment is None:
                continue
            if experiment.hub_id in hub_ids:
                self.lines.append(
                    f"{row.where}, hub_id: {experiment.hub_id!r} is also the one of "
                    f"{hub_ids[experiment.hub_id]}; two runs cannot be published under one name"
                )
            hub_ids[experiment.hub_id] = row.where
            experiments[name] = experiment
        raise_faults(self.lines)
        return experiments

    def _build(self, row: Row) -> Experiment | None:
        """The row's experiment; None where it has faults or belongs to other sites."""
        values = row_values(row)
        backend_name = values.get("backend", DEFAULT_BACKEND)
        backend = BACKENDS.get(backend_name)
        lines = faults(values, "experiments", row.where)
        if backend is None:
            lines.append(
                f"{row.where}, backend: unknown backend {backend_name!r}; "
                f"{nearest(backend_name, BACKENDS)}"
            )
        for kind, known in (("model", self.models), ("mix", self.mixes)):
            if kind in values and values[kind] not in known:
                lines.append(
                    f"{row.where}, {kind}: unknown {kind} {values[kind]!r} in "
                    f"{self.config[_FILES[kind]]}; {nearest(values[kind], known)}"
                )
        lines += [
            f"{row.where}, sites: unknown site {name!r}; {nearest(name, self.site_names)}"
            for name in values.get("sites", [])
            if name not in self.site_names
        ]
        self.lines += lines
        if lines or not self._is_here(values):
            return None
        return self._merge(row, values, backend)

    def _is_here(self, values: Mapping[str, Any]) -> bool:
        return "sites" not in values or self.site.name in values["sites"]

    def _merge(self, row: Row, values: Mapping, backend: ModuleType) -> Experiment | None:
        path = _find_base_config(values["base_config"], backend)
        if path is None:
            known = [
                each.relative_to(backend.CONFIG_FOLDER).with_suffix("").as_posix()
                for each in backend.CONFIG_FOLDER.rglob("*.yaml")
            ]
            self.lines.append(
                f"{row.where}, base_config: no file {values['base_config']!r}; "
                f"{nearest(values['base_config'], known)}"
            )
            return None
        base = _read_base_config(path)
        overrides = {
            key: backend.parse_cell(key, cell)
            for key, cell in row.cells.items()
            if key not in ROW_COLUMNS
        }
        merged = dict(base) | overrides
        lines = list(_base_config_faults(path, values.get("backend", DEFAULT_BACKEND)))
        lines += backend.config_faults(overrides, row.where)
        lines += backend.whole_config_faults(merged, f"{row.where}, with {path.name}")
        hub_id = values.get("hub_id", f"{self.config['namespace']}/{values['name']}")
        if len(hub_id) > HUB_ID_LENGTH:
            lines.append(
                f"{row.where}, hub_id: {hub_id!r} has {len(hub_id)} characters, expected at most "
                f"{HUB_ID_LENGTH}; give a shorter one in the hub_id column"
            )
        if lines:
            self.lines += [line for line in lines if line not in self.lines]
            return None
        experiment = Experiment(
            name=values["name"],
            backend=values.get("backend", DEFAULT_BACKEND),
            base_config=str(path),
            config=merged,
            overrides=overrides,
            model=self.models[values["model"]],
            mix=self.mixes[values["mix"]],
            num_nodes=values["num_nodes"],
            hub_id=hub_id,
            register=values.get("register", False),
            take_over=values.get("take_over", False),
            trust_remote_code=values.get("trust_remote_code", False),
            where=row.where,
        )
        return self._within_limits(experiment)

    def _within_limits(self, experiment: Experiment) -> Experiment | None:
        lines = limit_faults(experiment, self.site)
        try:
            derive_batch(experiment, self.site)
            if self.site.environments:
                self.site.activation(experiment.environment)
        except SftError as error:
            lines.append(str(error))
        self.lines += lines
        return None if lines else experiment


_FILES = {"model": "models", "mix": "mixes"}


def _find_base_config(name: str, backend: ModuleType) -> Path | None:
    shipped = backend.CONFIG_FOLDER / f"{name}.yaml"
    own = Path(name)
    for path in (shipped, own):
        if path.is_file() and path.suffix == ".yaml":
            return path
    return None


@cache
def _read_base_config(path: Path) -> Mapping[str, Any]:
    return read_yaml(path)


@cache
def _base_config_faults(path: Path, backend: str) -> tuple[str, ...]:
    return tuple(BACKENDS[backend].config_faults(_read_base_config(path), str(path)))


def _missing_files(experiments: Any, config: Mapping[str, Any]) -> list[str]:
    """One line for each local model or dataset that is not there."""
    lines = {}
    for experiment in experiments:
        folder = experiment.model.folder
        if folder and not Path(folder).is_dir():
            lines[folder] = (
                f"{config['models']}, {experiment.model.name}, folder: no folder {folder!r} "
                f"(needed by {experiment.where})"
            )
        for dataset in experiment.mix.datasets:
            if dataset.path and not Path(dataset.path).exists():
                lines[dataset.path] = (
                    f"{dataset.registry}, {dataset.name}, file_name: no file {dataset.path!r} "
                    f"(needed by {experiment.where})"
                )
    return list(lines.values())


def token_science(experiment: Experiment) -> dict[str, Any]:
    """Everything that decides an experiment's tokens and is known before anything is fetched."""
    mix, model = experiment.mix, experiment.model
    return {
        "backend": experiment.backend,
        "model": model.hub or model.folder,
        "model.revision": model.revision,
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
        **BACKENDS[experiment.backend].token_options(experiment.config),
    }


def tokens_name(experiment: Experiment) -> str:
    """A readable name for an experiment's tokens, with 8 hex digits of what decides them."""
    digits = hash_json(token_science(experiment))[:8]
    return f"{experiment.mix.name}-{experiment.model.name}-{experiment.template}-{digits}"


def science(experiment: Experiment) -> dict[str, Any]:
    """Everything that decides an experiment's weights and is known before anything is fetched."""
    return token_science(experiment) | BACKENDS[experiment.backend].science(experiment.config)


def rendered_facts(experiment: Experiment, site: Site) -> dict[str, Any]:
    """Everything that train.yaml and launch.sh say and that is known before anything is fetched."""
    return (
        science(experiment)
        | dict(experiment.config)
        | {
            "num_nodes": experiment.num_nodes,
            "site.processes_per_node": site.processes_per_node,
            "site.cpus_per_node": site.cpus_per_node,
            "site.attn": site.attn,
            "site.rendezvous": site.rendezvous,
            "site.setup": site.setup,
            "site.activation": site.environments.get(experiment.environment),
            "site.spill_folder": site.spill_folder,
            "site.variables": job_variables(site),
        }
    )


def local_files(source: str | None) -> list[str]:
    """The files of a local model or dataset, which a job waits for; none for one from the hub."""
    if source is None:
        return []
    path = Path(source)
    return [str(path / name) for name in list_files(path)] if path.is_dir() else [source]
