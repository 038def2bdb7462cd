"""Which process is meant: numbers are given again, so a host and a start belong to each."""

import os
import re
import socket
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TEXT = re.compile(r"(?P<host>.+)-(?P<pid>\d+)-(?P<start_ticks>\d+)")


@dataclass(frozen=True)
class ProcessId:
    """A process for all time: its host, its number there, its start in clock ticks after boot."""

    host: str
    pid: int
    start_ticks: int

    def __str__(self) -> str:
        return f"{self.host}-{self.pid}-{self.start_ticks}"

    @property
    def is_here(self) -> bool:
        """Whether it belongs to this host; of another host's processes nothing can be seen."""
        return self.host == socket.gethostname()

    def runs(self) -> bool:
        """Whether this process of this host has not ended; one that waits to be reaped has."""
        stat = _read_stat(self.pid)
        return stat is not None and stat[0] != "Z" and int(stat[19]) == self.start_ticks


def process_id(pid: int) -> ProcessId:
    """The identity of a process of this host that was not reaped yet."""
    return ProcessId(socket.gethostname(), pid, int(_read_stat(pid)[19]))


def this_process() -> ProcessId:
    """The identity of the process that asks."""
    return process_id(os.getpid())


def parse_process_id(text: str) -> ProcessId | None:
    """The process that `text` names in the form of `str(ProcessId)`; None where it names none."""
    match = _TEXT.fullmatch(text.strip())
    return match and ProcessId(match["host"], int(match["pid"]), int(match["start_ticks"]))


def marked_processes(mark: str) -> set[int]:
    """The numbers of this user's processes with `mark`, NAME=value, in their environment.

    What a process starts inherits it, also in a session of its own and after its parent's end.
    """
    found = set()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or belongs to another user
            if mark.encode() in environment.read_bytes().split(b"\0"):
                found.add(int(environment.parent.name))
    return found


def parent_of(pid: int) -> int | None:
    """The number of the process that started another one; None where that has ended."""
    stat = _read_stat(pid)
    return int(stat[1]) if stat else None


def session_descendants(pid: int) -> list[int]:
    """The numbers of what a process started, and what that started, in its own session."""
    children = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        if stat := _read_stat(int(folder.name)):
            parent, session = int(stat[1]), stat[3]
            children[parent, session].append(int(folder.name))
    session = _read_stat(pid)[3]
    found = [pid]
    for each in found:  # grows while it is read
        found += children[each, session]
    return found[1:]


def _read_stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the third on: a name, the second, may hold spaces."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
