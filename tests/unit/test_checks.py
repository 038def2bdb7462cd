import pytest

from sft.gate.checks import CHECKS, ROW_CHECKS, TOKEN_CHECKS, acceptance_faults, check_limit_faults

SOURCES = ("talks", "tools:2024")


def faults(*entries: str, known_only: bool = True) -> list[str]:
    return acceptance_faults(entries, SOURCES, known_only, "t.tsv, line 2 (run)")


# What a config may accept.


@pytest.mark.parametrize(
    "entry",
    ["talks:no_loss", "tools:2024:no_loss", "old_reasoning", "talks:old_reasoning"],
    ids=["source", "source_with_a_colon", "decision", "decision_of_a_source"],
)
def test_entry_that_accepts_something_is_no_fault(entry):
    assert faults(entry) == []


def test_nothing_accepted_is_no_fault():
    assert faults() == []


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ("talks:no_los", "found 'talks:no_los'; did you mean 'no_loss'?"),
        ("", "found ''; known: "),
        ("talks:", "found 'talks:'; known: "),
        ("talks", "found 'talks'; known: "),
        ("no_loss:talks", "found 'no_loss:talks'; known: "),
        (
            "talks:broken_tokens",
            "found 'talks:broken_tokens'; broken_tokens cannot be accepted: nothing could be "
            "trained on",
        ),
        ("broken_tokens", "found 'broken_tokens'; broken_tokens cannot be accepted: "),
        ("no_loss", "found 'no_loss', expected its source too, as in talks:no_loss"),
        (":no_loss", "found ':no_loss', expected its source too, as in talks:no_loss"),
        (
            "talk:no_loss",
            "found 'talk:no_loss'; the mix has no source 'talk'; did you mean 'talks'?",
        ),
        ("Talks:no_loss", "found 'Talks:no_loss'; the mix has no source 'Talks'; did you mean "),
        ("talk:old_reasoning", "found 'talk:old_reasoning'; the mix has no source 'talk'; did "),
    ],
)
def test_entry_that_accepts_nothing_is_a_fault_with_its_place(entry, line):
    [found] = faults(entry)

    assert found.startswith(f"t.tsv, line 2 (run), accept: {line}")


def test_each_entry_is_a_fault_of_its_own():
    assert len(faults("no_loss", "talks:no_loss", "nonsense")) == 2


def test_base_config_may_accept_faults_of_sources_of_other_mixes():
    assert faults("other:no_loss", known_only=False) == []


def test_base_config_may_accept_known_faults_alone():
    assert len(faults("other:no_such_fault", known_only=False)) == 1


# Limits of a config.


def test_limits_of_checks_are_no_fault():
    assert check_limit_faults({"truncated_answer": 0.5, "no_loss": 0.0}, "config.yaml") == []


def test_no_limits_are_no_fault():
    assert check_limit_faults({}, "config.yaml") == []


def test_limit_of_no_check_is_a_fault_with_the_nearest():
    assert check_limit_faults({"no_loss": 0.1, "truncated_anser": 0.1}, "config.yaml") == [
        "config.yaml, check_limits, truncated_anser: unknown fault; "
        "did you mean 'truncated_answer'?"
    ]


# The checks themselves.


def test_no_check_is_of_rows_and_of_tokens():
    assert not ROW_CHECKS.keys() & TOKEN_CHECKS.keys()


@pytest.mark.parametrize("name", CHECKS)
def test_limit_lets_few_rows_pass(name):
    assert 0 <= CHECKS[name].limit <= 0.05


@pytest.mark.parametrize("name", [name for name in CHECKS if CHECKS[name].decision])
def test_decision_can_be_accepted(name):
    assert CHECKS[name].acceptable
