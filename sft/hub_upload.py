"""Releases in a repository of the hub: one commit, and the proof that it arrived."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.utils.sha import git_hash

from sft.errors import SftError, first_few
from sft.files import hash_file, read_json
from sft.hub import Patience, patient_client
from sft.hub_repository import RECORD, Repository, holds, read_repository
from sft.step import Progress, log

GIT_BYTES = 11_000_000  # the hub keeps larger files outside of git, known by SHA-256 alone
THREADS = 4
GB = 1e9


def upload_to_hub(release: Path, wanted: list[dict], hub: str, private: bool) -> dict[str, Any]:
    """Make main of the repository `hub` hold the files of the manifest `wanted`, in one commit.

    Returns `{"location", "commit", "files", "bytes", "sent"}`; `sent` counts files, the others were
    there with the same hash. The repository is created where it is absent. What an earlier release
    of the same experiment left and this one lacks goes in the same commit; no other file is
    touched. A call after a kill goes on: what has arrived is not sent again. Ends when the hub's
    list and hashes are those of the manifest. Raises SftError where the hub refuses for good, where
    the repository is another's or of the other visibility, or where a file is not what `wanted`
    says.
    """
    if get_token() is None:
        raise SftError(
            f"{hub}: no token for {ENDPOINT}; set HF_TOKEN, or run `hf auth login` once: a token "
            f"with the right to write to {hub.partition('/')[0]}"
        )
    ours = _Release(release, wanted, hub)
    with patient_client():
        commit, sent = _upload(ours, private)
    return {
        "location": f"{ENDPOINT}/{hub}",
        "commit": commit,
        "files": len(wanted),
        "bytes": sum(each["size"] for each in wanted),
        "sent": sent,
    }


def _upload(ours: "_Release", private: bool) -> tuple[str, int]:
    """The commit of main that holds the release, and how many files were sent to get there.

    Each try begins with what is there: a commit whose answer was lost is found, not made twice.
    """
    patience, sent, made = Patience(f"upload to {ours.hub}"), set(), None
    while True:
        arrived_before = len(ours.arrived)
        try:
            remote = read_repository(ours.hub, private)
            patience.answered = True
            change = ours.compare(remote)
            if not change:
                return remote.commit, len(sent)
            if remote.commit == made:
                raise SftError(f"{ours.hub}: after the upload, {change}; see the repository there")
            ours.refuse_foreign(remote, change)
            sent |= {each["path"] for each in change.additions}
            made = ours.send(change, remote.commit)
        except SftError:
            raise
        except Exception as error:  # sorted out by its cause
            if len(ours.arrived) > arrived_before:
                patience.renew()
            patience.wait(error)


@dataclass(frozen=True)
class _Change:
    """What a repository lacks, and what a commit takes away; `record` is written too."""

    additions: list[dict]
    deletions: list[str]
    new_record: bool

    def __bool__(self) -> bool:
        return bool(self.additions or self.deletions or self.new_record)

    def __str__(self) -> str:
        lacking = [each["path"] for each in self.additions] + [RECORD] * self.new_record
        return "; ".join(
            f"{found}: {first_few(paths)}"
            for found, paths in (
                ("not there, or of another hash", lacking),
                ("still there", self.deletions),
            )
            if paths
        )


class _Release:
    """A release on its way to a repository; `arrived` are the files that the hub has stored."""

    def __init__(self, folder: Path, wanted: list[dict], hub: str) -> None:
        self.folder, self.hub = folder, hub
        self.files = {each["path"]: each | self._git_hash(each) for each in wanted}
        made = read_json(folder / "provenance.json")["experiment"]
        record = {
            "experiment": made["name"],
            "fingerprint": made["fingerprint"],
            "files": list(self.files.values()),
        }
        self.experiment = record["experiment"]
        self.record = json.dumps(record, indent=2).encode()
        self.arrived: set[str] = set()
        self._checked: set[str] = set()

    def compare(self, remote: Repository) -> _Change:
        """What a commit has to change."""
        additions = [
            each for path, each in self.files.items() if not holds(remote.files.get(path), each)
        ]
        stale = [
            path
            for path, each in remote.recorded.items()
            if path not in self.files and holds(remote.files.get(path), each)
        ]
        record = {"git_sha1": git_hash(self.record)}
        return _Change(additions, stale, not holds(remote.files.get(RECORD), record))

    def refuse_foreign(self, remote: Repository, change: _Change) -> None:
        """Raise SftError where the repository is another experiment's, or a file somebody's own."""
        owner = remote.record.get("experiment", self.experiment)
        if owner != self.experiment:
            raise SftError(
                f"{self.hub}: it holds a release of the experiment {owner!r}, not of "
                f"{self.experiment!r}; give the row a hub_id of its own, or delete {RECORD} there "
                f"and what else {owner!r} left"
            )
        names = [each["path"] for each in change.additions if each["path"] in remote.files]
        foreign = [
            name for name in names if not holds(remote.files[name], remote.recorded.get(name))
        ]
        if foreign:
            raise SftError(
                f"{self.hub}: not put there by an upload of {self.experiment!r}: "
                f"{first_few(foreign)}; delete or rename it there, or choose another hub_id"
            )

    def send(self, change: _Change, parent: str) -> str:
        """Make the change one commit upon `parent`; returns the commit.

        Large files go first, a few at a time, and lie on the hub unseen until the commit.
        """
        self._check_content(change.additions)
        api, size = HfApi(), sum(each["size"] for each in change.additions)
        log.info(
            "%s: %d files of %.2f GB to send, %d to remove",
            *(self.hub, len(change.additions), size / GB, len(change.deletions)),
        )
        progress = Progress(f"upload to {self.hub}", size / GB, "GB")
        files = [_File(self.folder, each, progress) for each in change.additions]
        for first in range(0, len(files), THREADS):
            few = files[first : first + THREADS]
            api.preupload_lfs_files(self.hub, few, num_threads=THREADS, free_memory=False)
            for file in few:
                file.count_whole()
                self.arrived.add(file.path_in_repo)
        made = api.create_commit(
            self.hub,
            [
                *files,
                CommitOperationAdd(RECORD, self.record),
                *(CommitOperationDelete(path, is_folder=False) for path in change.deletions),
            ],
            commit_message=f"Release of {self.experiment}",
            parent_commit=parent,
        )
        return made.oid

    def _git_hash(self, entry: Mapping[str, Any]) -> dict[str, str]:
        """The hash by which git knows a small file; none for a large one, whose content waits."""
        path = self.folder / entry["path"]
        size = path.stat().st_size
        if size != entry["size"]:
            self._refuse(path, f"{size} bytes", f"{entry['size']} bytes")
        if size > GIT_BYTES:
            return {}
        content = path.read_bytes()
        if (found := hashlib.sha256(content).hexdigest()) != entry["sha256"]:
            self._refuse(path, f"sha256 {found}", entry["sha256"])
        return {"git_sha1": git_hash(content)}

    def _check_content(self, entries: list[dict]) -> None:
        """Refuse a large file whose bytes are not those of the manifest, before it is sent."""
        large = [
            each for each in entries if "git_sha1" not in each and each["path"] not in self._checked
        ]
        progress = Progress(f"hash {self.folder}", sum(each["size"] for each in large) / GB, "GB")
        paths = [self.folder / each["path"] for each in large]
        with ThreadPoolExecutor(THREADS) as pool:
            for each, path, found in zip(large, paths, pool.map(hash_file, paths), strict=True):
                if found != each["sha256"]:
                    self._refuse(path, f"sha256 {found}", each["sha256"])
                self._checked.add(each["path"])
                progress.add(each["size"] / GB)

    def _refuse(self, path: Path, found: str, expected: str) -> None:
        raise SftError(
            f"{path}: changed since the release was assembled: found {found}, expected {expected}; "
            "assemble it again"
        )


class _File(CommitOperationAdd):
    """A file of a release to be sent, which tells how much of it was read."""

    counting = Lock()  # several are read at once

    def __init__(self, folder: Path, entry: Mapping[str, Any], progress: Progress) -> None:
        super().__init__(entry["path"], folder / entry["path"])
        self.upload_info.sha256 = bytes.fromhex(entry["sha256"])  # it was checked
        self._progress, self._size, self._read = progress, entry["size"], 0

    @contextmanager
    def as_file(self, with_tqdm: bool = False) -> Iterator[BinaryIO]:
        """The open file; what is read counts where the client would draw a bar."""
        with super().as_file() as file:
            if with_tqdm:
                read = file.read
                file.read = lambda size=-1: self._count(read(size))
            yield file

    def count_whole(self) -> None:
        """Count what was not read: it was there, or another way of sending read it."""
        self._add(self._size - self._read)

    def _count(self, block: bytes) -> bytes:
        self._add(min(len(block), self._size - self._read))  # a part may be read again
        return block

    def _add(self, size: int) -> None:
        with self.counting:
            self._read += size
            self._progress.add(size / GB)
