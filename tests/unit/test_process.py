"""A process is told from a later one of the same number."""

import os
import signal
import subprocess
import time

import pytest

from sft.process import (
    ProcessId,
    parse_process_id,
    process_id,
    session_descendants,
    this_process,
)
from tests.unit.killing import wait_until


def test_this_process_runs_here():
    assert this_process().is_here and this_process().runs()
    assert this_process().pid == os.getpid()


def test_process_that_waits_to_be_reaped_has_ended():
    child = subprocess.Popen(["true"])
    identity = process_id(child.pid)
    wait_until(lambda: not identity.runs())
    assert child.wait() == 0


def test_reaped_process_has_ended():
    child = subprocess.Popen(["sleep", "60"])
    identity = process_id(child.pid)
    assert identity.runs()
    child.kill()
    child.wait()
    assert not identity.runs()


def test_number_that_is_used_again_is_another_process():
    identity = this_process()
    assert not ProcessId(identity.host, identity.pid, identity.start_ticks - 1).runs()


def test_start_does_not_depend_on_what_a_process_becomes():
    child = subprocess.Popen(["bash", "-c", "read; exec sleep 60"], stdin=subprocess.PIPE)
    before = process_id(child.pid)
    child.stdin.close()
    time.sleep(0.1)
    assert process_id(child.pid) == before
    child.kill()
    child.wait()


def test_name_of_a_process_may_hold_spaces_and_brackets(tmp_path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([program, "60"])
    assert process_id(child.pid).runs()
    child.kill()
    child.wait()


@pytest.mark.parametrize("host", ["vm", "login-01.cluster", "a-1-2"])
def test_text_of_a_process_names_it(host):
    identity = ProcessId(host, 12, 345)
    assert parse_process_id(f"{identity}\n") == identity


@pytest.mark.parametrize("text", ["", "12 345", "host-12", "-1-2", "host-a-1"])
def test_other_text_names_no_process(text):
    assert parse_process_id(text) is None


def test_descendants_are_those_of_the_same_session():
    script = """
        sleep 60 & echo $!
        bash -c 'sleep 60 & echo $!; wait' & echo $!
        setsid sleep 60 & echo $!
        wait
    """
    root = subprocess.Popen(
        ["bash", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    pids = {int(root.stdout.readline()) for _ in range(4)}
    wait_until(lambda: {os.getsid(pid) == root.pid for pid in pids} == {True, False})
    found = session_descendants(root.pid)
    inside = {pid for pid in pids if os.getsid(pid) == root.pid}
    for pid in [root.pid, *pids]:
        os.kill(pid, signal.SIGKILL)
    root.communicate()
    assert set(found) == inside and len(inside) == 3
