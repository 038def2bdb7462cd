"""Where an experiment runs: the facts of a machine, all of them from its profile."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sft.errors import SftError, nearest

PLACEHOLDER = "FILL_IN"


@dataclass(frozen=True)
class Site:
    """A cluster or computer. The profile's comments and docs/add_a_site.md explain each fact.

    `max_minutes` is a wall time, `gpu_memory_gb` and `tmp_gb` are GB, `login_minutes` is 0 where
    processes on a login node live as long as they like. `gpu_tflops` and `gpu_network_gbit` are 0
    where they are not known. `node_mtbf_hours` is the mean time between faults of a node;
    `stuck_minutes` without a step end an attempt.
    """

    name: str
    launcher: str = "local"
    arch: str = "x86_64"
    gpus_per_node: int = 0
    gpu_memory_gb: float = 0
    gpu_tflops: float = 0
    gpu_network_gbit: float = 0
    mfu: float = 0.25
    cpus_per_node: int = 1
    max_nodes: int = 1
    max_minutes: int = 1440
    max_minutes_by_qos: Mapping[str, int] = field(default_factory=dict)
    max_nodes_by_qos: Mapping[str, int] = field(default_factory=dict)
    attn: str = "auto"
    rendezvous: str = "c10d"
    master_suffix: str = ""
    gpu_request: str = "none"
    srun_options: str = ""
    sbatch_options: str = ""
    bad_nodes: Mapping[str, str] = field(default_factory=dict)
    node_mtbf_hours: float = 1000
    stuck_minutes: float = 60
    login_internet: bool = True
    compute_internet: bool = True
    tunnel: bool = False
    tunnel_credential: str = ""
    network_on: str = "here"
    network_prefix: str = ""
    login_minutes: float = 0
    tmp_gb: float = 0
    spill_folder: str = ""
    scratch_folder: str = ""
    hf_home: str = ""
    wandb_mode: str = "disabled"
    setup: str = ""
    environments: Mapping[str, str] = field(default_factory=dict)
    environment_pins: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    require_clean_git: bool = False

    @property
    def processes_per_node(self) -> int:
        """Training processes on a node: one a GPU, or one where training runs on the CPU."""
        return self.gpus_per_node or 1

    def activation(self, environment: str) -> str:
        """The line of shell that enters an environment; SftError where the site lacks it."""
        if environment not in self.environments:
            raise SftError(
                f"site {self.name}: no environment {environment!r}; "
                f"{nearest(environment, self.environments)}; "
                f"add it under `environments` in profiles/{self.name}/config.yaml"
            )
        return self.environments[environment]


def build_site(config: Mapping[str, Any]) -> Site:
    """The site that a checked workflow config describes.

    Raises SftError where something that must last would lie on the site's scratch.
    """
    names = {each.name for each in fields(Site)} - {"name"}
    facts = {key: config[key] for key in names if key in config}
    for key in ("max_minutes_by_qos", "max_nodes_by_qos"):
        # Snakemake hands the numbers inside a mapping over as text.
        facts[key] = {qos: int(limit) for qos, limit in config.get(key, {}).items()}
    site = Site(name=config["site"], **facts)
    _refuse_scratch(site, config)
    return site


def _refuse_scratch(site: Site, config: Mapping[str, Any]) -> None:
    if not site.scratch_folder:
        return
    scratch = Path(site.scratch_folder).resolve()
    lasting = {
        "pathvars.results": config["pathvars"]["results"],
        "upload_folder": config.get("upload_folder", ""),
        "registry_file": config.get("registry_file", ""),
    }
    for key, path in lasting.items():
        if path and Path(path).resolve().is_relative_to(scratch):
            raise SftError(
                f"config, {key}: {path} lies below {scratch}, the scratch of {site.name}: what is "
                "there is purged, or dies on a shared quota; choose a file system that lasts"
            )


def placeholders(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The keys of a config (nested ones with dots) whose value is still to be filled in."""
    found = []
    for key, value in config.items():
        if isinstance(value, Mapping):
            found += placeholders(value, f"{prefix}{key}.")
        elif PLACEHOLDER in str(value):
            found.append(f"{prefix}{key}")
    return found
