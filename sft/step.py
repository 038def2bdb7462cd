"""What a stage says while it works: to its log file in full, to the terminal in short lines."""

import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sft.errors import SftError

log = logging.getLogger("sft")


@contextmanager
def step_log(path: str, title: str) -> Iterator[None]:
    """Send what the stage logs to `path` and, each line after `[title]`, to the terminal.

    A refusal (SftError) ends the process with exit code 1 and its text alone; the traceback of any
    other error goes to the log as well as to the terminal.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    to_file = logging.FileHandler(path, mode="a", encoding="utf-8")
    to_file.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    to_terminal = logging.StreamHandler(sys.stderr)
    to_terminal.setFormatter(logging.Formatter(f"[{title}] %(message)s"))
    log.setLevel(logging.INFO)
    for handler in (to_file, to_terminal):
        log.addHandler(handler)
    try:
        yield
    except SftError as error:
        log.error("%s", error)
        sys.exit(1)
    except Exception:
        to_file.emit(log.makeRecord("sft", logging.ERROR, "", 0, traceback.format_exc(), (), None))
        raise
    finally:
        for handler in (to_file, to_terminal):
            log.removeHandler(handler)
            handler.close()


class Progress:
    """Lines about long work: how much of the whole, how fast, how long still; one in `every_s`."""

    def __init__(self, what: str, total: float, unit: str, every_s: float = 10.0) -> None:
        self.what, self.total, self.unit, self.every_s = what, total, unit, every_s
        self.done = 0.0
        self._start_s = self._said_s = time.monotonic()

    def add(self, amount: float) -> None:
        """Count `amount` (in `unit`) as done, and say so when it is time."""
        self.done += amount
        now_s = time.monotonic()
        if now_s - self._said_s >= self.every_s:
            self._said_s = now_s
            rate = self.done / (now_s - self._start_s)
            left_s = (self.total - self.done) / rate if rate else float("inf")
            log.info(
                "%s: %.1f of %.1f %s, %.1f %s/s, %.0f s left",
                *(self.what, self.done, self.total, self.unit, rate, self.unit, left_s),
            )
