"""How far experiments are, as a person reads it."""

import io
import os
import re
from dataclasses import replace

import pytest

from sft import status_text
from sft.endings import Kind
from sft.progress import EVENTS
from sft.status import Group, State
from sft.status_text import (
    Screen,
    bars,
    screen_of,
    status_lines,
    status_page,
    sum_up,
    watch,
)
from tests.unit.planning import LEONARDO, catalog_of
from tests.unit.standing import MINUTE, NEXT, NOW_S, QUEUED, ROW, RUNNING, Results

PIPE = Screen()


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path)


@pytest.fixture
def training(results):
    """A run in its second job, that makes steps: 120 of 704, 30 s each."""
    results.render().attempt("6", minutes_ago=90)
    results.end("6", Kind.NODE_FAIL, "node n1 failed", to_step=60)
    job = replace(RUNNING, time_left="3:00:00")
    return results.submit(job, NEXT).attempt("7", minutes_ago=80, from_step=60).step(0.2)


def cells(state: State) -> dict[str, str]:
    """The line of an experiment by its titles, as a pipe gets it."""
    titles, line, _ = status_lines([state], NOW_S, PIPE)
    starts = [found.start() for found in re.finditer(r"(?<!\S)(?<! )\S|(?<=  )\S", titles)]
    ends = [*starts[1:], None]
    return {
        titles[start:end].strip(): line[start:end].strip()
        for start, end in zip(starts, ends, strict=True)
    }


def page(state: State) -> list[str]:
    return status_page(state, LEONARDO, NOW_S).splitlines()


def part(state: State, title: str) -> list[str]:
    """The lines of a part of the page."""
    lines = page(state)
    start = next(place for place, line in enumerate(lines) if line.startswith(f"  {title} "))
    rest = [line for line in lines[start + 1 :] if line[2:12].strip()]
    end = lines.index(rest[0]) if rest else len(lines)
    return [line[13:] for line in lines[start:end]]


def test_line_of_a_training_says_all_that_is_known(training):
    assert cells(training.look()) == {
        "experiment": "run",
        "stage": "training",
        "step": "120/704 17 %",
        "loss": "0.8000",
        "grad norm": "0.5",
        "tokens/s": "267",
        "ETA": "4 h 52 min, +1 job",
        "restarts": "1",
        "checkpoint": "100, 10 min ago",
        "job": "7 RUNNING",
        "time": "3:12:05 of 1-00:00:00",
        "next job": "8",
    }


def test_line_of_a_waiting_job_says_why_it_waits_and_until_when(results):
    found = cells(results.render().submit(QUEUED).look())

    assert (found["job"], found["time"]) == ("7 PENDING (Priority)", "starts 01-15 14:05")


def test_line_of_a_job_without_a_planned_start_names_none(results):
    found = cells(results.render().submit(replace(QUEUED, start="N/A")).look())

    assert "time" not in found


def test_line_of_a_job_without_a_limit_names_none(training):
    state = training.submit(replace(RUNNING, time_limit="UNLIMITED", time_left="UNLIMITED")).look()

    assert (cells(state)["time"], cells(state)["ETA"]) == ("3:12:05", "4 h 52 min")


def test_line_of_a_finished_run_has_its_last_step_and_loss(results):
    found = cells(results.train().look())

    assert (found["step"], found["loss"], found["restarts"]) == ("704/704", "0.8125", "1")


def test_line_of_a_loss_that_is_no_number_shows_it(training):
    path = training.checkpoints / EVENTS
    path.write_text(path.read_text().replace('"loss": 0.8,', '"loss": NaN,'))

    assert cells(training.look())["loss"] == "nan"


def test_pipe_gets_the_notes_in_the_line(results):
    state = results.render().submit(replace(QUEUED, reason="JobHeldUser")).look()

    assert cells(state)["note"] == "held: scontrol release 7"


def test_columns_without_content_are_left_out(results):
    assert list(cells(results.look())) == ["experiment", "stage"]


def test_sum_counts_experiments_and_not_jobs(training, tmp_path):
    states = [training.look(), replace(training.look(), group=Group.DONE)]

    assert sum_up(states) == "2 experiments: 1 running, 1 done"


def test_site_without_experiments_has_a_sum():
    assert status_lines([], NOW_S, PIPE) == ["0 experiments"]


@pytest.mark.parametrize("width", [40, 80, 100, 160, 300])
def test_no_line_is_wider_than_the_terminal(training, width):
    state = replace(training.look(), notes=("a note that is long " * 20,))
    long_name = replace(state, experiment=replace(ROW, name="a-long-name-" * 8))

    lines = status_lines([state, long_name], NOW_S, Screen(width))

    assert max(map(len, lines[:-1])) <= width


def test_narrow_terminal_keeps_the_stage_the_step_and_the_time_left(training):
    titles = status_lines([training.look()], NOW_S, Screen(70))[0]

    assert titles.split() == ["experiment", "stage", "step", "ETA", "job"]


def test_terminal_gets_the_notes_below_the_line(results):
    state = results.render().submit(replace(QUEUED, reason="JobHeldUser")).look()

    assert status_lines([state], NOW_S, Screen(80))[2] == "    held: scontrol release 7"


def test_low_terminal_leaves_out_what_needs_nobody(results):
    state = results.look()
    running = replace(state, experiment=replace(ROW, name="runs"), group=Group.RUNNING)
    done = [replace(state, group=Group.DONE)] * 10

    lines = status_lines([*done, running], NOW_S, Screen(80, 6))

    assert len(lines) == 6
    assert lines[1].startswith("runs")
    assert lines[-2:] == ["… and 8 more", "11 experiments: 1 running, 10 done"]


def test_pipe_gets_no_colours(results):
    state = replace(results.look(), group=Group.STOPPED)

    assert "\x1b" not in "".join(status_lines([state], NOW_S, Screen(80)))


def test_terminal_shows_what_stopped_in_red(results):
    state = replace(results.look(), group=Group.STOPPED)

    assert status_lines([state], NOW_S, Screen(80, None, True))[1].startswith("\x1b[31m")


def test_file_is_as_wide_as_its_lines():
    assert screen_of(io.StringIO(), {}) == PIPE


def test_silence_of_slurm_is_said(training):
    catalog = catalog_of(ROW)
    text = status_text.status_text(catalog, training.folder, None, ["run"], False, PIPE)

    assert text.splitlines()[-1] == "Slurm does not answer; jobs' states are missing"


def test_silence_of_slurm_is_no_news_where_there_is_none(training):
    catalog = catalog_of(ROW, site=replace(LEONARDO, launcher="local"))
    text = status_text.status_text(catalog, training.folder, None, ["run"], False, PIPE)

    assert "Slurm does not answer" not in text


def test_page_names_the_row(training):
    assert page(training.look())[0] == "run (t.tsv, line 2 (run))"


def test_page_names_the_jobs_and_their_nodes(training):
    assert part(training.look(), "jobs") == [
        "7 RUNNING 3:12:05 of 1-00:00:00 on n[1-2]",
        "8 PENDING (Dependency)",
    ]


def test_page_says_how_far_and_how_fast(training):
    assert part(training.look(), "steps") == [
        "120 of 704 (17 %), 30 s a step, 267 tokens/s, 4 h 52 min left",
        "its job ends before, in 3 h 0 min; the next one goes on",
        "the newest attempt began 61 min ago at step 0",
        "checkpoint-100, 10 min ago; a save takes 20 s",
        "last sign of life 12 s ago",
    ]


def test_page_shows_the_loss_as_a_curve(training):
    numbers, whole, newest = part(training.look(), "loss")

    assert numbers == "0.8000, grad norm 0.5, learning rate 1e-05"
    assert whole.endswith(" 1.990 … 0.800, steps 1 to 120")
    assert newest.endswith(" 1.390 … 0.800, steps 61 to 120")


def test_page_lists_all_attempts_with_what_ended_them(training):
    titles, first, sentence, second = part(training.look(), "attempts")

    assert titles.split() == ["#", "job", "nodes", "steps", "started", "lasted", "ending"]
    assert first.split()[:5] == ["1", "6", "n1", "+1", "0–60"]
    assert first.endswith("88 min  node fail")
    assert sentence == "    node n1 failed"
    assert second.split()[:5] == ["2", "7", "n1", "+1", "60–"]


def test_page_shows_the_telling_lines_of_the_last_bad_ending(training):
    assert part(training.look(), "log says") == ["a line of node_fail"]


def test_telling_lines_do_not_colour_the_terminal(training):
    path = training.checkpoints / "attempts" / "6.ending.json"
    path.write_text(path.read_text().replace("a line", "\\u001b[31mred\\r"))

    assert part(training.look(), "log says") == ["red of node_fail"]


def test_page_of_a_running_job_says_how_to_follow_and_to_stop_it(training):
    run = training.run
    assert part(training.look(), "type") == [
        f"tail -F {run}/logs/slurm-7.log",
        "scancel 7 8   # stops the run",
        f"snakemake --profile profiles/leonardo {run}/trained.json   # follows it",
    ]


def test_page_of_a_waiting_job_says_how_to_ask_why(results):
    state = results.render().submit(QUEUED).look()

    assert part(state, "type")[0] == "scontrol show job 7   # why it waits"


def test_page_of_a_stopped_run_says_how_to_go_on(training):
    training.submit()
    training.end("7", Kind.TIMEOUT, "killed at the limit", to_step=120)
    run = training.run

    assert part(training.look(), "type") == [
        f"snakemake --profile profiles/leonardo {run}/trained.json   # goes on",
        f"sbatch {run}/train.sbatch   # goes on without snakemake",
    ]


def test_page_of_refused_tokens_says_how_to_look_at_them(results):
    state = replace(results.check().look(), group=Group.REFUSED)

    assert part(state, "type")[0] == (
        "python -m sft preview --profile profiles/leonardo run   # shows what is refused"
    )


def test_page_of_a_published_run_says_where_it_is(results):
    state = results.publish("layout", "served", "release", "uploaded", "registered").look()

    assert part(state, "files")[-1] == "published    org/run"


def test_page_of_an_experiment_before_anything_says_what_comes(results):
    assert page(results.look())[1:] == [
        "  stage      not fetched (not started)",
        f"  type       snakemake --profile profiles/leonardo "
        f"{results.folder}/models/delphi/fetched.json   # goes on",
    ]


@pytest.mark.parametrize(
    ("values", "curve"),
    [
        ([3.0, 2.0, 1.0], "█▅▁"),
        ([1.0, 1.0], "▁▁"),
        ([2.0, float("nan"), 1.0], "█×▁"),
        ([float("nan")], "×"),
    ],
)
def test_curve_spans_lowest_to_highest(values, curve):
    assert bars(values) == curve


def test_curve_of_many_values_is_of_their_means():
    assert bars([4.0, 2.0, 2.0, 0.0, 1.0, 1.0], most=3) == "█▁▁"


@pytest.fixture
def terminal():
    """A terminal, and what was written to it."""
    screen, side = os.openpty()
    with os.fdopen(side, "w") as stream:
        yield stream, lambda: os.read(screen, 100_000).decode()
    os.close(screen)


def test_watch_prints_once_into_a_pipe():
    stream = io.StringIO()

    watch(lambda screen: "text", stream=stream)

    assert stream.getvalue() == "text\n"


def test_watch_draws_again_until_ctrl_c_and_ends_quietly(terminal, monkeypatch):
    stream, read = terminal
    monkeypatch.setattr(status_text, "LEAST_WATCH_S", 0.01)
    texts = iter(["first", "second"])

    def draw(screen: Screen) -> str:
        for text in texts:
            return text
        raise KeyboardInterrupt

    watch(draw, 0.01, stream)

    stream.flush()
    assert re.findall("first|second", read()) == ["first", "second"]


def test_watch_fits_the_terminal(terminal, monkeypatch):
    stream, _ = terminal
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("LINES", "20")
    screens = []

    def draw(screen: Screen) -> str:
        screens.append(screen)
        raise KeyboardInterrupt

    watch(draw, 30, stream)

    assert (screens[0].width, screens[0].height) == (70, 17)


def test_watch_asks_politely_however_often_it_is_told_to(terminal, monkeypatch):
    stream, _ = terminal
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(status_text.time, "sleep", sleep)
    watch(lambda screen: "", 0.1, stream)

    assert waits == [status_text.LEAST_WATCH_S]


def test_silent_training_is_yellow_on_a_terminal(training):
    path = training.checkpoints / EVENTS
    os.utime(path, (NOW_S - 42 * MINUTE,) * 2)

    line = status_lines([training.look()], NOW_S, Screen(200, None, True))[1]

    assert line.startswith("\x1b[33m")
