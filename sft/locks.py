"""The folder .snakemake: who uses it, and its locks, which a killed snakemake leaves behind.

Snakemake's lock files say nothing about who made them. So each driver has a file of its own in
.snakemake/drivers, named by its process, which it touches as long as it lives.
"""

import atexit
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sft.process import parse_process_id, this_process
from sft.step import DRIVER

BEAT_S = 10.0
WATCH_S = 35.0  # a driver of another host that lives beats in this time
OLD_S = 600.0  # longer than the clocks of two hosts differ


def hold_folder(folder: Path) -> None:
    """Tell others, and the stages that this driver starts, that it lives and uses `folder`."""
    own = folder / "drivers" / str(this_process())
    own.parent.mkdir(parents=True, exist_ok=True)
    own.touch()
    atexit.register(own.unlink, missing_ok=True)
    threading.Thread(target=_beat, args=[own], daemon=True).start()
    os.environ[DRIVER] = own.name


def _beat(own: Path) -> None:
    while True:
        time.sleep(BEAT_S)
        with suppress(OSError):  # the driver is ending, or the file system is away
            os.utime(own)


def free_folder(folder: Path, say: Callable[[str], None], patient: bool) -> bool:
    """Remove Snakemake's locks of `folder` where all drivers that used it were killed; if so.

    Where another one lives, Snakemake decides if the two are in each other's way. A driver of
    another host is watched for a while, or taken as alive where `patient` is false. To be called
    after `hold_folder`: of two drivers that start at once, neither frees what the other locks.
    """
    drivers = {path: parse_process_id(path.name) for path in (folder / "drivers").glob("*")}
    others = {path: each for path, each in drivers.items() if each and each != this_process()}
    dead = [
        path
        for path, driver in others.items()
        if not (driver.runs() if driver.is_here else _beats(path, driver.host, say, patient))
    ]
    if not dead or len(dead) < len(others):
        return False
    locks = list((folder / "locks").glob("*.lock"))
    if locks:
        say(f"{folder}: a snakemake was killed here; its locks are removed")
    for path in [*locks, *dead]:
        path.unlink(missing_ok=True)
    return True


def _beats(path: Path, host: str, say: Callable[[str], None], patient: bool) -> bool:
    """Whether the driver that the file `path` stands for goes on touching it."""
    with suppress(FileNotFoundError):  # it ended by itself
        seen_s = path.stat().st_mtime
        if time.time() - seen_s > OLD_S:
            return False
        if not patient:
            return True
        say(f"waiting {WATCH_S:.0f} s for a sign of life of the snakemake that ran at {host}")
        deadline = time.monotonic() + WATCH_S
        while time.monotonic() < deadline:
            time.sleep(1)
            if path.stat().st_mtime != seen_s:
                say(f"snakemake runs at {host} too")
                return True
    return False
