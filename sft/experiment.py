"""An experiment: one row of the table, with the base config that it names."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sft.errors import SftError, raise_faults
from sft.files import parse_value
from sft.mix import Mix
from sft.model import Model

NEEDED_COLUMNS = ("name", "base_config", "model", "mix", "num_nodes")
ROW_COLUMNS = (
    *NEEDED_COLUMNS,
    *("backend", "sites", "hub_id", "private", "register", "agent", "take_over"),
    "trust_remote_code",
)
TYPED_COLUMNS = {"num_nodes", "private", "register", "take_over", "trust_remote_code"}


@dataclass(frozen=True)
class Experiment:
    """A checked row.

    `config` is the base config with the row's `overrides` merged over it, still with the launcher's
    own keys (environment, global_batch_size). `sites` are the sites that run it, none for all;
    `where` names the row's file and line, `agent` what the registry calls it if not
    by its data.
    """

    name: str
    backend: str
    base_config: str
    config: Mapping[str, Any]
    overrides: Mapping[str, Any]
    model: Model
    mix: Mix
    num_nodes: int
    hub_id: str
    private: bool = False
    register: bool = False
    agent: str = ""
    take_over: bool = False
    trust_remote_code: bool = False
    sites: tuple[str, ...] = ()
    where: str = ""

    @property
    def template(self) -> str:
        """The name of the chat template."""
        return self.config["template"]

    @property
    def accepted(self) -> tuple[str, ...]:
        """The faults that it accepts: `source:fault`, or the `fault` of a decision."""
        entries = self.config.get("accept") or []
        parts = entries.split(",") if isinstance(entries, str) else entries
        return tuple(sorted(str(each).strip() for each in parts))

    @property
    def environment(self) -> str:
        """The name of the trainer's environment, which a site maps to its activation."""
        return self.config["environment"]


@dataclass(frozen=True)
class Row:
    """A line of the table: where it stands, and its cells that are not empty, as text."""

    where: str
    cells: Mapping[str, str]

    def without(self, columns: Iterable[str]) -> "Row":
        """The row as it would be in a table without some of the columns."""
        return replace(self, cells={k: cell for k, cell in self.cells.items() if k not in columns})


@dataclass(frozen=True)
class Table:
    """The table as it is written: its columns, its rows, and a fault for each other line.

    `header` names the file and the line of the columns.
    """

    header: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    faults: tuple[str, ...]


def read_table(path: Path) -> Table:
    """A tab-separated table; empty lines and lines that start with # are left out.

    Raises SftError where it has no columns that could be told apart, or no row.
    """
    lines = [
        (number, [cell.strip() for cell in line.split("\t")])
        for number, line in enumerate(_read_lines(path), start=1)
        if line.strip() and not line.startswith("#")
    ]
    if len(lines) < 2:
        raise SftError(
            f"{path}: found {'only a header' if lines else 'nothing'}, expected a line with the "
            f"columns ({', '.join(NEEDED_COLUMNS)}, …) and one line an experiment"
        )
    (number, columns), *body = lines
    header = f"{path}, line {number} (header)"
    raise_faults(_header_faults(header, columns))
    faults, whole = [], {}
    for number, cells in body:
        name = dict(zip(columns, cells, strict=False)).get("name") if len(cells) > 1 else ""
        where = f"{path}, line {number}" + (f" ({name})" if name else "")
        found = _line_faults(where, columns, cells)
        if found:
            faults += found
        else:
            whole[where] = cells
    rows = [
        Row(where, {column: cell for column, cell in zip(columns, cells, strict=True) if cell})
        for where, cells in whole.items()
    ]
    return Table(header, tuple(columns), tuple(rows), tuple(faults))


def _read_lines(path: Path) -> list[str]:
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise SftError(
            f"{path}, line {number}: not UTF-8; save it as UTF-8 text with tabs between cells"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _header_faults(header: str, columns: list[str]) -> list[str]:
    if len(columns) == 1:
        return [f"{header}: found no tab; put one tab, not spaces, between two cells"]
    unnamed = [
        f"{header}: column {number} has no name; name it, or remove its tab from every line"
        for number, name in enumerate(columns, start=1)
        if not name
    ]
    twins = [
        f"{header}, {name}: the column stands {count} times; keep one of them"
        for name, count in Counter(filter(None, columns)).items()
        if count > 1
    ]
    return unnamed + twins


def _line_faults(where: str, columns: list[str], cells: list[str]) -> list[str]:
    if len(cells) != len(columns):
        return [
            f"{where}: number of cells: found {len(cells)}, expected {len(columns)} as in the "
            "header; put one tab, not spaces, between two cells, also around an empty one"
        ]
    return [
        f"{where}, {column}: found {cell}, expected a cell without quotes around it"
        for column, cell in zip(columns, cells, strict=True)
        if cell.startswith('"')
    ]


def read_cell(cell: str) -> Any:
    """The value that a cell spells in YAML; text where YAML would make something else of it.

    A person who writes `yes`, `010` or `1:30` does not mean true, 8 or 90.
    """
    value = parse_value(cell)
    return cell if isinstance(value, int) and str(value).lower() != cell.lower() else value


def row_values(row: Row) -> dict[str, Any]:
    """The row's own columns (not its overrides) with the types that the schema expects."""
    values = {
        column: read_cell(cell) if column in TYPED_COLUMNS else cell
        for column, cell in row.cells.items()
        if column in ROW_COLUMNS
    }
    if "sites" in values:
        values["sites"] = [name.strip() for name in values["sites"].split(",")]
    return values
