"""Start a training on this computer, or attach to the one that a killed driver left."""

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sft.environment import without_secrets
from sft.errors import SftError
from sft.process import (
    ProcessId,
    marked_processes,
    parse_process_id,
    process_id,
    this_process,
)
from sft.step import log

STOP_WAIT_S = 30.0
MARK = "SFT_TRAINING"

# The child names itself before it does anything else: a driver that is killed in between can never
# leave a training that nobody knows of. Only then does it let go of its driver's claim ($3), and
# another driver that waits for it finds the record. The mark tells all its descendants; field 22 of
# stat is its start.
_WRAPPER = f"""
read -r -a stat < "/proc/$$/stat"
export {MARK}="$2-$$-${{stat[21]}}"
printf '%s\\n' "${MARK}" > "$1.new" && mv "$1.new" "$1" || exit 1
claim=$3
exec {{claim}}>&-
shift 3
exec "$@"
"""


@dataclass(frozen=True)
class Process:
    """A command that was started here; `child` is its handle in the driver that did so."""

    id: ProcessId
    child: subprocess.Popen | None = None

    def poll(self) -> int | None:
        """None while it runs, then its exit code; 0 for one that this driver did not start."""
        if self.child:
            return self.child.poll()
        return None if self.id.runs() else 0

    def stop(self) -> None:
        """End all that it started: SIGTERM, and SIGKILL after `STOP_WAIT_S`."""
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            told: set[int] = set()
            deadline = time.monotonic() + STOP_WAIT_S
            while (family := self._family()) and time.monotonic() < deadline:
                for pid in family - told:  # some may be born while others are told
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal_number)
                told |= family
                time.sleep(0.1)
                self.poll()  # reaps it
            if not family:
                return

    def _family(self) -> set[int]:
        """Its own number and those of its living descendants.

        Training processes have sessions of their own and may outlive what started them; all of
        them inherit the mark.
        """
        family = {self.id.pid} if self.id.runs() else set()
        return family | marked_processes(f"{MARK}={self.id}")


@contextmanager
def claim(folder: Path) -> Iterator[int]:
    """The right to start a training in `folder`, for one driver at a time; others wait.

    Yields the file descriptor that holds it: it ends with the last process that has it open,
    however that ends. A file system without locks gives a warning and no protection.
    """
    descriptor = os.open(folder / "process.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            log.warning(
                "%s: the file system has no file locks (%s); never run two drivers at once here",
                *(folder, error.strerror),
            )
        yield descriptor
    finally:
        os.close(descriptor)


def find(record: Path) -> Process | None:
    """The process that `record` names if it still runs on this host."""
    recorded = _read_record(record)
    return Process(recorded) if recorded and recorded.is_here and recorded.runs() else None


def end_leftovers(record: Path) -> None:
    """Make sure that nothing of what `record` names runs any more.

    Raises SftError where that was on another host, of whose processes nothing can be seen.
    """
    recorded = _read_record(record)
    if recorded is None:
        return
    if not recorded.is_here:
        raise SftError(
            f"{record}: process {recorded.pid} of {recorded.host} trains this run, or did until it "
            f"was killed; go on at {recorded.host}, or delete this file if that process has ended"
        )
    Process(recorded).stop()


def _read_record(record: Path) -> ProcessId | None:
    try:
        return parse_process_id(record.read_text())
    except FileNotFoundError:
        return None


def start(command: Sequence[str], record: Path, output: Path, claimed: int) -> Process:
    """Start a command in a session of its own, and name it in the file `record`.

    `claimed` comes from `claim`. The output is appended to the file `output` and not to a pipe, so
    that the command outlives its driver.
    """
    record.unlink(missing_ok=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    host = this_process().host
    with open(output, "ab") as file:
        child = subprocess.Popen(
            ["bash", "-c", _WRAPPER, "launch", record, host, str(claimed), *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=without_secrets(),
            pass_fds=[claimed],
            start_new_session=True,
        )
    return Process(process_id(child.pid), child)
