"""Models and datasets made present and pinned: hub repositories by commit, all of it by content."""

import csv
import json
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
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
from sft.files import hash_file, hash_json, list_files, read_json
from sft.mix import Dataset
from sft.model import Model
from sft.step import Progress, log

GB = 1e9
# Other weight formats, and what a trainer leaves beside its weights: nobody reads them here.
LEFT_OUT = (
    *("*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx*", "*.msgpack", "*.h5"),
    *("original/*", "checkpoint-*/*", "global_step*/*"),
)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
# The library that writes safetensors refuses longer headers.
MAX_HEADER_BYTES = 100_000_000
# A JSON file is judged by its first rows: files may be larger than a login node's memory.
PEEKED_BYTES = 4 << 20
# LLaMA-Factory's columns where a registry names none (data/parser.py).
DEFAULT_COLUMNS = {
    "alpaca": {"prompt": "instruction", "query": "input", "response": "output"},
    "sharegpt": {"messages": "conversations"},
    "openai": {"messages": "conversations"},
}


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
    _check_model(folder)
    source = f"hub:{model.hub}" if model.hub else f"local:{folder}"
    return _pin(model.name, source, revision, folder, _list_model(folder))


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
        _check_data(folder, names)
        return _pin(dataset.name, f"hub:{dataset.hub}", revision, folder, names)
    path = _local_path(where, dataset.path)
    files = _data_files(path)
    _check_columns(where, dataset.options, path, files)
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
    for name in _list_model(folder):
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
    status, words = error.response.status_code, error.server_message or error.response.reason_phrase
    remedy = "run again later" if status == 429 or status >= 500 else "check the id and HF_TOKEN"
    return f"{ENDPOINT} answered {status}: {words}; {remedy}"


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
                f"{file}: found sha256 {each['sha256']}, the hub has {expected}; {_replace(file)}"
            )


def _replace(file: Path) -> str:
    """How to get a whole file in place of a broken one."""
    if file.is_symlink():
        return f"delete {file.resolve()} and run again"
    return "get it again from where the folder came from"


# What a model folder must hold


def _list_model(folder: Path) -> list[str]:
    return [
        name
        for name in list_files(folder)
        if not any(fnmatch(name, pattern) for pattern in LEFT_OUT)
    ]


def _check_model(folder: Path) -> None:
    """Refuse a folder that is not a whole model in safetensors with its tokenizer."""
    if parts := sorted(folder.rglob("*.incomplete")):
        raise SftError(f"{parts[0]}: a download that did not end; finish it, then delete this file")
    _read_whole_json(folder / "config.json")
    index = folder / "model.safetensors.index.json"
    if index.exists():
        _check_shards(index)
    elif (folder / "model.safetensors").exists():
        _safetensors_names(folder / "model.safetensors")
    else:
        raise SftError(
            f"{folder}: expected model.safetensors or {index.name}, found {_weights(folder)}; "
            "only whole models in safetensors are fetched and trained: convert or merge it first"
        )
    if not any((folder / name).exists() for name in TOKENIZERS):
        raise SftError(
            f"{folder}: no tokenizer: expected one of {', '.join(TOKENIZERS)}; "
            "copy it from the base model"
        )


def _weights(folder: Path) -> str:
    """The files that look like weights, for a message."""
    endings = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5")
    names = sorted(path.name for path in folder.iterdir() if path.suffix in endings)
    return ", ".join(names[:5]) or "none"


def _read_whole_json(file: Path) -> Any:
    try:
        return read_json(file)
    except SftError as error:
        raise SftError(f"{error}; {_replace(file)}") from error


def _check_shards(index: Path) -> None:
    """Refuse shards that are absent, cut short, or lack a tensor that the index places there."""
    shards: dict[str, set[str]] = {}
    for tensor, shard in _read_whole_json(index)["weight_map"].items():
        shards.setdefault(shard, set()).add(tensor)
    for name, tensors in sorted(shards.items()):
        shard = index.parent / name
        if not shard.exists():
            raise SftError(f"{shard}: missing, and {index.name} names it; {_replace(shard)}")
        absent = sorted(tensors - _safetensors_names(shard))
        if absent:
            raise SftError(
                f"{shard}: {index.name} places {absent[0]!r} there, and {len(absent)} tensors in "
                f"all that it does not hold: they are of different saves; {_replace(shard)}"
            )


def _safetensors_names(file: Path) -> set[str]:
    """The names of a file's tensors; SftError where header and size of the file disagree.

    Format: eight bytes with the header's length, the header as JSON, then the tensors without gap
    (https://github.com/huggingface/safetensors#format).
    """
    size = file.stat().st_size
    with open(file, "rb") as content:
        start = content.read(8)
        if start == b"version ":
            raise SftError(f"{file}: a Git LFS pointer in place of the weights; run `git lfs pull`")
        header_bytes = int.from_bytes(start, "little")
        if size < 8 or header_bytes > MAX_HEADER_BYTES:
            raise SftError(f"{file}: not safetensors ({size} bytes); {_replace(file)}")
        header = content.read(header_bytes)
    expected = 8 + header_bytes
    if size >= expected:
        try:
            tensors = json.loads(header)
        except ValueError as error:
            raise SftError(f"{file}: not safetensors: {error}; {_replace(file)}") from error
        tensors.pop("__metadata__", None)
        expected += max((each["data_offsets"][1] for each in tensors.values()), default=0)
    if size != expected:
        least = "" if size >= 8 + header_bytes else "at least "
        raise SftError(f"{file}: found {size} bytes, expected {least}{expected}; {_replace(file)}")
    return set(tensors)


# What a dataset must hold


def _check_data(folder: Path, names: list[str]) -> None:
    """Refuse a repository without any file that could hold rows."""
    if all(name.endswith((".md", ".py")) for name in names):
        script = any(name.endswith(".py") for name in names)
        found = "only a loading script, which is never run" if script else "no data files"
        raise SftError(f"{folder}: {found}; take a repository that holds {_types()} files")


def _data_files(path: Path) -> list[Path]:
    """The files of a local dataset; SftError where LLaMA-Factory would not read all of them.

    It reads every entry of a folder, hidden ones too, with one reader.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    if not files:
        raise SftError(f"{path}: an empty folder, expected {_types()} files")
    for file in files:
        if file.is_dir() or file.suffix not in READERS:
            advice = f"move it out of {path}" if path.is_dir() else "convert it"
            raise SftError(f"{file}: expected a {_types()} file; {advice}")
    for first, second in pairwise(files):
        if READERS[first.suffix] != READERS[second.suffix]:
            raise SftError(
                f"{path}: {first.name} and {second.name} are of different types; "
                "keep files of one type, the others can be a dataset of their own"
            )
    return files


def _types() -> str:
    return ", ".join(sorted(READERS))


def _check_columns(where: str, options: Mapping, path: Path, files: list[Path]) -> None:
    """Refuse a dataset none of whose files has a column that the registry names, or implies."""
    found: set[str] = set()
    for file in files:
        found |= READERS[file.suffix](file)
    formatting = options.get("formatting", "alpaca")
    named = "columns" in options
    for key, column in (options["columns"] if named else DEFAULT_COLUMNS[formatting]).items():
        if column not in found:
            origin = f"columns.{key}" if named else f"columns.{key}, the default of {formatting}"
            advice = nearest(column, found)
            raise SftError(f"{where}, {origin}: {path} has no column {column!r}; {advice}")


def _empty(file: Path) -> SftError:
    return SftError(f"{file}: no rows in it; fill it, or take the dataset out of the mix")


def _json_columns(file: Path) -> set[str]:
    """The keys of the first rows, of JSON lines or of one array."""
    with open(file, "rb") as content:
        head = content.read(PEEKED_BYTES) + content.readline()
        cut = bool(content.read(1))
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        line = head.count(b"\n", 0, error.start) + 1
        raise SftError(f"{file}, line {line}: not UTF-8: {error.reason}; convert it") from error
    rows = _array_rows(file, text, cut) if text.lstrip().startswith("[") else _rows(file, text)
    if not rows:
        raise _empty(file)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            found = type(row).__name__
            raise SftError(f"{file}, row {number}: found a {found}, expected a JSON object")
    return set().union(*rows)


def _rows(file: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise SftError(
                    f"{file}, line {number}: not JSON: {error.msg} at column {error.colno}; "
                    "expected one JSON object a line, or one array of objects"
                ) from error
    return rows


def _array_rows(file: Path, text: str, cut: bool) -> list[Any]:
    """The elements of an array that start within the part that is judged; `cut`: it goes on."""
    rows, decoder, position = [], json.JSONDecoder(), text.index("[") + 1
    while position < PEEKED_BYTES:
        position = re.compile(r"[\s,]*").match(text, position).end()
        if text[position : position + 1] == "]":
            break
        try:
            row, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            if cut and rows and error.pos >= len(text.rstrip()) - 1:
                break  # the end of what was read, not a fault
            raise SftError(
                f"{file}, line {error.lineno}: not JSON: {error.msg}; correct the array"
            ) from error
        rows.append(row)
    return rows


def _parquet_columns(file: Path) -> set[str]:
    try:
        metadata = pyarrow.parquet.read_metadata(file)
    except pyarrow.ArrowInvalid as error:
        raise SftError(f"{file}: not a whole Parquet file: {error}; {_replace(file)}") from error
    if not metadata.num_rows:
        raise _empty(file)
    return set(metadata.schema.to_arrow_schema().names)


def _csv_columns(file: Path) -> set[str]:
    with open(file, encoding="utf-8", newline="") as content:
        rows = csv.reader(content)
        try:
            header, first = next(rows, []), next(rows, None)
        except UnicodeDecodeError as error:
            raise SftError(f"{file}: not UTF-8: {error.reason}; convert it") from error
    if first is None:
        raise _empty(file)
    return set(header)


def _arrow_columns(file: Path) -> set[str]:
    with pyarrow.memory_map(str(file)) as content:
        try:
            return set(pyarrow.ipc.open_stream(content).schema.names)
        except pyarrow.ArrowInvalid:
            content.seek(0)
        try:
            return set(pyarrow.ipc.open_file(content).schema.names)
        except pyarrow.ArrowInvalid as error:
            raise SftError(f"{file}: not an Arrow file: {error}; {_replace(file)}") from error


READERS: Mapping[str, Callable[[Path], set[str]]] = {
    ".arrow": _arrow_columns,
    ".csv": _csv_columns,
    ".json": _json_columns,
    ".jsonl": _json_columns,
    ".parquet": _parquet_columns,
}
