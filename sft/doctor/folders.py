"""Whether the folders that jobs write to take what will be written, and are seen everywhere."""

import errno
import fcntl
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sft.backends import BACKENDS
from sft.catalog import Catalog
from sft.config import results_folder
from sft.doctor.check import Check, Verdict
from sft.environment import REPOSITORY
from sft.errors import SftError
from sft.experiment import Experiment
from sft.facts import Facts
from sft.files import list_files, size_text
from sft.mix import Dataset
from sft.plan import estimate_disk
from sft.receipt import read_receipt
from sft.site import PLACEHOLDER, Site

GB = 1e9
LOW = 0.05  # of space or files; below it a shared file system fills up in days
SOCKET_BYTES, SOCKET_NAME_BYTES = 108, 40  # of an AF_UNIX address; what is added to TMPDIR
SPILL = 3  # bytes of temporary Arrow files a byte of a dataset: read, converted, tokenized
PROBE_BYTES = 4096  # a file without content needs no block, and no quota says no to it
LOCAL_KINDS = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "squashfs"),
    *("tmpfs", "ramfs", "devtmpfs", "rootfs"),
}
REMEDIES = {
    errno.EACCES: "choose a folder of your own, or ask for the right to write",
    errno.EPERM: "choose a folder of your own, or ask for the right to write",
    errno.EROFS: "it is mounted read-only here; choose another file system",
    errno.ENOSPC: "delete what is not needed: space or files are used up",
    errno.EDQUOT: "your quota is used up, of space or of files; delete what is not needed",
    errno.ENOTDIR: "a file is in the way; choose another folder",
}

folder_check = partial(Check, "folders")


@dataclass(frozen=True)
class Mount:
    """A file system as /proc/self/mountinfo shows it."""

    point: Path
    kind: str
    options: str

    @property
    def is_local(self) -> bool:
        """Whether other hosts cannot see it, as far as its kind tells."""
        return self.kind in LOCAL_KINDS


@dataclass
class _Report:
    """What is found of one folder, gathered into one check."""

    subject: str
    facts: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)
    verdict: Verdict = Verdict.OK

    def add(self, fact: str, remedy: str = "", verdict: Verdict = Verdict.OK) -> None:
        """Add a fact, and what to do where it is not as it should be; the worst comes last."""
        self.facts.append(fact)
        if remedy:
            self.remedies.append(remedy)
        if verdict != Verdict.OK:
            self.verdict = verdict

    def check(self) -> Check:
        return folder_check(
            self.subject, self.verdict, ", ".join(self.facts), "; ".join(self.remedies)
        )


def check_folders(
    profile: Mapping[str, Any], config: Mapping[str, Any], catalog: Catalog
) -> Iterator[Check]:
    """Each folder that the profile names, then room for checkpoints and for temporary files."""
    site, mounts = catalog.site, read_mounts()
    shared = site.launcher == "slurm"
    places = {
        "results": str(results_folder(config)),
        "upload_folder": config["upload_folder"],
        "registry_file": os.path.dirname(config["registry_file"]),
        "hf_home": site.hf_home,
        "spill_folder": site.spill_folder,
        "slurm-logdir": str(profile.get("slurm-logdir", "")),
    }
    for subject, place in places.items():
        if PLACEHOLDER in place:
            yield folder_check(subject, Verdict.UNCHECKED, f"{place} is still to be filled in")
        elif place:
            yield check_folder(subject, Path(place), mounts, shared)
    yield from _check_scratch(site)
    if PLACEHOLDER not in places["results"]:
        try:
            yield from _check_checkpoints(catalog, results_folder(config))
            yield from _check_spill(catalog, results_folder(config))
        except SftError as error:  # a receipt that is cut short
            yield folder_check("results", Verdict.FAULT, str(error))
    yield _check_socket_folder(Path(tempfile.gettempdir()))
    if shared:
        yield check_sight("this checkout", REPOSITORY, mounts)


def check_folder(subject: str, path: Path, mounts: Iterable[Mount], shared: bool) -> Check:
    """Whether a folder is there or can be made, takes a file, has room, and who sees it."""
    report = _Report(subject, [str(path)])
    if os.path.islink(path) and not os.path.exists(path):
        target = os.readlink(path)
        report.add(f"a link to {target}, which is not there", "mend the link", Verdict.FAULT)
        return report.check()
    folder = existing_folder(path)
    if folder != path.absolute():
        report.add(f"to be made below {folder}")
    _report_kind(report, path, mounts, shared)
    _report_room(report, folder)
    _report_probe(report, folder)
    return report.check()


def existing_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there and not out of sight."""
    above = [path.absolute(), *path.absolute().parents]
    return next(each for each in above if os.path.exists(each))


def _report_kind(report: _Report, path: Path, mounts: Iterable[Mount], shared: bool) -> None:
    mount = mount_of(path, mounts)
    if not shared or not mount.is_local:
        report.add(f"on {mount.kind}")
    else:
        report.add(
            f"on {mount.kind} of this host, which compute nodes do not see",
            "choose a folder on a shared file system",
            Verdict.WARNING,
        )
    if mount.kind == "lustre" and "localflock" in mount.options.split(","):
        report.add("file locks count on this host alone (localflock)")


def _report_room(report: _Report, folder: Path) -> None:
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    low = free < LOW * room.f_blocks * room.f_frsize
    report.add(
        f"{size_text(free)} free",
        "delete what is not needed: it is nearly full" if low else "",
        Verdict.WARNING if low else Verdict.OK,
    )
    if room.f_files:  # some file systems do not count files
        few = room.f_favail < LOW * room.f_files
        report.add(
            f"{count_text(room.f_favail)} files free",
            "delete small files, such as caches of pip and uv: no more can be made soon"
            if few
            else "",
            Verdict.WARNING if few else Verdict.OK,
        )


def _report_probe(report: _Report, folder: Path) -> None:
    """Write a small file, lock it, and delete it."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".sft-doctor-", dir=folder) as file:
            file.write(b"\0" * PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
            _report_lock(report, file.fileno())
    except OSError as error:
        report.add(
            f"cannot be written: {error.strerror}",
            REMEDIES.get(error.errno, "ask the site's support"),
            Verdict.FAULT,
        )


def _report_lock(report: _Report, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        report.add("file locks work")
    except OSError as error:
        report.add(
            f"no file locks ({error.strerror})",
            "never run two drivers at once here, nor two downloads of one model",
            Verdict.WARNING,
        )


def check_sight(subject: str, path: Path, mounts: Iterable[Mount]) -> Check:
    """Whether other nodes can read a folder that jobs start from."""
    mount = mount_of(path, mounts)
    if not mount.is_local:
        return folder_check(subject, Verdict.OK, f"{path}, on {mount.kind}")
    return folder_check(
        subject,
        Verdict.WARNING,
        f"{path}, on {mount.kind} of this host: jobs do not find it on compute nodes",
        "put it on a shared file system",
    )


def read_mounts() -> list[Mount]:
    """The file systems that this process sees."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return [parse_mount(line) for line in file]


def parse_mount(line: str) -> Mount:
    """A line of mountinfo (proc(5)): its fields after the options differ in number up to a dash."""
    before, _, after = line.partition(" - ")
    kind, _, options = after.split(maxsplit=2)
    point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
    return Mount(Path(point), kind, options.strip())


def mount_of(path: Path, mounts: Iterable[Mount]) -> Mount:
    """The file system that holds a path, or will; of two on one point the later hides the other."""
    place = path.resolve()
    holding = [each for each in mounts if place.is_relative_to(each.point)]
    return max(enumerate(holding), key=lambda pair: (len(pair[1].point.parts), pair[0]))[1]


def _check_scratch(site: Site) -> Iterator[Check]:
    if not site.scratch_folder:
        return
    scratch = Path(site.scratch_folder)
    if not os.path.exists(scratch):
        yield folder_check(
            "scratch_folder",
            Verdict.WARNING,
            f"{scratch}: not on this host, so it guards nothing",
            "correct it: what must last is refused below it",
        )
    cache = site.hf_home
    if cache and PLACEHOLDER not in cache and _lies_below(cache, scratch):
        yield folder_check(
            "hf_home",
            Verdict.WARNING,
            f"{cache} lies below {scratch}, which is purged: models vanish while jobs wait",
            "choose a file system that lasts",
        )


def _lies_below(path: str, folder: Path) -> bool:
    return Path(path).resolve().is_relative_to(folder.resolve())


def _check_checkpoints(catalog: Catalog, results: Path) -> Iterator[Check]:
    """Room for the checkpoints of the runs that are not complete, as far as their size is known."""
    facts = Facts(catalog, results)
    waiting = [
        each
        for each in catalog.experiments.values()
        if not (results / "runs" / each.name / "trained.json").exists()
    ]
    needs = [need for each in waiting if (need := planned_gb(each, facts))]
    if not needs:
        return
    room = os.statvfs(existing_folder(results))
    free_gb = room.f_bavail * room.f_frsize / GB
    enough = sum(needs) <= free_gb
    of_all = f"{len(needs)} of {len(waiting)} runs that are not complete"
    yield folder_check(
        "checkpoints",
        Verdict.OK if enough else Verdict.WARNING,
        f"{of_all} write up to {size_text(sum(needs) * GB)}, the largest "
        f"{size_text(max(needs) * GB)}; {size_text(free_gb * GB)} are free, before any quota",
        "" if enough else "make room, run fewer at once, or lower save_total_limit",
    )


def planned_gb(experiment: Experiment, facts: Facts) -> float | None:
    """GB that a run takes at most; None where its model is not here yet."""
    size = facts.size(experiment.model)
    recipe = BACKENDS[experiment.backend].read_recipe(experiment.config)
    disk = estimate_disk(size, recipe, steps=None) if size else None
    return disk and disk.total


def _check_spill(catalog: Catalog, results: Path) -> Iterator[Check]:
    """Room for what tokenizing the largest dataset spills into temporary files."""
    site = catalog.site
    sizes = {each.name: dataset_bytes(each, results) for each in catalog.datasets.values()}
    known = {name: size for name, size in sizes.items() if size}
    if not known:
        return
    largest = max(known, key=known.get)
    spill = SPILL * known[largest]
    what = f"{largest} is {size_text(known[largest])} and may spill {size_text(spill)}"
    if site.spill_folder:
        if PLACEHOLDER in site.spill_folder:
            return
        room, place = _free_bytes(Path(site.spill_folder)), f"spill_folder {site.spill_folder}"
    elif site.launcher == "slurm":
        if not site.tmp_gb:
            yield folder_check(
                "temporary files",
                Verdict.UNCHECKED,
                f"{what}; what /tmp of a compute node holds is not known",
                "write tmp_gb, and spill_folder where that is small",
            )
            return
        room, place = site.tmp_gb * GB, "/tmp of a compute node (tmp_gb)"
    else:
        room, place = _free_bytes(Path(tempfile.gettempdir())), tempfile.gettempdir()
    enough = spill <= room
    yield folder_check(
        "temporary files",
        Verdict.OK if enough else Verdict.WARNING,
        f"{what}; {place} has {size_text(room)}",
        "" if enough else "set spill_folder to a folder with more room",
    )


def dataset_bytes(dataset: Dataset, results: Path) -> int | None:
    """The size of a dataset that was fetched or lies in a file; None before."""
    receipt = results / "datasets" / dataset.name / "fetched.json"
    if receipt.exists():
        return sum(each["size"] for each in read_receipt(receipt)["files"])
    if not dataset.path or not os.path.exists(dataset.path):
        return None
    path = Path(dataset.path)
    files = [path / name for name in list_files(path)] if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files)


def _free_bytes(path: Path) -> int:
    room = os.statvfs(existing_folder(path))
    return room.f_bavail * room.f_frsize


def _check_socket_folder(folder: Path) -> Check:
    """Whether sockets find room in TMPDIR; `datasets` makes some when it maps in processes."""
    named = os.environ.get("TMPDIR", "")
    if named and not os.path.isdir(named):
        return folder_check(
            "TMPDIR", Verdict.WARNING, f"{named} is no folder here", "export TMPDIR=/tmp"
        )
    length = len(os.fsencode(folder)) + SOCKET_NAME_BYTES
    if length <= SOCKET_BYTES:
        return folder_check("TMPDIR", Verdict.OK, f"{folder}, short enough for sockets")
    return folder_check(
        "TMPDIR",
        Verdict.FAULT,
        f"{folder} has {length - SOCKET_NAME_BYTES} bytes, expected at most "
        f"{SOCKET_BYTES - SOCKET_NAME_BYTES}: sockets in it fail with 'AF_UNIX path too long'",
        "export TMPDIR=/tmp before you start",
    )


def count_text(number: int) -> str:
    """A count as people say it: 3.4M."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g}{unit}"
    return str(number)
