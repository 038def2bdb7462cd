"""What a verified upload makes superfluous of a run: listed with sizes, deleted on request only."""

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from sft import slurm
from sft.attempts import list_attempts
from sft.catalog import published_facts
from sft.cleaned import write_note
from sft.errors import SftError, first_few, raise_faults
from sft.experiment import Experiment
from sft.facts import Facts
from sft.files import hash_file, read_json, read_yaml, size_text
from sft.local import claim, find
from sft.process import parse_process_id, this_process
from sft.published import publication_faults
from sft.receipt import now
from sft.site import Site

TRASH = ".cleaning"  # in the run's folder: what is being deleted, and no longer under its name

# By the names right in the folder of checkpoints. All else there stays: steps, attempts, config.
KINDS = {
    "checkpoint, with its optimizer": r"checkpoint-\d+",
    "broken checkpoint, put aside": r"broken-checkpoint-.+",
    "old checkpoint, half deleted": r"pruned-checkpoint-.+",
    "shards": r"global_step\d+|pytorch_model_fsdp_\d+|optimizer_\d+",
    "state to go on from": r"(optimizer|scheduler)\.(pt|bin)|rng_state\w*\.pth",
    "weights": r".+\.safetensors(\.index\.json)?|pytorch_model.*\.bin(\.index\.json)?",
}
CHAIN = ("train.yaml", "trained.json", "layout.json", "release.json", "uploaded.json")


@dataclass(frozen=True)
class Entry:
    """Files or folders of one kind, right in `folder`; `size` is the bytes that they set free."""

    what: str
    paths: tuple[Path, ...]
    files: int = 0
    size: int = 0


@dataclass(frozen=True)
class Surplus:
    """What can go of a published run, whose own folder is `run`, without links."""

    experiment: Experiment
    run: Path
    checkpoints: Path
    location: str
    entries: tuple[Entry, ...]


def find_surplus(experiment: Experiment, facts: Facts) -> Surplus:
    """What a verified upload makes superfluous of an experiment's run.

    Raises SftError with the reasons where nothing may go: no upload that is of the present release
    and, in a folder, still there; a row that was changed since; a training that runs, or may.
    """
    run = (facts.results / "runs" / experiment.name).resolve()
    if lacking := _lacking(run, experiment):
        raise SftError(
            f"{run}: no {first_few(lacking)}; nothing is deleted before it is published: run "
            "snakemake first"
        )
    made = {name: read_json(run / f"{name}.json")["made"] for name in ("trained", "uploaded")}
    checkpoints = run / "checkpoints" / made["trained"]["fingerprint"]
    location = made["uploaded"]["location"]
    raise_faults(
        [
            *_broken_links(run),
            *_place_faults(run, checkpoints, made["trained"]),
            *_row_faults(experiment, facts, checkpoints, location),
            *_copy_faults(run, location),
        ]
    )
    files = read_json(run / "release.json")["made"]["files"]
    raise_faults(publication_faults(made["uploaded"], experiment.hub_id, files))
    raise_faults(_running(run, facts.catalog.site))
    return Surplus(experiment, run, checkpoints, location, tuple(_entries(run, checkpoints)))


def surplus_text(surplus: Surplus) -> str:
    """What would go, with sizes, for a person to read before anything does."""
    published = f"{surplus.experiment.name}: published at {surplus.location}"
    if not surplus.entries:
        return f"{published}; nothing is left to clean up"
    lines = [
        {
            "what": each.what,
            "where": first_few(path.relative_to(surplus.run) for path in each.paths),
            "files": each.files,
            "sets free": size_text(each.size),
        }
        for each in surplus.entries
    ]
    files = sum(each.files for each in surplus.entries)
    size = size_text(sum(each.size for each in surplus.entries))
    table = tabulate(lines, headers="keys", colalign=("left", "left", "right", "right"))
    return f"{published}\n\n{table}\n\n{files} files, {size}, below {surplus.run}"


def delete(surplus: Surplus, site: Site) -> None:
    """Delete what is superfluous. Killed at any moment, it leaves nothing that looks whole.

    The note goes first: what is deleted can never be taken for a run that was not trained. Raises
    SftError where a training has begun since.
    """
    trash = surplus.run / TRASH
    with claim(surplus.checkpoints):
        raise_faults(_running(surplus.run, site))
        row = published_facts(surplus.experiment)
        write_note(surplus.checkpoints, row, surplus.location, now())
        trash.mkdir(exist_ok=True)
        paths = [path for each in surplus.entries for path in each.paths if path != trash]
        for number, path in enumerate(paths):
            with suppress(FileNotFoundError):  # another clean-up was first
                path.rename(trash / f"{this_process()}-{number}-{path.name}")
        shutil.rmtree(trash)


# --- whether anything may go ---------------------------------------------------------------------


def _lacking(run: Path, experiment: Experiment) -> list[str]:
    needed = [*CHAIN, *["registered.json"] * experiment.register]
    return [name for name in needed if not (run / name).is_file()]


def _broken_links(run: Path) -> Iterator[str]:
    """A line for each receipt behind the upload that was made of another file than that of now."""
    waiting, seen = [run / "uploaded.json"], set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        for each in read_json(path)["inputs"].values():
            file = run / Path(each["path"]).name
            if Path(each["path"]).parent.name != run.name:
                continue  # of a model or of tokens
            if not file.is_file() or hash_file(file) != each["sha256"]:
                yield f"{path}: made of another {file.name} than that of now; run snakemake first"
            elif file.suffix == ".json" and file not in seen:
                waiting.append(file)


def _place_faults(run: Path, checkpoints: Path, trained: Mapping[str, Any]) -> Iterator[str]:
    if (run / TRASH).is_symlink():
        yield f"{run / TRASH}: a link is in the way; remove it"
    for folder in (checkpoints.parent, checkpoints):
        if folder.is_symlink() or not folder.is_dir():
            yield f"{folder}: expected a folder, found a link or nothing; no link is followed"
            return
    if Path(trained["checkpoints"]).resolve() != checkpoints:
        yield (
            f"{run / 'trained.json'}, checkpoints: found {trained['checkpoints']}, expected "
            f"{checkpoints}; only the run's own folder is cleaned up"
        )
    output = Path(read_yaml(run / "train.yaml")["output_dir"])
    if output.name != checkpoints.name:
        yield (
            f"{run / 'train.yaml'}: trains {output.name} by now, and {checkpoints.name} is "
            "published; run snakemake first"
        )


def _row_faults(
    experiment: Experiment, facts: Facts, checkpoints: Path, location: str
) -> Iterator[str]:
    wanted = facts.checkpoints(experiment)
    if wanted is None:
        yield (
            f"{experiment.where}: fetched.json of its model or pretokenized.json of its mix is "
            "gone, so it cannot be told whether the row is still what was trained; clean up by hand"
        )
    elif wanted.name != checkpoints.name:
        yield (
            f"{experiment.where}: it was changed since {checkpoints.name} was published (it is "
            f"{wanted.name} now); put it back, or run snakemake first"
        )
    if not location.endswith(f"/{experiment.hub_id}"):
        yield (
            f"{experiment.where}: it is published at {location}, and its hub_id is "
            f"{experiment.hub_id}; put it back, or run snakemake first"
        )


def _copy_faults(run: Path, location: str) -> Iterator[str]:
    if Path(location).resolve().is_relative_to(run):
        yield f"{location}: lies in the run's own folder, so it is no copy elsewhere"


def _running(run: Path, site: Site) -> Iterator[str]:
    """A line for each training of this run, of whatever version, that runs or may run."""
    for folder in sorted((run / "checkpoints").iterdir()):
        if folder.is_symlink() or not folder.is_dir():
            continue
        if process := find(folder / "process"):
            yield f"{folder}: process {process.id.pid} trains it; wait for its end"
            continue
        for attempt in list_attempts(folder):
            process = parse_process_id(attempt["id"])
            if attempt["ending"] or attempt["job_id"] or process is None:
                continue
            if not process.is_here or process.runs():
                yield (
                    f"{folder}: attempt {attempt['id']} has no ending; it trains at "
                    f"{process.host}, or did: run snakemake there first"
                )
        if site.launcher == "slurm":
            yield from _queued(folder)


def _queued(folder: Path) -> Iterator[str]:
    try:
        jobs = [job for job in slurm.jobs_of_run(folder, 0) if job.is_active]
    except slurm.SlurmAway as error:
        yield f"{folder}: Slurm does not say whether a job trains it ({error}); try again later"
        return
    if jobs:
        ids = " ".join(job.id for job in jobs)
        yield f"{folder}: job {ids} is in the queue; wait for its end, or scancel {ids}"


# --- what may go ---------------------------------------------------------------------------------


def _entries(run: Path, checkpoints: Path) -> list[Entry]:
    groups: dict[tuple[str, Path | None], list[Path]] = defaultdict(list)
    for path in sorted(checkpoints.iterdir()):
        kind = next((kind for kind, form in KINDS.items() if re.fullmatch(form, path.name)), None)
        if kind and not path.is_symlink():
            groups[kind, path if path.is_dir() else None].append(path)
    for what, path in (
        ("consolidated weights", run / "consolidated"),
        ("release, which is a copy", run / "release"),
        ("what an earlier clean left", run / TRASH),
        *(
            ("version of the row before", path)
            for path in sorted(checkpoints.parent.iterdir())
            if path != checkpoints
        ),
    ):
        if path.is_dir() and not path.is_symlink():
            groups[what, path].append(path)
    return _measure([(what, tuple(paths)) for (what, _), paths in groups.items()])


def _measure(groups: Sequence[tuple[str, tuple[Path, ...]]]) -> list[Entry]:
    """Entries with their sizes.

    A file that has a name elsewhere, too, sets nothing free; one with several here counts once.
    """
    found = [[each for path in paths for each in _files(path)] for _, paths in groups]
    names, last = defaultdict(int), {}
    for number, files in enumerate(found):
        for each in files:
            names[each.st_dev, each.st_ino] += 1
            last[each.st_dev, each.st_ino] = (number, each)
    sizes = defaultdict(int)
    for key, (number, each) in last.items():
        if names[key] == each.st_nlink:
            sizes[number] += each.st_size
    return [
        Entry(what, paths, len(found[number]), sizes[number])
        for number, (what, paths) in enumerate(groups)
    ]


def _files(path: Path) -> Iterator[os.stat_result]:
    """What `path` is, or holds; of links their own, never what they point to."""
    if not path.is_dir():
        yield path.lstat()
        return
    for folder, _, names in os.walk(path):
        yield from (Path(folder, name).lstat() for name in names)
