"""Snakemake as a small Slurm job that renews itself, for login nodes that end what lives long.

    python -m sft.drive -- COMMAND …

runs in that job: it queues its successor, runs COMMAND until it ends or the job nearly does, and
takes the successor out of the queue if COMMAND ended by itself. To be killed does no harm: all that
was submitted goes on, and the successor attaches to it.
"""

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sft import slurm
from sft.environment import REPOSITORY
from sft.errors import SftError
from sft.files import write_text
from sft.launch import TEMPLATES
from sft.process import session_descendants
from sft.request import Request

MARGIN_S = 60.0  # before the job's end
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
    if jobs := [job for job in slurm.read_queue(0).get(name, []) if job.is_active]:
        return _describe(results, [job.id for job in jobs], f"{jobs[0].state.lower()} already")
    folder = (results / "drive").resolve()
    script = folder / f"{name}.sbatch"
    write_text(script, drive_text(name, profile, request, folder, arguments))
    try:
        job = slurm.submit(script, script.with_suffix(".jobs"), keep_secrets=True)
    except SftError as error:
        meaning = slurm.explain(str(error))
        raise SftError(f"{script}: Slurm refuses the job: {error}\n{meaning}") from None
    return _describe(results, [job], "submitted")


def _describe(results: Path, jobs: Sequence[str], state: str) -> str:
    return (
        f"job {' '.join(jobs)}: {state}; it runs snakemake and renews itself until all is done\n"
        f"log     {results}/drive/{jobs[0]}.log\n"
        f"stop    scancel {' '.join(jobs)}  (trainings go on; they have jobs of their own)"
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
    job_id = os.environ["SLURM_JOB_ID"]
    successor = _queue_successor(script)
    end_s = slurm.end_time(job_id)
    child = subprocess.Popen(command, env=slurm.outside_of_jobs(os.environ), start_new_session=True)
    while (code := child.poll()) is None:
        time.sleep(POLL_S)
        if end_s and time.time() > end_s - MARGIN_S and successor:
            # Killed and not told to end: told, snakemake would cancel its jobs.
            for pid in [*session_descendants(child.pid), child.pid]:
                os.kill(pid, signal.SIGKILL)
            print(f"this job is about to end; job {successor} goes on", flush=True)
            return 0
    if successor:
        slurm.cancel([successor])
    return code


def _queue_successor(script: Path) -> str | None:
    try:
        return slurm.submit(script, script.with_suffix(".jobs"), keep_secrets=True)
    except (SftError, slurm.SlurmAway) as error:
        print(f"no successor could be queued ({error}); start again when this ends", flush=True)
        return None


if __name__ == "__main__":
    sys.exit(main())
