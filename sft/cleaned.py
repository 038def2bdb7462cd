"""The note that a run was published and cleaned up: what keeps it from being trained again.

It lies in the folder of the run's checkpoints, beside nothing that could be gone on from. Who moves
that folder away moves the note too, and the run is one that was never trained.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sft.errors import SftError
from sft.files import hash_json, read_json, write_json

NOTE = "cleaned.json"


def write_note(checkpoints: Path, row: Mapping[str, Any], location: str, time: str) -> None:
    """Write down when a run was cleaned up, where it is published, and what its row said."""
    note = {"row": hash_json(row), "location": location, "cleaned": time}
    write_json(checkpoints / NOTE, note)


def find_note(run: Path, read_row: Callable[[], Mapping[str, Any]]) -> Path | None:
    """The note of a published run whose row says what it said then; None where there is none.

    `read_row` tells what it says now; it is asked only where there is a note: tables are long.
    """
    if not (run / "uploaded.json").exists():
        return None
    notes = sorted((run / "checkpoints").glob(f"*/{NOTE}"))
    wanted = hash_json(read_row()) if notes else ""
    return next((note for note in notes if read_json(note)["row"] == wanted), None)


def refuse_cleaned(checkpoints: Path) -> None:
    """Raise SftError where a run was cleaned up: nothing of it is left to go on from.

    A trainer would begin it all over again.
    """
    path = checkpoints / NOTE
    if not path.exists():
        return
    note = read_json(path)
    raise SftError(
        f"{checkpoints}: trained to its end, published at {note['location']} and cleaned up on "
        f"{note['cleaned']}; expected that nothing of it runs again. To keep it so, put its row "
        "back as it was, or take it out; to train it anew, move this folder away"
    )
