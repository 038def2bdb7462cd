"""A program is asked, and whatever comes of it is an answer."""

import time

from sft.commands import NOT_FOUND, NOT_STARTED, TIMED_OUT, ask

PATH = {"PATH": "/usr/bin:/bin"}


def test_exit_code_and_words_are_the_answer():
    answer = ask("bash", "-c", "cat; echo no >&2; exit 3", env=PATH, text="yes")

    assert (answer.code, answer.output, answer.said) == (3, "yes", "no")


def test_failure_without_a_word_is_said_by_its_code():
    assert ask("false", env=PATH).said == "exit code 1, not a word"


def test_words_that_are_no_utf_8_are_an_answer():
    assert ask("printf", r"a\xe9\xc3\xbc", env=PATH).output == "a\ufffdü"


def test_program_that_is_not_there_is_an_answer():
    answer = ask("/nowhere/sinfo", env={})

    assert (answer.code, answer.said) == (NOT_FOUND, "/nowhere/sinfo: not found")


def test_program_that_does_not_start_is_an_answer(tmp_path):
    answer = ask(str(tmp_path), env={})

    assert (answer.code, answer.said) == (
        NOT_STARTED,
        f"{tmp_path}: does not start: Permission denied",
    )


def test_program_that_hangs_is_ended_with_its_children():
    started_s = time.monotonic()
    answer = ask("bash", "-c", "sleep 20; true", env=PATH, timeout_s=0.2)

    assert answer.code == TIMED_OUT
    assert answer.last_word == "bash: no answer in 0 s"
    assert time.monotonic() - started_s < 10


def test_child_that_left_the_group_is_not_waited_for():
    started_s = time.monotonic()
    answer = ask("setsid", "--fork", "sleep", "11", env=PATH, timeout_s=0.2)

    assert answer.code == TIMED_OUT
    assert time.monotonic() - started_s < 10
