"""What the small hub does with what a client sends: repositories, large files, commits.

Each function answers one endpoint; `request` is the handler in tests/hub.py that serves it.
"""

import base64
import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import yaml

from tests.hub_base import Refused, describe, is_large

PART_BYTES = 1 << 20  # larger files are sent in parts of this size
ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


def show_user(request: Any) -> None:
    request.answer({"type": "user", "name": request.user(), "orgs": []})


def create(request: Any) -> None:
    user, asked, here = request.user(), json.loads(request.body()), request.hub
    kind = asked.get("type") or "model"
    name = f"{asked.get('organization') or user}/{asked['name']}"
    with here.lock:
        try:
            here.repository(kind, name)
        except Refused as refused:
            if refused.status != 404:
                raise
            here.create(kind, name, asked.get("visibility") == "private")
            here.blob(hashlib.sha256(ATTRIBUTES).hexdigest()).write_bytes(ATTRIBUTES)
            files = {".gitattributes": describe(ATTRIBUTES, lfs=False)}
            here.add_commit(kind, name, files, "initial commit")
        else:
            raise Refused(409, "", "You already created this model repo", url=here.url)
    request.answer({"url": f"{here.url}/{name}", "name": name})


def validate_card(request: Any) -> None:
    """Look at a card's metadata as the hub does: names of datasets are texts."""
    text = json.loads(request.body())["content"]
    metadata = yaml.safe_load(text.split("---")[1]) if text.startswith("---") else {}
    if not all(isinstance(name, str) for name in metadata.get("datasets") or []):
        errors = [{"message": '"datasets[0]" must be a string'}]
        raise Refused(400, "", "Invalid metadata", errors=errors, warnings=[])
    request.answer({"errors": [], "warnings": []})


def choose_modes(request: Any, kind: str, name: str) -> None:
    """Say which files go into git and which are large, and what is there under their names."""
    asked = json.loads(request.body())
    _, files = request.hub.resolve(_writable(request, kind, name), "main")
    chosen = []
    for each in asked["files"]:
        mode = "lfs" if is_large(each["path"], each["size"]) else "regular"
        there = files.get(each["path"])
        oid = there and there["sha256" if there["lfs"] else "oid"]
        chosen.append({"path": each["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    request.answer({"files": chosen})


def plan_blobs(request: Any, name: str) -> None:
    """Say where large files are sent to; no place for those that are here."""
    asked, here = json.loads(request.body()), request.hub
    _writable(request, "model", name)
    objects = []
    for each in asked["objects"]:
        url, parts = f"{here.url}/lfs/{each['oid']}", -(-each["size"] // PART_BYTES)
        upload: dict[str, Any] = {"href": url}
        if parts > 1:
            urls = {str(part): f"{url}/{part}" for part in range(1, parts + 1)}
            upload = {"href": f"{url}/complete", "header": {"chunk_size": str(PART_BYTES)} | urls}
        if not here.blob(each["oid"]).exists():
            each = each | {"actions": {"upload": upload, "verify": {"href": f"{url}/verify"}}}
        objects.append(each)
    request.answer({"transfer": "multipart", "objects": objects})


def keep_blob(request: Any, sha256: str) -> None:
    partial = _receive(request, sha256)
    _accept(request, partial, sha256)
    request.answer({})


def keep_part(request: Any, sha256: str, part: str) -> None:
    partial = _receive(request, f"{sha256}-{part}")
    partial.replace(_part(request, sha256, int(part)))
    request.answer({}, headers={"ETag": f'"{part}"'})


def join_parts(request: Any, sha256: str) -> None:
    numbers = [each["partNumber"] for each in json.loads(request.body())["parts"]]
    parts = [_part(request, sha256, number) for number in numbers]
    whole = request.hub.root / "parts" / f"{sha256}-whole-{threading.get_ident()}"
    whole.write_bytes(b"".join(part.read_bytes() for part in parts))
    _accept(request, whole, sha256)
    for part in parts:
        part.unlink()
    request.answer({})


def verify_blob(request: Any, sha256: str) -> None:
    request.user()
    size = json.loads(request.body())["size"]
    blob = request.hub.blob(sha256)
    if not blob.exists() or blob.stat().st_size != size:
        raise Refused(404, "", "no such object")
    request.answer({})


def commit(request: Any, kind: str, name: str) -> None:
    """Make the additions and deletions of a commit one new state of main."""
    header, *operations = [json.loads(line) for line in request.body().splitlines()]
    here, expected = request.hub, header["value"].get("parentCommit")
    with here.lock:
        parent, files = here.resolve(_writable(request, kind, name), "main")
        if expected and expected != parent:
            raise Refused(412, "", "A commit has happened since. Please refresh and try again.")
        files = dict(files)
        for operation in operations:
            path = operation["value"]["path"]
            if operation["key"] == "deletedFile":
                if files.pop(path, None) is None:
                    raise Refused(404, "EntryNotFound", "A file with this name doesn't exist")
            else:
                files[path] = _committed(request, **operation)
        made = here.add_commit(kind, name, files, header["value"]["summary"])
    url = f"{here.url}/{name}/commit/{made}"
    request.answer({"success": True, "commitOid": made, "commitUrl": url})


def _committed(request: Any, key: str, value: dict[str, Any]) -> dict[str, Any]:
    """How a commit remembers a file that it adds."""
    if key == "file":
        content = base64.b64decode(value["content"])
        blob = request.hub.blob(hashlib.sha256(content).hexdigest())
        blob.write_bytes(content)
        return describe(content, lfs=False)
    blob = request.hub.blob(value["oid"])
    if not blob.exists():
        raise Refused(400, "", f"LFS pointer to a missing object: {value['path']}")
    return describe(blob.read_bytes(), lfs=True)


def _writable(request: Any, kind: str, name: str) -> dict[str, Any]:
    """The state of a repository that the client may change."""
    request.user()
    return request.hub.repository(kind, name)


def _part(request: Any, sha256: str, number: int) -> Path:
    return request.hub.root / "parts" / f"{sha256}-{number}"


def _receive(request: Any, name: str) -> Path:
    """The request's body, in a file of its own; a body that ends early leaves none."""
    here = request.hub
    partial = here.root / "parts" / f"{name}-partial-{threading.get_ident()}"
    try:
        with open(partial, "wb") as file:
            for block in request.blocks():
                file.write(block)
                here.received += len(block)
                if here.bytes_per_s:
                    time.sleep(len(block) / here.bytes_per_s)
                while here.stall_at is not None and here.received >= here.stall_at:
                    time.sleep(0.02)
    except BaseException:
        partial.unlink()
        raise
    return partial


def _accept(request: Any, partial: Path, sha256: str) -> None:
    """Give a whole file its name, if it is what its name says."""
    if hashlib.sha256(partial.read_bytes()).hexdigest() != sha256:
        partial.unlink()
        raise Refused(400, "", "the content has another SHA-256 than its name says")
    partial.replace(request.hub.blob(sha256))
