"""What the jobs of a rule ask Slurm for, as the profile writes it for Snakemake."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_MINUTES = {"": 1, "s": 1 / 60, "m": 1, "h": 60, "d": 1440, "w": 10080}


@dataclass(frozen=True)
class Request:
    """Wall time, queue and resources; `minutes` is None where nothing can be read, texts are "".

    `extra` is more options of sbatch. A `memory_mb` of 0 writes no directive.
    """

    minutes: float | None = None
    qos: str = ""
    account: str = ""
    partition: str = ""
    gres: str = ""
    constraint: str = ""
    memory_mb: int = 0
    extra: str = ""


def read_requests(profile: Mapping[str, Any]) -> dict[str, Request]:
    """What each rule asks for that a profile's `set-resources` names, over `default-resources`.

    The default itself, which holds for all other rules, has the name "".
    """
    default = profile.get("default-resources", {})
    own = {"": {}, **profile.get("set-resources", {})}
    return {rule: _read_request({**default, **resources}) for rule, resources in own.items()}


def training_request(requests: Mapping[str, Request]) -> Request:
    """What the training jobs ask for."""
    return requests.get("train", requests[""])


def _read_request(resources: Mapping[str, Any]) -> Request:
    # A resource that is text is Python for Snakemake: one with a colon has quotes of its own.
    texts = {key: str(value).strip("'\"") for key, value in resources.items()}
    memory = texts.get("mem_mb", "0")
    return Request(
        minutes=parse_minutes(texts.get("runtime", "")),
        qos=texts.get("qos", ""),
        account=texts.get("slurm_account", ""),
        partition=texts.get("slurm_partition", ""),
        gres=texts.get("gres", ""),
        constraint=texts.get("constraint", ""),
        memory_mb=int(memory) if memory.isdigit() else 0,
        extra=texts.get("slurm_extra", ""),
    )


def parse_minutes(runtime: Any) -> float | None:
    """The minutes of a `runtime` as Snakemake writes it: 719, '12h', '1d'; None if not so plain."""
    match = _TIME.fullmatch(str(runtime).strip().strip("'\"").lower())
    if not match or match[2][:1] not in _MINUTES:
        return None
    return float(match[1]) * _MINUTES[match[2][:1]]
