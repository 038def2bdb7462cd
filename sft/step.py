"""What a stage says while it works: to its log file in full, to the terminal in short lines."""

import errno
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sft.errors import SftError
from sft.process import ProcessId, parse_process_id, session_descendants

log = logging.getLogger("sft")

# What the computer refuses, with what a person can do about it.
REMEDIES = {
    errno.ENOSPC: "the disk is full; make room, or let `pathvars` in the profile name another one",
    errno.EDQUOT: "a quota of bytes or files is used up; make room, or ask for more",
    errno.EACCES: "you may not write or read there; correct the permissions or the path",
    errno.EROFS: "the file system takes no changes here; name another one in the profile",
}

DRIVER = "SFT_DRIVER"  # names the snakemake that started this process
WATCH_S = 1.0


@contextmanager
def step_log(path: str, title: str) -> Iterator[None]:
    """Send what the stage logs to `path` and, each line after `[title]`, to the terminal.

    A refusal (SftError, or one of the computer's with a remedy) ends the process with exit code 1
    and its text alone; the traceback of any other error goes to the log as well as to the terminal.
    A stage whose snakemake was killed ends too: it would go on beside the one that the next
    snakemake starts, and write its receipt after.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    to_file = logging.FileHandler(path, mode="a", encoding="utf-8")
    to_file.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    to_terminal = logging.StreamHandler(sys.stderr)
    to_terminal.setFormatter(logging.Formatter(f"[{title}] %(message)s"))
    log.setLevel(logging.INFO)
    for handler in (to_file, to_terminal):
        log.addHandler(handler)
    driver = parse_process_id(os.environ.get(DRIVER, ""))
    if driver and driver.is_here:
        threading.Thread(target=_end_with, args=[driver], daemon=True).start()
    try:
        yield
    except SftError as error:
        log.error("%s", error)
        sys.exit(1)
    except Exception as error:
        to_file.emit(log.makeRecord("sft", logging.ERROR, "", 0, traceback.format_exc(), (), None))
        if isinstance(error, OSError) and error.errno in REMEDIES:
            log.error("%s: %s; then run again (%s)", error, REMEDIES[error.errno], path)
            sys.exit(1)
        raise
    finally:
        for handler in (to_file, to_terminal):
            log.removeHandler(handler)
            handler.close()


@contextmanager
def terminal_log() -> Iterator[None]:
    """Print what is logged inside, for a command that a person started."""
    handler = logging.StreamHandler(sys.stderr)
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _end_with(driver: ProcessId) -> None:
    """Wait for the end of a driver, then end this process and what it runs (not a training)."""
    while driver.runs():
        time.sleep(WATCH_S)
    log.error("snakemake, process %d, was killed; this stage ends with it", driver.pid)
    for pid in [*session_descendants(os.getpid()), os.getpid()]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Progress:
    """Lines about long work: how much of the whole, how fast, how long still; one in `every_s`."""

    def __init__(self, what: str, total: float, unit: str, every_s: float = 10.0) -> None:
        self.what, self.total, self.unit, self.every_s = what, total, unit, every_s
        self.done = self._skipped = 0.0
        self._start_s = self._said_s = time.monotonic()

    def skip(self, amount: float) -> None:
        """Count `amount` as done before: it says nothing about the speed."""
        self.done += amount
        self._skipped += amount

    def add(self, amount: float) -> None:
        """Count `amount` (in `unit`) as done, and say so when it is time."""
        self.done += amount
        now_s = time.monotonic()
        if now_s - self._said_s >= self.every_s:
            self._said_s = now_s
            rate = (self.done - self._skipped) / (now_s - self._start_s)
            left_s = (self.total - self.done) / rate if rate else float("inf")
            log.info(
                "%s: %.1f of %.1f %s, %.1f %s/s, %.0f s left",
                *(self.what, self.done, self.total, self.unit, rate, self.unit, left_s),
            )
