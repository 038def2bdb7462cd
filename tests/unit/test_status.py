"""How far experiments are, by small true files and a queue as Slurm would show it."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sft.endings import Kind
from sft.files import write_json, write_text
from sft.process import ProcessId, this_process
from sft.progress import EVENTS
from sft.receipt import read_receipt
from sft.slurm import job_name
from sft.status import Group, duration, last_words, read_states, slurm_seconds
from tests.unit.planning import LEONARDO, catalog_of, write_receipt
from tests.unit.standing import HERE, MINUTE, NEXT, NOW_S, QUEUED, ROW, RUNNING, Results
from tests.unit.test_sizes import LLAMA3_8B


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path)


@pytest.mark.parametrize(
    ("reach", "stage"),
    [
        (lambda results: results, "not fetched"),
        (lambda results: results.fetch(), "fetched"),
        (lambda results: results.tokenize(), "tokenized"),
        (lambda results: results.check(), "checked"),
        (lambda results: results.render(), "rendered"),
    ],
)
def test_stage_before_training_is_the_last_that_is_done(results, reach, stage):
    state = reach(results).look()

    assert (state.stage, state.group, state.notes) == (stage, Group.UNSTARTED, ())


@pytest.mark.parametrize(
    ("receipts", "stage", "group"),
    [
        ([], "trained", Group.TRAINED),
        (["layout"], "laid out", Group.TRAINED),
        (["layout", "served"], "proven", Group.TRAINED),
        (["layout", "served", "release"], "released", Group.TRAINED),
        (["layout", "served", "release", "uploaded"], "uploaded", Group.TRAINED),
        (["layout", "served", "release", "uploaded", "registered"], "registered", Group.DONE),
        (["release", "uploaded", "registered"], "trained", Group.TRAINED),  # of an earlier version
    ],
)
def test_stage_after_training_is_the_last_of_an_unbroken_row(results, receipts, stage, group):
    state = results.publish(*receipts).look()

    assert (state.stage, state.group) == (stage, group)


def test_upload_is_the_end_where_nothing_is_registered(tmp_path):
    results = Results(tmp_path, replace(ROW, register=False))

    assert results.publish("layout", "served", "release", "uploaded").look().group is Group.DONE


def test_refusal_of_the_gate_is_said(results):
    results.tokenize()
    write_receipt(results.tokens / "inspected.json", {})
    text = "2027-01-15 07:57:00 mix: 1 fault is refused, see page.html\nbig: truncated: 12 of 1600"
    results.age().log(results.tokens / "check_tokens-strict.log", text)

    state = results.look()

    assert (state.stage, state.group) == ("refused", Group.REFUSED)
    assert state.notes == (
        "check_tokens-strict, 3 min ago: mix: 1 fault is refused, see page.html",
    )


def test_refusal_of_earlier_tokens_is_not_one_of_these(results):
    results.tokenize()
    results.log(results.tokens / "check_tokens-strict.log", "refused", minutes_ago=120).age()
    receipt = results.tokens / "inspected.json"
    write_receipt(receipt, {})
    os.utime(receipt, (NOW_S, NOW_S))

    assert results.look().stage == "inspected"


def test_failed_upload_says_why(results):
    results.publish("layout", "served", "release").age()
    results.log(results.run / "logs" / "upload.log", "2027-01-15 07:57:00 403: no right to write")

    state = results.look()

    assert state.stage == "released"
    assert state.notes == ("upload, 3 min ago: 403: no right to write",)


def test_refused_submission_says_why(results):
    results.render().age()
    os.utime(results.run / "train.yaml", (NOW_S - 3600, NOW_S - 3600))
    results.log(results.run / "logs" / "train.log", "2027-01-15 07:57:00 Slurm refuses the job")

    assert results.look().notes == ("train, 3 min ago: Slurm refuses the job",)


def test_first_job_in_the_queue_waits(results):
    state = results.render().submit(QUEUED).look()

    assert (state.stage, state.group, state.notes) == ("rendered", Group.WAITING, ())
    assert [job.id for job in state.active] == ["7"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("QOSMaxWallDurationPerJobLimit", "never starts"),
        ("PartitionTimeLimit", "never starts"),
        ("InvalidAccount", "does not start as things are"),
        ("AssocGrpCPUMinutesLimit", "the budget"),
        ("JobHeldUser", "held: scontrol release 7"),
        ("DependencyNeverSatisfied", "never starts"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "maintenance"),
    ],
)
def test_job_that_waits_in_vain_says_so(results, reason, words):
    state = results.render().submit(replace(QUEUED, reason=reason)).look()

    assert words in state.notes[0]
    assert state.needs_care


@pytest.mark.parametrize("reason", ["Priority", "Resources", "QOSMaxNodePerUserLimit", "BeginTime"])
def test_job_that_only_has_to_wait_gets_no_word(results, reason):
    assert results.render().submit(replace(QUEUED, reason=reason)).look().notes == ()


def test_job_without_an_attempt_starts(results):
    results.render().submit(replace(RUNNING, elapsed="1:10"))

    assert results.look().stage == "starting 70 s"


def test_job_that_runs_without_a_log_is_told_from_one_that_loads(results):
    state = results.render().submit(replace(RUNNING, elapsed="7:00")).look()

    assert state.group is Group.RUNNING
    assert state.needs_care
    assert state.notes[0].startswith("RUNNING for 7 min without any log: its nodes (n[1-2]) may")


def test_job_with_a_log_and_without_an_attempt_starts(results):
    results.render().submit(RUNNING).log(results.run / "logs" / "slurm-7.log", "loading modules")

    state = results.look()

    assert (state.stage, state.notes) == ("starting 3 h 12 min", ())


def test_job_without_a_step_loads(results):
    state = results.render().submit(RUNNING).attempt("7", minutes_ago=4).look()

    assert (state.stage, state.group, state.notes) == ("loading 4 min", Group.RUNNING, ())


def test_next_job_loads_though_an_earlier_one_made_steps(results):
    results.render().step(minutes_ago=30).submit(RUNNING, NEXT).attempt("7", minutes_ago=4)

    state = results.look()

    assert state.stage == "loading 4 min"
    assert state.progress.step == 120


@pytest.fixture
def training(results):
    """A run that makes steps: 120 of 704, 30 s each, 16 sequences of 500 tokens."""
    return results.render().submit(RUNNING, NEXT).attempt("7", minutes_ago=80).step(0.2)


def test_running_job_trains(training):
    state = training.look()

    assert (state.stage, state.group, state.notes) == ("training", Group.RUNNING, ())
    assert [job.id for job in state.active] == ["7", "8"]


def test_tokens_a_second_are_those_of_a_global_batch(training):
    assert training.look().tokens_per_s == pytest.approx(500 * 16 / 30)


def test_time_left_is_of_the_steps_that_are_left(training):
    assert training.look().eta_s == pytest.approx(584 * 30)


def test_training_that_makes_no_step_says_for_how_long(training):
    state = training.step(minutes_ago=42).attempt("7", minutes_ago=180).look()

    assert state.notes == ("no step for 42 min",)
    assert state.needs_care


def test_training_of_slow_steps_is_not_taken_for_a_silent_one(training):
    path = training.step(minutes_ago=8).checkpoints / EVENTS
    path.write_text(path.read_text().replace('"step_s": 30.0', '"step_s": 300.0'))
    os.utime(path, (NOW_S - 8 * MINUTE,) * 2)
    training.attempt("7", minutes_ago=180)

    assert training.look().notes == ()


def test_job_whose_attempt_has_ended_is_ending(training):
    training.end("7", Kind.OUT_OF_TIME, "stopped in time", to_step=120)

    assert training.look().stage == "ending"


def test_next_job_waits_after_an_expected_end_without_a_word(training):
    training.end("7", Kind.OUT_OF_TIME, "stopped in time", to_step=120)
    state = training.submit(replace(NEXT, reason="Priority")).look()

    assert (state.stage, state.group, state.notes) == ("training", Group.WAITING, ())


def test_next_job_says_what_it_waits_after(training):
    training.end("7", Kind.NODE_FAIL, "node n1 failed", to_step=120)
    state = training.submit(replace(NEXT, reason="Priority")).look()

    assert state.notes == ("after node fail: node n1 failed",)


def test_job_that_slurm_forgot_and_that_left_no_ending_is_said(training):
    training.submit()

    state = training.look()

    assert (state.stage, state.group) == ("stopped", Group.STOPPED)
    assert state.notes == (
        "job 7 is gone from Slurm and left no ending; the next start finds out why",
    )


def test_job_that_slurm_still_knows_says_how_it_ended(training):
    training.submit(replace(RUNNING, state="NODE_FAIL"))

    state = training.look()

    assert state.group is Group.STOPPED
    assert state.notes[0].startswith("job 7 ended as NODE_FAIL and left no ending")


def test_job_that_is_younger_than_the_queue_is_not_gone(results):
    state = results.render().attempt("7", minutes_ago=0.5).look()

    assert (state.stage, state.group) == ("starting", Group.RUNNING)


def test_ending_that_forbids_another_try_is_the_reason(training):
    text = "CUDA out of memory; fewer tokens a device"
    training.submit().end("7", Kind.CUDA_OUT_OF_MEMORY, text, to_step=120)

    state = training.look()

    assert (state.stage, state.group) == ("stopped", Group.STOPPED)
    assert state.notes == (f"cuda out of memory: {text}",)


def test_chain_that_lost_its_next_job_says_that_none_waits(training):
    training.submit().end("7", Kind.TIMEOUT, "killed at the limit", to_step=120)

    assert training.look().notes == (
        "timeout: killed at the limit",
        "no job waits to go on; snakemake submits one",
    )


def test_chain_without_progress_says_why_it_stopped(results):
    results.render()
    for number in range(1, 4):
        results.attempt(str(number), minutes_ago=60 - 10 * number)
        results.end(str(number), Kind.TIMEOUT, "killed at the limit", to_step=0)

    first, second = results.look().notes

    assert first == "timeout: killed at the limit"
    assert "no checkpoint" in second


def test_run_that_reached_its_end_is_trained_before_its_receipt_is_written(training):
    state = training.submit().step(2, steps=704, event="end").look()

    assert (state.stage, state.group) == ("trained", Group.TRAINED)


def test_submitted_job_that_never_began_is_missed(results):
    results.render()
    results.checkpoints.mkdir(parents=True)
    results.log(results.checkpoints / "jobs", "7\n", minutes_ago=5)

    state = results.look()

    assert state.group is Group.STOPPED
    assert state.notes == ("job 7 is gone from Slurm and never began",)


def test_silent_slurm_does_not_end_a_run_that_makes_steps(training):
    state = training.look(silent=True)

    assert (state.stage, state.group, state.notes) == ("training", Group.RUNNING, ())
    assert state.eta_s == pytest.approx(584 * 30)


def test_silent_slurm_leaves_open_what_became_of_a_silent_run(training):
    state = training.step(minutes_ago=42).look(silent=True)

    assert (state.stage, state.group) == ("training", Group.UNKNOWN)
    assert state.notes == ("no step for 42 min; its job is 7",)


def test_silent_slurm_leaves_open_whether_a_submitted_job_waits(results):
    results.render()
    results.checkpoints.mkdir(parents=True)
    results.log(results.checkpoints / "jobs", "7\n", minutes_ago=5)

    state = results.look(silent=True)

    assert (state.stage, state.group) == ("rendered", Group.UNKNOWN)
    assert state.notes == ("job 7 was submitted",)


def test_silent_slurm_leaves_open_whether_the_next_job_waits(training):
    training.end("7", Kind.TIMEOUT, "killed at the limit", to_step=120)
    (training.checkpoints / "jobs").write_text("7\n8\n")

    state = training.look(silent=True)

    assert (state.stage, state.group) == ("training", Group.UNKNOWN)
    assert state.notes == ("timeout: killed at the limit", "job 8 was to go on")


def test_silent_slurm_changes_nothing_of_what_is_done(results):
    stages = ("layout", "served", "release", "uploaded", "registered")
    state = results.publish(*stages).look(silent=True)

    assert (state.stage, state.group) == ("registered", Group.DONE)


def attempt_of(process: ProcessId) -> dict:
    """What an attempt of a process, without Slurm, has of its own."""
    return {"id": str(process), "launcher": "local", "job_id": None, "nodes": [process.host]}


def test_training_on_this_computer_has_its_process_for_a_job(tmp_path):
    results = Results(tmp_path, site=HERE).render()
    process = this_process()
    results.attempt("here", minutes_ago=80, **attempt_of(process)).step(minutes_ago=0.2)

    state = results.look(silent=True)

    assert (state.stage, state.group) == ("training", Group.RUNNING)
    assert (state.active[0].id, state.active[0].elapsed) == (f"process {process.pid}", "01:20:00")


def test_training_on_this_computer_whose_process_is_gone_has_stopped(tmp_path):
    results = Results(tmp_path, site=HERE).render()
    gone = replace(this_process(), start_ticks=1)
    results.attempt("here", minutes_ago=80, **attempt_of(gone))

    state = results.step(minutes_ago=0.2).look(silent=True)

    assert state.notes == ("its process is gone and left no ending; the next start finds out why",)


def test_training_on_another_computer_is_not_taken_for_dead(tmp_path):
    results = Results(tmp_path, site=HERE).render()
    results.attempt("far", minutes_ago=80, **attempt_of(ProcessId("far", 4321, 99)))

    state = results.step(minutes_ago=42).look(silent=True)

    assert (state.group, state.notes) == (
        Group.UNKNOWN,
        ("no step for 42 min; it trains at far, or did: look there",),
    )


def test_changed_row_is_at_the_stage_of_its_new_version(results):
    results.publish("layout", "served", "release", "uploaded", "registered")
    old = results.checkpoints.name
    learning_rate = {"learning_rate": 2e-5}
    results.experiment = replace(ROW, config=ROW.config | learning_rate)

    state = results.look()

    assert (state.stage, state.group) == ("checked", Group.UNSTARTED)
    assert state.notes == (f"the row was changed since {old} was rendered",)


def test_job_that_trains_an_earlier_version_is_named(training):
    old = training.checkpoints
    write_text(training.run / "train.yaml", f"output_dir: {old.with_name('0123abcd')}\n")

    state = training.look()

    assert state.notes[-2:] == (
        f"job 7 (RUNNING) trains {old.name}, an earlier version of the row: scancel 7",
        f"job 8 (PENDING) trains {old.name}, an earlier version of the row: scancel 8",
    )


def test_run_is_seen_while_its_config_is_written_anew(training):
    (training.run / "train.yaml").unlink()

    assert training.look().stage == "training"


def test_tokens_that_were_cleaned_up_do_not_change_what_was_trained(results):
    results.publish("layout", "served", "release", "uploaded", "registered")
    (results.tokens / "pretokenized.json").unlink()

    assert results.look().stage == "registered"


def test_what_cannot_be_read_is_said_in_its_line(results):
    results.publish()
    (results.run / "trained.json").write_text('{"made": ')

    state = results.look()

    assert (state.stage, state.group) == ("?", Group.UNKNOWN)
    assert "trained.json: not JSON" in state.notes[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("2027-01-15 07:57:00 first\n2027-01-15 07:58:00 second\nmore of it\n", "second"),
        ("2027-01-15 07:57:00 Traceback (most recent call last):\n  File\nKeyError: 'a'\n",
         "KeyError: 'a'"),
        ("$ python -m trainer\rMap:  10%\rMap: 100%\n", "Map: 100%"),
    ],
)  # fmt: skip
def test_last_words_of_a_log_are_a_line(tmp_path, text, words):
    path = tmp_path / "a.log"
    path.write_text(text)

    assert last_words(path) == words


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2:05", 125), ("3:12:05", 11525), ("1-00:00:00", 86400), ("UNLIMITED", None), ("", None)],
)
def test_times_of_slurm_are_read(text, seconds):
    assert slurm_seconds(text) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(42, "42 s"), (720, "12 min"), (11520, "3 h 12 min"), (187200, "2 d 4 h"), (-3, "0 s")],
)
def test_durations_are_said_as_people_do(seconds, text):
    assert duration(seconds) == text


def test_thousand_experiments_take_seconds_at_most(tmp_path):
    results = Results(tmp_path).render()
    results.attempt("7", minutes_ago=80).step(minutes_ago=0.2)
    text = (results.checkpoints / EVENTS).read_text()
    attempt = json.loads((results.checkpoints / "attempts" / "7.json").read_text())
    experiments = [replace(ROW, name=f"run-{number}") for number in range(1000)]
    queue = {}
    for number, experiment in enumerate(experiments):
        run = tmp_path / "runs" / experiment.name
        checkpoints = run / "checkpoints" / results.checkpoints.name
        (checkpoints / "attempts").mkdir(parents=True)
        (run / "train.yaml").write_text(f"stage: sft\noutput_dir: {checkpoints}\n")
        if number % 2:
            (checkpoints / EVENTS).write_text(text)
            write_json(checkpoints / "attempts" / "7.json", attempt)
            queue[job_name(checkpoints)] = [RUNNING, NEXT]
    catalog = catalog_of(*experiments)

    start_s = time.process_time()
    states = read_states(catalog, tmp_path, queue, catalog.experiments, NOW_S)

    assert time.process_time() - start_s < 4
    assert sum(state.group is Group.RUNNING for state in states) == 500


def test_utilisation_is_that_of_the_cards_that_train(results):
    results.render().submit(RUNNING).attempt("7", minutes_ago=80).step(0.2)
    model = read_receipt(results.folder / "models" / results.experiment.model.name / "fetched.json")
    write_json(Path(model["path"]) / "config.json", LLAMA3_8B)
    by_profile = results.look().mfu
    events = (results.checkpoints / EVENTS).read_text()
    named = events.replace('"event": "begin"', '"event": "begin", "device": "NVIDIA GH200 120GB"')
    (results.checkpoints / EVENTS).write_text(named)

    # 16 sequences of 500 tokens in 30 s on 16 cards; 6 × 7.50e9 + 6 × 32 × 4096 × 500 a token.
    assert results.look().mfu == pytest.approx(266.7 * 4.542e10 / (16 * 989.4e12), rel=1e-3)
    assert by_profile == pytest.approx(results.look().mfu * 989.4 / results.site.gpu_tflops)


def test_utilisation_after_a_resume_is_that_of_the_new_attempt(results):
    results.render().submit(RUNNING).attempt("7", minutes_ago=80).step(0.2)
    model = read_receipt(results.folder / "models" / results.experiment.model.name / "fetched.json")
    write_json(Path(model["path"]) / "config.json", LLAMA3_8B)
    before = results.look().mfu
    lines = (results.checkpoints / EVENTS).read_text().splitlines(keepends=True)
    last = json.loads(lines[-1])
    lines.append(json.dumps(last | {"event": "begin", "world_size": 32}) + "\n")
    (results.checkpoints / EVENTS).write_text("".join(lines))
    resumed = results.look().mfu
    step = last | {"step": last["step"] + 1, "step_s": 10.0}
    (results.checkpoints / EVENTS).write_text("".join([*lines, json.dumps(step) + "\n"]))

    # A third of the seconds on twice the GPUs; none before the first step.
    assert resumed is None
    assert results.look().mfu == pytest.approx(1.5 * before)


def test_utilisation_is_not_told_where_the_card_is_not_known(tmp_path):
    results = Results(tmp_path, site=replace(LEONARDO, gpu_tflops=0))
    results.render().submit(RUNNING).attempt("7", minutes_ago=80).step(0.2)

    assert results.look().mfu is None
