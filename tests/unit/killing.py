"""Code that runs in a process of its own up to a place, and is killed there."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
WAIT_S = 30
WAIT = """
import sys, time
from pathlib import Path
def wait(*arguments, **keywords):
    Path(sys.argv[1], "reached").touch()
    time.sleep(3600)
"""


def start(code: str, folder: Path, **variables: str) -> subprocess.Popen:
    """Run code that may call `wait()`; `sys.argv[1]` is `folder`."""
    return subprocess.Popen(
        [sys.executable, "-c", WAIT + code, str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def start_until_wait(code: str, folder: Path, **variables: str) -> subprocess.Popen:
    """Run code until it calls `wait()`, and leave it there."""
    child = start(code, folder, **variables)
    reached = folder / "reached"
    wait_until(lambda: reached.exists() or child.poll() is not None)
    assert reached.exists(), child.communicate()[0]
    reached.unlink()
    return child


def kill_at_wait(code: str, folder: Path, **variables: str) -> None:
    """Run code until it calls `wait()`, and kill it there."""
    kill(start_until_wait(code, folder, **variables))


def kill(child: subprocess.Popen) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
