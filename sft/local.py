"""Start a launch script on this computer, or attach to the one that a killed driver left."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

STOP_WAIT_S = 30.0

# The child writes its own number before it does anything else: a driver that is killed in between
# can never leave a training that nobody knows of. Field 22 of stat is the process's start time,
# which tells it from a later process of the same number.
_WRAPPER = (
    'read -r -a stat < "/proc/$$/stat"; '
    'printf "%s %s\\n" "$$" "${stat[21]}" > "$1.new"; mv "$1.new" "$1"; exec bash "$2"'
)


@dataclass(frozen=True)
class Process:
    """A process of this computer: its number, its start in clock ticks after boot, its handle."""

    pid: int
    start_ticks: int
    child: subprocess.Popen | None = None

    def poll(self) -> int | None:
        """None while it runs, then its exit code; 0 for one that this driver did not start."""
        if self.child:
            return self.child.poll()
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return 0
        fields = stat.rpartition(")")[2].split()
        runs = fields[0] != "Z" and int(fields[19]) == self.start_ticks
        return None if runs else 0

    def stop(self) -> None:
        """End the process and all that it started: SIGTERM, and SIGKILL after `STOP_WAIT_S`."""
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if self.poll() is not None:
                return
            os.killpg(self.pid, signal_number)
            deadline = time.monotonic() + STOP_WAIT_S
            while self.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)


def find(record: Path) -> Process | None:
    """The process that `record` names if it still runs."""
    try:
        pid, start_ticks = map(int, record.read_text().split())
    except FileNotFoundError:
        return None
    process = Process(pid, start_ticks)
    return process if process.poll() is None else None


def start(launch: Path, record: Path, output: Path) -> Process:
    """Start a launch script in a process group of its own, and name it in the file `record`.

    Its output is appended to the file `output` and not to a pipe, so that it outlives its driver.
    """
    record.unlink(missing_ok=True)
    with open(output, "ab") as file:
        child = subprocess.Popen(
            ["bash", "-c", _WRAPPER, "launch", str(record), str(launch)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Process(child.pid, start_ticks=0, child=child)
