"""Ask a program, and take whatever comes back as an answer, silence too."""

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

ASK_S = 60.0
NOT_STARTED, NOT_FOUND, TIMED_OUT = 126, 127, 124  # exit codes of a shell


@dataclass(frozen=True)
class Answer:
    """The exit code of a program, or why it has none, and what it printed."""

    code: int
    output: str
    errors: str = ""

    @property
    def said(self) -> str:
        """Its words about a failure."""
        return self.errors.strip() or self.output.strip() or f"exit code {self.code}, not a word"

    @property
    def last_word(self) -> str:
        """The last line of them: in Python's tracebacks that is the error."""
        return self.said.splitlines()[-1]


def ask(*command: str, env: Mapping[str, str], text: str = "", timeout_s: float = ASK_S) -> Answer:
    """The answer of a command that reads `text`.

    Login nodes run out of processes: a program that cannot be started is an answer too.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=dict(env),
            start_new_session=True,
        )
    except FileNotFoundError:
        return Answer(NOT_FOUND, "", f"{command[0]}: not found")
    except OSError as error:
        return Answer(NOT_STARTED, "", f"{command[0]}: does not start: {error.strerror}")
    try:
        output, errors = process.communicate(text, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return Answer(TIMED_OUT, "", f"{command[0]}: no answer in {timeout_s:.0f} s")
    except BaseException:
        _end(process)
        raise
    return Answer(process.returncode, output, errors)


def _end(process: subprocess.Popen) -> None:
    """End a program with all that it started; what has left its group may hold on to the pipes."""
    with process:
        os.killpg(process.pid, signal.SIGKILL)
