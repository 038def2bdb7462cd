"""A repository of the hub as it is: its main branch, its hashes, and whose release it holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from sft.errors import SftError
from sft.step import log

RECORD = ".sft-release.json"  # in the repository: whose release it is, and which files it put there


@dataclass(frozen=True)
class Repository:
    """The main branch of a repository: its commit, its files by path, our record in it if any."""

    commit: str
    files: Mapping[str, RepoFile]
    record: Mapping[str, Any]

    @property
    def recorded(self) -> dict[str, dict]:
        """What our record says of each file that an upload of ours left."""
        return {each["path"]: each for each in self.record.get("files", [])}


def read_repository(hub: str, private: bool) -> Repository:
    """What is there now; the repository is created first where it is absent."""
    api = HfApi()
    try:
        info = api.model_info(hub)
    except RepositoryNotFoundError:
        api.create_repo(hub, private=private, exist_ok=True)
        info = api.model_info(hub)
        log.info("%s/%s: created, %s", ENDPOINT, hub, _visibility(private))
    if info.private != private:
        raise SftError(
            f"{hub}: it is {_visibility(info.private)} on {ENDPOINT}, and to be "
            f"{_visibility(private)}; change the row's `private`, or the repository in its "
            "settings there: the workflow does neither"
        )
    tree = api.list_repo_tree(hub, recursive=True, revision=info.sha)
    files = {each.path: each for each in tree if isinstance(each, RepoFile)}
    return Repository(info.sha, files, _read_record(hub, info.sha) if RECORD in files else {})


def _visibility(private: bool) -> str:
    return "private" if private else "public"


def _read_record(hub: str, commit: str) -> dict[str, Any]:
    url = hf_hub_url(hub, RECORD, revision=commit)
    answer = get_session().get(url, headers=build_hf_headers())
    hf_raise_for_status(answer)
    try:
        return {key: answer.json()[key] for key in ("experiment", "fingerprint", "files")}
    except (ValueError, TypeError, KeyError) as error:
        raise SftError(
            f"{hub}, {RECORD}: not what an upload wrote there; restore it there, or delete it"
        ) from error


def holds(remote: RepoFile | None, known: Mapping[str, Any] | None) -> bool:
    """Whether a file of the repository has the content of a manifest's entry."""
    if remote is None or known is None:
        return False
    if remote.lfs:
        return remote.lfs.sha256 == known.get("sha256")
    return remote.blob_id == known.get("git_sha1")
