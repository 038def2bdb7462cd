"""Releases in a folder, for places without a hub."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sft.errors import SftError, first_few
from sft.files import (
    HASH_BLOCK_BYTES,
    link_or_copy,
    manifest,
    new_folder,
    read_json,
    remove_abandoned,
    write_json,
)
from sft.step import Progress

STORED = ".sft-manifest.json"  # in the target: what the last upload put there
GB = 1e9
THREADS = 4


def upload_to_folder(release: Path, wanted: list[dict], target: Path) -> dict:
    """Make `target` hold the files of the manifest `wanted` and say what that took.

    Returns `{"location", "files", "bytes", "sent"}`; `sent` counts files, the others were there
    with the same SHA-256. A reader sees the old release or the new one: the new one is built
    beside it and takes its name. What an earlier upload left and this one lacks goes. Raises
    SftError where another's file is in `target`, or where a file is not what `wanted` says.
    """
    target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(target)
    present = _equal_files(target, wanted)
    _refuse_foreign(target, present)
    waiting = [entry for entry in wanted if entry["path"] not in present]
    if waiting or _stored_manifest(target) != wanted:
        with new_folder(target) as partial:
            for name in present:
                link_or_copy(target / name, partial / name)
            _send(release, waiting, partial)
            write_json(partial / STORED, wanted)
            _refuse_foreign(target, present)  # hours may have passed
    size = sum(entry["size"] for entry in wanted)
    sent = len(waiting)
    return {"location": str(target), "files": len(wanted), "bytes": size, "sent": sent}


def _equal_files(target: Path, wanted: list[dict]) -> set[str]:
    """The names of the files in `target` that are, byte for byte, what the manifest says."""
    same_size = [
        entry["path"]
        for entry in wanted
        if (path := target / entry["path"]).is_file()
        and not path.is_symlink()
        and path.stat().st_size == entry["size"]
    ]
    return {entry["path"] for entry in manifest(target, same_size) if entry in wanted}


def _stored_manifest(target: Path) -> list[dict]:
    return read_json(target / STORED) if (target / STORED).exists() else []


def _refuse_foreign(target: Path, present: set[str]) -> None:
    """Refuse to replace a folder that holds what no upload of ours put there."""
    if target.exists() and not target.is_dir():
        raise SftError(f"{target}: a file is in the way; expected a folder")
    ours = {STORED, *present, *(entry["path"] for entry in _stored_manifest(target))}
    found = (path for path in target.rglob("*") if path.is_symlink() or not path.is_dir())
    foreign = sorted({path.relative_to(target).as_posix() for path in found} - ours)
    if foreign:
        raise SftError(
            f"{target}: not put there by an upload: {first_few(foreign)}; "
            "move it away or choose another folder"
        )


def _send(release: Path, entries: list[dict], folder: Path) -> None:
    progress = Progress(f"upload to {folder.parent}", sum(e["size"] for e in entries) / GB, "GB")
    with ThreadPoolExecutor(THREADS) as pool:
        copies = pool.map(lambda entry: _copy_checked(release, entry, folder), entries)
        for entry, _ in zip(entries, copies, strict=True):
            progress.add(entry["size"] / GB)


def _copy_checked(release: Path, entry: dict, folder: Path) -> None:
    """Copy a file, and refuse one whose bytes are not those that the manifest names."""
    source, copy, digest = release / entry["path"], folder / entry["path"], hashlib.sha256()
    copy.parent.mkdir(parents=True, exist_ok=True)
    with open(source, "rb") as reader, open(copy, "wb") as writer:
        while block := reader.read(HASH_BLOCK_BYTES):
            digest.update(block)
            writer.write(block)
        writer.flush()
        os.fsync(writer.fileno())
    if digest.hexdigest() != entry["sha256"]:
        raise SftError(f"{source}: changed since the release was assembled; assemble it again")
