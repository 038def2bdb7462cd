"""docs/checks.md has every check, with its limit, and no other; every check has an input."""

import re
from pathlib import Path

import pytest

from sft.gate.checks import CHECKS, ROW_CHECKS, TOKEN_CHECKS
from tests import faults

DOCUMENT = (Path(__file__).parents[2] / "docs" / "checks.md").read_text()
# The name and the limit of each row, the name and the text of each section: all of them.
ROWS = re.findall(r"^\| \[(\w+)\]\(#\1\) \|.*\| ([\d.]+) \| [^|]+ \|$", DOCUMENT, re.MULTILINE)
SECTIONS = re.findall(
    r"^### (\w+)\n\n(.*?)(?=^#)", DOCUMENT.partition("## Of the rows")[2], re.MULTILINE | re.DOTALL
)
# A row is lost without a known reason only where LLaMA-Factory reads rows otherwise than we do.
WITHOUT_INPUT = {"lost_rows"}


def test_table_has_one_row_of_each_check_and_no_other():
    assert sorted(name for name, _ in ROWS) == sorted(CHECKS)


def test_limits_in_the_table_are_those_of_the_code():
    assert dict(ROWS) == {name: f"{check.limit:g}" for name, check in CHECKS.items()}


def test_each_check_has_one_section_in_the_order_of_the_table():
    assert [name for name, _ in SECTIONS] == [name for name, _ in ROWS]


def test_checks_of_rows_stand_apart_from_those_of_tokens():
    rows, _, tokens = DOCUMENT.partition("## Of the tokens")
    assert {name for name in CHECKS if f"### {name}\n" in rows} == ROW_CHECKS.keys()
    assert {name for name in CHECKS if f"### {name}\n" in tokens} == TOKEN_CHECKS.keys()


def test_links_lead_to_headings():
    headings = re.findall(r"^#+ (.+)$", DOCUMENT, re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", DOCUMENT)) <= anchors


@pytest.mark.parametrize("name", CHECKS)
def test_section_says_how_to_fix_and_how_to_accept(name):
    section = dict(SECTIONS)[name]
    assert "**Fix:**" in section
    assert accept_line(name) in section


def accept_line(name: str) -> str:
    check = CHECKS[name]
    if not check.acceptable:
        return "**Accept:** never"
    if check.decision:
        return f"**Accept:** `accept: [{name}]`"
    limit = f", limit {check.limit:g}" if check.limit else ""
    return f"**Accept:** `accept: [source:{name}]`{limit}"


def test_each_check_has_a_faulty_input():
    made = (*faults.FAULTY, *faults.DAMAGES)
    assert {name for each in made for name in each.expected} == CHECKS.keys() - WITHOUT_INPUT


def test_names_of_inputs_are_unique():
    names = [each.name for each in (*faults.CASES, *faults.DAMAGES)]
    assert len(names) == len(set(names))
