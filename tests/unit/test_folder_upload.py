"""Uploads to a folder: whole, proved, repeatable, and never over another's files."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sft.errors import SftError
from sft.files import manifest
from sft.folder_upload import STORED, upload_to_folder

FILES = {"README.md": b"card", "config.json": b"{}", "model.safetensors": bytes(range(256)) * 64}


def write_release(folder: Path, **changes: bytes | None) -> list[dict]:
    """A release in `folder`, changed by file stem (None: left out), and its manifest."""
    folder.mkdir(exist_ok=True)
    for name, content in FILES.items():
        content = changes.get(Path(name).stem, content)
        if content is None:
            (folder / name).unlink(missing_ok=True)
        else:
            (folder / name).write_bytes(content)
    return manifest(folder)


@pytest.fixture
def release(tmp_path) -> Path:
    write_release(tmp_path / "release")
    return tmp_path / "release"


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "hub" / "laion" / "model"


def upload(release: Path, target: Path) -> dict:
    return upload_to_folder(release, manifest(release), target)


def test_an_upload_says_what_it_took(release, target):
    assert upload(release, target) == {
        "location": str(target),
        "files": 3,
        "bytes": 6 + 256 * 64,
        "sent": 3,
    }


def test_the_target_holds_the_same_files_and_they_are_copies(release, target):
    upload(release, target)
    assert manifest(target) == manifest(release)
    assert not (target / "README.md").samefile(release / "README.md")


def test_files_in_folders_are_sent(release, target):
    (release / "extra").mkdir()
    (release / "extra" / "a.json").write_text("{}")
    upload(release, target)
    assert (target / "extra" / "a.json").read_text() == "{}"


def test_a_finished_upload_sends_nothing_and_touches_nothing(release, target):
    upload(release, target)
    before = {path.name: path.stat().st_ino for path in [target, *target.iterdir()]}
    assert upload(release, target)["sent"] == 0
    assert {path.name: path.stat().st_ino for path in [target, *target.iterdir()]} == before


@pytest.mark.parametrize("content", [b"", b"case"])
def test_a_damaged_file_in_the_target_is_sent_again(release, target, content):
    upload(release, target)
    (target / "README.md").write_bytes(content)
    assert upload(release, target)["sent"] == 1
    assert manifest(target) == manifest(release)


def test_only_changed_files_are_sent(release, target):
    upload(release, target)
    write_release(release, README=b"a new card")
    assert upload(release, target)["sent"] == 1
    assert manifest(target) == manifest(release)


def test_what_an_earlier_release_left_is_removed(release, target):
    upload(release, target)
    write_release(release, config=None)
    upload(release, target)
    assert not (target / "config.json").exists()


def test_a_reader_of_the_old_release_keeps_it_whole(release, target):
    upload(release, target)
    with open(target / "model.safetensors", "rb") as reader:
        first = reader.read(100)
        write_release(release, model=b"new")
        upload(release, target)
        assert first + reader.read() == FILES["model.safetensors"]


@pytest.mark.parametrize("name", ["notes.txt", ".gitattributes", "data/rows.json"])
def test_a_foreign_file_is_named_and_stays(release, target, name):
    upload(release, target)
    write_release(release, README=b"a new card")
    (target / name).parent.mkdir(exist_ok=True)
    (target / name).write_text("another's")
    with pytest.raises(SftError, match=f"not put there by an upload: {name}"):
        upload(release, target)
    assert (target / name).read_text() == "another's"
    assert (target / "README.md").read_bytes() == FILES["README.md"]


def test_another_model_in_the_target_is_refused(release, target):
    target.mkdir(parents=True)
    (target / "README.md").write_text("another model")
    with pytest.raises(SftError, match=r"not put there by an upload: README\.md"):
        upload(release, target)


def test_a_foreign_file_that_comes_while_sending_is_kept(release, target, monkeypatch):
    upload(release, target)
    write_release(release, README=b"a new card")
    late = target / "late.txt"
    monkeypatch.setattr("sft.folder_upload._send", lambda *_: late.write_text("mine"))
    with pytest.raises(SftError, match=r"late\.txt"):
        upload(release, target)
    assert (target / "late.txt").read_text() == "mine"


def test_the_same_files_put_there_by_hand_are_adopted(release, target):
    target.parent.mkdir(parents=True)
    write_release(target)
    assert upload(release, target)["sent"] == 0
    assert (target / STORED).exists()


def test_a_file_in_place_of_the_folder_is_refused(release, target):
    target.parent.mkdir(parents=True)
    target.write_text("a file")
    with pytest.raises(SftError, match="a file is in the way"):
        upload(release, target)


def test_a_link_to_a_folder_stays_a_link(release, target, tmp_path):
    (tmp_path / "big_disk").mkdir()
    target.parent.mkdir(parents=True)
    target.symlink_to(tmp_path / "big_disk")
    assert upload(release, target)["location"] == str(tmp_path / "big_disk")
    assert target.is_symlink()
    assert manifest(target) == manifest(release)


def test_a_release_that_changed_since_its_manifest_is_refused(release, target):
    files = manifest(release)
    (release / "config.json").write_bytes(b"[]")
    with pytest.raises(SftError, match=r"config\.json: changed since the release was assembled"):
        upload_to_folder(release, files, target)
    assert not target.exists()


# --- killed --------------------------------------------------------------------------------------

SLOW = """
import shutil, sys, time
from pathlib import Path
import sft.folder_upload
from sft.files import manifest

folder, target, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
def wait(*arguments):
    (folder / "reached").touch()
    time.sleep(60)
copy, rename = sft.folder_upload._copy_checked, Path.rename
def copy_one(release, entry, partial):
    wait() if entry["path"] == "config.json" else copy(release, entry, partial)
def rename_one(path, final):
    wait() if ".partial-" in path.name else rename(path, final)
if moment == "while copying":
    sft.folder_upload._copy_checked = copy_one
if moment == "between the renames":
    Path.rename = rename_one
if moment == "while removing the old one":
    shutil.rmtree = wait
sft.folder_upload.upload_to_folder(folder / "release", manifest(folder / "release"), target)
"""


def kill_upload(folder: Path, target: Path, moment: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(folder), str(target), moment],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    while not (folder / "reached").exists():
        assert child.poll() is None
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()


def everything(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir()) + sorted(
        path.name for path in folder.iterdir()
    )


def test_a_killed_first_upload_is_absent_and_the_next_one_whole(release, target, tmp_path):
    kill_upload(tmp_path, target, "while copying")
    assert not target.exists()
    upload(release, target)
    assert manifest(target) == manifest(release)
    assert everything(target) == ["model", STORED, *FILES]


@pytest.mark.parametrize(
    "moment", ["while copying", "between the renames", "while removing the old one"]
)
def test_an_upload_killed_over_an_old_one_ends_like_an_undisturbed_one(
    release, target, tmp_path, moment
):
    upload(release, target)
    write_release(release, README=b"a new card", config=b'{"a": 1}')
    kill_upload(tmp_path, target, moment)
    upload(release, target)
    assert manifest(target) == manifest(release)
    assert everything(target) == ["model", STORED, *FILES]


def test_an_upload_killed_while_copying_leaves_the_old_release(release, target, tmp_path):
    upload(release, target)
    before = manifest(target)
    write_release(release, config=b'{"a": 1}')
    kill_upload(tmp_path, target, "while copying")
    assert manifest(target) == before
