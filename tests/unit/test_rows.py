"""The rows of files of every type: order, numbers, parts far inside, and what is refused."""

import gzip
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sft.errors import SftError
from sft.gate import rows as rows_module
from sft.gate.rows import Part, count_rows, index_file, list_source_files, locate_row, read_rows

ROWS = [
    {"instruction": f"{number} é\n日本", "output": "x" * (number % 50), "tags": [{"a": number}]}
    for number in range(2500)
]


def write_lines(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def write_array(path: Path, rows: list) -> Path:
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1))
    return path


SHORT_GZIP = gzip.compress(b'{"a": 1}\n' * 999, mtime=0)[:-20]  # the same in each test process


def write_gzip(path: Path, rows: list) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def write_parquet(path: Path, rows: list) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=700)
    return path


def write_arrow(path: Path, rows: list, new=pa.ipc.new_stream) -> Path:
    table = pa.Table.from_pylist(rows)
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    return path


def write_arrow_file(path: Path, rows: list) -> Path:
    return write_arrow(path, rows, pa.ipc.new_file)


WRITERS = {
    "lines": (write_lines, "d.jsonl"),
    "lines in .json": (write_lines, "d.json"),
    "lines, compressed": (write_gzip, "d.jsonl.gz"),
    "array": (write_array, "d.json"),
    "parquet": (write_parquet, "d.parquet"),
    "arrow stream": (write_arrow, "d.arrow"),
    "arrow file": (write_arrow_file, "d.arrow"),
}
PARTS = [(0, None), (0, 1), (999, 1001), (1000, 2000), (2499, None), (2499, 9999), (2500, None)]


@pytest.fixture(params=WRITERS.values(), ids=WRITERS)
def file(request, tmp_path, monkeypatch) -> Path:
    # Small, so that an array is read in many pieces.
    monkeypatch.setattr(rows_module, "BLOCK_BYTES", 1000)
    write, name = request.param
    return write(tmp_path / name, ROWS)


def refusal(path: Path, content: bytes) -> str:
    """What is said of a file when all its rows are read, and when they are counted."""
    path.write_bytes(content)
    with pytest.raises(SftError) as reading:
        list(read_rows([path]))
    with pytest.raises(SftError) as part:
        list(read_rows([path], 0, 1000))
    assert str(part.value) == str(reading.value)
    return str(reading.value)


@pytest.mark.parametrize(("start", "stop"), PARTS)
def test_part_of_a_file_holds_its_rows(file, start, stop):
    assert list(read_rows([file], start, stop)) == ROWS[start:stop]


def test_rows_are_counted(file):
    assert count_rows([file]) == len(ROWS)


def test_parts_may_be_read_in_any_order(file):
    starts = [random.Random(seed).randrange(2500) for seed in range(30)]
    for start in starts:
        assert list(read_rows([file], start, start + 150)) == ROWS[start : start + 150]


def test_files_follow_one_another(tmp_path):
    one, two = write_lines(tmp_path / "1.jsonl", ROWS[:7]), tmp_path / "2.jsonl"
    files = [one, write_lines(two, ROWS[7:20])]
    assert count_rows(files) == 20
    assert list(read_rows(files)) == ROWS[:20]
    assert list(read_rows(files, 5, 9)) == ROWS[5:9]
    assert [locate_row(files, row) for row in (6, 7, 19)] == [(one, 6), (two, 0), (two, 12)]


def test_part_of_a_file_is_counted_and_read_as_a_file(tmp_path):
    file = write_lines(tmp_path / "d.jsonl", ROWS)
    files = [Part(file, 10, 20), Part(file, 2490)]
    assert count_rows(files) == 20
    assert list(read_rows(files)) == ROWS[10:20] + ROWS[2490:]
    assert list(read_rows(files, 8, 12)) == ROWS[18:20] + ROWS[2490:2492]
    assert locate_row(files, 10) == (file, 2490)


def test_changed_file_is_read_anew(tmp_path):
    file = write_lines(tmp_path / "d.jsonl", ROWS[:5])
    assert count_rows([file]) == 5
    write_lines(file, ROWS[:7])
    assert count_rows([file]) == 7


def test_beginning_of_a_file_is_read_without_the_rest(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"a": 1}\nno JSON\n')
    assert next(read_rows([tmp_path / "d.jsonl"])) == {"a": 1}


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": 1}\n\n   \n{"a": 2}\n\n',
        b'{"a": 1}\r\n{"a": 2}\r\n',
        b'\xef\xbb\xbf{"a": 1}\n{"a": 2}',
        b'[{"a": 1}, {"a": 2}]',
        b'\n  [\n{"a": 1}\n,\n{"a": 2}\n]\n',
        b'\xef\xbb\xbf[{"a": 1}, {"a": 2}]',
    ],
)
def test_blanks_and_byte_order_marks_are_no_rows(tmp_path, content):
    file = tmp_path / "d.json"
    file.write_bytes(content)
    assert list(read_rows([file])) == [{"a": 1}, {"a": 2}]
    assert list(read_rows([file], 1, 2)) == [{"a": 2}]
    assert count_rows([file]) == 2


def test_other_line_separators_do_not_end_a_row(tmp_path):
    rows = [{"a": "x\u2028y\x85z\x0b"}, {"a": "y"}]
    assert list(read_rows([write_lines(tmp_path / "d.jsonl", rows)])) == rows


def test_json_rows_keep_their_own_keys(tmp_path):
    rows = [{"m": [{"a": 1}]}, {"m": [{"b": None}]}]
    assert list(read_rows([write_lines(tmp_path / "d.jsonl", rows)])) == rows


def test_cells_of_csv_are_what_pandas_makes_of_them(tmp_path):
    file = tmp_path / "d.csv"
    file.write_text('instruction,output\n"a\nb",7\nNA,8\n,\n')
    assert list(read_rows([file])) == [
        {"instruction": "a\nb", "output": 7.0},
        {"instruction": None, "output": 8.0},
        {"instruction": None, "output": None},
    ]
    assert count_rows([file]) == 3


def test_tabs_separate_the_cells_of_tsv(tmp_path):
    (tmp_path / "d.tsv").write_text("a\tb\nx, y\tz\n")
    assert list(read_rows([tmp_path / "d.tsv"])) == [{"a": "x, y", "b": "z"}]


@pytest.mark.parametrize("content", [b"", b"\n \n", b"[]", b" [ ] "])
def test_file_without_rows_has_none(tmp_path, content):
    file = tmp_path / "d.json"
    file.write_bytes(content)
    assert (count_rows([file]), list(read_rows([file])), list(read_rows([file], 0, 5))) == (
        *(0, []),
        [],
    )


def test_parquet_without_rows_has_none(tmp_path):
    file = tmp_path / "d.parquet"
    pq.write_table(pa.table({"a": pa.array([], pa.string())}), file)
    assert (count_rows([file]), list(read_rows([file], 0, 5))) == (0, [])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("d.jsonl", b'{"a": 1}\n\n{"a": 2\n', "d.jsonl, line 3: not JSON: Expecting ',' delimiter"),
        ("d.jsonl", b'{"a": 1}\nhello\n', "d.jsonl, line 2: not JSON: Expecting value at column 1"),
        ("d.jsonl", b'{"a": 1} {"a": 2}\n', "d.jsonl, line 1: not JSON: Extra data at column 10"),
        ("d.jsonl", b'{"a": 1}\n["x"]\n', "d.jsonl, line 2: found a list, expected a JSON object"),
        ("d.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "d.jsonl, line 2: not UTF-8: invalid start byte"),
        ("d.json", b'[\n{"a": 1},\n{"a": 2}\n', "d.json, line 4: not JSON: Expecting value"),
        ("d.json", b'[\n{"a": 1},\n{"a":', "d.json, line 3: not JSON: Expecting value"),
        ("d.json", b'[\n{"a": 1},\n"x"]', "d.json, line 3: found a str, expected a JSON object"),
        ("d.json", b'[\n{"a": "\xff"}]', "d.json, behind line 1: not UTF-8: invalid start byte"),
        ("d.jsonl.gz", SHORT_GZIP, "d.jsonl.gz: not a whole file"),
        ("d.jsonl.gz", b'{"a": 1}\n', "d.jsonl.gz: not a whole file of its type: Not a gzipped"),
        ("d.parquet", b"PAR1", "d.parquet: not a whole file of its type: Parquet file size is 4"),
        ("d.arrow", b"", "d.arrow: not a whole file of its type"),
        ("d.csv", b"", "d.csv: not a whole file of its type: No columns"),
        ("d.csv", b"a,b\n1,2\n1,2,3\n", "d.csv: not a whole file of its type: Error tokenizing"),
        ("d.txt", b"hello", "d.txt: expected a file that ends in one of .json, .jsonl"),
        ("d.parquet.gz", b"", "d.parquet.gz: expected a file that ends in one of .json, .jsonl"),
    ],
)
def test_broken_file_is_refused_with_its_name_and_line(tmp_path, name, content, said):
    assert refusal(tmp_path / name, content).startswith(f"{tmp_path}/{said}")


def test_line_is_named_far_inside_of_a_file(tmp_path):
    content = b'{"a": 1}\n\n' * 3000 + b"hello\n"
    (tmp_path / "d.jsonl").write_bytes(content)
    with pytest.raises(SftError, match=r"d\.jsonl, line 6001: not JSON"):
        list(read_rows([tmp_path / "d.jsonl"], 2999, 3001))


def test_line_is_named_far_inside_of_an_array(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "BLOCK_BYTES", 100)
    content = b'[\n{"a": 1}' + b',\n{"a": 1}' * 2999 + b",\n7]"
    with pytest.raises(SftError, match=r"d\.json, line 3002: found a int"):
        (tmp_path / "d.json").write_bytes(content)
        index_file(tmp_path / "d.json")


def test_element_may_be_larger_than_what_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "BLOCK_BYTES", 10)
    rows = [{"a": "é日" * 5000}, {"a": "b"}]
    assert list(read_rows([write_array(tmp_path / "d.json", rows)])) == rows


# Which files


def fetched(path: Path, kind: str = "hub:org/d") -> dict:
    return {"name": "d", "path": str(path), "source": kind}


def repository(folder: Path, *names: str) -> Path:
    """A snapshot of files with four rows each, which say their file's name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"a": f"{name} {row}"} for row in range(4)]
        (write_parquet if path.suffix == ".parquet" else write_lines)(path, rows)
    (folder / "README.md").write_text("A card.\n")
    return folder


def listed(root: Path, **options: str) -> list[str]:
    files = list_source_files(fetched(root), options)
    return [str(Path(file).relative_to(root)) for file in files]


def test_local_file_is_its_own_list(tmp_path):
    file = write_lines(tmp_path / "d.jsonl", [])
    assert list_source_files(fetched(file, "local:x"), {}) == [file]


def test_local_folder_is_read_in_the_order_of_names(tmp_path):
    names = ["b.jsonl", "a.jsonl", "10.jsonl", "9.jsonl"]
    files = [write_lines(tmp_path / name, []) for name in names]
    assert list_source_files(fetched(tmp_path, "local:x"), {}) == sorted(files)


def test_split_of_a_repository_is_chosen(tmp_path):
    repository(tmp_path, *(f"data/{s}-0000{i}-of-00002.parquet" for s in ("train", "test")
                           for i in (1, 0)))  # fmt: skip
    assert listed(tmp_path) == [f"data/train-0000{i}-of-00002.parquet" for i in (0, 1)]
    assert listed(tmp_path, split="test") == [f"data/test-0000{i}-of-00002.parquet" for i in (0, 1)]


def test_subset_of_a_repository_is_chosen_by_its_card(tmp_path):
    repository(tmp_path, "en/a.jsonl", "de/a.jsonl")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: en\n  data_files: en/*.jsonl\n"
        "- config_name: de\n  data_files: de/*.jsonl\n---\n"
    )
    assert listed(tmp_path, subset="de") == ["de/a.jsonl"]


def test_folder_of_a_repository_is_chosen(tmp_path):
    repository(tmp_path, "python/a.jsonl", "c/a.jsonl")
    assert listed(tmp_path, folder="python") == ["python/a.jsonl"]


def test_whole_repository_without_splits_is_read(tmp_path):
    repository(tmp_path, "b.jsonl", "a.jsonl")
    assert listed(tmp_path) == ["a.jsonl", "b.jsonl"]


def test_unknown_split_is_refused_with_the_nearest(tmp_path):
    repository(tmp_path, "train.jsonl", "validation.jsonl")
    with pytest.raises(SftError, match=r"^d, split: found 'valid'; did you mean 'validation'\?$"):
        listed(tmp_path, split="valid")


def test_unknown_subset_is_refused(tmp_path):
    repository(tmp_path, "a.jsonl")
    with pytest.raises(SftError, match=r"^d: .*: no data files for subset 'en'"):
        listed(tmp_path, subset="en")


def test_split_of_a_local_file_is_train(tmp_path):
    file = write_lines(tmp_path / "d.jsonl", [])
    with pytest.raises(SftError, match="d, split: found 'test'; known: train"):
        list_source_files(fetched(file, "local:x"), {"split": "test"})


@pytest.mark.parametrize(
    ("split", "rows"),
    [
        ("train[:3]", ["a.jsonl 0", "a.jsonl 1", "a.jsonl 2"]),
        ("train[3:5]", ["a.jsonl 3", "b.jsonl 0"]),
        ("train[50%:75%]", ["b.jsonl 0", "b.jsonl 1"]),
        ("train[-1:]", ["b.jsonl 3"]),
    ],
)
def test_part_of_a_split_is_cut_out_of_its_files(tmp_path, split, rows):
    repository(tmp_path, "a.jsonl", "b.jsonl")
    files = list_source_files(fetched(tmp_path), {"split": split})
    assert [row["a"] for row in read_rows(files)] == rows


def test_splits_may_be_joined(tmp_path):
    repository(tmp_path, "train.jsonl", "test.jsonl")
    files = list_source_files(fetched(tmp_path), {"split": "test[:1]+train[1:2]"})
    assert [row["a"] for row in read_rows(files)] == ["test.jsonl 0", "train.jsonl 1"]


def test_part_that_is_no_part_is_refused(tmp_path):
    repository(tmp_path, "train.jsonl")
    with pytest.raises(SftError, match=r"^d, split: found 'train\[x\]'"):
        list_source_files(fetched(tmp_path), {"split": "train[x]"})
