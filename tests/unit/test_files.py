"""Files and folders that are whole or absent, whenever their writer is killed."""

import hashlib
import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sft import files
from sft.errors import SftError
from sft.files import (
    hash_file,
    hash_json,
    link_or_copy,
    list_files,
    manifest,
    new_folder,
    parse_value,
    read_json,
    read_yaml,
    remove_abandoned,
    write_json,
    write_text,
    write_yaml,
)
from sft.process import ProcessId, process_id, this_process
from tests.unit.killing import kill, kill_at_wait, start, start_until_wait


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- YAML and JSON -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e-5", "4.0e-5", "1.5e5", "2E3", "-1e-5", "1_0e2"])
def test_number_with_an_exponent_is_a_float(tmp_path, text):
    (tmp_path / "a.yaml").write_text(f"learning_rate: {text}\n")
    assert read_yaml(tmp_path / "a.yaml") == {"learning_rate": float(text)}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("true", True), ("null", None), ("12", 12), ("a: [", "a: [")],
)
def test_cell_has_the_type_that_yaml_gives_it(text, value):
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "c: {a: 1, a: 2}\n"])
def test_key_that_stands_twice_is_refused(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(SftError, match=r"a\.yaml, line \d: 'a' stands twice"):
        read_yaml(tmp_path / "a.yaml")


def test_key_that_is_no_name_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("{{ name }}: 1\n")
    with pytest.raises(SftError, match="not YAML"):
        read_yaml(tmp_path / "a.yaml")


def test_merged_key_may_be_set_anew(tmp_path):
    (tmp_path / "a.yaml").write_text("base: &base {a: 1}\nmine: {<<: *base, a: 2}\n")
    assert read_yaml(tmp_path / "a.yaml")["mine"] == {"a": 2}


def test_list_in_place_of_a_mapping_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("- 1\n")
    with pytest.raises(SftError, match="found a list"):
        read_yaml(tmp_path / "a.yaml")


def test_empty_file_is_an_empty_mapping(tmp_path):
    (tmp_path / "a.yaml").write_text("# nothing\n")
    assert read_yaml(tmp_path / "a.yaml") == {}


@pytest.mark.parametrize("content", [b"a: [1", b"a: \xff"])
def test_what_is_not_yaml_is_refused_by_name(tmp_path, content):
    (tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(SftError, match=r"a\.yaml: not YAML"):
        read_yaml(tmp_path / "a.yaml")


@pytest.mark.parametrize("read", [read_yaml, read_json])
def test_missing_file_is_refused_by_name(tmp_path, read):
    with pytest.raises(SftError, match="absent: no such file"):
        read(tmp_path / "absent")


def test_json_that_is_cut_is_refused_by_name(tmp_path):
    (tmp_path / "a.json").write_text('{"a": ')
    with pytest.raises(SftError, match=r"a\.json: not JSON"):
        read_json(tmp_path / "a.json")


def test_yaml_is_read_as_it_was_written(tmp_path):
    content = {"z": 1e-5, "a": "1e-5", "text": "x" * 500, "list": [1, None, True], "ß": "„"}
    write_yaml(tmp_path / "a.yaml", content, header="two\nlines")
    assert list(read_yaml(tmp_path / "a.yaml").items()) == list(content.items())
    assert (tmp_path / "a.yaml").read_text().startswith("# two\n# lines\nz: 1.0e-05\n")


# --- a file --------------------------------------------------------------------------------------


def test_file_and_its_folders_appear(tmp_path):
    write_json(tmp_path / "a" / "b.json", {"c": "ü"})
    assert (tmp_path / "a" / "b.json").read_text() == '{\n  "c": "ü"\n}\n'


def test_file_may_be_read_by_whom_the_umask_lets(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_reader_sees_one_text_or_the_other_and_never_a_part(tmp_path):
    texts = ["a" * 500_000, "b" * 1_000_000]
    write_text(tmp_path / "file", texts[0])
    writer = start(
        """
from sft.files import write_text
while True:
    write_text(Path(sys.argv[1], "file"), "b" * 1_000_000)
    write_text(Path(sys.argv[1], "file"), "a" * 500_000)
""",
        tmp_path,
    )
    seen = []
    while len(set(seen)) < 2 or len(seen) < 200:
        assert writer.poll() is None
        seen.append((tmp_path / "file").read_text())
    kill(writer)
    assert set(seen) == set(texts)
    assert (tmp_path / "file").read_text() in texts


KILLED_WRITER = """
import os
os.replace = wait
from sft.files import write_text
write_text(Path(sys.argv[1], "file"), "new")
"""


def test_killed_writer_leaves_the_file_of_before(tmp_path):
    write_text(tmp_path / "file", "old")
    kill_at_wait(KILLED_WRITER, tmp_path)
    assert (tmp_path / "file").read_text() == "old"


def test_next_writer_removes_what_a_killed_one_left(tmp_path):
    kill_at_wait(KILLED_WRITER, tmp_path)
    write_text(tmp_path / "file", "newer")
    assert names(tmp_path) == ["file"]


def test_next_writer_leaves_a_living_one_in_peace(tmp_path):
    child = start_until_wait(KILLED_WRITER, tmp_path)
    mark = process_id(child.pid)
    write_text(tmp_path / "file", "newer")
    assert names(tmp_path) == [f".file.partial-{mark}", "file"]
    kill(child)


def test_text_that_cannot_be_written_leaves_the_file_of_before(tmp_path):
    write_text(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "file", "\ud800")
    assert (names(tmp_path), (tmp_path / "file").read_text()) == (["file"], "old")


# --- a folder ------------------------------------------------------------------------------------


def fill(final, text, **options):
    with new_folder(final, **options) as partial:
        (partial / "a").write_text(text)


def test_folder_appears_when_it_is_full(tmp_path):
    with new_folder(tmp_path / "made" / "final") as partial:
        (partial / "a").write_text("1")
        assert not (tmp_path / "made" / "final").exists()
    assert names(tmp_path / "made") == ["final"]


def test_folder_that_fails_leaves_the_one_of_before_and_nothing_else(tmp_path):
    fill(tmp_path / "final", "old")
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "final") as partial:
        (partial / "a").write_text("new")
        raise ZeroDivisionError
    assert (names(tmp_path), (tmp_path / "final" / "a").read_text()) == (["final"], "old")


def test_new_folder_replaces_the_old_one(tmp_path):
    fill(tmp_path / "final", "old")
    fill(tmp_path / "final", "new")
    assert (names(tmp_path), (tmp_path / "final" / "a").read_text()) == (["final"], "new")


def test_kept_folder_is_that_of_the_first_writer(tmp_path):
    with new_folder(tmp_path / "final", keep=True) as partial:
        (partial / "a").write_text("second")
        (tmp_path / "final").mkdir()
        (tmp_path / "final" / "a").write_text("first")
    assert (names(tmp_path), (tmp_path / "final" / "a").read_text()) == (["final"], "first")


FILLING = """
from sft.files import new_folder
with new_folder(Path(sys.argv[1], "final")) as partial:
    (partial / "a").write_text("half")
    wait()
"""
BETWEEN_RENAMES = """
rename = Path.rename
Path.rename = lambda path, final: wait() if ".partial-" in path.name else rename(path, final)
from sft.files import new_folder
with new_folder(Path(sys.argv[1], "final")) as partial:
    (partial / "a").write_text("new")
"""


def test_writer_that_is_killed_while_filling_leaves_no_folder(tmp_path):
    kill_at_wait(FILLING, tmp_path)
    assert not (tmp_path / "final").exists()


def test_next_folder_takes_the_place_of_a_killed_one(tmp_path):
    kill_at_wait(FILLING, tmp_path)
    fill(tmp_path / "final", "whole")
    assert (names(tmp_path), (tmp_path / "final" / "a").read_text()) == (["final"], "whole")


def test_writer_that_is_killed_between_its_renames_loses_nothing(tmp_path):
    fill(tmp_path / "final", "old")
    kill_at_wait(BETWEEN_RENAMES, tmp_path)
    remove_abandoned(tmp_path / "final")
    assert (names(tmp_path), (tmp_path / "final" / "a").read_text()) == (["final"], "old")


def test_folder_of_a_living_writer_stays(tmp_path):
    child = start_until_wait(FILLING, tmp_path)
    mark = process_id(child.pid)
    fill(tmp_path / "final", "whole")
    assert names(tmp_path) == [f".final.partial-{mark}", "final"]
    kill(child)


@pytest.mark.parametrize(
    ("writer", "left"),
    [
        (ProcessId("elsewhere", 1, 1), True),
        (ProcessId(this_process().host, this_process().pid, 1), False),
    ],
    ids=["of another host", "with a number that is used again"],
)
def test_folder_of_a_writer(tmp_path, writer, left):
    path = tmp_path / f".final.partial-{writer}"
    path.mkdir()
    remove_abandoned(tmp_path / "final")
    assert path.exists() == left


def test_what_others_named_alike_stays(tmp_path):
    alike = [
        ".final.partial-",
        ".final.partial-mine",
        ".finally.partial-a-1-1",
        ".xfinal",
        "final.1",
    ]
    for name in alike:
        (tmp_path / name).mkdir()
    remove_abandoned(tmp_path / "final")
    assert names(tmp_path) == sorted(alike)


# --- hashes and manifests ------------------------------------------------------------------------


def test_hash_of_json_does_not_depend_on_the_order_of_keys():
    assert hash_json({"a": 1, "b": [1, {"c": 2}]}) == hash_json({"b": [1, {"c": 2}], "a": 1})


@pytest.mark.parametrize(
    "other", [{"a": 2}, {"a": 1.0}, {"a": "1"}, {"b": 1}, {"a": [1]}, {"a": None}]
)
def test_hash_of_json_tells_values_apart(other):
    assert hash_json({"a": 1}) != hash_json(other)


def test_hash_of_a_file_covers_all_its_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "HASH_BLOCK_BYTES", 4)
    (tmp_path / "a").write_bytes(b"0123456789")
    assert hash_file(tmp_path / "a") == hashlib.sha256(b"0123456789").hexdigest()


def test_list_of_files_is_sorted_and_without_hidden_ones(tmp_path):
    for name in ("b/c", "b/.d", "a", ".cache/e", ".f"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert list_files(tmp_path) == ["a", "b/c"]


def test_manifest_has_size_and_hash_of_each_file(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_bytes(b"abc")
    (tmp_path / "a").touch()
    assert manifest(tmp_path) == [
        {"path": "a", "size": 0, "sha256": hashlib.sha256(b"").hexdigest()},
        {"path": "b/c", "size": 3, "sha256": hashlib.sha256(b"abc").hexdigest()},
    ]


def test_manifest_of_chosen_files_has_those_alone(tmp_path):
    for name in ("a", "b", ".c"):
        (tmp_path / name).touch()
    assert [each["path"] for each in manifest(tmp_path, ["b", ".c"])] == [".c", "b"]


def test_link_is_the_same_file(tmp_path):
    (tmp_path / "a").write_text("1")
    assert link_or_copy(tmp_path / "a", tmp_path / "b" / "c") == "linked"
    assert (tmp_path / "b" / "c").samefile(tmp_path / "a")


def test_link_to_a_link_is_the_file_itself(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "link").symlink_to("a")
    link_or_copy(tmp_path / "link", tmp_path / "b" / "c")
    assert not (tmp_path / "b" / "c").is_symlink()


@pytest.fixture
def other_disk():
    """A folder on another file system than /tmp, to which no link leads."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_copy_is_made_where_no_link_can_be(tmp_path, other_disk):
    (tmp_path / "a").write_text("1")
    assert link_or_copy(tmp_path / "a", other_disk / "b") == "copied"
    assert (other_disk / "b").read_text() == "1"


def test_copy_keeps_the_time_of_the_last_change(tmp_path, other_disk):
    (tmp_path / "a").write_text("1")
    os.utime(tmp_path / "a", (1, 2))
    link_or_copy(tmp_path / "a", other_disk / "b")
    assert (other_disk / "b").stat().st_mtime == 2
