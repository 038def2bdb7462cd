"""Locks of a killed snakemake go; those of a living one stay."""

import os
import time

import pytest

from sft import locks
from sft.locks import free_folder
from sft.process import ProcessId, process_id, this_process
from tests.unit.killing import kill, start, start_until_wait

HERE = this_process().host
DEAD = ProcessId(HERE, os.getpid(), 1)
ELSEWHERE = ProcessId("elsewhere", 1, 1)
HOLD = """
from sft import locks
locks.BEAT_S = 0.05
locks.hold_folder(Path(sys.argv[1], ".snakemake"))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A .snakemake with the two lock files of one snakemake."""
    monkeypatch.setattr(locks, "WATCH_S", 1.5)
    for name in ("0.input.lock", "0.output.lock"):
        (tmp_path / ".snakemake" / "locks").mkdir(parents=True, exist_ok=True)
        (tmp_path / ".snakemake" / "locks" / name).write_text("results/a\n")
    (tmp_path / ".snakemake" / "drivers").mkdir()
    return tmp_path / ".snakemake"


def leave(folder, driver):
    path = folder / "drivers" / str(driver)
    path.touch()
    return path


def free(folder, patient=True):
    """What is said when a folder is freed."""
    said = []
    free_folder(folder, said.append, patient)
    return said


def is_locked(folder):
    return bool(list((folder / "locks").iterdir()))


def test_locks_of_a_dead_driver_are_removed(folder):
    leave(folder, DEAD)
    assert free(folder) == [f"{folder}: a snakemake was killed here; its locks are removed"]
    assert not is_locked(folder)
    assert not list((folder / "drivers").iterdir())


def test_second_time_there_is_nothing_to_say(folder):
    leave(folder, DEAD)
    free(folder)
    assert free(folder) == []


def test_locks_without_any_driver_stay(folder):
    assert free(folder) == []
    assert is_locked(folder)


def test_locks_stay_while_one_of_two_drivers_lives(folder, tmp_path):
    leave(folder, DEAD)
    child = start_until_wait("wait()", tmp_path)
    leave(folder, process_id(child.pid))
    free(folder)
    assert is_locked(folder)
    kill(child)
    free(folder)
    assert not is_locked(folder)


def test_driver_that_frees_is_none_of_the_others(folder):
    leave(folder, DEAD)
    own = leave(folder, this_process())
    free(folder)
    assert not is_locked(folder)
    assert own.exists()


def test_files_of_others_are_left_alone(folder):
    (folder / "drivers" / ".nfs0001").touch()
    leave(folder, DEAD)
    free(folder)
    assert [path.name for path in (folder / "drivers").iterdir()] == [".nfs0001"]


def test_fresh_folder_needs_nothing(tmp_path):
    assert free(tmp_path / ".snakemake") == []


def test_silent_driver_of_another_host_counts_as_dead(folder):
    leave(folder, ELSEWHERE)
    assert "sign of life" in free(folder)[0]
    assert not is_locked(folder)


def test_driver_of_another_host_that_is_long_gone_is_not_waited_for(folder):
    long_ago = time.time() - 2 * locks.OLD_S
    os.utime(leave(folder, ELSEWHERE), (long_ago, long_ago))
    assert len(free(folder)) == 1
    assert not is_locked(folder)


def test_dry_run_waits_for_nobody(folder, monkeypatch):
    monkeypatch.setattr(time, "sleep", None)
    leave(folder, ELSEWHERE)
    assert free(folder, patient=False) == []
    assert is_locked(folder)


def test_driver_of_another_host_that_beats_keeps_its_locks(folder, tmp_path):
    child = start_until_wait(HOLD + "wait()", tmp_path)
    [path] = (folder / "drivers").iterdir()
    os.link(path, folder / "drivers" / str(ELSEWHERE))
    said = free(folder)
    kill(child)
    assert said[-1] == "snakemake runs at elsewhere too"
    assert is_locked(folder)


def test_driver_names_itself_to_its_stages(tmp_path):
    child = start_until_wait(
        HOLD + "import os, subprocess; subprocess.run(['sh', '-c', 'echo $SFT_DRIVER']); wait()",
        tmp_path,
    )
    identity = process_id(child.pid)
    child.kill()
    assert child.communicate()[0].strip() == str(identity)


def test_driver_that_ends_by_itself_leaves_nothing(folder, tmp_path):
    child = start(
        HOLD + "assert list(Path(sys.argv[1], '.snakemake', 'drivers').iterdir())", tmp_path
    )
    assert child.wait(timeout=10) == 0
    assert not list((folder / "drivers").iterdir())
    child.communicate()


def test_two_drivers_that_start_at_once_leave_each_other_alone(folder, tmp_path):
    leave(folder, DEAD)
    child = start_until_wait(HOLD + "wait()", tmp_path)
    leave(folder, this_process())
    free(folder)
    kill(child)
    assert is_locked(folder)
