"""docs/faults.md: what happens at each fault, as its test saw it."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


def row(fault: str, endings: list[str | None], happens: str) -> str:
    """A line of the table; `endings` are those of the attempts, None where one never began."""
    return f"| {fault} | {' → '.join(each or '?' for each in endings) or '–'} | {happens} |"


def check_row(fault: str, endings: list[str | None], happens: str, update: bool) -> None:
    """Compare a fault's line with the page; with `update`, write it there."""
    line = row(fault, endings, happens)
    lines = PAGE.read_text().splitlines()
    places = [i for i, each in enumerate(lines) if each.startswith(f"| {fault} |")]
    if update and not places:
        last = max(i for i, each in enumerate(lines) if each.startswith("|"))
        lines.insert(last + 1, line)
    elif update:
        lines[places[0]] = line
    if update:
        PAGE.write_text("\n".join(lines) + "\n")
        return
    assert places, f"{PAGE}: no line for {fault!r}; look at it and run with --update-golden"
    assert lines[places[0]] == line
