"""The shards that DeepSpeed and FSDP leave: which there are, and whether the set is whole.

Only names, sizes, ends of files and a few words of pickled headers are read; nothing is unpickled.
"""

import pickletools
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from sft.errors import SftError, first_few

SHARD = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_00_(model|optim)_states\.pt")
FSDP_MODEL = ("pytorch_model_fsdp_0", "pytorch_model_fsdp.bin")
FSDP_OPTIMIZER = ("optimizer_0", "optimizer.bin")


class Shards(NamedTuple):
    """A whole set of DeepSpeed shards; at stages 1 and 2 only the optimizer is sharded."""

    tag: str
    world_size: int
    is_zero3: bool


def read_shards(folder: Path) -> Shards | None:
    """The DeepSpeed shards that `latest` names; None where `folder` has none.

    Raises SftError with the ranks whose files are missing or truncated.
    """
    tags = sorted(path.name for path in folder.glob("global_step*") if path.is_dir())
    latest = folder / "latest"
    if not latest.exists() and not tags:
        return None
    if not latest.exists():
        raise SftError(f"{folder}: {first_few(tags)} without `latest`: the save was cut short")
    tag = latest.read_text(encoding="utf-8").strip()
    if tag not in tags:
        raise SftError(f"{folder}: `latest` names {tag!r}, found {first_few(tags) or 'no shards'}")
    whole = folder / tag / "mp_rank_00_model_states.pt"
    kinds = ("optim",) if whole.exists() else ("model", "optim")
    found: dict[str, dict[int, Path]] = {"model": {}, "optim": {}}
    for path in (folder / tag).iterdir():
        if match := SHARD.fullmatch(path.name):
            found[match[2]][int(match[1])] = path
    if whole.exists():
        check_archive(whole)
    states = [whole] if whole.exists() else found["model"].values()
    world_size = _world_size(states) or 1 + max([*found["model"], *found["optim"]], default=0)
    faults = [line for kind in kinds for line in _rank_faults(kind, found[kind], world_size)]
    if faults:
        raise SftError(f"{folder / tag}: of {world_size} ranks, {'; '.join(faults)}")
    return Shards(tag, world_size, is_zero3=not whole.exists())


def _rank_faults(kind: str, found: Mapping[int, Path], world_size: int) -> list[str]:
    missing = [rank for rank in range(world_size) if rank not in found]
    truncated = [rank for rank in sorted(found) if not _is_whole_archive(found[rank])]
    foreign = [rank for rank in sorted(found) if rank >= world_size]
    cases = {"missing": missing, "truncated": truncated, "of another world size": foreign}
    return [
        f"{kind}_states {what} for rank {first_few(ranks)}"
        for what, ranks in cases.items()
        if ranks
    ]


def _world_size(model_states: Iterable[Path]) -> int | None:
    """The world size that the first whole file of model states records.

    Without it a set that lacks its last ranks would look whole.
    """
    for path in model_states:
        if _is_whole_archive(path):
            with zipfile.ZipFile(path) as archive:
                pickled = [name for name in archive.namelist() if name.endswith("/data.pkl")]
                return _pickled_number(archive.read(pickled[0]), "dp_world_size")
    return None


def _pickled_number(pickled: bytes, key: str) -> int | None:
    """The whole number under `key` in a pickled mapping; the pickle is read, not run."""
    after_key = False
    for opcode, value, _ in pickletools.genops(pickled):
        if after_key and opcode.name in ("BININT1", "BININT2", "BININT"):
            return value
        after_key = value == key or (after_key and opcode.name in ("BINPUT", "LONG_BINPUT"))
    return None


def find_zero(folder: Path, is_zero3: bool) -> str | None:
    shards = read_shards(folder)
    if not shards or shards.is_zero3 is not is_zero3:
        return None
    stage = "ZeRO-3" if is_zero3 else "ZeRO-1 or ZeRO-2"
    return f"{stage} shards of {shards.world_size} ranks in {shards.tag}"


def find_fsdp(folder: Path, names: tuple[str, str] = FSDP_MODEL) -> str | None:
    sharded, single = (folder / name for name in names)
    if single.exists():
        check_archive(single)
        return f"FSDP weights in {single.name}"
    if not sharded.is_dir():
        return None
    metadata = sharded / ".metadata"
    if not metadata.exists():
        raise SftError(f"{sharded}: no .metadata, which is written last: the save was cut short")
    operations = pickletools.genops(metadata.read_bytes())
    named = {value for _, value, _ in operations if str(value).endswith(".distcp")}
    if lacking := sorted(name for name in named if not (sharded / name).exists()):
        raise SftError(f"{sharded}: shards {first_few(lacking)} are missing")
    return f"FSDP shards, {len(named)} files in {sharded.name}"


def _is_whole_archive(path: Path) -> bool:
    """Whether a file of torch.save has its end: a zip whose directory, the last part, is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return bool(archive.namelist())
    except zipfile.BadZipFile:
        return False


def check_archive(path: Path) -> None:
    if not path.exists():
        raise SftError(f"{path}: missing")
    if not _is_whole_archive(path):
        raise SftError(f"{path}: truncated at {path.stat().st_size} bytes")
