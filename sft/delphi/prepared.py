"""A model with its tokenizer prepared, as later stages read it in place of the fetched one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft.delphi.prepare_delphi_tokenizer import prepare_delphi, summary
from sft.fetch import verify_fetched
from sft.files import hash_file, hash_json
from sft.sources import list_model
from sft.step import log


def prepare_model(fetched: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """What pins the prepared form of a model, in the form of `fetched` (see `fetch.fetch_model`).

    `source` and `revision` stay those of the model; `path`, `files` and `sha256` are of a folder
    below `root`, named by the content that it is made of: other content is another folder, and a
    run that reads the old one is not disturbed. `prepared` is what `prepare_delphi` did, and
    `fetched` the hash of what it was given.
    """
    verify_fetched(fetched, thorough=False)
    folder = root.resolve() / fetched["sha256"][:16]
    done = prepare_delphi(Path(fetched["path"]), folder)
    for line in summary(done, folder):
        log.info("%s", line)
    hashes = {each["path"]: each["sha256"] for each in fetched["files"]}
    known = {name: hashes[name] for name in done["linked"]}
    files = [_describe(folder, name, known) for name in list_model(folder)]
    return {
        "name": fetched["name"],
        "source": fetched["source"],
        "revision": fetched["revision"],
        "sha256": hash_json([[each["path"], each["sha256"]] for each in files]),
        "path": str(folder),
        "files": files,
        "prepared": done,
        "fetched": fetched["sha256"],
    }


def _describe(folder: Path, name: str, known: Mapping[str, str]) -> dict[str, Any]:
    """One file as a receipt lists it; the bytes of a link were hashed at the fetch."""
    path = folder / name
    state = path.stat()
    return {
        "path": name,
        "size": state.st_size,
        "sha256": known[name] if name in known else hash_file(path),
        "mtime_ns": state.st_mtime_ns,
    }
