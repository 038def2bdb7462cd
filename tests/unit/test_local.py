"""A launch script of this computer: started once, found again, ended with all that it started."""

import errno
import fcntl
import logging
import os
import signal
import subprocess

import pytest

from sft import local
from sft.errors import SftError
from sft.process import ProcessId, parse_process_id, process_id, this_process
from tests.unit.killing import kill, kill_at_wait, start_until_wait, wait_until


@pytest.fixture
def record(tmp_path):
    """The record; what it names is ended after the test."""
    path = tmp_path / "process"
    yield path
    if path.exists() and (process := local.find(path)):
        local.Process(process.id).stop()


def write_launch(folder, text):
    launch = folder / "launch.sh"
    launch.write_text(text + "\n")
    return launch


def start(record, text):
    """Start a launch script as a driver does."""
    launch = write_launch(record.parent, text)
    with local.claim(record.parent) as claimed:
        return local.start(
            ["bash", launch], record, record.parent / "logs" / "trainer.log", claimed
        )


def output(record):
    return (record.parent / "logs" / "trainer.log").read_text()


def pids(record, number):
    """The first lines of the output, each a process's number."""
    wait_until(lambda: output(record).count("\n") >= number)
    return [process_id(int(line)) for line in output(record).splitlines()[:number]]


# --- start ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 137])
def test_exit_code_is_that_of_the_script(record, code):
    process = start(record, f"exit {code}")
    wait_until(lambda: process.poll() is not None)
    assert process.poll() == code


def test_output_is_added_to_the_file(record):
    for text in ("one", "two"):
        process = start(record, f"echo {text}; echo {text}! >&2")
        wait_until(lambda process=process: process.poll() is not None)
    assert output(record) == "one\none!\ntwo\ntwo!\n"


def test_record_is_there_before_the_script_begins(record):
    process = start(record, f"cat {record}")
    wait_until(lambda: process.poll() is not None)
    assert parse_process_id(output(record)) == process.id


def test_script_does_not_begin_where_it_cannot_be_recorded(record):
    record.with_name("process.new").mkdir()
    process = start(record, "echo begun")
    wait_until(lambda: process.poll() is not None)
    assert process.poll() == 1 and "begun" not in output(record)


def test_script_sees_no_secret(record, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    process = start(record, 'echo "token=${HF_TOKEN:-none}"')
    wait_until(lambda: process.poll() is not None)
    assert output(record) == "token=none\n"


def test_path_may_hold_spaces(tmp_path):
    record = tmp_path / "a folder" / "process"
    record.parent.mkdir()
    process = start(record, "echo begun")
    wait_until(lambda: process.poll() is not None)
    assert output(record) == "begun\n"


# --- find ----------------------------------------------------------------------------------------

DRIVER = """
from sft import local
folder = Path(sys.argv[1])
with local.claim(folder) as claimed:
    command = ["bash", folder / "launch.sh"]
    process = local.start(command, folder / "process", folder / "log", claimed)
wait()
"""


def test_driver_that_is_killed_leaves_a_script_that_the_next_finds(record):
    write_launch(record.parent, "sleep 60")
    kill_at_wait(DRIVER, record.parent)
    wait_until(record.exists)
    assert local.find(record).poll() is None


def test_script_goes_on_when_its_driver_is_hung_up(record):
    write_launch(record.parent, "sleep 60")
    driver = start_until_wait(DRIVER, record.parent)
    driver.send_signal(signal.SIGHUP)
    driver.communicate()
    wait_until(record.exists)
    assert local.find(record).poll() is None


def test_found_script_ends_without_an_exit_code(record):
    process = start(record, "sleep 60")
    wait_until(record.exists)
    found = local.find(record)
    process.stop()
    assert found.child is None and found.poll() == 0


def test_ended_script_is_not_found(record):
    process = start(record, "exit 0")
    wait_until(lambda: process.poll() is not None)
    assert local.find(record) is None


def test_later_process_of_the_same_number_is_not_ours(record):
    here = this_process()
    record.write_text(f"{ProcessId(here.host, here.pid, here.start_ticks - 1)}\n")
    assert local.find(record) is None


def test_process_of_another_host_is_not_looked_for_here(record):
    here = this_process()
    record.write_text(f"{ProcessId('elsewhere', here.pid, here.start_ticks)}\n")
    assert local.find(record) is None


def test_nothing_is_started_beside_a_process_of_another_host(record):
    record.write_text(f"{ProcessId('elsewhere', 12, 345)}\n")
    with pytest.raises(SftError, match=r"process 12 of elsewhere .* go on at elsewhere"):
        local.end_leftovers(record)


@pytest.mark.parametrize("text", [None, "", "12 345"])
def test_without_a_record_nothing_is_found_nor_left(record, text):
    if text is not None:
        record.write_text(text)
    local.end_leftovers(record)
    assert local.find(record) is None


# --- stop ----------------------------------------------------------------------------------------


def test_stop_ends_what_the_script_started_in_any_session(record):
    process = start(record, "sleep 60 & echo $!; setsid sleep 60 & echo $!; wait")
    family = pids(record, 2)
    process.stop()
    assert process.poll() is not None
    assert not any(each.runs() for each in family)


def test_found_script_is_stopped_like_one_of_our_own(record):
    start(record, "sleep 60 & echo $!; setsid sleep 60 & echo $!; wait")
    family = pids(record, 2)
    local.find(record).stop()
    assert not any(each.runs() for each in family)


def test_stop_kills_what_does_not_heed_a_signal(record, monkeypatch):
    monkeypatch.setattr(local, "STOP_WAIT_S", 0.3)
    process = start(record, "trap '' TERM; echo $$; while :; do sleep 0.05; done")
    pids(record, 1)
    process.stop()
    assert process.poll() == -signal.SIGKILL


def test_stop_leaves_time_for_a_last_checkpoint(record):
    # A script that waits for one child may see it die first, and end before it is told itself.
    told = "trap 'sleep 0.3; echo saved; exit 0' TERM"
    process = start(record, f"{told}; echo $$; while :; do sleep 0.05; done")
    pids(record, 1)
    process.stop()
    assert output(record).endswith("saved\n") and process.poll() == 0


def test_stop_leaves_other_processes_alone(record):
    other = subprocess.Popen(["sleep", "60"])
    process = start(record, "sleep 60")
    wait_until(record.exists)
    process.stop()
    assert other.poll() is None
    other.kill()
    other.wait()


def test_leftovers_of_a_script_that_was_killed_alone_are_ended(record):
    process = start(record, "sleep 60 & echo $!; setsid sleep 60 & echo $!; wait")
    family = pids(record, 2)
    os.kill(process.id.pid, signal.SIGKILL)
    process.child.wait()
    assert all(each.runs() for each in family)
    local.end_leftovers(record)
    assert not any(each.runs() for each in family)


# --- claim ---------------------------------------------------------------------------------------

CLAIM = """
from sft import local
with local.claim(Path(sys.argv[1])):
    wait()
"""


def is_claimed(folder):
    with open(folder / "process.lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_claim_is_for_one_driver(tmp_path):
    driver = start_until_wait(CLAIM, tmp_path)
    assert is_claimed(tmp_path)
    kill(driver)


def test_claim_ends_with_its_driver_however_that_ends(tmp_path):
    kill_at_wait(CLAIM, tmp_path)
    assert not is_claimed(tmp_path)


def test_claim_is_held_until_the_script_is_recorded(record, monkeypatch):
    slow = local._WRAPPER.replace("printf", "sleep 0.5; printf")
    monkeypatch.setattr(local, "_WRAPPER", slow)
    start(record, "sleep 60")
    assert is_claimed(record.parent) and not record.exists()
    with local.claim(record.parent):
        assert local.find(record)


def test_claim_does_not_last_as_long_as_the_script(record):
    start(record, "sleep 60")
    wait_until(record.exists)
    wait_until(lambda: not is_claimed(record.parent))
    assert local.find(record)


def test_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING, "sft"), local.claim(tmp_path):
        pass
    assert "no file locks (No locks available); never run two drivers at once" in caplog.text
