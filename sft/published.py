"""Whether an uploaded release is still where its receipt says."""

import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from httpx2 import TransportError
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.hf_api import RepoFile

from sft.hub import answer_of, patient_client


def publication_faults(
    uploaded: Mapping[str, Any], hub_id: str, files: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """A line for each file of a manifest that is not where `uploaded`, a receipt, says.

    A folder is looked at, by sizes; a hub is asked, by hashes of large files and sizes of small
    ones, at the commit that was made.
    """
    location = uploaded["location"]
    if not location.startswith(("https://", "http://")):
        yield from _folder_faults(Path(location), files)
        return
    try:
        present = _list_repository(location.removesuffix(f"/{hub_id}"), hub_id, uploaded["commit"])
    except HfHubHTTPError as error:
        yield f"{location}: {answer_of(error)}; without that copy nothing is deleted"
    except (OfflineModeIsEnabled, TransportError) as error:
        yield (
            f"{location}: cannot be asked whether the release is there ({error}); "
            "run this where the hub is reached"
        )
    else:
        for each in files:
            if not _holds(present.get(each["path"]), each):
                yield (
                    f"{location}, {each['path']}: not there, or of another content, at "
                    f"{uploaded['commit'][:8]}; upload it again: snakemake -R upload"
                )


def _list_repository(endpoint: str, hub_id: str, commit: str) -> dict[str, RepoFile]:
    with patient_client():
        tree = HfApi(endpoint=endpoint).list_repo_tree(hub_id, recursive=True, revision=commit)
        return {each.path: each for each in tree if isinstance(each, RepoFile)}


def _holds(remote: RepoFile | None, entry: Mapping[str, Any]) -> bool:
    if remote is None or remote.size != entry["size"]:
        return False
    return not remote.lfs or remote.lfs.sha256 == entry["sha256"]


def _folder_faults(target: Path, files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in files:
        found = _regular_size(target / each["path"])
        if found != each["size"]:
            yield (
                f"{target / each['path']}: found {'no file' if found is None else found}, expected "
                f"{each['size']} bytes; upload it again: snakemake -R upload"
            )


def _regular_size(path: Path) -> int | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        found = path.lstat()
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    return None
