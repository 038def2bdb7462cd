"""An experiment: one row of the table, with the base config that it names."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sft.errors import SftError
from sft.files import parse_value
from sft.mix import Mix
from sft.model import Model

ROW_COLUMNS = (
    *("name", "backend", "base_config", "model", "mix", "num_nodes"),
    *("sites", "hub_id", "register", "take_over", "trust_remote_code"),
)


@dataclass(frozen=True)
class Experiment:
    """A checked row.

    `config` is the base config with the row's `overrides` merged over it, still with the launcher's
    own keys (environment, global_batch_size). `where` names the row's file and line.
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
    register: bool = False
    take_over: bool = False
    trust_remote_code: bool = False
    where: str = ""

    @property
    def template(self) -> str:
        """The name of the chat template."""
        return self.config["template"]

    @property
    def environment(self) -> str:
        """The name of the trainer's environment, which a site maps to its activation."""
        return self.config["environment"]


@dataclass(frozen=True)
class Row:
    """A line of the table: where it stands, and its cells that are not empty, as text."""

    where: str
    cells: Mapping[str, str]


def read_rows(path: Path) -> list[Row]:
    """The rows of a tab-separated table; empty lines and lines that start with # are left out.

    Raises SftError that names the line where the header repeats a column or a row has too many or
    too few cells.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SftError(f"{path}: no such file; set `experiments` in the config") from None
    numbered = [
        (number, line.split("\t"))
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not numbered:
        raise SftError(f"{path}: no header; the first line names the columns, tabs between them")
    header = [name.strip() for name in numbered[0][1]]
    twins = sorted({name for name in header if header.count(name) > 1})
    if twins:
        raise SftError(f"{path}, line {numbered[0][0]}: column {twins[0]!r} stands twice")
    for number, cells in numbered[1:]:
        if len(cells) != len(header):
            raise SftError(
                f"{path}, line {number}: found {len(cells)} cells, expected {len(header)} "
                "as in the header; one tab between two cells, also around an empty one"
            )
    table = pd.DataFrame([cells for _, cells in numbered[1:]], columns=header)
    table = table.apply(lambda column: column.str.strip())
    rows = []
    for (number, _), cells in zip(numbered[1:], table.to_dict("records"), strict=True):
        where = f"{path}, line {number} ({cells.get('name', '')})"
        rows.append(Row(where, {key: cell for key, cell in cells.items() if cell}))
    return rows


def row_values(row: Row) -> dict[str, Any]:
    """The row's own columns (not its overrides) with the types that the schema expects."""
    values: dict[str, Any] = {k: cell for k, cell in row.cells.items() if k in ROW_COLUMNS}
    for key in ("num_nodes", "register", "take_over", "trust_remote_code"):
        if key in values:
            values[key] = parse_value(values[key])
    if "sites" in values:
        values["sites"] = [name.strip() for name in values["sites"].split(",")]
    return values
