"""How far each experiment of a site is, by what lies on disk and by Slurm's queue.

No driver is asked and nothing is written: what is said here holds while no driver lives.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from sft.attempts import list_attempts, submitted_jobs
from sft.backends import BACKENDS
from sft.batch import derive_batch
from sft.catalog import Catalog, decisions_name, tokens_name
from sft.chain import may_go_on
from sft.endings import Kind
from sft.errors import SftError
from sft.experiment import Experiment
from sft.facts import Facts
from sft.files import parse_value
from sft.mfu import peak_tflops, utilisation
from sft.plan import mean_tokens
from sft.process import parse_process_id
from sft.progress import Progress, read_progress
from sft.receipt import read_receipt
from sft.sizes import read_size
from sft.slurm import Job, job_name

Queue = Mapping[str, Sequence[Job]]  # by name, as `slurm.read_queue` gives it

SILENT_S = 300.0  # without a step; more where a step or a save takes long
NO_LOG_S = 180.0  # a batch script makes its log when it starts
FRESH_S = 60.0  # the queue that is looked at may be older
EXPECTED = (Kind.COMPLETED, Kind.OUT_OF_TIME)  # endings that need no word
WAITING = "PENDING"
LOG_BYTES = 4 << 10  # of a stage's log, from its end
_OUTPUT = re.compile(r"^output_dir: (.+)$", re.MULTILINE)
_RECORD = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", re.MULTILINE)
_ESCAPE = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")

# What Slurm's reasons mean where waiting alone does not help; the first that fits counts.
REASONS = (
    ("DependencyNeverSatisfied", "never starts: what it waits for failed; cancel it, run again"),
    ("JobHeld", "held: scontrol release {id}"),
    (
        "PerJob|MaxWall|PartitionTimeLimit|PartitionNodeLimit|BadConstraints",
        "never starts: it asks for more than one job may have; correct the profile or the row",
    ),
    (
        "Invalid(QOS|Account)|AccountNotAllowed|QOSNotAllowed|PartitionDown|PartitionInactive",
        "does not start as things are: look at account, QOS and partition in the profile",
    ),
    (r"Grp\w*Minutes", "the budget of the account or QOS is used up"),
    ("ReqNodeNotAvail|Reserv|Maint", "nodes are reserved or down: maintenance, often"),
)


class Group(StrEnum):
    """What a person counts. An experiment counts once, however many jobs its chain has."""

    RUNNING = "running"
    WAITING = "waiting"
    TRAINED = "trained and not published"
    DONE = "done"
    STOPPED = "stopped"
    REFUSED = "refused"
    UNSTARTED = "not started"
    UNKNOWN = "not known"


class Stage(NamedTuple):
    """What a stage is called once it is done, and its receipts, each with the log of its rule."""

    word: str
    receipts: tuple[tuple[Path, Path], ...]


@dataclass(frozen=True)
class State:
    """An experiment as it stands.

    `jobs` are those of its run that Slurm still knows, ended ones too, or its process on this
    computer. `trained` is what training made, once it is over. `mfu` is the share of its GPUs'
    peak that recent steps used, 1 for all of it. `needs_care` is whether a person should look,
    `next_receipt` what a person would ask snakemake for.
    """

    experiment: Experiment
    run: Path
    stage: str = ""
    group: Group = Group.UNKNOWN
    notes: tuple[str, ...] = ()
    needs_care: bool = False
    checkpoints: Path | None = None
    jobs: tuple[Job, ...] = ()
    attempts: tuple[Mapping[str, Any], ...] = ()
    progress: Progress | None = None
    trained: Mapping[str, Any] = field(default_factory=dict)
    tokens_per_step: float | None = None
    mfu: float | None = None
    next_receipt: Path | None = None

    @property
    def active(self) -> list[Job]:
        """The jobs that wait or run, the one that runs first."""
        return sorted(
            (job for job in self.jobs if job.is_active), key=lambda job: job.state == WAITING
        )

    @property
    def running(self) -> Job | None:
        """The job that runs."""
        return next((job for job in self.active if job.state != WAITING), None)

    @property
    def last(self) -> Mapping[str, Any] | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second of all GPUs together, while it trains."""
        step_s = self.progress and self.progress.step_s
        is_known = self.stage == "training" and self.tokens_per_step and step_s
        return self.tokens_per_step / step_s if is_known else None

    @property
    def eta_s(self) -> float | None:
        """Seconds to the last step at the present pace, while it trains."""
        return self.progress.eta_s if self.group is Group.RUNNING and self.progress else None

    def say(self, *notes: str, care: bool = True) -> "State":
        """The same with further notes."""
        if not notes:
            return self
        lines = [note.replace("\n", "; ") for note in notes]
        return replace(self, notes=(*self.notes, *lines), needs_care=self.needs_care or care)


def read_states(
    catalog: Catalog,
    results: Path,
    queue: Queue | None,
    names: Iterable[str],
    now_s: float,
) -> list[State]:
    """The named experiments as they stand; `queue` is None where Slurm does not answer.

    What cannot be read is said in its line and keeps no other line from being shown.
    """
    look = _Look(catalog, results, queue, now_s)
    return [look.at(catalog.experiments[name]) for name in names]


class _Look:
    """One look at a results folder; each folder is listed once, each shared receipt read once."""

    def __init__(self, catalog: Catalog, results: Path, queue: Queue | None, now_s: float) -> None:
        self.site, self.results, self.queue, self.now_s = catalog.site, results, queue, now_s
        self.facts = Facts(catalog, results)
        self._listed: dict[Path, frozenset[str]] = {}

    def at(self, experiment: Experiment) -> State:
        state = State(experiment, self.results / "runs" / experiment.name)
        try:
            return self._judge(self._gather(state))
        except (SftError, OSError) as error:
            return replace(state, stage="?").say(f"cannot be read: {error}")

    def _has(self, path: Path) -> bool:
        folder = path.parent
        if folder not in self._listed:
            names = os.listdir(folder) if folder.is_dir() else []
            self._listed[folder] = frozenset(names)
        return path.name in self._listed[folder]

    # --- what there is ---------------------------------------------------------------------------

    def _gather(self, state: State) -> State:
        checkpoints = self._rendered(state.run)
        if not checkpoints:
            return state
        state = replace(state, checkpoints=checkpoints, jobs=self._jobs(checkpoints))
        receipt = state.run / "trained.json"
        trained = read_receipt(receipt) if self._has(receipt) else {}
        if trained and Path(trained["checkpoints"]).name == checkpoints.name:
            return replace(state, trained=trained, attempts=tuple(trained["attempts"]))
        attempts = tuple(list_attempts(checkpoints))
        state = replace(state, attempts=attempts, progress=read_progress(checkpoints))
        state = replace(state, jobs=state.jobs or _local_jobs(attempts, self.now_s))
        if not state.progress:
            return state
        state = replace(state, tokens_per_step=self._tokens_per_step(state.experiment))
        return replace(state, mfu=self._mfu(state))

    def _rendered(self, run: Path) -> Path | None:
        """The checkpoints that train.yaml names; while it is written anew, those trained last."""
        if self._has(run / "train.yaml"):
            found = _OUTPUT.search((run / "train.yaml").read_text(encoding="utf-8"))
            return Path(parse_value(found[1]))
        tried = (run / "checkpoints").glob("*/attempts.json")
        newest = max(tried, key=lambda path: path.stat().st_mtime, default=None)
        return newest and newest.parent

    def _jobs(self, checkpoints: Path) -> tuple[Job, ...]:
        return tuple(self.queue.get(job_name(checkpoints), ())) if self.queue else ()

    def _tokens_per_step(self, experiment: Experiment) -> float | None:
        if not self.facts.tokens_made(experiment):  # they were cleaned up
            return None
        recipe = BACKENDS[experiment.backend].read_recipe(experiment.config)
        mean = mean_tokens(self.facts.taking(experiment), recipe)
        return mean and mean * derive_batch(experiment, self.site).global_batch_size

    def _mfu(self, state: State) -> float | None:
        """Of recent steps of the newest attempt, on its own GPUs; None where not known.

        Adapters train less than a whole model: of them it is not told.
        """
        experiment, step_s = state.experiment, state.progress.attempt_step_s
        recipe = BACKENDS[experiment.backend].read_recipe(experiment.config)
        device = state.progress.device
        peak = (device and peak_tflops(device)) or self.site.gpu_tflops
        made = self.facts.model_made(experiment.model)
        size = made and read_size(Path(made["path"]))
        if not (peak and size and step_s and state.tokens_per_step) or recipe.layout == "lora":
            return None
        batch = derive_batch(experiment, self.site)
        length = state.tokens_per_step / batch.global_batch_size
        tokens_per_s = state.tokens_per_step / step_s
        world_size = state.progress.world_size or batch.world_size
        return utilisation(tokens_per_s, size, length, world_size, peak)

    # --- what it comes to ------------------------------------------------------------------------

    def _judge(self, state: State) -> State:
        wanted = self.facts.checkpoints(state.experiment)
        is_old = bool(wanted and state.checkpoints and wanted.name != state.checkpoints.name)
        ladder = list(self._ladder(state.experiment, state.run))
        rendered = next(place for place, stage in enumerate(ladder) if stage.word == "rendered")
        has_begun = bool(state.attempts or state.progress)
        if state.trained and not is_old:
            state = self._judge_publication(state, ladder[rendered + 1 :])
        elif not state.trained and (state.active or (has_begun and not is_old)):
            state = self._judge_run(state)
        elif is_old:
            state = self._judge_preparation(state, ladder[: rendered + 1])
        else:
            state = self._judge_preparation(state, ladder[: rendered + 2])
            state = self._judge_submission(state)
        if is_old:
            note = f"the row was changed since {state.checkpoints.name} was rendered"
            state = state.say(note, care=False)
        return state.say(*self._other_versions(state))

    def _ladder(self, experiment: Experiment, run: Path) -> Iterator[Stage]:
        """All stages of an experiment in their order."""
        model = self.results / "models" / experiment.model.name
        tokens = self.results / "tokens" / tokens_name(experiment)
        decisions = decisions_name(experiment)
        fetched = [(model / "fetched.json", model / "fetch_model.log")]
        if experiment.model.prepare:
            fetched.append((model / "prepared.json", model / "prepare_tokenizer.log"))
        for each in experiment.mix.datasets:
            folder = self.results / "datasets" / each.name
            fetched.append((folder / "fetched.json", folder / "fetch_dataset.log"))
        yield Stage("fetched", tuple(fetched))
        for word, receipt, log in (
            ("tokenized", tokens / "pretokenized.json", tokens / "pretokenize.log"),
            ("inspected", tokens / "inspected.json", tokens / "inspect_tokens.log"),
            (
                "checked",
                tokens / f"checked-{decisions}.json",
                tokens / f"check_tokens-{decisions}.log",
            ),
            ("rendered", run / "train.yaml", run / "logs" / "render.log"),
            ("trained", run / "trained.json", run / "logs" / "train.log"),
            ("laid out", run / "layout.json", run / "logs" / "detect_layout.log"),
            ("proven", run / "served.json", run / "logs" / "check_template.log"),
            ("released", run / "release.json", run / "logs" / "assemble_release.log"),
            ("uploaded", run / "uploaded.json", run / "logs" / "upload.log"),
        ):
            yield Stage(word, ((receipt, log),))
        if experiment.register:
            receipt, log = run / "registered.json", run / "logs" / "register.log"
            yield Stage("registered", ((receipt, log),))

    def _missing(self, stage: Stage) -> Path | None:
        """The first receipt that a stage lacks; None where it is done."""
        return next((receipt for receipt, _ in stage.receipts if not self._has(receipt)), None)

    # --- before and after training ---------------------------------------------------------------

    def _judge_preparation(self, state: State, ladder: Sequence[Stage]) -> State:
        """The state of an experiment whose stages up to the last of `ladder` are to be done."""
        done = [place for place, stage in enumerate(ladder[:-1]) if not self._missing(stage)]
        reached = max(done, default=-1)
        state = replace(
            state,
            stage=ladder[reached].word if done else "not fetched",
            group=Group.UNSTARTED,
            next_receipt=self._missing(ladder[reached + 1]),
        )
        words = self._last_words(ladder[: reached + 2])
        if words and ladder[reached + 1].word == "checked":
            state = replace(state, stage="refused", group=Group.REFUSED)
        return state.say(*words, care=state.group is Group.REFUSED)

    def _judge_publication(self, state: State, ladder: Sequence[Stage]) -> State:
        """The state of a trained experiment; `ladder` begins with training."""
        reached = next(
            (place for place, stage in enumerate(ladder[1:]) if self._missing(stage)),
            len(ladder) - 1,
        )
        state = replace(state, stage=ladder[reached].word, group=Group.DONE)
        if reached == len(ladder) - 1:
            return state
        missing = self._missing(ladder[reached + 1])
        state = replace(state, group=Group.TRAINED, next_receipt=missing)
        return state.say(*self._last_words(ladder[: reached + 2]), care=False)

    def _last_words(self, ladder: Sequence[Stage]) -> list[str]:
        """What the last stage of `ladder`, which is not done, said since those before it were."""
        *before, stage = ladder
        made_s = max(
            (each.stat().st_mtime for each, _ in before[-1].receipts) if before else (), default=0.0
        )
        for receipt, log in stage.receipts:
            if not self._has(receipt) and self._has(log):
                said_s, words = log.stat().st_mtime, last_words(log)
                if words and said_s >= made_s:
                    return [f"{log.stem}, {duration(self.now_s - said_s)} ago: {words}"]
        return []

    # --- while it trains -------------------------------------------------------------------------

    def _judge_run(self, state: State) -> State:
        state = replace(state, next_receipt=state.run / "trained.json")
        if state.running:
            return self._judge_running(replace(state, group=Group.RUNNING), state.running)
        if state.active:
            stage = "training" if state.attempts else "rendered"
            return _judge_waiting(replace(state, stage=stage, group=Group.WAITING), state.active[0])
        last, progress = state.last, state.progress
        if (progress and progress.stopped == "end") or (last and last["ending"] == Kind.COMPLETED):
            return replace(state, stage="trained", group=Group.TRAINED)
        if last is None or last["ending"] is None:
            return self._judge_unended(state)
        return self._judge_ended(state)

    def _judge_running(self, state: State, job: Job) -> State:
        """The state of a run whose job runs: from a silent node to a training that makes steps."""
        last, progress = state.last, state.progress
        elapsed_s = slurm_seconds(job.elapsed) or 0.0
        if not last or last["job_id"] != (job.id if job.name else None):
            state = replace(state, stage=f"starting {duration(elapsed_s)}")
            log = state.run / "logs" / f"slurm-{job.id}.log"
            if elapsed_s < NO_LOG_S or self._has(log):
                return state
            return state.say(
                f"RUNNING for {duration(elapsed_s)} without any log: its nodes ({job.nodes}) may "
                f"hang before the script begins; scancel {job.id}, and name them in bad_nodes"
            )
        if last["ending"]:
            return replace(state, stage="ending")
        started_s = timestamp(last["started"])
        if not progress or (progress.begun_s or 0.0) < started_s:
            return replace(state, stage=f"loading {duration(self.now_s - started_s)}")
        state = replace(state, stage="training")
        silent_s = self.now_s - progress.last_sign_s
        return state.say(*[f"no step for {duration(silent_s)}"] * (silent_s > _patience(progress)))

    def _judge_unended(self, state: State) -> State:
        """The state of a run without a job that is known, whose last attempt has no ending."""
        last, progress = state.last, state.progress
        silent_s = self.now_s - progress.last_sign_s if progress else None
        if not self._sees_end(last):
            if progress and silent_s < _patience(progress) and not progress.stopped:
                return replace(state, stage="training", group=Group.RUNNING)
            where = _place(last) if last else "no attempt is written down: started by hand?"
            sign = f"no step for {duration(silent_s)}" if progress else "no step yet"
            return replace(state, stage="training").say(f"{sign}; {where}")
        if self.now_s - timestamp(last["started"]) < FRESH_S:  # the queue is older than its job
            return replace(state, stage="starting", group=Group.RUNNING)
        state = replace(state, stage="stopped", group=Group.STOPPED)
        return state.say(
            f"{_gone(last['job_id'], state.jobs)} and left no ending; the next start finds out why"
        )

    def _sees_end(self, attempt: Mapping[str, Any] | None) -> bool:
        """Whether an attempt is known to be over where no job of it is found."""
        if attempt is None:
            return False
        if attempt["launcher"] == "slurm":
            return self.queue is not None
        process = parse_process_id(attempt["id"])
        return bool(process and process.is_here)

    def _judge_ended(self, state: State) -> State:
        """The state of a run without a job that is known, whose last attempt said how it ended."""
        last, attempts = state.last, state.attempts
        saved_step = state.progress and state.progress.saved_step
        decision = may_go_on(attempts, complete=False, next_from=saved_step or 0)
        state = state.say(f"{_words(last['ending'])}: {last['text']}")
        newer = set(submitted_jobs(state.checkpoints)[-1:]) - {each["job_id"] for each in attempts}
        if decision.go and self.queue is None and newer:
            return replace(state, stage="training").say(f"job {newer.pop()} was to go on")
        state = replace(state, stage="stopped", group=Group.STOPPED)
        if decision.go:
            return state.say("no job waits to go on; snakemake submits one")
        return state.say(decision.text) if last["retry"] else state

    def _judge_submission(self, state: State) -> State:
        """The state of a rendered experiment, of whose job nothing is seen if it has one."""
        record = state.checkpoints and state.checkpoints / "jobs"
        if not record or not record.exists():
            return state
        job_id = submitted_jobs(state.checkpoints)[-1]
        if self.queue is None or self.now_s - record.stat().st_mtime < FRESH_S:
            group, note = Group.UNKNOWN, f"job {job_id} was submitted"
        else:
            group = Group.STOPPED
            note = f"{_gone(job_id, state.jobs)} and never began"
        return replace(state, group=group, notes=()).say(note, care=group is Group.STOPPED)

    def _other_versions(self, state: State) -> Iterator[str]:
        """A line for each job that still trains what the row said once."""
        if not self.queue or not self._has(state.run / "checkpoints"):
            return
        for folder in (state.run / "checkpoints").iterdir():
            if not state.checkpoints or folder.name != state.checkpoints.name:
                active = [job for job in self._jobs(folder) if job.is_active]
                for job in active:
                    yield (
                        f"job {job.id} ({job.state}) trains {folder.name}, an earlier version of "
                        f"the row: scancel {job.id}"
                    )


def _judge_waiting(state: State, job: Job) -> State:
    hint = next((hint for pattern, hint in REASONS if re.search(pattern, job.reason)), None)
    if hint:
        state = state.say(hint.format(id=job.id))
    last = state.last
    if not last or last["ending"] in EXPECTED:
        return state
    if last["ending"] is None:
        return state.say(f"{_gone(last['job_id'], state.jobs)} and left no ending yet", care=False)
    return state.say(f"after {_words(last['ending'])}: {last['text']}", care=False)


def _words(ending: str) -> str:
    return ending.replace("_", " ")


def _gone(job_id: str | None, jobs: Iterable[Job]) -> str:
    """What is known of the end of a job, or of a process of this computer."""
    if job_id is None:
        return "its process is gone"
    states = [job.state for job in jobs if job.id == job_id and not job.is_active]
    return f"job {job_id} ended as {states[0]}" if states else f"job {job_id} is gone from Slurm"


def _place(attempt: Mapping[str, Any]) -> str:
    """Where to look for an attempt of which nothing can be known here."""
    if attempt["job_id"]:
        return f"its job is {attempt['job_id']}"
    return f"it trains at {attempt['nodes'][0]}, or did: look there"


def _local_jobs(attempts: Sequence[Mapping[str, Any]], now_s: float) -> tuple[Job, ...]:
    """The process of this computer that trains, in the form of a job."""
    last = attempts[-1] if attempts else None
    if not last or last["launcher"] != "local" or last["ending"]:
        return ()
    process = parse_process_id(last["id"])
    if not (process and process.is_here and process.runs()):
        return ()
    elapsed = clock(now_s - timestamp(last["started"]))
    job_id = f"process {process.pid}"
    return (Job(job_id, name="", state="RUNNING", nodes=process.host, elapsed=elapsed),)


def _patience(progress: Progress) -> float:
    """Seconds without a sign of life after which a training may hang."""
    return max(SILENT_S, 5 * (progress.step_s or 0), 2 * (progress.save_s or 0))


def last_words(log: Path) -> str:
    """The last thing that a stage said in its log, in a line; "" where it said nothing.

    Of a traceback that is its last line, of what the trainer prints without a time too.
    """
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_BYTES))
        text = file.read().decode(errors="replace").replace("\r", "\n").strip()
    records = [text[found.end() :] for found in _RECORD.finditer(text)]
    lines = (records[-1] if records else text).strip().splitlines()
    if not lines:
        return ""
    is_message = records and not lines[0].startswith("Traceback")
    return printable(lines[0 if is_message else -1]).strip()


def printable(text: str) -> str:
    """A line of a log without what would change the colours or the place of a terminal."""
    return "".join(each for each in _ESCAPE.sub("", text) if each.isprintable())


def timestamp(text: str) -> float:
    """Seconds since 1970 of a time as receipts and attempts write it."""
    return datetime.fromisoformat(text).timestamp()


def slurm_seconds(text: str) -> float | None:
    """The seconds of a time as Slurm writes it ([[days-]hours:]minutes:seconds); else None."""
    found = _TIME.fullmatch(text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def clock(seconds: float) -> str:
    """Seconds in Slurm's notation."""
    minutes, seconds = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hours:02}:{minutes:02}:{seconds:02}"


def duration(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 12 min, 3 h 12 min, 2 d 4 h."""
    minutes = round(max(0.0, seconds) / 60)
    if seconds < 100:
        return f"{max(0.0, seconds):.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
