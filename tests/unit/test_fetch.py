"""Fetching: from a hub on this host with the real client, and from local files."""

import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from sft.errors import SftError
from sft.fetch import fetch_dataset, fetch_model, verify_fetched
from sft.files import hash_file
from sft.mix import Dataset
from sft.model import Model
from tests.hub import Hub, Refused

ROOT = Path(__file__).parents[2]
TOKEN = "hf_ThisIsATokenThatNobodyMaySee"
CLIENT = """
import json, logging, sys
from sft.errors import SftError
from sft.fetch import fetch_dataset, fetch_model
from sft.mix import Dataset
from sft.model import Model
logging.basicConfig(format="%(name)s: %(message)s")
logging.getLogger("sft").setLevel(logging.INFO)
def answer(words):
    try:
        if "registry" in words:
            return fetch_dataset(Dataset(**words))
        return fetch_model(Model(**words))
    except SftError as error:
        return str(error)
print(json.dumps([answer(words) for words in json.loads(sys.argv[1])]))
"""


class Client:
    """Fetches in a process of its own: the hub's client reads its settings when imported."""

    def __init__(self, url: str, home: Path) -> None:
        inherited = {key: text for key, text in os.environ.items() if not key.startswith("HF_")}
        inherited.pop("TRANSFORMERS_OFFLINE", None)
        self.home = home
        self.environment = inherited | {
            "PYTHONPATH": str(ROOT),
            "HF_ENDPOINT": url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": TOKEN,
        }
        self.stderr = ""

    def start(self, requests: list[dict], prelude: str = "", **more: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", prelude + CLIENT, json.dumps(requests)],
            env=self.environment | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def fetch_all(self, requests: list[dict], prelude: str = "", **more: str) -> list[dict | str]:
        """What was made of each request, or the text of its refusal."""
        process = self.start(requests, prelude, **more)
        stdout, self.stderr = process.communicate(timeout=60)
        assert process.returncode == 0, self.stderr
        assert TOKEN not in stdout + self.stderr
        return json.loads(stdout)

    def fetch(self, request: dict, prelude: str = "", **more: str) -> dict[str, Any]:
        """What was made; raises SftError with the text of a refusal."""
        [answer] = self.fetch_all([request], prelude, **more)
        if isinstance(answer, str):
            raise SftError(answer)
        return answer


def model_at(revision: str | None = None, hub: str = "org/m") -> dict:
    return {"name": "m", "hub": hub, "revision": revision}


def dataset_at(revision: str | None = None, hub: str = "org/d") -> dict:
    return {"name": "d", "registry": "datasets.yaml", "hub": hub, "revision": revision}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "hub") as hub:
        yield hub


@pytest.fixture
def client(hub: Hub, tmp_path: Path) -> Client:
    return Client(hub.url, tmp_path / "hf")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


def make_model(folder: Path) -> Path:
    """A whole model in two shards."""
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "tokenizer.json").write_text("{}")
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for tensor, name in weight_map.items():
        write_safetensors(folder / name, tensor, os.urandom(1000))
    return folder


def write_safetensors(path: Path, tensor: str, content: bytes) -> None:
    size = len(content)
    header = {tensor: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    encoded = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content)


def sharegpt(path: Path, **columns: str) -> Dataset:
    options = {"formatting": "sharegpt"} | ({"columns": columns} if columns else {})
    return Dataset("d", "datasets.yaml", path=str(path), options=options)


def write_rows(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sent(hub: Hub) -> list[str]:
    return [request for request in hub.requests if "/resolve/" in request]


# Models from the hub


@dataclass(frozen=True)
class Cached:
    """A model that was fetched from the hub's default branch into the cache of `client`."""

    hub: Hub
    client: Client
    folder: Path
    commit: str
    made: dict


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cached]:
    root = tmp_path_factory.mktemp("cached")
    folder = make_model(root / "model")
    for name in ("pytorch_model.bin", "original/weights.pth", "checkpoint-5/a.safetensors"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"heavy")
    with Hub(root / "hub") as hub:
        commit, client = hub.commit("org/m", folder), Client(hub.url, root / "hf")
        yield Cached(hub, client, folder, commit, client.fetch(model_at()))


def test_model_is_pinned_to_the_commit_of_the_default_branch(cached):
    assert cached.made["name"] == "m"
    assert (cached.made["source"], cached.made["revision"]) == ("hub:org/m", cached.commit)
    assert Path(cached.made["path"]).is_relative_to(cached.client.home)


def test_content_of_a_hub_model_is_hashed_without_other_weight_formats(cached):
    assert {each["path"]: each["sha256"] for each in cached.made["files"]} == {
        path.name: hash_file(path)
        for path in cached.folder.iterdir()
        if path.is_file() and path.suffix != ".bin"
    }


def test_other_weight_formats_stay_on_the_hub(cached):
    names = {path.name for path in cached.client.home.rglob("*")}
    assert not names & {"pytorch_model.bin", "weights.pth", "a.safetensors"}


def test_second_fetch_downloads_nothing_and_pins_the_same(cached):
    cached.hub.requests.clear()
    assert cached.client.fetch(model_at(cached.commit)) == cached.made
    assert not [request for request in cached.hub.requests if "/resolve/" in request]


def test_offline_finds_the_cached_branch_and_commit(cached):
    requests = [model_at(), model_at("main"), model_at(cached.commit)]
    assert cached.client.fetch_all(requests, HF_HUB_OFFLINE="1") == [cached.made] * 3


def test_hub_that_is_away_is_as_good_as_offline(cached):
    assert cached.client.fetch(model_at(), HF_ENDPOINT="http://127.0.0.1:9") == cached.made


def test_offline_with_an_unknown_branch_names_the_cached_commits(cached):
    with pytest.raises(SftError, match=f"a commit that is there as `revision`: {cached.commit}"):
        cached.client.fetch(model_at("other"), HF_HUB_OFFLINE="1")


def test_offline_without_cache_says_what_to_do(client):
    with pytest.raises(SftError, match="does not hold all of it; fetch it on a machine with inter"):
        client.fetch(model_at(), HF_HUB_OFFLINE="1")


def test_tag_is_resolved_and_a_moved_branch_followed(hub, client, model):
    first = hub.commit("org/m", model)
    hub.tag("org/m", "v1", first)
    (model / "config.json").write_text('{"model_type": "llama"}')
    second = hub.commit("org/m", model)
    by_tag, by_branch = client.fetch_all([model_at("v1"), model_at("main")])
    assert (by_tag["revision"], by_branch["revision"]) == (first, second)
    assert by_tag["sha256"] != by_branch["sha256"]


def test_fetch_killed_in_a_big_file_is_completed_by_the_next(hub, client, model):
    content = os.urandom(12_000_000)  # more than the block in which the client writes
    write_safetensors(model / "model-2.safetensors", "b", content)
    hub.commit("org/m", model)
    hub.stall_at = 11_000_000
    process = client.start([model_at()])
    wait_for(lambda: has_begun(client.home))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not list(client.home.rglob("model-2.safetensors"))
    hub.stall_at = None
    made = client.fetch(model_at())
    assert Path(made["path"], "model-2.safetensors").read_bytes().endswith(content)
    assert re.search(r"blobs: \d \*.incomplete files; delete them", client.stderr)


def has_begun(home: Path) -> bool:
    """Whether a part of a big file is on disk; small files come and go meanwhile."""
    for path in home.rglob("*.incomplete"):
        with suppress(FileNotFoundError):
            if path.stat().st_size > 1_000_000:
                return True
    return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_changed_cache_is_named_and_its_remedy_works(hub, client, model):
    hub.commit("org/m", model)
    made = client.fetch(model_at())
    blob = Path(made["path"], "model-1.safetensors").resolve()
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(
        SftError, match=f"model-1.safetensors: found .*the hub has .* delete {blob}"
    ):
        client.fetch(model_at())
    blob.unlink()
    assert client.fetch(model_at())["sha256"] == made["sha256"]


def test_filesystem_without_flock_is_no_obstacle(hub, client, model):
    hub.commit("org/m", model)
    client.fetch(model_at(), without_flock("ENOSYS"))


def test_filesystem_whose_locks_fail_is_named(hub, client, model):
    hub.commit("org/m", model)
    with pytest.raises(SftError, match=f"{client.home}/hub: .*No locks available.* set HF_HOME"):
        client.fetch(model_at(), without_flock("ENOLCK"))
    assert not list(client.home.rglob("*.safetensors"))


def without_flock(code: str) -> str:
    return (
        "import errno, fcntl, os\n"
        "def flock(*_):\n"
        f"    raise OSError(errno.{code}, os.strerror(errno.{code}))\n"
        "fcntl.flock = flock\n"
    )


def test_long_download_says_how_far_it_is(hub, client, model):
    write_safetensors(model / "model-2.safetensors", "b", os.urandom(2_000_000))
    hub.commit("org/m", model)
    hub.bytes_per_s = 4_000_000
    talkative = "import sft.step\nsft.step.Progress.__init__.__defaults__ = (0.05,)\n"
    client.fetch(model_at(), talkative)
    assert "sft: download org/m: 0.0 of 0.0 GB" in client.stderr


# Datasets from the hub


def test_hub_dataset_is_pinned_by_tag(hub, client, tmp_path):
    write_rows(tmp_path / "rows" / "train.jsonl", {"conversations": []})
    commit = hub.commit("org/d", tmp_path / "rows", kind="dataset")
    hub.tag("org/d", "v1", commit, kind="dataset")
    made = client.fetch(dataset_at("v1"))
    assert (made["source"], made["revision"]) == ("hub:org/d", commit)
    assert [each["path"] for each in made["files"]] == ["train.jsonl"]
    assert client.fetch(dataset_at(commit), HF_HUB_OFFLINE="1") == made


# What the hub refuses


HUB_FAULTS = {
    "missing repository": (model_at(hub="org/none"), "model m: org/none: .* has no such model, or"),
    "missing dataset": (dataset_at(hub="org/m"), "datasets.yaml, d: org/m: .* no such dataset"),
    "missing branch": (model_at("release-1"), "org/m at release-1: no such .*'release-2'"),
    "missing commit": (model_at("a" * 40), f"org/m at {'a' * 40}: no such branch, tag or commit"),
    "impossible id": (model_at(hub="org/a--b"), "not a hub id"),
    "gated": (model_at(hub="org/gated"), "gated; accept its terms at .*/org/gated"),
    "gated data": (dataset_at(hub="org/gated"), "accept its terms at .*/datasets/org/gated"),
    "locked": (model_at(hub="org/locked"), "answered 403: Your storage is locked"),
    "no safetensors": (
        model_at(hub="org/bin"),
        "expected model.safetensors .* found none; only whole models",
    ),
    "a script alone": (dataset_at(hub="org/script"), "only a loading script, which is never run"),
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What one client is told about each fault."""
    root = tmp_path_factory.mktemp("refused")
    whole = make_model(root / "model")
    shutil.copytree(whole, root / "bin", ignore=shutil.ignore_patterns("model*"))
    (root / "bin" / "pytorch_model.bin").write_bytes(b"heavy")
    (root / "script").mkdir()
    (root / "script" / "d.py").write_text("raise SystemExit('executed')")
    with Hub(root / "hub") as hub:
        hub.tag("org/m", "release-2", hub.commit("org/m", whole))
        hub.commit("org/bin", root / "bin")
        hub.commit("org/script", root / "script", kind="dataset")
        hub.refusals["org/gated"] = Refused(403, "GatedRepo", "Access is restricted")
        hub.refusals["org/locked"] = Refused(403, "", "Your storage is locked")
        requests = [request for request, _ in HUB_FAULTS.values()]
        answers = Client(hub.url, root / "hf").fetch_all(requests)
    return dict(zip(HUB_FAULTS, answers, strict=True))


@pytest.mark.parametrize("fault", HUB_FAULTS)
def test_refusal_of_the_hub_says_what_to_do(refused, fault):
    _, message = HUB_FAULTS[fault]
    assert re.search(message, refused[fault]), refused[fault]


# Local models


def test_local_model_stays_where_it_is(model):
    made = fetch_model(Model("m", folder=str(model)))
    assert (made["source"], made["revision"]) == (f"local:{model}", None)
    assert made["path"] == str(model)


def test_missing_model_folder_is_refused_with_the_nearest(model):
    with pytest.raises(SftError, match="modle: no such file or folder; did you mean 'model'"):
        fetch_model(Model("m", folder=str(model.parent / "modle")))


def edit_weight_map(folder: Path) -> None:
    weight_map = {"a": "model-1.safetensors", "c": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def cut_shard(folder: Path) -> None:
    os.truncate(folder / "model-2.safetensors", 700)


def put_pointer(folder: Path) -> None:
    (folder / "model-2.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")


def leave_adapter(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    for path in folder.glob("model-*"):
        path.unlink()
    write_safetensors(folder / "adapter_model.safetensors", "lora", b"1")


MODEL_FAULTS = [
    (lambda f: (f / "config.json").unlink(), r"config.json: no such file; get it again"),
    (lambda f: (f / "config.json").write_text('{"a'), r"config.json: not JSON: .*; get it again"),
    (lambda f: (f / "tokenizer.json").unlink(), r"no tokenizer: expected one of tokenizer.json"),
    (lambda f: (f / "model-2.safetensors").unlink(), r"model-2.safetensors: missing; get it"),
    (cut_shard, r"700 bytes, its header promises 11\d\d: truncated; get it"),
    (
        lambda f: os.truncate(f / "model-2.safetensors", 40),
        r"truncated at 40 bytes, inside its header; get it",
    ),
    (lambda f: os.truncate(f / "model-2.safetensors", 0), r"truncated at 0 bytes"),
    (put_pointer, r"model-2.safetensors: a Git LFS pointer .* `git lfs pull`"),
    (edit_weight_map, r"places 'c' there, .*of different saves"),
    (leave_adapter, r"expected model.safetensors or .*, found adapter_model.safetensors"),
    (lambda f: (f / "a.incomplete").touch(), r"a.incomplete: a download that did not end"),
]


@pytest.mark.parametrize(("spoil", "message"), MODEL_FAULTS, ids=[text for _, text in MODEL_FAULTS])
def test_broken_model_folder_is_refused(model, spoil, message):
    spoil(model)
    with pytest.raises(SftError, match=message):
        fetch_model(Model("m", folder=str(model)))


def test_model_of_one_file_needs_no_index(model):
    for path in model.glob("model*"):
        path.unlink()
    write_safetensors(model / "model.safetensors", "a", b"1234")
    made = fetch_model(Model("m", folder=str(model)))
    assert "model.safetensors" in [each["path"] for each in made["files"]]


# Local datasets


def test_local_file_is_pinned_by_its_own_hash(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", {"conversations": []})
    made = fetch_dataset(sharegpt(path))
    assert (made["source"], made["path"]) == (f"local:{path}", str(path))
    assert made["sha256"] == hash_file(path)
    assert [each["path"] for each in made["files"]] == ["a.jsonl"]


def test_link_keeps_the_name_that_tells_its_type(tmp_path):
    write_rows(tmp_path / "blob", {"conversations": []})
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "blob")
    assert fetch_dataset(sharegpt(tmp_path / "a.jsonl"))["path"] == str(tmp_path / "a.jsonl")


def test_folder_of_one_type_is_pinned_file_by_file(tmp_path):
    write_rows(tmp_path / "rows" / "b.json", {"conversations": []})
    write_rows(tmp_path / "rows" / "a.jsonl", {"conversations": []})
    made = fetch_dataset(sharegpt(tmp_path / "rows"))
    assert [each["path"] for each in made["files"]] == ["a.jsonl", "b.json"]


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.parquet", "a.arrow", "b.arrow"])
def test_every_type_that_the_trainer_reads_is_taken(tmp_path, name):
    path, table = tmp_path / name, pyarrow.table({"conversations": ["x"]})
    if name == "a.json":
        path.write_text(json.dumps([{"conversations": []}, {"conversations": []}], indent=1))
    elif name == "a.csv":
        path.write_text("conversations\nx\n")
    elif name == "a.parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        new = pyarrow.ipc.new_stream if name == "a.arrow" else pyarrow.ipc.new_file
        with new(path, table.schema) as writer:
            writer.write_table(table)
    assert fetch_dataset(sharegpt(path))["files"]
    with pytest.raises(SftError, match=f"{name} has no column 'chat'"):
        fetch_dataset(sharegpt(path, messages="chat"))


def test_array_that_goes_on_beyond_the_first_rows_is_taken(tmp_path):
    rows = [{"conversations": ["x" * 1000]}] * 6000
    (tmp_path / "lines.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "one_line.json").write_text(json.dumps(rows))
    assert fetch_dataset(sharegpt(tmp_path))["files"]


def test_missing_file_is_refused_with_the_nearest(tmp_path):
    write_rows(tmp_path / "traces.jsonl", {})
    with pytest.raises(SftError, match=r"trace.jsonl: no such .*did you mean 'traces.jsonl'"):
        fetch_dataset(sharegpt(tmp_path / "trace.jsonl"))


def test_missing_folder_of_a_file_is_named(tmp_path):
    with pytest.raises(SftError, match=f"there is no folder {tmp_path}/nowhere"):
        fetch_dataset(sharegpt(tmp_path / "nowhere" / "a.jsonl"))


LOCAL_FAULTS = {
    "empty folder": ({}, "an empty folder, expected .arrow, .csv, .json, .jsonl, .parquet files"),
    "empty file": ({"a.jsonl": ""}, "a.jsonl: no rows in it"),
    "empty array": ({"a.json": "[]"}, "a.json: no rows in it"),
    "header alone": ({"a.csv": "conversations\n"}, "a.csv: no rows in it"),
    "unknown type": ({"a.jsonl.gz": "x"}, "a.jsonl.gz: expected a .arrow, .* file; move it out"),
    "hidden file": ({"a.jsonl": "{}", ".DS_Store": ""}, ".DS_Store: expected a .*; move it out"),
    "two types": ({"a.jsonl": "{}", "b.csv": "x"}, "a.jsonl and b.csv are of different types"),
    "broken line": (
        {"a.jsonl": '{"a": 1}\n\n{"a": \n{}\n'},
        "a.jsonl, line 3: not JSON: Expecting value at column 7",
    ),
    "broken array": ({"a.json": '[{"a": 1},\n{"a" 2}]'}, "a.json, line 2: not JSON"),
    "array without end": ({"a.json": '[{"a": 1},\n'}, "a.json, line 2: not JSON"),
    "no object": ({"a.jsonl": "{}\n[1]\n"}, "row 2: found a list, expected a JSON object"),
    "no Parquet": ({"a.parquet": "PAR1 and then nothing"}, "a.parquet: not a whole Parquet file"),
    "no Arrow": ({"a.arrow": "ARROW1"}, "a.arrow: not an Arrow file"),
}


@pytest.mark.parametrize("fault", LOCAL_FAULTS)
def test_local_data_that_cannot_be_read_is_refused(tmp_path, fault):
    files, message = LOCAL_FAULTS[fault]
    folder = tmp_path / "rows"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    with pytest.raises(SftError, match=message):
        fetch_dataset(sharegpt(folder))


def test_file_that_is_not_utf8_is_refused_with_its_line(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xe9"}\n')
    with pytest.raises(SftError, match=r"a.jsonl, line 2: not UTF-8"):
        fetch_dataset(sharegpt(tmp_path / "a.jsonl"))


def test_column_that_no_row_has_is_refused_with_the_nearest(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", {"conversations": []})
    with pytest.raises(SftError, match=r"d, columns.messages: .*did you mean 'conversations'"):
        fetch_dataset(sharegpt(path, messages="conversation"))


def test_column_may_be_absent_from_the_first_row(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", {"chat": []}, {"chat": [], "tools": "[]"})
    assert fetch_dataset(sharegpt(path, messages="chat", tools="tools"))["files"]


def test_default_columns_follow_the_formatting(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", {"instruction": "x", "input": "", "answer": "y"})
    with pytest.raises(SftError, match=r"columns.response, the default of alpaca: .*'output'"):
        fetch_dataset(Dataset("d", "datasets.yaml", path=str(path)))


# What was fetched, later


def test_untouched_files_pass_both_checks(model):
    made = fetch_model(Model("m", folder=str(model)))
    verify_fetched(made, thorough=False)
    verify_fetched(made, thorough=True)


def test_fetched_copy_survives_a_move_of_its_times(model):
    made = fetch_model(Model("m", folder=str(model)))
    os.utime(model / "config.json")
    verify_fetched(made, thorough=True)
    with pytest.raises(SftError, match=r"config.json: written to since it was fetched"):
        verify_fetched(made, thorough=False)


def test_changed_byte_is_found_by_the_thorough_check(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", {"conversations": [1]})
    made, state = fetch_dataset(sharegpt(path)), path.stat()
    write_rows(path, {"conversations": [2]})
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    verify_fetched(made, thorough=False)
    with pytest.raises(SftError, match=r"a.jsonl: changed since it was fetched: found sha256"):
        verify_fetched(made, thorough=True)


@pytest.mark.parametrize("thorough", [False, True])
def test_changed_size_is_found(tmp_path, thorough):
    path = write_rows(tmp_path / "a.jsonl", {"conversations": []})
    made = fetch_dataset(sharegpt(path))
    with open(path, "a") as file:
        file.write("{}\n")
    with pytest.raises(SftError, match=r"a.jsonl: changed .* found 25 bytes, expected 22; put"):
        verify_fetched(made, thorough)


def test_vanished_file_is_named(model):
    made = fetch_model(Model("m", folder=str(model)))
    (model / "config.json").unlink()
    with pytest.raises(SftError, match=r"config.json: it is gone since it was fetched"):
        verify_fetched(made, thorough=False)


def test_vanished_folder_is_named(model):
    made = fetch_model(Model("m", folder=str(model)))
    shutil.rmtree(model)
    with pytest.raises(SftError, match=f"{model}: it is gone since it was fetched"):
        verify_fetched(made, thorough=False)


def test_file_that_joined_a_local_folder_is_named(tmp_path):
    write_rows(tmp_path / "rows" / "a.jsonl", {"conversations": []})
    made = fetch_dataset(sharegpt(tmp_path / "rows"))
    write_rows(tmp_path / "rows" / "b.jsonl", {"conversations": []})
    with pytest.raises(SftError, match=r"b.jsonl: it was not there when"):
        verify_fetched(made, thorough=False)


def test_hashing_says_how_far_it_is(model, monkeypatch, caplog):
    monkeypatch.setattr("sft.step.Progress.__init__.__defaults__", (0.0,))
    with caplog.at_level(logging.INFO, logger="sft"):
        fetch_model(Model("m", folder=str(model)))
    assert f"hash {model}: 0.0 of 0.0 GB" in caplog.text


def test_hub_that_says_nothing_is_given_up(tmp_path):
    """The client itself would wait for ever, behind a tunnel that died."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path / "hf")
        with pytest.raises(SftError, match=r"org/m: .*(lost the connection|cannot be reached)"):
            client.fetch(model_at(), "import sft.hub; sft.hub.SILENCE_S = 0.5\n")
