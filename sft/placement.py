"""A release's weights, put in place without copying or reading them where that can be avoided."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sft.errors import SftError
from sft.files import hash_file, link_or_copy, read_json, write_json
from sft.publishable import WEIGHTS
from sft.step import Progress, log
from sft.tensor_names import copy_index_with_plain_names, copy_with_plain_names, plain_name
from sft.weights import INDEX, read_weights_index

RECORD = "placed.json"  # beside the release: what its weights were made of
GB = 1e9
THREADS = 4


def place_weights(
    weights: Path, folder: Path, release: Path, known: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Put the weights in `weights` into `folder`, the coming `release`; an entry a file.

    An entry has `path`, `size` and `sha256`, and says by `source` and `renamed` what the file was
    made of. Files are linked; those with names that a trainer wrapped are written anew, with the
    index. What the earlier release made of the same file is taken again. `known` are manifest
    entries of weights, with their `mtime_ns` or without: what they name is not read to be hashed.
    """
    tensors = read_weights_index(weights)
    files = sorted({tensor.file for tensor in tensors.values()})
    if strange := [name for name in files if not WEIGHTS.fullmatch(name)]:
        raise SftError(
            f"{weights}: weights in {', '.join(strange)}; expected model.safetensors, or "
            f"model-00001-of-00002.safetensors and so on with {INDEX}"
        )
    wrapped = {tensor.file for name, tensor in tensors.items() if plain_name(name) != name}
    earlier = _read_record(release)
    progress = Progress(
        "weights", sum((weights / name).stat().st_size for name in files) / GB, "GB"
    )

    def place(name: str) -> tuple[dict[str, Any], str]:
        """A file's entry, and in words how it came there."""
        source, target = weights / name, folder / name
        made_of = {"source": _state(source), "renamed": name in wrapped}
        before = earlier.get(name, {})
        if before and all(before[key] == value for key, value in made_of.items()):
            link_or_copy(release / name, target)
            sha256, way = before["sha256"], "taken from the release of before"
        elif name in wrapped:
            sha256 = copy_with_plain_names(source, target)
            way = "written anew, without a trainer's wrappers in the names of tensors"
        else:
            way = link_or_copy(source, target)
            sha256 = _find_hash(source, known) or hash_file(target)
        return {"path": name, "size": target.stat().st_size, "sha256": sha256, **made_of}, way

    entries, ways = [], Counter()
    with ThreadPoolExecutor(THREADS) as pool:  # hashlib lets go of the interpreter lock
        for entry, way in pool.map(place, files):
            entries.append(entry)
            ways[way] += 1
            progress.add(entry["size"] / GB)
    if (weights / INDEX).exists():
        copy_index_with_plain_names(weights / INDEX, folder / INDEX)
    log.info("weights: %s", ", ".join(f"{count} {way}" for way, count in ways.items()))
    return entries


def record_placement(release: Path, entries: Iterable[Mapping[str, Any]]) -> None:
    """Note what the weights of a release were made of, for the next one to be made there."""
    states = [{**entry, "placed": _state(release / entry["path"])} for entry in entries]
    write_json(release.with_name(RECORD), {"files": states})


def _read_record(release: Path) -> dict[str, dict[str, Any]]:
    """The entries of the release that is there by name, without files that were changed since."""
    record = release.with_name(RECORD)
    files = read_json(record)["files"] if record.exists() else []
    return {
        each["path"]: each
        for each in files
        if (release / each["path"]).is_file() and _state(release / each["path"]) == each["placed"]
    }


def _find_hash(path: Path, known: Sequence[Mapping[str, Any]]) -> str | None:
    """The hash that an entry of `known` gives for a file of this name, size and time."""
    size, mtime_ns = _state(path)
    return next(
        (
            each["sha256"]
            for each in known
            if (each["path"], each["size"]) == (path.name, size)
            and each.get("mtime_ns", mtime_ns) == mtime_ns
        ),
        None,
    )


def _state(path: Path) -> list[int]:
    """Size and time of the last change: as long as both stay, so does the content."""
    state = path.stat()
    return [state.st_size, state.st_mtime_ns]
