"""What an ending is: its kind, which decides whether the same run may be tried again by itself."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kinds of endings."""

    COMPLETED = "completed"
    OUT_OF_TIME = "out_of_time"  # stopped by itself before the job's end, with a checkpoint
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    NODE_FAIL = "node_fail"
    CANCELLED = "cancelled"
    OUT_OF_MEMORY = "out_of_memory"  # of the host
    CUDA_OUT_OF_MEMORY = "cuda_out_of_memory"
    COMMUNICATION = "communication"
    HARDWARE = "hardware"
    STUCK = "stuck"
    DISK_FULL = "disk_full"
    QUOTA = "quota"
    FAILED_START = "failed_start"
    EXCEPTION = "exception"
    DIVERGED = "diverged"
    KILLED = "killed"  # by a signal from outside that nothing explains
    LOST = "lost"  # nothing is known


# The same run, tried again, may well get further.
RETRIED = frozenset(
    {
        *(Kind.OUT_OF_TIME, Kind.TIMEOUT, Kind.PREEMPTED, Kind.NODE_FAIL, Kind.COMMUNICATION),
        *(Kind.HARDWARE, Kind.STUCK, Kind.KILLED, Kind.LOST),
    }
)


@dataclass(frozen=True)
class Ending:
    """How an attempt ended: a sentence with the remedy, the telling lines, the node to avoid."""

    kind: Kind
    text: str
    lines: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()

    @property
    def retry(self) -> bool:
        """Whether the same run may be tried again by itself."""
        return self.kind in RETRIED
