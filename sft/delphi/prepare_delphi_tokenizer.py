"""Give a Delphi checkpoint its tokens for reasoning and tool calls, without adding a row.

    python sft/delphi/prepare_delphi_tokenizer.py --model CKPT --output DIR

IN   a checkpoint in safetensors with Llama-3's tokenizer
OUT  the same with six reserved slots renamed, whose rows of the embedding and of the output head
     are the mean of the trained rows

Every other row and tensor keeps its bytes. A file of weights that holds the embedding or the head
is copied and the rows are written over; the others are linked, or copied where the file system has
no links. No tensor is held in memory.

config.json stays as it is. The `rope_scaling` in Delphi's makes vLLM derive a context of 4096, for
which these models were trained: serve them with no more.
"""

import argparse
import filecmp
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:  # run as a file: then the path begins with its folder, not the package's
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from sft.delphi.matrices import Matrix, find_matrices, holds_row, mean_row, widen, write_row
from sft.delphi.slots import TOKENIZER, TOKENS, check_tokens, rename_slots
from sft.errors import SftError
from sft.files import link_or_copy, list_files, new_folder, write_text
from sft.sources import check_model, list_model


def prepare_delphi(model: Path, output: Path) -> dict[str, Any]:
    """Write the prepared form of the checkpoint `model` to the folder `output`.

    Returns `{"slots", "renamed", "means", "rewritten", "linked", "copied"}`: the id of each token;
    old names of slots to new ones; each tensor's file, dtype and the norm of its new rows; the
    names of files that are new, that are the checkpoint's own, and that are copies. `output`
    appears whole or not at all. Where it is there with the same content, nothing is touched.

    Raises SftError where the checkpoint is not whole, its tokenizer is not Llama-3's, a slot is in
    use, rows are missing or of no float type, or `output` holds anything else.
    """
    output = Path(os.path.abspath(output))
    if model.resolve() in (output.resolve(), *output.resolve().parents):
        raise SftError(f"{output}: it is, or lies in, {model}; name a folder outside of it")
    check_model(model)
    matrices = find_matrices(model)
    texts, renamed = rename_slots(model)
    rows = {matrix: mean_row(matrix) for matrix in matrices}
    changed = {matrix: row for matrix, row in rows.items() if not holds_row(matrix, row)}
    with new_folder(output, keep=True) as partial:
        files = _write(model, partial, texts, changed)
        check_tokens(partial / TOKENIZER)
        _refuse_other(output, partial)
    means = {matrix.name: _describe(matrix, row) for matrix, row in rows.items()}
    return {"slots": dict(TOKENS), "renamed": renamed, "means": means, **files}


def _write(
    model: Path, folder: Path, texts: Mapping[str, str], changed: Mapping[Matrix, np.ndarray]
) -> dict[str, list[str]]:
    """Fill `folder` from `model`: the names of files by what was done to them."""
    done: dict[str, list[str]] = {"rewritten": [], "linked": [], "copied": []}
    for name in list_model(model):
        source, target = model / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        own = {matrix: row for matrix, row in changed.items() if matrix.path == source}
        if name in texts:
            write_text(target, texts[name])
        elif own or not name.endswith(".safetensors"):
            shutil.copyfile(source, target)
        else:
            link_or_copy(source, target)
        for matrix, row in own.items():
            write_row(target, matrix, row)
        kept = "linked" if os.path.samefile(source, target) else "copied"
        done["rewritten" if name in texts or own else kept].append(name)
    return done


def _refuse_other(output: Path, made: Path) -> None:
    """Refuse to put `made` in place of anything that is not the same."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    ours, theirs = set(list_files(made)), set(list_files(output) if output.is_dir() else ())
    other = sorted(ours ^ theirs) or [
        name for name in sorted(ours) if not _are_same(made / name, output / name)
    ]
    if other:
        raise SftError(
            f"{output}: exists and differs in {other[0]}; it is not overwritten: move it away, or "
            "name another folder"
        )


def _are_same(one: Path, two: Path) -> bool:
    return os.path.samefile(one, two) or filecmp.cmp(one, two, shallow=False)


def _describe(matrix: Matrix, row: np.ndarray) -> dict[str, Any]:
    norm = float(np.linalg.norm(widen(row, matrix.dtype).astype(np.float64)))
    return {"file": matrix.path.name, "dtype": matrix.dtype, "norm": norm}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="the checkpoint's folder")
    parser.add_argument("--output", type=Path, required=True, help="the folder to make")
    arguments = parser.parse_args()
    try:
        done = prepare_delphi(arguments.model, arguments.output)
    except (SftError, OSError) as error:
        sys.exit(str(error))
    print("\n".join(summary(done, arguments.output)))


def summary(done: Mapping[str, Any], output: Path) -> list[str]:
    """Lines for a person about what `prepare_delphi` returned."""
    lines = [f"{old} is {new} now ({TOKENS[new]})" for old, new in done["renamed"].items()]
    lines += [
        f"{name} ({mean['dtype']}, in {mean['file']}): the six rows are the mean of the trained "
        f"ones, of norm {mean['norm']:.3g}"
        for name, mean in done["means"].items()
    ]
    for kind in ("rewritten", "linked", "copied"):
        size_mb = sum((output / name).stat().st_size for name in done[kind]) / 1e6
        lines.append(f"{kind}: {len(done[kind])} files, {size_mb:.1f} MB")
    return [*lines, f"prepared: {output}"]


if __name__ == "__main__":
    main()
