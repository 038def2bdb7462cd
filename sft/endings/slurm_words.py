"""What Slurm says of an end: by the state of a job, and by lines of its daemons in the log."""

import re

from sft.endings.ending import Kind

# What the words of Slurm mean. FAILED and COMPLETED say no more than the exit code.
_MEANINGS = {
    **{"TIMEOUT": Kind.TIMEOUT, "TIME LIMIT": Kind.TIMEOUT},
    **{"PREEMPTED": Kind.PREEMPTED, "PREEMPTION": Kind.PREEMPTED, "JOB REQUEUE": Kind.PREEMPTED},
    **{"NODE_FAIL": Kind.NODE_FAIL, "NODE FAILURE": Kind.NODE_FAIL, "BOOT_FAIL": Kind.NODE_FAIL},
    **{"OUT_OF_MEMORY": Kind.OUT_OF_MEMORY},
    **{"CANCELLED": Kind.CANCELLED, "DEADLINE": Kind.CANCELLED, "REVOKED": Kind.CANCELLED},
}
_CANCELLED = re.compile(
    r"\*\*\* (JOB|STEP) \S+ ON \S+ CANCELLED AT \S+"
    r"(?: DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE|JOB REQUEUE))?"
)
_NODE_FAILURE = re.compile(r"srun: error: Node failure on (\S+)")


def kind_of_state(state: str | None) -> Kind | None:
    """What a state as squeue or sacct write it says of the end; None where it says nothing."""
    return _MEANINGS.get(state.split()[0].rstrip("+")) if state else None


def kind_of_line(text: str) -> Kind | None:
    """What a line of Slurm's says of the end; that a step is cancelled follows any of them."""
    if _NODE_FAILURE.search(text):
        return Kind.NODE_FAIL
    match = _CANCELLED.search(text)
    if match and (match[2] or match[1] == "JOB"):
        return _MEANINGS[match[2] or "CANCELLED"]
    return None


def failed_node(text: str) -> str | None:
    """The node that failed, where a line says so."""
    match = _NODE_FAILURE.search(text)
    return match[1] if match else None


def who_cancelled(state: str) -> str:
    """Who ended a job by what its state says, as the begin of a sentence."""
    if state.startswith("DEADLINE"):
        return "Slurm gave the job up at its --deadline"
    if match := re.match(r"CANCELLED by (\d+)", state):
        staff = " (root, so the site's staff as a rule)" if match[1] == "0" else ""
        return f"cancelled by user {match[1]}{staff}"
    return "cancelled"
