"""Uploads to a hub on this host with the real client: one commit, proved, and safe from kills."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sft.errors import SftError
from sft.files import manifest, write_json
from sft.hub_repository import RECORD
from tests.hub import Fault, Hub
from tests.hub_base import Refused
from tests.unit.killing import ROOT, kill, kill_at_wait, start, wait_until

TOKEN = "hf_ThisIsATokenThatNobodyMaySee"
REPOSITORY = "laion/model"
UPLOAD = """
import json, logging, sys
from pathlib import Path
import sft.hub
from sft.errors import SftError
from sft.files import manifest
from sft.hub_upload import upload_to_hub
from huggingface_hub import CommitOperationAdd, HfApi
logging.basicConfig(format="%(message)s")
logging.getLogger("sft").setLevel(logging.INFO)
sft.hub.FIRST_WAIT_S = 0.05
folder = Path(sys.argv[1])
files = json.loads((folder / "manifest.json").read_text())
def upload(private=False):
    try:
        made = upload_to_hub(folder / "release", files, "laion/model", private)
    except SftError as error:
        made = str(error)
    (folder / "made.json").write_text(json.dumps(made))
"""
WEIGHTS = {
    "model-1.safetensors": bytes(range(256)) * (3 << 12),  # in parts of 1 MiB
    "model-2.safetensors": bytes(range(256)) * 400,  # in one
}
SMALL = {"README.md": b"---\nlicense: mit\n---\ncard", "config.json": b"{}", "extra/a.txt": b"a"}


class Upload:
    """A release in `folder`, and its uploads in processes of their own."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.folder, self.hub, self.output = folder, hub, ""
        self.release = folder / "release"
        self.environment = {
            **{"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN},
            **{"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "0"},
        }
        self.write(SMALL | WEIGHTS)

    def write(self, files: dict[str, bytes], experiment: str = "run") -> None:
        """Put files into the release, with the record of what made it, and list all in it."""
        for name, content in files.items():
            (self.release / name).parent.mkdir(parents=True, exist_ok=True)
            (self.release / name).write_bytes(content)
        made = {"name": experiment, "fingerprint": "f1"}
        write_json(self.release / "provenance.json", {"experiment": made})
        self.list_files()

    def list_files(self) -> None:
        write_json(self.folder / "manifest.json", manifest(self.release))

    def start(self, code: str = "upload()", **variables: str) -> subprocess.Popen:
        return start(UPLOAD + code, self.folder, **self.environment | variables)

    def run(self, code: str = "upload()", **variables: str) -> dict:
        """What an upload made; raises SftError with the text of its refusal."""
        (self.folder / "made.json").unlink(missing_ok=True)
        child = self.start(code, **variables)
        self.output = child.communicate(timeout=60)[0]
        assert child.returncode == 0, self.output
        made = json.loads((self.folder / "made.json").read_text())
        if isinstance(made, str):
            raise SftError(made)
        return made

    def kill_at_wait(self, code: str) -> None:
        kill_at_wait(UPLOAD + code, self.folder, **self.environment)

    def remote(self) -> dict[str, bytes]:
        """The files of main, by their path."""
        _, files = self.hub.resolve(self.hub.repository("model", REPOSITORY), "main")
        return {path: self.hub.blob(each["sha256"]).read_bytes() for path, each in files.items()}

    def expect_whole(self) -> None:
        """Main holds the release, and what hub and workflow keep for themselves."""
        remote = self.remote()
        for own in (".gitattributes", RECORD):
            assert remote.pop(own)
        assert remote == {
            each["path"]: (self.release / each["path"]).read_bytes()
            for each in manifest(self.release)
        }

    def put_by_hand(self, files: dict[str, bytes]) -> None:
        """Let somebody else commit files on top of what is there."""
        folder = self.folder / "by hand"
        for name, content in (self.remote() | files).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        self.hub.commit(REPOSITORY, folder)

    def writes(self) -> list[str]:
        """What was asked of the hub that stores something."""
        return [each for each in self.hub.requests if re.match(r"PUT|.*/commit/|.*/create", each)]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "hub") as hub:
        yield hub


@pytest.fixture
def upload(hub: Hub, tmp_path: Path) -> Upload:
    return Upload(tmp_path, hub)


def test_an_upload_says_what_it_took(upload, hub):
    state_before = manifest(upload.release)
    made = upload.run()
    assert made == {
        "location": f"{hub.url}/{REPOSITORY}",
        "commit": hub.repository("model", REPOSITORY)["branches"]["main"],
        "files": 6,
        "bytes": sum(each["size"] for each in state_before),
        "sent": 6,
    }


def test_the_repository_holds_the_release_in_one_commit(upload, hub):
    upload.run()
    upload.expect_whole()
    assert hub.titles(REPOSITORY) == ["Release of run", "initial commit"]


@pytest.mark.parametrize("private", [True, False])
def test_repository_is_created_as_the_row_says(upload, hub, private):
    upload.run(f"upload({private})")
    assert hub.repository("model", REPOSITORY)["private"] is private


def test_a_finished_upload_sends_nothing_and_commits_nothing(upload, hub):
    first = upload.run()
    hub.requests.clear()
    assert upload.run() == first | {"sent": 0}
    assert upload.writes() == []


def test_only_changed_files_are_sent(upload, hub):
    upload.run()
    upload.write({"README.md": b"a new card"})
    hub.requests.clear()
    assert upload.run()["sent"] == 1
    assert [each for each in upload.writes() if each.startswith("PUT")] == []
    upload.expect_whole()


def test_what_an_earlier_release_left_goes_in_the_same_commit(upload, hub):
    upload.run()
    (upload.release / "model-2.safetensors").unlink()
    upload.write({"model-1.safetensors": b"another"})
    upload.run()
    upload.expect_whole()
    assert len(hub.titles(REPOSITORY)) == 3


def test_another_ones_file_stays(upload):
    upload.run()
    upload.put_by_hand({"notes.md": b"mine"})
    upload.write({"README.md": b"a new card"})
    upload.run()
    assert upload.remote()["notes.md"] == b"mine"


def test_another_ones_change_to_a_superseded_file_stays(upload):
    upload.run()
    upload.put_by_hand({"extra/a.txt": b"mine"})
    (upload.release / "extra" / "a.txt").unlink()
    upload.list_files()
    upload.run()
    assert upload.remote()["extra/a.txt"] == b"mine"


def test_another_ones_change_to_the_card_is_refused_and_stays(upload):
    upload.run()
    upload.put_by_hand({"README.md": b"---\n---\nby hand"})
    with pytest.raises(SftError, match=r"not put there by an upload of 'run': README\.md; delete"):
        upload.run()
    assert upload.remote()["README.md"] == b"---\n---\nby hand"


def test_a_model_of_others_under_the_name_is_refused(upload, hub, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"other": 1}')
    commit = hub.commit(REPOSITORY, tmp_path / "other")
    with pytest.raises(SftError, match=r"not put there by an upload of 'run': config\.json"):
        upload.run()
    assert hub.repository("model", REPOSITORY)["branches"]["main"] == commit


def test_a_release_of_another_experiment_is_refused(upload):
    upload.run()
    upload.write({}, experiment="other")
    with pytest.raises(
        SftError, match="it holds a release of the experiment 'run', not of 'other'"
    ):
        upload.run()


def test_equal_files_put_there_by_hand_are_adopted(upload, hub):
    hub.commit(REPOSITORY, upload.release)
    assert upload.run()["sent"] == 0
    assert RECORD in upload.remote()


@pytest.mark.parametrize("private", [True, False])
def test_other_visibility_is_refused_and_never_changed(upload, hub, private):
    upload.run(f"upload({private})")
    found, wanted = ("private", "public") if private else ("public", "private")
    with pytest.raises(SftError, match=f"it is {found} on {hub.url}, and to be {wanted}"):
        upload.run(f"upload({not private})")
    assert hub.repository("model", REPOSITORY)["private"] is private


@pytest.mark.parametrize("name", ["config.json", "model-1.safetensors"])
def test_a_release_that_changed_since_its_manifest_is_refused(upload, hub, name):
    content = bytearray((upload.release / name).read_bytes())
    content[-1] ^= 1
    (upload.release / name).write_bytes(content)
    if name.startswith("model"):  # as if it were a large one, which git does not know
        code = "import sft.hub_upload; sft.hub_upload.GIT_BYTES = 1000; upload()"
    else:
        code = "upload()"
    with pytest.raises(SftError, match=f"{name}: changed since the release was assembled"):
        upload.run(code)
    assert not [each for each in hub.requests if each.startswith("PUT")]


# --- killed --------------------------------------------------------------------------------------

KILLS = {
    "after the repository": "create = HfApi.create_repo\n"
    "HfApi.create_repo = lambda *a, **k: (create(*a, **k), wait())\nupload()",
    "before the commit": "HfApi.create_commit = wait\nupload()",
    "after the commit": "commit = HfApi.create_commit\n"
    "HfApi.create_commit = lambda *a, **k: (commit(*a, **k), wait())\nupload()",
}


@pytest.mark.parametrize("moment", KILLS)
def test_killed_upload_ends_like_an_undisturbed_one(upload, hub, moment):
    upload.kill_at_wait(KILLS[moment])
    upload.run()
    upload.expect_whole()
    assert hub.titles(REPOSITORY) == ["Release of run", "initial commit"]
    parts = [each for each in hub.requests if each.startswith("PUT")]
    assert len(parts) == len(set(parts)) == 4, "a stored file was sent again"


def test_upload_killed_in_the_middle_of_a_file_ends_like_an_undisturbed_one(upload, hub):
    hub.stall_at = 1 << 20
    child = upload.start()
    wait_until(lambda: hub.received >= hub.stall_at)
    kill(child)
    hub.stall_at = None
    upload.run()
    upload.expect_whole()
    assert hub.titles(REPOSITORY) == ["Release of run", "initial commit"]


def test_upload_over_an_older_one_is_killed_without_a_mixed_state(upload, hub):
    upload.run()
    before = upload.remote()
    (upload.release / "extra" / "a.txt").unlink()
    upload.write({"README.md": b"a new card", "model-1.safetensors": b"new"})
    upload.kill_at_wait(KILLS["before the commit"])
    assert upload.remote() == before
    upload.run()
    upload.expect_whole()


# --- what passes ---------------------------------------------------------------------------------

BROKEN = {
    "the list": "GET .*/tree/.*",
    "the repository": "GET /api/models/laion/model",
    "the creation": "POST /api/repos/create",
    "the card": "POST /api/validate-yaml",
    "the commit": "POST .*/commit/main",
    "a file": "PUT .*",
}


@pytest.mark.parametrize("what", BROKEN)
def test_error_of_the_hub_is_waited_out(upload, hub, what):
    hub.faults = [Fault(BROKEN[what], Refused(500, "", "Internal Error"), times=2)]
    upload.run()
    upload.expect_whole()
    assert "500" in upload.output
    assert hub.titles(REPOSITORY) == ["Release of run", "initial commit"]


@pytest.mark.parametrize("what", ["the list", "the repository", "the creation", "the commit"])
def test_cut_answer_is_asked_for_again(upload, hub, what):
    hub.faults = [Fault(BROKEN[what], cut=True)]
    upload.run()
    upload.expect_whole()
    assert hub.titles(REPOSITORY) == ["Release of run", "initial commit"]


def test_commit_whose_answer_is_lost_is_found_and_not_made_twice(upload, hub):
    hub.faults = [Fault(BROKEN["the commit"], late=True)]
    assert upload.run()["sent"] == 6
    assert f"lost the connection to {hub.url}" in upload.output
    assert hub.titles(REPOSITORY) == ["Release of run", "initial commit"]


def test_wait_that_the_hub_asks_for_is_kept(upload, hub):
    slow = Refused(429, "", "Too many commits")
    hub.faults = [Fault(BROKEN["the commit"], slow, headers={"Retry-After": "2"})]
    start_s = time.monotonic()
    upload.run()
    assert time.monotonic() - start_s > 2
    assert (
        f"upload to {REPOSITORY}: {hub.url} answered 429: Too many commits; tried again in 2 s"
        in (upload.output)
    )


def test_wait_beyond_all_patience_is_refused_at_once(upload, hub):
    slow = Refused(429, "", "Too many commits")
    hub.faults = [Fault(BROKEN["the commit"], slow, headers={"Retry-After": "86400"})]
    with pytest.raises(
        SftError, match="Too many commits; not tried again before 86400 s have passed"
    ):
        upload.run()


BETWEEN = """
commit = HfApi.create_commit
def interrupted(*arguments, **keywords):
    HfApi.create_commit = commit
    theirs = [CommitOperationAdd("NAME", b"mine")]
    commit(HfApi(), "laion/model", theirs, commit_message="notes")
    return commit(*arguments, **keywords)
HfApi.create_commit = interrupted
upload()
"""


def test_commit_of_another_in_between_is_built_upon(upload, hub):
    upload.run(BETWEEN.replace("NAME", "notes.md"))
    assert hub.titles(REPOSITORY) == ["Release of run", "notes", "initial commit"]
    assert upload.remote()["notes.md"] == b"mine"


def test_card_that_another_commits_in_between_is_kept(upload, hub):
    with pytest.raises(SftError, match=r"not put there by an upload of 'run': README\.md"):
        upload.run(BETWEEN.replace("NAME", "README.md"))
    assert hub.titles(REPOSITORY) == ["notes", "initial commit"]
    assert upload.remote()["README.md"] == b"mine"


def test_hub_that_falls_silent_is_asked_again(upload, hub):
    hub.stall_at = 1 << 20
    child = upload.start("sft.hub.SILENCE_S = 0.5\nupload()")
    wait_until(lambda: hub.received >= hub.stall_at)
    time.sleep(1)
    hub.stall_at = None
    text, _ = child.communicate(timeout=60)
    assert "timed out" in text
    upload.expect_whole()


def test_progress_of_a_slow_upload_is_told(upload, hub):
    hub.bytes_per_s = 2e6
    upload.run("import sft.step\nsft.step.Progress.__init__.__defaults__ = (0.2,)\nupload()")
    assert re.search(rf"upload to {REPOSITORY}: 0.0 of 0.0 GB, .* s left", upload.output)
    assert "%|" not in upload.output, "a bar in the log"


# --- what does not pass --------------------------------------------------------------------------

REFUSALS = {
    "401": (Refused(401, "", "Invalid user token"), "set HF_TOKEN to a valid token"),
    "403": (Refused(403, "", "Forbidden: no write"), "the token needs the right to write there"),
    "404": (Refused(404, "", "No such namespace"), "correct hub_id or namespace"),
    "402": (Refused(402, "", "Payment required"), "make room there"),
    "quota": (
        Refused(403, "", "Private repository storage limit reached"),
        "make room there, or let the owner",
    ),
    "413": (Refused(413, "", "Payload too large"), "nothing of this passes by itself"),
}


@pytest.mark.parametrize(
    ("what", "name"),
    [
        *(("the creation", name) for name in REFUSALS),
        *((what, name) for what in ("a file", "the commit") for name in ("403", "quota")),
    ],
)
def test_refusal_for_good_stops_at_once_with_the_hub_s_words(upload, hub, what, name):
    refused, remedy = REFUSALS[name]
    hub.faults = [Fault(BROKEN[what], refused, times=99)]
    with pytest.raises(SftError) as error:
        upload.run()
    assert f"answered {refused.status}: {refused.message}; {remedy}" in str(error.value)
    asked = [each for each in hub.requests if re.fullmatch(BROKEN[what], each)]
    assert len(asked) <= (2 if what == "a file" else 1)  # two files are sent side by side
    assert "Release of run" not in (hub.titles(REPOSITORY) if what != "the creation" else [])


def test_metadata_that_the_hub_does_not_take_stops_at_once(upload, hub):
    upload.write({"README.md": b"---\ndatasets: [null]\n---\ncard"})
    with pytest.raises(SftError, match=r'"datasets\[0\]" must be a string; correct what the model'):
        upload.run()
    assert hub.titles(REPOSITORY) == ["initial commit"]


def test_what_arrived_with_another_content_is_no_success(upload, hub, monkeypatch):
    add = hub.add_commit

    def add_damaged(kind, name, files, *more):
        files = dict(files)
        if weights := files.get("model-1.safetensors"):
            files["model-1.safetensors"] = weights | {"sha256": "0" * 64}
        return add(kind, name, files, *more)

    monkeypatch.setattr(hub, "add_commit", add_damaged)
    with pytest.raises(
        SftError, match=r"after the upload, not there, or of another hash: model-1\.safetensors"
    ):
        upload.run()


def test_file_that_the_hub_ignores_is_no_success(upload, hub, monkeypatch):
    add = hub.add_commit

    def add_without(kind, name, files, *more):
        kept = {path: each for path, each in files.items() if path != "config.json"}
        return add(kind, name, kept, *more)

    monkeypatch.setattr(hub, "add_commit", add_without)
    with pytest.raises(SftError, match=r"not there, or of another hash: config\.json"):
        upload.run()


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}"])
def test_record_that_is_none_is_refused(upload, content):
    upload.run()
    upload.put_by_hand({RECORD: content})
    with pytest.raises(SftError, match="not what an upload wrote there; restore it there, or"):
        upload.run()


def test_offline_client_is_refused_at_once(upload):
    with pytest.raises(SftError, match="HF_HUB_OFFLINE is set; unset it"):
        upload.run(HF_HUB_OFFLINE="1")


def test_hub_that_is_never_reached_is_given_up_soon(upload):
    with pytest.raises(
        SftError, match=r"lost the connection to http.*see network_on and network_pre"
    ):
        upload.run("sft.hub.UNREACHED_S = 0.2\nupload()", HF_ENDPOINT="http://127.0.0.1:9")


def test_missing_token_is_refused_before_anything_is_asked(upload, hub):
    with pytest.raises(SftError, match=r"no token for http.*; set HF_TOKEN"):
        upload.run(HF_TOKEN="")
    assert hub.requests == []


def test_token_of_the_token_file_is_used(upload):
    (upload.folder / "hf").mkdir()
    (upload.folder / "hf" / "token").write_text(TOKEN)
    assert upload.run(HF_TOKEN="")["sent"] == 6


def test_token_stands_in_no_line_and_no_file(upload, hub, tmp_path):
    hub.faults = [
        Fault(BROKEN["a file"], Refused(500, "", "Internal Error")),
        Fault(BROKEN["the commit"], Refused(403, "", "Forbidden")),
    ]
    with pytest.raises(SftError) as error:
        upload.run()
    texts = [str(error.value), upload.output]
    texts += [path.read_bytes().decode("latin1") for path in tmp_path.rglob("*") if path.is_file()]
    assert not [text for text in texts if TOKEN in text]


def test_hub_killed_in_the_middle_and_started_again_gets_the_rest(upload, hub, tmp_path):
    port, root = int(hub.url.rpartition(":")[2]), tmp_path / "other hub"
    hub.__exit__()

    def serve(*more: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "tests.hub", str(root), str(port), *more]
        return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT)

    first = serve("1000000")
    child = upload.start()
    wait_until(lambda: len(list(root.glob("parts/*"))) > 1)
    kill(first)
    second = serve()
    try:
        text, _ = child.communicate(timeout=60)
    finally:
        kill(second)
    assert json.loads((tmp_path / "made.json").read_text())["sent"] == 6, text
    hub.root = root
    upload.expect_whole()
    assert hub.titles(REPOSITORY) == ["Release of run", "initial commit"]
    hub.__enter__()
