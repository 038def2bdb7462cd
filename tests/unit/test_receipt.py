"""What a finished stage leaves, and what a later one makes of it."""

import hashlib
import platform
from datetime import UTC, datetime

import pytest

from sft.errors import SftError
from sft.files import read_json
from sft.receipt import Clock, now, read_receipt, read_receipts, utc, write_receipt
from tests.unit.killing import kill_at_wait


def test_receipt_gives_back_what_was_made(tmp_path):
    made = {"folder": "/a", "files": [{"path": "b", "size": 1}]}
    write_receipt(tmp_path / "trained.json", Clock(), made, inputs={})
    assert read_receipt(tmp_path / "trained.json") == made


def test_receipts_are_read_in_their_order(tmp_path):
    paths = [tmp_path / name for name in ("b.json", "a.json")]
    for number, path in enumerate(paths):
        write_receipt(path, Clock(), {"number": number}, inputs={})
    assert read_receipts(paths) == [{"number": 0}, {"number": 1}]


def test_receipt_names_its_stage(tmp_path):
    write_receipt(tmp_path / "trained.json", Clock(), {}, inputs={})
    assert read_json(tmp_path / "trained.json")["stage"] == "trained"


def test_inputs_are_recorded_by_hash(tmp_path):
    config = tmp_path / "train.yaml"
    config.write_text("a: 1\n")
    write_receipt(tmp_path / "trained.json", Clock(), {}, inputs={"config": config})
    assert read_json(tmp_path / "trained.json")["inputs"] == {
        "config": {"path": str(config), "sha256": hashlib.sha256(b"a: 1\n").hexdigest()}
    }


def test_input_that_is_gone_leaves_no_receipt(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_receipt(tmp_path / "trained.json", Clock(), {}, {"config": tmp_path / "absent"})
    assert not list(tmp_path.iterdir())


def test_receipt_has_versions_and_times(tmp_path):
    before = now()
    write_receipt(tmp_path / "trained.json", Clock(), {}, inputs={})
    content = read_json(tmp_path / "trained.json")
    assert content["versions"]["python"] == platform.python_version()
    assert content["versions"].keys() > {"snakemake", "huggingface_hub"}
    assert before <= content["started"] <= content["finished"] <= now()
    assert 0 <= content["taken_s"] < 60


def test_time_is_in_utc_with_seconds():
    assert utc(0.9) == "1970-01-01T00:00:00+00:00"
    assert datetime.fromisoformat(now()).tzinfo == UTC


@pytest.mark.parametrize("text", ["", '{"made": {"a": 1', "[]", "{}", "null"])
def test_what_is_no_whole_receipt_is_refused_by_name(tmp_path, text):
    (tmp_path / "trained.json").write_text(text)
    with pytest.raises(SftError, match=r"trained\.json: not "):
        read_receipt(tmp_path / "trained.json")


def test_missing_receipt_is_refused_by_name(tmp_path):
    with pytest.raises(SftError, match=r"trained\.json: no such file"):
        read_receipt(tmp_path / "trained.json")


def test_stage_that_is_killed_while_it_writes_its_receipt_has_none(tmp_path):
    kill_at_wait(
        """
import os
os.replace = wait
from sft.receipt import Clock, write_receipt
write_receipt(Path(sys.argv[1], "trained.json"), Clock(), {}, inputs={})
""",
        tmp_path,
    )
    assert not (tmp_path / "trained.json").exists()
