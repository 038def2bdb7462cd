"""Slurm's commands. Silence is no answer: where Slurm does not answer, `SlurmAway` is raised."""

import fcntl
import getpass
import hashlib
import os
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from io import FileIO
from pathlib import Path

from sft.attempts import submitted_jobs
from sft.commands import ASK_S, NOT_FOUND, TIMED_OUT, Answer, ask
from sft.environment import without_secrets
from sft.errors import SftError
from sft.rejection import (
    SHOW_ASSOCIATIONS,
    SHOW_RESERVATIONS,
    explain_rejection,
    is_silence,
)
from sft.slurm_text import read_facts, read_settings, read_table

QUEUE_AGE_S = 20.0  # one squeue in this time for all runs that a driver follows
WAIT_S = 5.0
SHOWN = 300  # characters of what is no answer
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
    *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
}
_FIELDS = {
    "id": "%i",
    "state": "%T",
    "reason": "%r",
    "nodes": "%N",
    "start": "%S",
    "end": "%e",
    "time_left": "%L",
    "time_limit": "%l",
    "elapsed": "%M",
    "name": "%j",  # the last, since it may hold anything
}
SHOW_QUEUE = ("squeue", "--me", "--states=all", f"--format={'|'.join(_FIELDS.values())}")

# The id is the last word: sites' own sbatch says more before. What is written to a driver that was
# killed meanwhile (the id, or words of the site on standard error) must end nothing; one that tires
# of waiting ends its own process group, which set -m keeps sbatch out of. What bash says of the end
# of such a job is nobody's answer.
_SUBMIT = """
trap '' PIPE
set -m
record=$1
shift
(
  said=$("$@") || exit
  id=${said##*[[:space:]]} id=${id%%;*}
  [[ $id =~ ^[0-9]+$ ]] || { printf '%s' "$said" >&2; exit 1; }
  printf '%s\\n' "$id" >> "$record" && printf '%s\\n' "$id"
) & { set +m; wait $!; exit; } 2> /dev/null
"""


class SlurmAway(Exception):
    """Slurm did not answer; its text is what the command said."""


@dataclass(frozen=True)
class Job:
    """A job of this user as squeue shows it: times in Slurm's notation, "" or N/A if unknown."""

    id: str
    name: str
    state: str
    reason: str = ""
    nodes: str = ""
    start: str = ""
    end: str = ""
    time_left: str = ""
    time_limit: str = ""
    elapsed: str = ""

    @property
    def is_active(self) -> bool:
        """Whether it waits or runs."""
        return self.state not in ENDED


@dataclass(frozen=True)
class End:
    """How Slurm says that a job ended, on which nodes, in its notation."""

    state: str
    exit_code: int | None = None
    nodes: str = ""


def job_name(checkpoints: Path) -> str:
    """The name that all jobs of a run share, and no other run's: Slurm never runs two of them."""
    digest = hashlib.sha256(str(checkpoints.resolve()).encode()).hexdigest()[:8]
    return f"sft-{checkpoints.parents[1].name}-{digest}"


def read_queue(max_age_s: float = QUEUE_AGE_S) -> dict[str, list[Job]]:
    """This user's jobs by name, oldest first, those that ended minutes ago among them.

    All processes of the user on this host share an answer that was asked for at most `max_age_s`
    before, silence too. Raises SlurmAway where squeue does not answer.
    """
    oldest_s = time.time() - max_age_s
    with open(_cache_file(), "ab+", buffering=0) as cache:
        fcntl.flock(cache, fcntl.LOCK_EX)
        asked_s = os.fstat(cache.fileno()).st_mtime
        cache.seek(0)
        text = cache.read().decode(errors="replace")
        if not text or not oldest_s <= asked_s <= time.time():
            text = _ask_for_queue(cache)
    return parse_queue(text)


def _ask_for_queue(cache: FileIO) -> str:
    """What squeue says now, or why it says nothing; it is kept, with the time of the question."""
    asked_s = time.time()
    try:
        text = _run(SHOW_QUEUE) or "squeue printed nothing"
    except SlurmAway as error:
        text = str(error)
    with suppress(OSError):  # the disk may be full
        cache.truncate(0)
        if cache.write(text.encode()) < len(text.encode()):
            cache.truncate(0)
        os.utime(cache.fileno(), (asked_s, asked_s))
    return text


def jobs_of_run(checkpoints: Path, max_age_s: float = QUEUE_AGE_S) -> list[Job]:
    """The jobs of a run in the queue, oldest first: by name, or submitted for it.

    A job keeps the name that it was submitted with, and a folder that was moved has another.
    """
    name, submitted = job_name(checkpoints), set(submitted_jobs(checkpoints))
    alike = name.rpartition("-")[0]
    jobs = (
        job
        for each, jobs in read_queue(max_age_s).items()
        if each.rpartition("-")[0] == alike
        for job in jobs
        if each == name or job.id in submitted
    )
    return sorted(jobs, key=lambda job: _number(job.id))


def _cache_file() -> Path:
    """A file of this user, host and Slurm, in the host's own temporary folder: it has locks."""
    folder = Path(tempfile.gettempdir()) / f"sft-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise SftError(f"{folder}: belongs to another user; set TMPDIR to a folder of your own")
    cluster = hashlib.sha256(os.environ.get("SLURM_CONF", "").encode()).hexdigest()[:8]
    return folder / f"queue-{cluster}"


def parse_queue(text: str) -> dict[str, list[Job]]:
    """The jobs that squeue printed, by name; SlurmAway where its line of titles is missing."""
    jobs = defaultdict(list)
    for line in _rows("JOBID|STATE|", text):
        values = line.split("|", len(_FIELDS) - 1)
        if len(values) == len(_FIELDS):  # else it is the rest of a name with a line feed
            job = Job(**dict(zip(_FIELDS, values, strict=True)))
            jobs[job.name].append(job)
    return {name: sorted(each, key=lambda job: _number(job.id)) for name, each in jobs.items()}


def _rows(titles: str, text: str) -> list[str]:
    """The lines below the titles that begin so; SlurmAway where those are missing."""
    rows = read_table(text, titles)
    if rows is None:
        raise SlurmAway(text.strip()[:SHOWN] or "an empty answer")
    return rows


def _number(job_id: str) -> int:
    return int(re.match(r"\d*", job_id)[0] or 0)


def submit(
    script: Path,
    record: Path,
    arguments: Iterable[str] = (),
    exclude: str = "",
    keep_secrets: bool = False,
) -> str:
    """Submit a script, and return the job's id; it is a line of the file `record` by then.

    Another process writes the line: it does so even if this one is killed, or tired of waiting,
    while sbatch works. With `keep_secrets`, a script that exports them by name gets them. Raises
    SftError with Slurm's words where it refuses, and SlurmAway where it does not answer: the job
    may then be in the queue all the same.
    """
    command = ["sbatch", "--parsable"]
    if exclude:
        command.append(f"--exclude={exclude}")
    command += [str(script), *arguments]
    variables = dict(os.environ) if keep_secrets else without_secrets()
    return _run(["bash", "-c", _SUBMIT, "submit", str(record), *command], variables).strip()


def explain(refusal: str) -> str:
    """What Slurm's refusal of a job means, and what to do, by what Slurm says now."""
    settings = read_settings(ask_slurm("scontrol", "show", "config").output)
    associations = ask_slurm(*associations_command(settings.get("ClusterName")))
    return explain_rejection(refusal, ask_slurm(*SHOW_RESERVATIONS).output, associations.output)


def associations_command(cluster: str | None) -> list[str]:
    """What asks for this user's accounts on a cluster; on all of them where None is known."""
    command = [*SHOW_ASSOCIATIONS, f"user={getpass.getuser()}"]
    return [*command, f"cluster={cluster}"] if cluster else command


def cancel(job_ids: Sequence[str]) -> None:
    """Cancel jobs of this user; those that have ended are left alone."""
    if job_ids:
        _run(["scancel", *job_ids])


def ask_end(job_id: str) -> End | None:
    """How a job ended, by the controller or the accounting; None where neither knows the job.

    Raises SlurmAway where the one that would know does not answer.
    """
    try:
        text = _run(["scontrol", "--oneliner", "show", "job", job_id])
    except SftError:  # the controller forgets a job minutes after its end
        return _ask_accounting(job_id)
    facts = read_facts(text)
    if "JobState" not in facts:
        raise SlurmAway(text.strip()[:SHOWN] or "scontrol printed nothing")
    # A job that leaves by itself in the time of grace that a preemption gives ends as another one.
    is_preempted = facts.get("PreemptTime", "None") != "None"
    return End(
        state="PREEMPTED" if is_preempted else facts["JobState"],
        exit_code=_exit_code(facts.get("ExitCode", "")),
        nodes=facts.get("NodeList", "").replace("(null)", ""),
    )


def _ask_accounting(job_id: str) -> End | None:
    command = ["sacct", "-X", "-P", "-D", "-j", job_id, "-o", "State,ExitCode,NodeList"]
    try:
        rows = _rows("State|", _run(command))
    except SftError as error:
        if "accounting storage is disabled" in str(error):
            return None
        raise
    if not rows:
        return None
    state, code, nodes = rows[-1].split("|")
    return End(state, _exit_code(code), nodes.replace("None assigned", ""))


def down_nodes(notation: str) -> list[str]:
    """Which of the nodes that a notation stands for do not work now."""
    if not notation:
        return []
    command = ["sinfo", "--noheader", "-N", f"--nodes={notation}", "--format=%N %t"]
    states = (line.split() for line in _run(command).splitlines())
    return sorted({node for node, state in states if state.startswith(("down", "drain", "fail"))})


def _exit_code(text: str) -> int | None:
    """The exit code in Slurm's `code:signal`, negative for a signal."""
    code, _, number = text.partition(":")
    if not code.isdigit():
        return None
    return -int(number) if number.isdigit() and int(number) else int(code)


def end_time(job_id: str) -> float | None:
    """When Slurm will end a running job, in seconds since 1970; None where it sets no end."""
    times = _rows("END_TIME", _run(["squeue", f"--jobs={job_id}", "--format=%e"]))
    try:
        return datetime.fromisoformat(times[0]).timestamp() if times else None
    except ValueError:  # N/A
        return None


def jobs_of_snakemake(folder: Path) -> dict[str, str]:
    """The waiting and running jobs that a snakemake in `folder` submitted: ids and what they do.

    The executor names each by a comment, rule_<rule>_wildcards_<values>.
    """
    rows = _rows("JOBID|", _run(["squeue", "--me", "--format=%i|%Z|%k"]))
    jobs = [row.split(f"|{folder}|rule_", 1) for row in rows]
    return {job[0]: job[1].replace("_wildcards_", " ") for job in jobs if len(job) == 2}


def wait_for_jobs(folder: Path, say: Callable[[str], None]) -> None:
    """Wait until the jobs that a snakemake left when it was killed are over, and say so.

    The next one would submit them again beside those that still work.
    """
    said = ""
    while True:
        try:
            jobs = jobs_of_snakemake(folder)
        except SlurmAway as error:
            sentence = f"Slurm does not answer: {error}"
        else:
            if not jobs:
                return
            named = ", ".join(f"{job_id} ({what})" for job_id, what in jobs.items())
            sentence = f"waiting for jobs that a snakemake left here when it was killed: {named}"
        if sentence != said:
            say(sentence)
        said = sentence
        time.sleep(WAIT_S)


def list_nodes(notation: str) -> list[str]:
    """The names that a notation such as n[01-03,7] stands for."""
    if not notation:
        return []
    names = _run(["scontrol", "show", "hostnames", notation]).split()
    if not names:
        raise SlurmAway("scontrol printed nothing")
    return names


def _run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    """What a command prints; SftError where it says no, SlurmAway where it gets no answer."""
    answer = ask_slurm(*command, variables=variables)
    if answer.code == 0:
        return answer.output
    if answer.code == TIMED_OUT or is_silence(answer.said) or not answer.errors.strip():
        raise SlurmAway(answer.said)
    where = "; is this a node of a Slurm cluster?" if answer.code == NOT_FOUND else ""
    raise SftError(f"{answer.said}{where}")


def ask_slurm(*command: str, text: str = "", variables: Mapping[str, str] | None = None) -> Answer:
    """The answer of one of Slurm's commands, as given outside of jobs; it reads `text`.

    It sees this process's environment without secrets, or `variables`.
    """
    seen = outside_of_jobs(without_secrets() if variables is None else variables)
    return ask(*command, env=seen, text=text, timeout_s=ASK_S)


def outside_of_jobs(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables without those of a job, which new jobs would inherit.

    What a person set to change what Slurm's commands ask or print goes too.
    """
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    dropped = (
        *("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_"),
        *("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_"),
    )
    return {
        key: value for key, value in variables.items() if key in kept or not key.startswith(dropped)
    }
