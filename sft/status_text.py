"""How far experiments are, as a person reads it: a line an experiment, or a page of it."""

import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from sft.attempts import list_attempts
from sft.catalog import Catalog
from sft.gate.preview import wants_color
from sft.plan_text import plain, short
from sft.progress import Progress, read_events
from sft.receipt import read_receipt
from sft.site import Site
from sft.slurm import Job
from sft.status import (
    EXPECTED,
    WAITING,
    Group,
    Queue,
    State,
    duration,
    printable,
    read_states,
    slurm_seconds,
    timestamp,
)

BARS = "▁▂▃▄▅▆▇█"
BARS_SHOWN = 60
LEAST_WATCH_S = 5.0
NOTE = "note"
INDENT = "    "
# What a narrow terminal leaves out, first things first.
SPARE = ("next job", "restarts", "grad norm", "checkpoint", "tokens/s", "time", "loss")
QUIET = (Group.DONE, Group.UNSTARTED)  # left out first where lines are few
GOOD, BAD, CARE, DIM = "32", "31", "33", "2"
COLOURS = {
    Group.RUNNING: GOOD,
    Group.STOPPED: BAD,
    Group.REFUSED: BAD,
    Group.UNKNOWN: CARE,
    Group.UNSTARTED: DIM,
}


@dataclass(frozen=True)
class Screen:
    """What is written to: columns and lines, None where there are as many as one likes."""

    width: int | None = None
    height: int | None = None
    color: bool = False


def screen_of(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Screen:
    """The terminal behind a stream as it is now, or a pipe; text may scroll off at its top."""
    if not stream.isatty():
        return Screen()
    return Screen(shutil.get_terminal_size().columns, None, wants_color(stream, environment))


def watch(
    draw: Callable[[Screen], str], every_s: float = 30.0, stream: TextIO | None = None
) -> None:
    """Show what `draw` gives, anew every `every_s` seconds until Ctrl-C; in a pipe, once.

    `stream` is the standard output if it is not given.
    """
    stream = stream or sys.stdout
    if not stream.isatty():
        print(draw(screen_of(stream)), file=stream)
        return
    every_s = max(every_s, LEAST_WATCH_S)
    try:
        while True:
            lines = shutil.get_terminal_size().lines
            text = draw(replace(screen_of(stream), height=lines - 3))
            text += f"\n{datetime.now():%H:%M:%S}, again every {every_s:g} s until Ctrl-C"
            erased = text.replace("\n", "\x1b[K\n")
            stream.write(f"\x1b[H{erased}\x1b[K\n\x1b[J")
            stream.flush()
            time.sleep(every_s)
    except KeyboardInterrupt:
        stream.write("\n")


def status_text(
    catalog: Catalog,
    results: Path,
    queue: Queue | None,
    names: Sequence[str],
    in_full: bool,
    screen: Screen,
) -> str:
    """The named experiments as they stand now, a page each or a table of them.

    `queue` is this user's jobs by name, None where Slurm does not answer.
    """
    now_s = time.time()
    states = read_states(catalog, results, queue, names, now_s)
    silence = []
    if queue is None and catalog.site.launcher == "slurm":
        silence.append("Slurm does not answer; jobs' states are missing")
    if in_full:
        pages = (status_page(each, catalog.site, now_s) for each in states)
        return "\n\n".join([*pages, *silence])
    return "\n".join([*status_lines(states, now_s, screen), *silence])


def status_lines(states: Sequence[State], now_s: float, screen: Screen) -> list[str]:
    """A table with a line for each experiment, and what they sum up to.

    In a pipe the notes are a column, for grep. A terminal gets them below their experiment, and no
    line that is wider than it is; where it is too low, what needs nobody is left out first.
    """
    rows = [_row(each, now_s) for each in states]
    titles, *lines = _fit_width(rows, screen.width) if rows else [""]
    blocks = [
        (state, [_paint(line, state, screen), *_below(state, screen)])
        for state, line in zip(states, lines, strict=True)
    ]
    shown = list(_fit_height(blocks, screen.height))
    return [*filter(None, [titles]), *shown, sum_up(states)]


def _fit_height(blocks: list[tuple[State, list[str]]], height: int | None) -> Iterator[str]:
    """The lines of all experiments, or of those that a person wants to see first."""
    room = math.inf if height is None else height - 3  # of titles, of the rest, of the sum
    if sum(len(lines) for _, lines in blocks) > room:
        blocks = sorted(blocks, key=lambda block: block[0].group in QUIET)
    for number, (_, lines) in enumerate(blocks):
        room -= len(lines)
        if room < 0:
            yield f"… and {len(blocks) - number} more"
            return
        yield from lines


def sum_up(states: Sequence[State]) -> str:
    """How many experiments there are of each group."""
    counts = {group: sum(state.group is group for state in states) for group in Group}
    parts = [f"{count} {group}" for group, count in counts.items() if count]
    number = "1 experiment" if len(states) == 1 else f"{len(states)} experiments"
    return ": ".join([number, *filter(None, [", ".join(parts)])])


def _row(state: State, now_s: float) -> dict[str, str]:
    progress, job = state.progress, next(iter(state.active), None)
    return {
        "experiment": state.experiment.name,
        "stage": state.stage,
        "step": _step(state),
        "loss": _number(state.trained.get("loss_end") or (progress and progress.loss), ".4f"),
        "grad norm": _number(progress and progress.grad_norm, ".3g"),
        "tokens/s": short(state.tokens_per_s) if state.tokens_per_s else "",
        "ETA": _eta(state),
        "restarts": str(len(state.attempts) - 1) if len(state.attempts) > 1 else "",
        "checkpoint": _checkpoint(state, now_s),
        "job": _job(job) if job else "",
        "time": _job_time(job) if job else "",
        "next job": ", ".join(each.id for each in state.active[1:]),
        NOTE: "; ".join(state.notes),
    }


def _step(state: State) -> str:
    if state.trained:
        return f"{state.trained['global_step']}/{state.trained['max_steps']}"
    progress = state.progress
    if not progress:
        return ""
    return f"{progress.step}/{progress.max_steps} {_share(progress)}"


def _share(progress: Progress) -> str:
    return f"{100 * progress.step // progress.max_steps} %"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _eta(state: State) -> str:
    """The time to the last step, and how many more jobs that needs."""
    if state.eta_s is None:
        return ""
    jobs = _more_jobs(state)
    return duration(state.eta_s) + (f", +{jobs} job{'s' if jobs > 1 else ''}" if jobs else "")


def _more_jobs(state: State) -> int:
    """How many jobs have to follow the one that runs."""
    job = state.running
    left_s = slurm_seconds(job.time_left) if job else None
    limit_s = slurm_seconds(job.time_limit) if job else None
    if not left_s or not limit_s:
        return 0
    return math.ceil(max(0.0, state.eta_s - left_s) / limit_s)


def _checkpoint(state: State, now_s: float) -> str:
    progress = state.progress
    if not progress or progress.saved_step is None:
        return ""
    return f"{progress.saved_step}, {duration(now_s - progress.saved_at_s)} ago"


def _job(job: Job) -> str:
    reason = f" ({job.reason})" if job.state == WAITING else ""
    return f"{job.id} {job.state}{reason}"


def _job_time(job: Job) -> str:
    """How long a job runs, or when it starts if Slurm has a plan for it."""
    if job.state != WAITING:
        limit = f" of {job.time_limit}" if slurm_seconds(job.time_limit) else ""
        return f"{job.elapsed}{limit}"
    try:
        return f"starts {datetime.fromisoformat(job.start):%m-%d %H:%M}"
    except ValueError:
        return ""


# --- the table on a terminal ---------------------------------------------------------------------


def _fit_width(rows: Sequence[Mapping[str, str]], width: int | None) -> list[str]:
    """The lines of a table: without columns that are empty, on a terminal no wider than it.

    There, names lose their middle, columns go, the spare ones first, and what is too wide is cut.
    """
    columns = [title for title in rows[0] if any(row[title] for row in rows)]
    if width is None:
        return _table(rows, columns)
    rows = [
        {
            **row,
            "experiment": _squeeze(row["experiment"], width // 3),
            "job": _squeeze(row["job"], width // 5),
        }
        for row in rows
    ]
    columns = [title for title in columns if title != NOTE]
    for spare in (None, *SPARE):
        columns = [title for title in columns if title != spare]
        if len(max(lines := _table(rows, columns), key=len)) <= width:
            return lines
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def _table(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> list[str]:
    """A line of titles, and one for each row."""
    widths = [max(len(title), *(len(row[title]) for row in rows)) for title in columns]
    cells = [columns, *([row[title] for title in columns] for row in rows)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]


def _below(state: State, screen: Screen) -> list[str]:
    """The notes of an experiment for a terminal, below its line."""
    if screen.width is None:
        return []
    folded = [
        textwrap.wrap(note, screen.width, initial_indent=INDENT, subsequent_indent=2 * INDENT)
        for note in state.notes
    ]
    return [_paint(line, state, screen) for lines in folded for line in lines]


def _squeeze(text: str, width: int) -> str:
    """A text without its middle where it is wider."""
    if len(text) <= width:
        return text
    tail = width // 2
    return f"{text[: width - tail - 1]}…{text[len(text) - tail :]}"


def _paint(line: str, state: State, screen: Screen) -> str:
    code = COLOURS.get(state.group)
    if state.needs_care and code != BAD:
        code = CARE
    return f"\x1b[{code}m{line}\x1b[0m" if code and screen.color else line


# --- a page --------------------------------------------------------------------------------------


def status_page(state: State, site: Site, now_s: float) -> str:
    """All that is known of one experiment, and what to type next."""
    tried = list_attempts(state.checkpoints) if state.checkpoints else []
    group = "" if state.stage == state.group else f" ({state.group})"
    lines = [f"{state.experiment.name} ({state.experiment.where})"]
    for title, texts in (
        ("stage", [f"{state.stage}{group}", *state.notes]),
        ("jobs", map(_job_in_full, state.active)),
        ("steps", _steps(state, now_s)),
        ("loss", _losses(state)),
        ("attempts", _attempts(tried, now_s)),
        ("log says", _telling_lines(tried)),
        ("files", _files(state, tried)),
        ("type", _commands(state, site, tried)),
    ):
        lines += [
            f"  {title if not number else '':<10} {each}" for number, each in enumerate(texts)
        ]
    return "\n".join(lines)


def _job_in_full(job: Job) -> str:
    nodes = f"on {job.nodes}" if job.nodes else ""
    return " ".join(filter(None, [_job(job), _job_time(job), nodes]))


def _steps(state: State, now_s: float) -> Iterator[str]:
    progress = state.progress
    if state.trained:
        yield f"{state.trained['global_step']} of {state.trained['max_steps']}"
    if not progress:
        return
    parts = [f"{progress.step} of {progress.max_steps} ({_share(progress)})"]
    if progress.step_s:
        parts.append(f"{plain(progress.step_s)} s a step")
    if state.tokens_per_s:
        parts.append(f"{short(state.tokens_per_s)} tokens/s")
    if state.tokens_per_s and state.mfu:
        parts.append(f"{state.mfu:.0%} of the GPUs' peak")
    if state.eta_s is not None:
        parts.append(f"{duration(state.eta_s)} left")
    yield ", ".join(parts)
    if state.eta_s is not None and _more_jobs(state):
        left_s = slurm_seconds(state.running.time_left)
        yield f"its job ends before, in {duration(left_s)}; the next one goes on"
    if progress.begun_s:
        age = duration(now_s - progress.begun_s)
        yield f"the newest attempt began {age} ago at step {progress.begun_step}"
    if progress.saved_step is not None:
        age = duration(now_s - progress.saved_at_s)
        yield f"checkpoint-{progress.saved_step}, {age} ago; a save takes {progress.save_s:.0f} s"
    yield f"last sign of life {duration(now_s - progress.last_sign_s)} ago"


def _losses(state: State) -> Iterator[str]:
    """The newest numbers, and the whole curve and its end in bars."""
    progress = state.progress
    if progress and progress.loss is not None:
        yield (
            f"{progress.loss:.4f}, grad norm {_number(progress.grad_norm, '.3g') or '?'}, "
            f"learning rate {_number(progress.learning_rate, '.3g') or '?'}"
        )
    losses = _logged(state)
    if len(losses) > BARS_SHOWN:
        yield _curve(losses)
    if losses:
        yield _curve(losses[-BARS_SHOWN:])


def _logged(state: State) -> list[tuple[int, float]]:
    """Step and loss of all logged steps."""
    if state.trained:
        return state.trained["losses"]
    if not state.progress:
        return []
    events = read_events(state.checkpoints)
    return [(each["step"], each["loss"]) for each in events if "loss" in each]


def _curve(losses: Sequence[tuple[int, float]]) -> str:
    (first, _), (last, _) = losses[0], losses[-1]
    values = [loss for _, loss in losses]
    return f"{bars(values)} {values[0]:.3f} … {values[-1]:.3f}, steps {first} to {last}"


def bars(values: Sequence[float], most: int = BARS_SHOWN) -> str:
    """A curve in `most` characters, each the mean of its share; × stands for what is no number."""
    number = min(most, len(values))
    edges = [round(place * len(values) / number) for place in range(number + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    finite = [mean for mean in means if math.isfinite(mean)]
    low, span = min(finite, default=0.0), max(finite, default=0.0) - min(finite, default=0.0)
    highest = len(BARS) - 1
    return "".join(
        BARS[round((mean - low) / span * highest) if span else 0] if math.isfinite(mean) else "×"
        for mean in means
    )


def _attempts(attempts: Sequence[Mapping[str, Any]], now_s: float) -> Iterator[str]:
    """A line for each attempt, and below it what there is to say of its ending."""
    if not attempts:
        return
    rows = [_attempt_row(number, each, now_s) for number, each in enumerate(attempts, start=1)]
    titles, *lines = _table(rows, list(rows[0]))
    yield titles
    for line, attempt in zip(lines, attempts, strict=True):
        yield line
        if _is_bad(attempt):
            yield f"{INDENT}{attempt['text']}"


def _is_bad(attempt: Mapping[str, Any]) -> bool:
    return attempt["ending"] not in (None, *EXPECTED)


def _attempt_row(number: int, attempt: Mapping[str, Any], now_s: float) -> dict[str, str]:
    began_s = timestamp(attempt["started"])
    ended_s = timestamp(attempt["finished"]) if attempt["finished"] else now_s
    first, *others = attempt["nodes"] or [""]
    to_step = "" if attempt["to_step"] is None else attempt["to_step"]
    return {
        "#": str(number),
        "job": attempt["job_id"] or "here",
        "nodes": f"{first} +{len(others)}" if others else first,
        "steps": f"{attempt['from_step']}–{to_step}",
        "started": f"{datetime.fromtimestamp(began_s):%m-%d %H:%M}",
        "lasted": duration(ended_s - began_s),
        "ending": (attempt["ending"] or "").replace("_", " "),
    }


def _telling_lines(attempts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The telling lines of the last attempt that ended badly."""
    bad = [each for each in attempts if _is_bad(each)]
    return [printable(line) for line in bad[-1]["lines"]] if bad else []


def _files(state: State, attempts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Where to look, as far as it is there."""
    if attempts:
        yield f"log          {attempts[-1]['log']}"
    for name in ("train.yaml", "launch.sh", "train.sbatch"):
        if (state.run / name).exists():
            yield f"{name:<12} {state.run / name}"
    if state.checkpoints:
        yield f"checkpoints  {state.checkpoints}"
    uploaded = state.run / "uploaded.json"
    if state.group is Group.DONE:
        yield f"published    {read_receipt(uploaded)['location']}"


def _commands(state: State, site: Site, attempts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What a person may want to type, each with what it does."""
    profile = f"--profile profiles/{site.name}"
    jobs = [job.id for job in state.active if job.name]
    if state.running and attempts:
        yield f"tail -F {attempts[-1]['log']}"
    if state.group is Group.REFUSED:
        yield f"python -m sft preview {profile} {state.experiment.name}   # shows what is refused"
    if jobs and not state.running:
        yield f"scontrol show job {jobs[0]}   # why it waits"
    if jobs:
        yield f"scancel {' '.join(jobs)}   # stops the run"
    if state.next_receipt:
        what = "follows it" if state.active else "goes on"
        yield f"snakemake {profile} {state.next_receipt}   # {what}"
    script = state.run / "train.sbatch"
    if state.group is Group.STOPPED and script.exists():
        yield f"sbatch {script}   # goes on without snakemake"
