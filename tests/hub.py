"""A small Hugging Face hub on this host, for the real client.

It serves what HfApi.model_info, dataset_info, list_repo_tree, list_repo_refs and snapshot_download
ask for, and in tests/hub_writing.py what create_repo and create_commit do. The client reads its
settings when it is imported: run it in a process of its own, with
`HF_ENDPOINT=<hub.url> HF_HUB_DISABLE_XET=1 HF_HOME=<a fresh folder>` in its environment.

    python -m tests.hub ROOT PORT [BYTES_PER_S]     serves until it is killed
"""

import hashlib
import io
import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests import hub_writing
from tests.hub_base import Refused, describe, is_large

BLOCK_BYTES = 1 << 16
USER = "tester"


@dataclass
class Fault:
    """What goes wrong with the next `times` requests whose "METHOD path" matches `pattern`.

    They get `refused`; without one their answer is `cut` in the middle. With `late` the request is
    done first, so that only its answer is lost. `headers` stand beside the refusal.
    """

    pattern: str
    refused: Refused | None = None
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    late: bool = False
    cut: bool = False


class Hub:
    """Repositories below `root`, served while the `with` block lasts.

        with Hub(tmp_path / "hub") as hub:
            commit = hub.commit("org/model", folder)

    `requests` lists what was asked ("GET /api/models/org/model"), `refusals` maps a repository to
    the Refused that each request for it gets, `faults` are what else goes wrong, in turn.
    `bytes_per_s` slows files down, sent and received; while `stall_at` is set, no file is sent
    further than to that byte, and none received. `received` counts bytes of large files.
    Repositories lie on disk: a new Hub on the same root goes on where the last one ended.
    """

    def __init__(self, root: Path, port: int = 0) -> None:
        self.root = Path(root)
        self.port = port
        self.requests: list[str] = []
        self.refusals: dict[str, Refused] = {}
        self.faults: list[Fault] = []
        self.bytes_per_s: float | None = None
        self.stall_at: int | None = None
        self.received = 0
        self.lock = threading.RLock()
        for name in ("blobs", "parts"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "Hub":
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _Handler)
        self._server.daemon_threads = True
        self._server.hub = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stall_at = None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def commit(
        self, repository: str, folder: Path, kind: str = "model", branch: str = "main"
    ) -> str:
        """Make the files of `folder` the content of a branch; returns the commit."""
        paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
        files = {path.relative_to(folder).as_posix(): self._keep(path) for path in paths}
        with self.lock:
            if self._read(kind, repository) is None:
                self.create(kind, repository, private=False)
            return self.add_commit(kind, repository, files, "by hand", branch)

    def create(self, kind: str, repository: str, private: bool) -> None:
        """Make a repository without commits."""
        state = {"private": private, "commits": {}, "branches": {}, "tags": {}}
        self._write(kind, repository, state)

    def add_commit(
        self, kind: str, repository: str, files: dict[str, dict], title: str, branch: str = "main"
    ) -> str:
        """Make `files` the content of a branch; returns the commit."""
        with self.lock:
            state = self.repository(kind, repository)
            parent = state["branches"].get(branch)
            identity = json.dumps([parent, files, len(state["commits"])])
            commit = hashlib.sha1(identity.encode()).hexdigest()
            date = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
            made = {"parent": parent, "files": files, "title": title, "date": date}
            state["commits"][commit] = made
            state["branches"][branch] = commit
            self._write(kind, repository, state)
        return commit

    def titles(self, repository: str) -> list[str]:
        """The titles of main's commits, the newest first."""
        state, found = self.repository("model", repository), []
        commit = state["branches"]["main"]
        while commit:
            found.append(state["commits"][commit]["title"])
            commit = state["commits"][commit]["parent"]
        return found

    def next_fault(self, request: str) -> Fault | None:
        """The fault that this request meets, if any; used up by being met."""
        with self.lock:
            for fault in self.faults:
                if fault.times and re.fullmatch(fault.pattern, request):
                    fault.times -= 1
                    return fault
        return None

    def tag(self, repository: str, name: str, commit: str, kind: str = "model") -> None:
        """Name a commit for good."""
        with self.lock:
            state = self.repository(kind, repository)
            state["tags"][name] = commit
            self._write(kind, repository, state)

    def repository(self, kind: str, name: str) -> dict[str, Any]:
        """The state of a repository: its commits (with their files), branches and tags."""
        if name in self.refusals:
            raise self.refusals[name]
        state = self._read(kind, name)
        if state is None:
            raise Refused(404, "RepoNotFound", "Repository not found")
        return state

    def resolve(self, state: dict[str, Any], revision: str) -> tuple[str, dict[str, dict]]:
        """The commit that a branch, tag or commit names, and its files."""
        commit = state["branches"].get(revision) or state["tags"].get(revision) or revision
        if commit not in state["commits"]:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, state["commits"][commit]["files"]

    def blob(self, sha256: str) -> Path:
        """Where the content with this SHA-256 lies."""
        return self.root / "blobs" / sha256

    def _keep(self, path: Path) -> dict[str, Any]:
        """Store a file's content; returns how a commit remembers it."""
        content = path.read_bytes()
        shutil.copyfile(path, self.blob(hashlib.sha256(content).hexdigest()))
        return describe(content, is_large(path.name, len(content)))

    def _path(self, kind: str, name: str) -> Path:
        return self.root / f"{kind}s" / f"{name}.json"

    def _read(self, kind: str, name: str) -> dict[str, Any] | None:
        path = self._path(kind, name)
        return json.loads(path.read_text()) if path.exists() else None

    def _write(self, kind: str, name: str, state: dict[str, Any]) -> None:
        path = self._path(kind, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(state))
        partial.replace(path)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def _route(self) -> None:
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        request = f"{self.command} {url.path}"
        self.hub.requests.append(request)
        fault = self.hub.next_fault(request)
        self.cut = bool(fault and fault.cut)
        self.left = int(self.headers.get("Content-Length") or 0)
        try:
            if fault and fault.refused and not fault.late:
                raise fault.refused
            if fault and fault.late:
                self.close_connection = True
                self.wfile = io.BytesIO()  # the answer is lost
            for pattern, answer in ROUTES:
                if match := re.fullmatch(pattern, request):
                    groups = match.groupdict()
                    answer(self, **{key: text and unquote(text) for key, text in groups.items()})
                    return
            raise Refused(404, "", f"no such endpoint: {request}")
        except Refused as refused:
            for _ in self.blocks():
                pass  # a client that is refused while it sends does not read the refusal
            headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
            self.answer(
                {"error": refused.message} | refused.more,
                refused.status,
                headers | (fault.headers if fault else {}),
            )
        except ConnectionError:
            self.close_connection = True  # the client has gone

    do_GET = do_HEAD = do_POST = do_PUT = _route

    def blocks(self) -> Iterator[bytes]:
        """What is left of the request's body."""
        while self.left:
            block = self.rfile.read(min(self.left, BLOCK_BYTES))
            if not block:
                raise ConnectionError("the body ended early")
            self.left -= len(block)
            yield block

    def body(self) -> bytes:
        return b"".join(self.blocks())

    def answer(
        self, content: Any, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        """Send `content` as JSON."""
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if self.cut else body)
        if self.cut:
            self.close_connection = True

    def user(self) -> str:
        """Whose token was sent; the part of a token after `hf_` is not looked at."""
        if not self.headers.get("Authorization", "").startswith("Bearer hf_"):
            raise Refused(401, "", "Invalid username or password.")
        return USER

    def repository(self, kind: str, name: str) -> dict[str, Any]:
        """The state of a repository that the client may see."""
        state = self.hub.repository(kind, name)
        if state["private"] and "Authorization" not in self.headers:
            raise Refused(401, "RepoNotFound", "Repository not found")
        return state

    def show_info(self, kind: str, name: str, revision: str | None) -> None:
        state = self.repository(kind, name)
        commit, files = self.hub.resolve(state, revision or "main")
        siblings = [{"rfilename": path, "size": file["size"]} for path, file in files.items()]
        date = state["commits"][commit]["date"]
        self.answer(
            {"_id": "0" * 24, "id": name, "sha": commit, "siblings": siblings}
            | {"private": state["private"], "disabled": False, "gated": False, "tags": []}
            | {"downloads": 0, "likes": 0, "lastModified": date, "createdAt": date}
        )

    def show_tree(self, kind: str, name: str, revision: str, folder: str | None) -> None:
        _, files = self.hub.resolve(self.repository(kind, name), revision)
        start = f"{folder}/" if folder else ""
        recursive = self.query.get("recursive", ["false"])[0].lower() in ("1", "true")
        entries: dict[str, dict] = {}
        for path, file in files.items():
            if not path.startswith(start):
                continue
            parents = path[len(start) :].split("/")[:-1]
            for depth in range(1, 1 + (len(parents) if recursive else min(len(parents), 1))):
                parent = start + "/".join(parents[:depth])
                entries[parent] = {"type": "directory", "path": parent, "oid": "0" * 40, "size": 0}
            if recursive or not parents:
                entries[path] = _describe_file(path, file)
        self.answer(list(entries.values()))

    def show_paths(self, kind: str, name: str, revision: str) -> None:
        _, files = self.hub.resolve(self.repository(kind, name), revision)
        content = self.body()
        asked = json.loads(content) if content[:1] == b"{" else parse_qs(content.decode())
        self.answer([_describe_file(path, files[path]) for path in asked["paths"] if path in files])

    def show_refs(self, kind: str, name: str) -> None:
        state = self.repository(kind, name)
        refs = {
            word: [
                {"name": ref, "ref": f"refs/{git}/{ref}", "targetCommit": commit}
                for ref, commit in state[word].items()
            ]
            for word, git in (("branches", "heads"), ("tags", "tags"))
        }
        self.answer(refs | {"converts": [], "pullRequests": []})

    def send_content(self, kind: str | None, name: str, revision: str, path: str) -> None:
        state = self.repository((kind or "models")[:-1], name)
        commit, files = self.hub.resolve(state, revision)
        if path not in files:
            raise Refused(404, "EntryNotFound", "Entry not found")
        file = files[path]
        size, start, end, status = file["size"], 0, file["size"], 200
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(match[1]), min(int(match[2] or size) + 1, size)
            status = 206
        etag = f'"{file["sha256"] if file["lfs"] else file["oid"]}"'
        self.send_response(status)
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", etag)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        if file["lfs"]:
            self.send_header("X-Linked-Size", str(size))
            self.send_header("X-Linked-ETag", etag)
        self.end_headers()
        if self.command != "HEAD":
            self._send(self.hub.blob(file["sha256"]), start, end)

    def _send(self, blob: Path, start: int, end: int) -> None:
        with open(blob, "rb") as content:
            content.seek(start)
            while content.tell() < end:
                block = content.read(min(end - content.tell(), BLOCK_BYTES))
                self.wfile.write(block)
                if self.hub.bytes_per_s:
                    time.sleep(len(block) / self.hub.bytes_per_s)
                while self.hub.stall_at is not None and content.tell() >= self.hub.stall_at:
                    time.sleep(0.02)


def _describe_file(path: str, file: dict[str, Any]) -> dict[str, Any]:
    entry = {"type": "file", "path": path, "size": file["size"], "oid": file["oid"]}
    if file["lfs"]:
        entry["lfs"] = {"oid": file["sha256"], "size": file["size"], "pointerSize": 134}
    return entry


_NAME = r"(?P<name>[^/]+(?:/[^/]+)?)"
_SHA256 = r"(?P<sha256>[0-9a-f]{64})"
_API = rf"/api/(?P<kind>model|dataset)s/{_NAME}"
ROUTES: list[tuple[str, Callable]] = [
    (rf"GET {_API}/refs", _Handler.show_refs),
    (rf"GET {_API}/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?", _Handler.show_tree),
    (rf"GET {_API}(?:/revision/(?P<revision>[^/]+))?", _Handler.show_info),
    (
        rf"(?:GET|HEAD) /(?:(?P<kind>datasets)/)?{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)",
        _Handler.send_content,
    ),
    ("GET /api/whoami-v2", hub_writing.show_user),
    ("POST /api/repos/create", hub_writing.create),
    ("POST /api/validate-yaml", hub_writing.validate_card),
    (rf"POST {_API}/preupload/main", hub_writing.choose_modes),
    (rf"POST {_API}/paths-info/(?P<revision>[^/]+)", _Handler.show_paths),
    (rf"POST {_API}/commit/main", hub_writing.commit),
    (rf"POST /{_NAME}\.git/info/lfs/objects/batch", hub_writing.plan_blobs),
    (rf"PUT /lfs/{_SHA256}", hub_writing.keep_blob),
    (rf"PUT /lfs/{_SHA256}/(?P<part>[0-9]+)", hub_writing.keep_part),
    (rf"POST /lfs/{_SHA256}/complete", hub_writing.join_parts),
    (rf"POST /lfs/{_SHA256}/verify", hub_writing.verify_blob),
]


if __name__ == "__main__":
    with Hub(Path(sys.argv[1]), int(sys.argv[2])) as served:
        served.bytes_per_s = float(sys.argv[3]) if len(sys.argv) > 3 else None
        threading.Event().wait()
