"""Models and datasets made present and pinned: hub repositories by commit, all of it by content."""

import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from httpx2 import TransportError
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    RevisionResolutionError,
    XetDownloadError,
)
from tqdm import tqdm

from sft.errors import SftError, nearest
from sft.files import hash_file, hash_json, list_files
from sft.hub import answer_of, client_that_gives_up
from sft.mix import Dataset
from sft.model import Model
from sft.sources import (
    LEFT_OUT,
    check_columns,
    check_model,
    check_repository_data,
    data_files,
    list_model,
    replace_file,
)
from sft.step import Progress, log

GB = 1e9


def fetch_model(model: Model) -> dict[str, Any]:
    """What pins a model: `{"name", "source", "revision", "sha256", "path", "files"}`.

    `source` is `hub:<id>` or `local:<folder>`, `revision` the hub's commit or None, `path` the
    folder to read. `files` holds one `{"path", "size", "sha256", "mtime_ns"}` a file and `sha256`
    sums them up. A hub repository lands in the client's own cache (HF_HOME, HF_HUB_CACHE), where
    it is found again without a network. Raises SftError where the folder is not a whole model in
    safetensors with a tokenizer.
    """
    if model.folder:
        folder, revision = _local_path(f"model {model.name}", model.folder), None
        if not folder.is_dir():
            raise SftError(f"model {model.name}: {folder} is a file, expected a folder")
    else:
        folder, revision = _download(f"model {model.name}", "model", model.hub, model.revision)
    check_model(folder)
    source = f"hub:{model.hub}" if model.hub else f"local:{folder}"
    return _pin(model.name, source, revision, folder, list_model(folder))


def fetch_dataset(dataset: Dataset) -> dict[str, Any]:
    """What pins a dataset, in the form that `fetch_model` returns.

    `path` is a folder, or the file where a registry names one file; `sha256` is then that file's
    own. Local files must be of a type that LLaMA-Factory reads, with rows, and with the columns
    that the registry names. Raises SftError otherwise.
    """
    where = f"{dataset.registry}, {dataset.name}"
    if dataset.hub:
        folder, revision = _download(where, "dataset", dataset.hub, dataset.revision)
        names = list_files(folder)
        check_repository_data(folder, names)
        return _pin(dataset.name, f"hub:{dataset.hub}", revision, folder, names)
    path = _local_path(where, dataset.path)
    files = data_files(path)
    check_columns(where, dataset.options, path, files)
    return _pin(dataset.name, f"local:{path}", None, path, [file.name for file in files])


def verify_fetched(made: Mapping[str, Any], thorough: bool) -> None:
    """Refuse what is no longer as it was fetched, naming the file.

    `thorough` hashes every byte; otherwise size and time of change decide.
    """
    path, remedy = Path(made["path"]), _restore_or_refetch(made["name"])
    if not path.exists():
        raise SftError(f"{path}: it is gone since it was fetched; {remedy}")
    base = path if path.is_dir() else path.parent
    for each in made["files"]:
        file = base / each["path"]
        if not file.exists():
            raise SftError(f"{file}: it is gone since it was fetched; {remedy}")
        found, expected = file.stat(), each["size"]
        if found.st_size != expected:
            raise SftError(
                f"{file}: changed since it was fetched: "
                f"found {found.st_size} bytes, expected {expected}; {remedy}"
            )
        if not thorough and found.st_mtime_ns != each["mtime_ns"]:
            raise SftError(f"{file}: written to since it was fetched; {remedy}")
    if path.is_dir() and made["source"].startswith("local:"):
        _refuse_newcomers(path, made, remedy)
    if thorough:
        names = [each["path"] for each in made["files"]]
        for before, now in zip(made["files"], _hash_files(base, names), strict=True):
            if now["sha256"] != before["sha256"]:
                raise SftError(
                    f"{base / now['path']}: changed since it was fetched: found sha256 "
                    f"{now['sha256']}, expected {before['sha256']}; {remedy}"
                )


def _restore_or_refetch(name: str) -> str:
    return f"put the fetched content back, or delete the fetched.json of {name} and run again"


def _refuse_newcomers(folder: Path, made: Mapping[str, Any], remedy: str) -> None:
    known = {each["path"] for each in made["files"]}
    for name in list_model(folder):
        if name not in known:
            raise SftError(f"{folder / name}: it was not there when {folder} was fetched; {remedy}")


def _local_path(where: str, written: str) -> Path:
    """The absolute path; a link keeps its own name, whose ending tells the type of a file."""
    path = Path(os.path.abspath(Path(written).expanduser()))
    if path.exists():
        return path
    if not path.parent.is_dir():
        raise SftError(f"{where}: {path}: there is no folder {path.parent}")
    choices = (each.name for each in path.parent.iterdir())
    raise SftError(f"{where}: {path}: no such file or folder; {nearest(path.name, choices)}")


def _pin(name: str, source: str, revision: str | None, path: Path, names: list[str]) -> dict:
    files = _hash_files(path if path.is_dir() else path.parent, names)
    if source.startswith("hub:"):
        _check_arrival(path, files)
    contents = [[each["path"], each["sha256"]] for each in files]
    return {
        "name": name,
        "source": source,
        "revision": revision,
        "sha256": hash_json(contents) if path.is_dir() else files[0]["sha256"],
        "path": str(path),
        "files": files,
    }


def _hash_files(folder: Path, names: list[str]) -> list[dict[str, Any]]:
    """One `{"path", "size", "sha256", "mtime_ns"}` a file, in the order of `names`."""
    paths = [folder / name for name in names]
    states = [path.stat() for path in paths]
    progress = Progress(f"hash {folder}", sum(state.st_size for state in states) / GB, "GB")
    files = []
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashlib lets go of the interpreter lock
        hashes = pool.map(hash_file, paths)
        for name, state, sha256 in zip(names, states, hashes, strict=True):
            progress.add(state.st_size / GB)
            size, mtime_ns = state.st_size, state.st_mtime_ns
            files.append({"path": name, "size": size, "sha256": sha256, "mtime_ns": mtime_ns})
    return files


# The hub


def _download(where: str, kind: str, hub: str, revision: str | None) -> tuple[Path, str]:
    """The snapshot folder of a repository in the client's cache, and its commit."""
    asked = f"{where}: {hub}" + (f" at {revision}" if revision else "")
    try:
        with client_that_gives_up():
            commit = HfApi().resolve_revision(hub, repo_type=kind, revision=revision).resolved
            folder = snapshot_download(
                hub,
                repo_type=kind,
                revision=commit,
                ignore_patterns=list(LEFT_OUT) if kind == "model" else None,
                tqdm_class=_progress_class(f"download {hub}"),
            )
    except HfHubHTTPError as error:
        raise SftError(f"{asked}: {_explain(error, kind, hub, revision)}") from error
    except (LocalEntryNotFoundError, RevisionResolutionError) as error:
        raise SftError(f"{asked}: {_explain_absence(kind, hub)}") from error
    except (TransportError, XetDownloadError) as error:
        lost = f"lost the connection to {ENDPOINT} ({error})"
        raise SftError(f"{asked}: {lost}; run again, whole files are kept") from error
    except HFValidationError as error:
        raise SftError(f"{asked}: not a hub id: {error}") from error
    except OSError as error:
        remedy = "set HF_HOME to a folder that is writable, large enough and allows file locks"
        raise SftError(f"{asked}: the cache {HF_HUB_CACHE}: {error}; {remedy}") from error
    _mention_leftovers(Path(folder).parent.parent / "blobs")
    return Path(folder), commit


def _mention_leftovers(blobs: Path) -> None:
    """Say what killed downloads left: the client never reads it again, nor removes it."""
    if parts := list(blobs.glob("*.incomplete")):
        log.info("%s: %d *.incomplete files; delete them if no other fetch runs", blobs, len(parts))


def _explain(error: HfHubHTTPError, kind: str, hub: str, revision: str | None) -> str:
    """What the hub's refusal means, and the remedy."""
    if isinstance(error, GatedRepoError):
        page = f"{ENDPOINT}/{'datasets/' if kind == 'dataset' else ''}{hub}"
        return (
            f"it is gated; accept its terms at {page} and set HF_TOKEN to a token of that account"
        )
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"{ENDPOINT} has no such {kind}, or it is private; "
            "correct the id, or set HF_TOKEN to a token that may read it"
        )
    if isinstance(error, RevisionNotFoundError):
        refs = HfApi().list_repo_refs(hub, repo_type=kind)
        known = [ref.name for ref in (*refs.branches, *refs.tags)]
        return f"no such branch, tag or commit; {nearest(revision, known)}"
    status = error.response.status_code
    remedy = "run again later" if status == 429 or status >= 500 else "check the id and HF_TOKEN"
    return f"{answer_of(error)}; {remedy}"


def _explain_absence(kind: str, hub: str) -> str:
    snapshots = Path(HF_HUB_CACHE, f"{kind}s--{hub.replace('/', '--')}", "snapshots")
    commits = sorted(path.name for path in snapshots.glob("*"))
    known = f", or give a commit that is there as `revision`: {', '.join(commits)}"
    return (
        f"{ENDPOINT} cannot be reached (or HF_HUB_OFFLINE is set) and the cache {HF_HUB_CACHE} "
        f"does not hold all of it; fetch it on a machine with internet{known if commits else ''}"
    )


def _progress_class(what: str) -> type[tqdm]:
    """A class that the client takes for its progress bars and that writes lines to the log."""
    progress = Progress(what, 0, "GB")

    class Lines(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, total=kwargs.get("total"), disable=True)
            # The client keeps two bars of bytes (received, written) and one of files.
            self.counts = kwargs.get("desc", "").startswith("Reconstruct")

        def update(self, n: float | None = 1) -> None:
            if self.counts:
                progress.total = (self.total or 0) / GB
                progress.add((n or 0) / GB)

    return Lines


def _check_arrival(folder: Path, files: list[dict[str, Any]]) -> None:
    """Refuse a large file whose content is not the one that the hub's own SHA-256 names."""
    for each in files:
        file = folder / each["path"]
        # A link of the cache leads to a blob that has the hub's hash for its name.
        expected = os.path.basename(os.readlink(file)) if file.is_symlink() else ""
        if re.fullmatch("[0-9a-f]{64}", expected) and each["sha256"] != expected:
            raise SftError(
                f"{file}: found sha256 {each['sha256']}, the hub has {expected}; "
                f"{replace_file(file)}"
            )
