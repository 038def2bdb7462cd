"""Rows of data files, counted where that is cheap and estimated elsewhere."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sft import row_counts
from sft.row_counts import Rows, count_rows

ROW = {"messages": [{"role": "user", "content": "Grüße, [ok]? {1, 2}"}]}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def lines(number: int) -> str:
    return "".join(json.dumps(ROW, ensure_ascii=False) + "\n" for _ in range(number))


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_lines_are_counted(tmp_path, name):
    assert count_rows([write(tmp_path / name, lines(7))]) == Rows(7)


def test_last_line_without_an_end_counts_and_empty_ones_do_not(tmp_path):
    assert count_rows([write(tmp_path / "a.jsonl", "{}\n\n{}\n  \n{}")]) == Rows(3)


def test_array_is_counted(tmp_path):
    assert count_rows([write(tmp_path / "a.json", json.dumps([ROW] * 5, indent=1))]) == Rows(5)


def test_rows_of_parquet_stand_in_its_end(tmp_path):
    pq.write_table(pa.table({"a": list(range(9))}), tmp_path / "a.parquet")

    assert count_rows([tmp_path / "a.parquet"]) == Rows(9)


@pytest.mark.parametrize("new", [pa.ipc.new_stream, pa.ipc.new_file])
def test_rows_of_arrow_are_counted(tmp_path, new):
    table = pa.table({"a": list(range(9))})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table)

    assert count_rows([tmp_path / "a.arrow"]) == Rows(9)


def test_rows_of_csv_are_about_as_many_as_its_lines(tmp_path):
    assert count_rows([write(tmp_path / "a.csv", "a,b\n1,2\n3,4\n")]) == Rows(2, about=True)


def test_files_of_a_folder_add_up(tmp_path):
    files = [write(tmp_path / f"{name}.jsonl", lines(3)) for name in "ab"]

    assert count_rows(files) == Rows(6)


@pytest.mark.parametrize(
    "text", [lines(2000), json.dumps([ROW] * 2000, ensure_ascii=False)], ids=["lines", "array"]
)
def test_large_file_is_estimated_by_its_beginning(tmp_path, monkeypatch, text):
    monkeypatch.setattr(row_counts, "COUNTED_BYTES", 1000)
    monkeypatch.setattr(row_counts, "HEAD_BYTES", 5000)
    rows = count_rows([write(tmp_path / "a.json", text)])

    assert rows.about
    assert rows.number == pytest.approx(2000, rel=0.03)


def test_row_that_is_larger_than_the_beginning_leaves_the_number_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr(row_counts, "COUNTED_BYTES", 10)
    monkeypatch.setattr(row_counts, "HEAD_BYTES", 10)

    assert count_rows([write(tmp_path / "a.jsonl", lines(2))]) is None


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz", "a.parquet", "a.arrow", "a.json"])
def test_what_is_not_counted_or_broken_is_unknown(tmp_path, name):
    assert count_rows([write(tmp_path / name, "[{")]) is None


def test_nothing_is_unknown():
    assert count_rows([]) is None


def test_file_that_is_missing_is_unknown(tmp_path):
    assert count_rows([tmp_path / "a.jsonl"]) is None


def test_empty_file_is_for_a_stage_to_refuse(tmp_path):
    assert count_rows([write(tmp_path / "a.jsonl", "")]) is None
