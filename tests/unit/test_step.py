"""What a stage says, how it ends, and that it ends with its snakemake."""

import errno
import logging
import os
import signal
import subprocess

import pytest

from sft import step
from sft.errors import SftError
from sft.process import ProcessId, process_id
from sft.step import Progress, log, step_log
from tests.unit.killing import kill, start_until_wait, wait_until


def test_line_goes_to_the_log_and_with_a_title_to_the_terminal(tmp_path, capsys):
    with step_log(str(tmp_path / "logs" / "train.log"), "train a"):
        log.info("step %d", 3)
    assert (tmp_path / "logs" / "train.log").read_text().endswith(" step 3\n")
    assert capsys.readouterr().err == "[train a] step 3\n"


def test_second_stage_adds_to_the_log_of_the_first(tmp_path):
    for text in ("first", "second"):
        with step_log(str(tmp_path / "a.log"), "a"):
            log.info(text)
    lines = (tmp_path / "a.log").read_text().splitlines()
    assert [line.split()[-1] for line in lines] == ["first", "second"]


def test_refusal_ends_with_code_1_and_its_text_alone(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended, step_log(str(tmp_path / "a.log"), "train a"):
        raise SftError("row 3: no such model")
    assert ended.value.code == 1
    assert capsys.readouterr().err == "[train a] row 3: no such model\n"
    assert (tmp_path / "a.log").read_text().endswith(" row 3: no such model\n")


def test_other_errors_travel_and_leave_their_traceback_in_the_log(tmp_path, capsys):
    with pytest.raises(ZeroDivisionError), step_log(str(tmp_path / "a.log"), "train a"):
        1 / 0  # noqa: B018
    text = (tmp_path / "a.log").read_text()
    assert "Traceback" in text and "ZeroDivisionError: division by zero" in text
    assert capsys.readouterr().err == ""  # Python itself shows it there


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "a quota of bytes")]
)
def test_full_disk_is_one_line_with_a_remedy(tmp_path, capsys, number, remedy):
    with pytest.raises(SystemExit) as ended, step_log(str(tmp_path / "a.log"), "upload a"):
        raise OSError(number, os.strerror(number))
    shown = capsys.readouterr().err
    assert ended.value.code == 1
    assert shown.count("\n") == 1 and remedy in shown
    assert "Traceback" in (tmp_path / "a.log").read_text()


def test_ended_stage_leaves_no_handler(tmp_path):
    before = list(log.handlers)
    with pytest.raises(SystemExit), step_log(str(tmp_path / "a.log"), "a"):
        raise SftError("no")
    assert log.handlers == before


def test_progress_says_amount_rate_and_time_left(caplog, monkeypatch):
    clock = iter([0.0, 5.0, 20.0, 25.0])
    monkeypatch.setattr(step.time, "monotonic", lambda: next(clock))
    with caplog.at_level(logging.INFO, "sft"):
        progress = Progress("hash a", total=100, unit="GB", every_s=10)
        for amount in (10, 30, 10):
            progress.add(amount)
    assert caplog.messages == ["hash a: 40.0 of 100.0 GB, 2.0 GB/s, 30 s left"]


def test_progress_without_progress_has_no_end(caplog, monkeypatch):
    clock = iter([0.0, 20.0])
    monkeypatch.setattr(step.time, "monotonic", lambda: next(clock))
    with caplog.at_level(logging.INFO, "sft"):
        Progress("hash a", total=100, unit="GB").add(0)
    assert caplog.messages == ["hash a: 0.0 of 100.0 GB, 0.0 GB/s, inf s left"]


# --- a stage and its snakemake -------------------------------------------------------------------

STAGE = """
import subprocess
from sft import step
step.WATCH_S = 0.05
with step.step_log(str(Path(sys.argv[1], "a.log")), "a"):
    child = subprocess.Popen(["sleep", "60"])
    training = subprocess.Popen(["sleep", "60"], start_new_session=True)
    Path(sys.argv[1], "pids").write_text(f"{child.pid} {training.pid}")
    wait()
"""


@pytest.fixture
def driver():
    """A process in place of snakemake."""
    child = subprocess.Popen(["sleep", "60"])
    yield child
    child.kill()
    child.wait()


def test_stage_and_what_it_runs_end_with_snakemake_but_not_its_training(tmp_path, driver):
    identity = process_id(driver.pid)
    stage = start_until_wait(STAGE, tmp_path, SFT_DRIVER=str(identity))
    child, training = [process_id(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
    driver.kill()
    assert stage.wait(timeout=10) == -signal.SIGKILL
    wait_until(lambda: not child.runs())
    assert training.runs()
    assert f"process {driver.pid}, was killed" in (tmp_path / "a.log").read_text()
    subprocess.run(["kill", str(training.pid)], check=True)
    stage.communicate()


def test_stage_lives_as_long_as_snakemake(tmp_path, driver):
    stage = start_until_wait(STAGE, tmp_path, SFT_DRIVER=str(process_id(driver.pid)))
    with pytest.raises(subprocess.TimeoutExpired):
        stage.wait(timeout=0.5)
    end(stage, tmp_path)


def test_stage_does_not_watch_a_snakemake_of_another_host(tmp_path):
    stage = start_until_wait(STAGE, tmp_path, SFT_DRIVER=str(ProcessId("elsewhere", 1, 1)))
    with pytest.raises(subprocess.TimeoutExpired):
        stage.wait(timeout=0.5)
    end(stage, tmp_path)


def end(stage, folder):
    for pid in (folder / "pids").read_text().split():
        subprocess.run(["kill", pid], check=True)
    kill(stage)
