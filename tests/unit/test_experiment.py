"""The table as people and spreadsheets write it, and the values that its cells spell."""

from pathlib import Path

import pytest

from sft.errors import SftError
from sft.experiment import NEEDED_COLUMNS, ROW_COLUMNS, Row, read_cell, read_table, row_values
from sft.files import read_yaml
from sft.schema import SCHEMAS

HEADER = "name\tbase_config\tmodel\tmix\tnum_nodes"
ROW = "run\tsmoke\tm\tdemo\t1"


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Read a table of the given content, which lies at t.tsv."""
    monkeypatch.chdir(tmp_path)

    def read(content: str | bytes):
        data = content.encode() if isinstance(content, str) else content
        Path("t.tsv").write_bytes(data)
        return read_table(Path("t.tsv"))

    return read


def refusal(read, content: str | bytes) -> str:
    with pytest.raises(SftError) as caught:
        read(content)
    return str(caught.value)


def test_a_row_holds_the_cells_that_are_not_empty(table):
    (row,) = table(f"{HEADER}\tsites\n{ROW}\t\n").rows

    assert row.cells == dict(zip(HEADER.split("\t"), ROW.split("\t"), strict=True))


def test_a_row_knows_its_file_line_and_name(table):
    assert table(f"{HEADER}\n{ROW}\n").rows[0].where == "t.tsv, line 2 (run)"


def test_comments_and_empty_lines_are_left_out_and_counted(table):
    content = f"# the team's runs\n\n{HEADER}\n# first\n{ROW}\n\t\t\t\t\n{ROW}\n"

    assert [row.where for row in table(content).rows] == [
        "t.tsv, line 5 (run)",
        "t.tsv, line 7 (run)",
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["unix", "windows", "old mac"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["bare", "byte order mark"])
def test_line_ends_and_byte_order_mark_do_not_matter(table, mark, end):
    content = mark + end.join([HEADER, "", ROW]).encode()

    assert [row.where for row in table(content).rows] == ["t.tsv, line 3 (run)"]


def test_spaces_around_a_cell_do_not_count(table):
    assert table(f"{HEADER}\n run \tsmoke\tm\tdemo\t1 \n").rows[0].cells["name"] == "run"


def test_a_line_separator_inside_a_cell_is_no_end_of_line(table):
    rows = table(f"{HEADER}\tdefault_system\n{ROW}\tone\u2028two\n{ROW}\t\n").rows

    assert [row.where for row in rows] == ["t.tsv, line 2 (run)", "t.tsv, line 3 (run)"]


@pytest.mark.parametrize("word", ["NA", "nan", "null", "None"])
def test_words_that_pandas_takes_for_nothing_stay_names(table, word):
    assert table(f"{HEADER}\n{ROW.replace('run', word)}\n").rows[0].cells["name"] == word


@pytest.mark.parametrize("content", ["", "\n\n", "# only a comment\n"])
def test_empty_table_is_refused_with_the_columns_it_needs(table, content):
    text = refusal(table, content)

    assert text.startswith(
        "t.tsv: found nothing, expected a line with the columns (name, base_config"
    )


def test_header_without_a_row_is_refused(table):
    assert "found only a header" in refusal(table, f"{HEADER}\n")


def test_spaces_in_place_of_tabs_are_named(table):
    text = refusal(table, f"{HEADER}\n{ROW}\n".replace("\t", "  "))

    assert (
        text == "t.tsv, line 1 (header): found no tab; put one tab, not spaces, between two cells"
    )


def test_every_repeated_column_is_named(table):
    text = refusal(table, f"{HEADER}\tmix\tmodel\tmix\n{ROW}\tdemo\tm\tdemo\n")

    assert text.splitlines() == [
        "t.tsv, line 1 (header), model: the column stands 2 times; keep one of them",
        "t.tsv, line 1 (header), mix: the column stands 3 times; keep one of them",
    ]


def test_column_without_a_name_is_refused(table):
    text = refusal(table, f"# c\n{HEADER}\t\n{ROW}\t\n")

    assert text.startswith("t.tsv, line 2 (header): column 6 has no name")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (f"{HEADER}\n{ROW}\n{ROW}\n# Müller\n".encode("latin-1"), 4),
        (f"{HEADER}\n{ROW}\n".encode("utf-16"), 1),
    ],
    ids=["latin-1", "utf-16"],
)
def test_other_encoding_is_refused_with_the_line(table, content, line):
    text = refusal(table, content)

    assert text == f"t.tsv, line {line}: not UTF-8; save it as UTF-8 text with tabs between cells"


def test_ragged_lines_are_faults_and_the_others_are_rows(table):
    read = table(f"{HEADER}\nlong\tsmoke\tm\tdemo\t1\t\n{ROW}\nshort\tsmoke\n")

    assert [row.where for row in read.rows] == ["t.tsv, line 3 (run)"]
    assert [fault.partition("; ")[0] for fault in read.faults] == [
        "t.tsv, line 2 (long): number of cells: found 6, expected 5 as in the header",
        "t.tsv, line 4 (short): number of cells: found 2, expected 5 as in the header",
    ]


def test_row_with_spaces_in_place_of_tabs_is_a_fault(table):
    (fault,) = table(f"{HEADER}\n{ROW.replace(chr(9), ' ')}\n").faults

    assert fault.startswith("t.tsv, line 2: number of cells: found 1, expected 5")


def test_quotes_of_a_spreadsheet_are_a_fault(table):
    (fault,) = table(f'{HEADER}\tdefault_system\n{ROW}\t"Say ""yes"""\n').faults

    assert fault.startswith('t.tsv, line 2 (run), default_system: found "Say')
    assert fault.endswith("expected a cell without quotes around it")


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("4", 4),
        ("-1", -1),
        ("2.5", 2.5),
        ("1e-5", 1e-5),
        ("true", True),
        ("False", False),
        ("TRUE", True),
        ("null", None),
        ("a: b: c", "a: b: c"),
        ("[1, 2]", [1, 2]),
        ("qwen3", "qwen3"),
        ("nan", "nan"),
    ],
)
def test_cell_is_read_as_yaml(cell, value):
    read = read_cell(cell)

    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("cell", ["yes", "no", "on", "Off", "010", "0x10", "1_000", "1:30"])
def test_cell_of_which_yaml_makes_something_else_stays_text(cell):
    assert read_cell(cell) == cell


def test_row_values_have_types_and_leave_overrides_out():
    cells = {
        "name": "1e5",
        "num_nodes": "4",
        "register": "true",
        "sites": "a, b",
        "learning_rate": "1e-5",
    }

    assert row_values(Row("", cells)) == {
        "name": "1e5",
        "num_nodes": 4,
        "register": True,
        "sites": ["a", "b"],
    }


def test_row_without_columns_keeps_the_others():
    row = Row("here", {"name": "run", "mix": "demo"})

    assert row.without({"mix", "other"}) == Row("here", {"name": "run"})


def test_columns_are_those_of_the_schema():
    schema = read_yaml(SCHEMAS / "experiments.schema.yaml")

    assert set(ROW_COLUMNS) == set(schema["properties"])
    assert set(NEEDED_COLUMNS) == set(schema["required"])
