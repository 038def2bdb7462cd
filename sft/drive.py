"""Snakemake as a small Slurm job that renews itself, for login nodes that end what lives long.

    python -m sft.drive -- COMMAND …

runs in that job: it queues its successor, runs COMMAND until it ends or the job nearly does, and
takes the successor out of the queue if COMMAND ended by itself. To be killed does no harm: all that
was submitted goes on, and the successor attaches to it.
"""

import hashlib
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sft import slurm
from sft.environment import REPOSITORY
from sft.errors import SftError
from sft.files import write_text
from sft.launch import TEMPLATES
from sft.process import session_descendants
from sft.request import Request

MARGIN_S = 60.0  # before the job's end; less in a job of a few minutes
POLL_S = 2.0


def drive_name(profile: Path) -> str:
    """The name that the drivers of this folder and profile share: one of them runs at a time."""
    digest = hashlib.sha256(f"{Path.cwd()} {profile.resolve()}".encode()).hexdigest()[:8]
    return f"sft-drive-{digest}"


def submit_drive(profile: Path, request: Request, results: Path, arguments: Sequence[str]) -> str:
    """Submit a driver with snakemake's `arguments`, and return what to tell about it.

    `request` says where it runs and how long. Where one waits or runs already, that one stays.
    """
    name = drive_name(profile)
    folder = (results / "drive").resolve()
    script = folder / f"{name}.sbatch"
    try:
        if jobs := [job for job in slurm.read_queue(0).get(name, []) if job.is_active]:
            return _describe(results, name, jobs[0].id, f"{jobs[0].state.lower()} already")
        write_text(script, drive_text(name, profile, request, folder, arguments))
        job = slurm.submit(script, script.with_suffix(".jobs"), keep_secrets=True)
    except slurm.SlurmAway as error:
        raise SftError(f"Slurm does not answer, try again later: {error}") from None
    except SftError as error:
        meaning = slurm.explain(str(error))
        raise SftError(f"{script}: Slurm refuses the job: {error}\n{meaning}") from None
    return _describe(results, name, job, "submitted")


def _describe(results: Path, name: str, job: str, state: str) -> str:
    return (
        f"job {job}: {state}; it runs snakemake and renews itself until all is done\n"
        f"log     {results}/drive/{job}.log, and one for each job after it\n"
        f"stop    scancel --name={name}  (trainings go on; they have jobs of their own)"
    )


def drive_text(
    name: str, profile: Path, request: Request, folder: Path, arguments: Sequence[str]
) -> str:
    """The text of the driver's script, which lies in `folder` with its logs."""
    options = {
        "account": request.account,
        "partition": request.partition,
        "qos": request.qos,
        "gres": request.gres,
        "constraint": request.constraint,
        # Without, it may get all of its node's, and its own stages wait for a node in vain.
        "mem": f"{request.memory_mb}M" if request.memory_mb else "",
        "time": round(request.minutes or 0),
    }
    return TEMPLATES.get_template("drive.sbatch.j2").render(
        name=name,
        options=[
            *(f"--{key}={value}" for key, value in options.items() if value),
            *filter(None, [request.extra]),
        ],
        log=folder / "%j.log",
        python=shlex.quote(sys.executable),
        repository=shlex.quote(str(REPOSITORY)),
        folder=shlex.quote(str(Path.cwd())),
        script=shlex.quote(f"{folder}/{name}.sbatch"),
        snakemake=shlex.join(["-m", "snakemake", "--profile", str(profile), *arguments]),
    )


def main() -> int:
    """Run the command after `--` as the present link of a chain of drivers; its exit code."""
    script, command = Path(sys.argv[1]), sys.argv[3:]
    successor = _queue_successor(script)
    stop_s = _time_to_stop() if successor else math.inf
    child = subprocess.Popen(command, env=slurm.outside_of_jobs(os.environ), start_new_session=True)
    while (code := child.poll()) is None:
        time.sleep(POLL_S)
        if time.time() > stop_s:
            # Killed and not told to end: told, snakemake would wait for its jobs.
            for pid in [child.pid, *session_descendants(child.pid)]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            print(f"this job is about to end; job {successor} goes on", flush=True)
            return 0
    if successor:
        _cancel(successor)
    return code


def _queue_successor(script: Path) -> str | None:
    try:
        return slurm.submit(script, script.with_suffix(".jobs"), keep_secrets=True)
    except (SftError, slurm.SlurmAway) as error:
        print(f"no successor could be queued ({error}); start again when this ends", flush=True)
        return None


def _time_to_stop() -> float:
    """When the successor should go on, in seconds since 1970; never where no end is known."""
    try:
        end_s = slurm.end_time(os.environ["SLURM_JOB_ID"]) or math.inf
    except (SftError, slurm.SlurmAway) as error:
        print(f"the end of this job is not known: {error}", flush=True)
        return math.inf
    return end_s - min(MARGIN_S, (end_s - time.time()) / 4)


def _cancel(successor: str) -> None:
    try:
        slurm.cancel([successor])
    except (SftError, slurm.SlurmAway) as error:
        print(f"job {successor} will see that nothing is to be done: {error}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
