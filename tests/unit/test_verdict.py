import pytest

from sft.errors import SftError
from sft.gate.checks import CHECKS
from sft.gate.verdict import Judged, judge, refusal, refuse


def finding(fault: str = "no_loss", count: int = 3, of: int = 200, source: str = "talks") -> dict:
    places = [
        {"row": row, "found": f"text {row}", "expected": "a loss"} for row in range(min(count, 10))
    ]
    return {"source": source, "fault": fault, "count": count, "of": of, "places": places}


def verdict(found: dict, limits=None, accepted=(), decided=None) -> tuple[str, str]:
    [judged] = judge([found], limits or {}, accepted, decided or {})
    return judged.verdict, judged.by


# Refused, or within the limit.


def test_finding_is_refused_where_nothing_is_said_of_it():
    assert verdict(finding()) == ("refused", "")


def test_nothing_found_is_nothing_judged():
    assert judge([], {}, [], {}) == []


@pytest.mark.parametrize(
    ("count", "judged"), [(1, "note"), (2, "note"), (3, "refused"), (200, "refused")]
)
def test_limit_of_a_check_is_a_share_of_the_source(count, judged):
    assert CHECKS["truncated_answer"].limit == 0.01
    assert verdict(finding("truncated_answer", count))[0] == judged


def test_limit_that_is_kept_is_said():
    assert verdict(finding("truncated_answer", 2)) == ("note", "limit 1%")


@pytest.mark.parametrize(
    ("limit", "judged"),
    [(0.0, "refused"), (0.0149, "refused"), (0.015, "note"), (1, "note")],
)
def test_limit_of_the_config_is_the_one_that_counts(limit, judged):
    assert verdict(finding("truncated_answer"), {"truncated_answer": limit})[0] == judged


def test_limit_of_another_fault_does_not_count():
    assert verdict(finding("no_loss"), {"prompt_in_loss": 1.0})[0] == "refused"


def test_small_limit_is_said_as_it_is():
    assert verdict(finding("no_loss", 1, 10**6), {"no_loss": 2.5e-6}) == ("note", "limit 0.00025%")


def test_fault_of_a_source_without_examples_is_refused():
    assert verdict(finding("truncated_answer", 3, 0))[0] == "refused"


# Accepted.


@pytest.mark.parametrize(
    ("fault", "entry", "judged"),
    [
        ("no_loss", "talks:no_loss", "accepted"),
        ("no_loss", "other:no_loss", "refused"),
        ("no_loss", "talks:prompt_in_loss", "refused"),
        ("no_loss", "no_loss", "refused"),
        ("no_loss", "", "refused"),
        ("old_reasoning", "old_reasoning", "accepted"),
        ("old_reasoning", "talks:old_reasoning", "accepted"),
        ("old_reasoning", "other:old_reasoning", "refused"),
        ("broken_tokens", "talks:broken_tokens", "refused"),
        ("broken_tokens", "broken_tokens", "refused"),
    ],
)
def test_entry_accepts_a_fault_of_its_source_and_a_decision_everywhere(fault, entry, judged):
    assert verdict(finding(fault), accepted=[entry])[0] == judged


def test_accepting_entry_is_said():
    assert verdict(finding(), accepted=["talks:no_loss"]) == ("accepted", "accept: talks:no_loss")


def test_entry_of_the_source_is_said_before_the_one_for_all():
    accepted = ["old_reasoning", "talks:old_reasoning"]

    assert verdict(finding("old_reasoning"), accepted=accepted)[1] == "accept: talks:old_reasoning"


def test_source_may_have_a_colon_in_its_name():
    found = finding(source="talks:2024")

    assert verdict(found, accepted=["talks:2024:no_loss"])[0] == "accepted"


def test_fault_that_the_config_asks_for_is_accepted_by_its_key():
    decided = {"masked_reasoning": "enable_thinking: false"}

    assert verdict(finding("masked_reasoning"), decided=decided) == (
        "accepted",
        "enable_thinking: false",
    )


def test_accepted_fault_is_accepted_within_its_limit_too():
    accepted = ["talks:truncated_answer"]

    assert verdict(finding("truncated_answer", 1), accepted=accepted)[0] == "accepted"


def test_each_finding_has_a_verdict_of_its_own():
    found = [finding(), finding(source="tools"), finding("truncated_answer", 1)]

    judged = judge(found, {}, ["tools:no_loss"], {})

    assert [each.verdict for each in judged] == ["refused", "accepted", "note"]


def test_record_is_the_finding_and_who_accepted_it():
    [judged] = judge([finding()], {}, ["talks:no_loss"], {})

    assert judged.record() == {
        "source": "talks",
        "fault": "no_loss",
        "count": 3,
        "of": 200,
        "by": "accept: talks:no_loss",
    }


# What a person reads.


def refused(fault: str = "no_loss", count: int = 3, of: int = 200) -> Judged:
    [judged] = judge([finding(fault, count, of)], {}, [], {})
    return judged


def test_refusal_tells_what_where_and_what_to_do():
    assert refusal(refused(count=2), 0.0).splitlines() == [
        "talks: no_loss: 2 of 200 have no token with a loss",
        "    row 0: found text 0, expected a loss",
        "    row 1: found text 1, expected a loss",
        f"    remedy: {CHECKS['no_loss'].remedy}",
        "    or accept it, in the row or the base config: accept: [talks:no_loss]",
    ]


def test_refusal_shows_ten_rows_and_counts_the_others():
    lines = refusal(refused(count=12), 0.0).splitlines()

    assert [line.startswith("    row ") for line in lines].count(True) == 10
    assert lines[11] == "    … and 2 more"


def test_refusal_shows_no_more_rows_of_a_finding_that_has_more():
    places = tuple({"row": row, "found": "", "expected": ""} for row in range(12))
    judged = Judged("talks", "no_loss", 12, 24, places, "refused")

    assert refusal(judged, 0.0).count("    row ") == 10


def test_refusal_of_ten_rows_has_no_others():
    assert "more" not in refusal(refused(count=10), 0.0)


def test_refusal_without_rows_has_its_count_in_the_first_line():
    judged = Judged("talks", "lost_rows", 14, 24, (), "refused")

    assert "more" not in refusal(judged, 0.0)
    assert refusal(judged, 0.0).startswith("talks: lost_rows: 14 of 24 vanished")


def test_refusal_says_the_limit():
    assert "(limit 1%)" in refusal(refused("truncated_answer"), 0.01).splitlines()[0]


def test_decision_is_accepted_for_all_sources():
    assert refusal(refused("old_reasoning"), 0.0).endswith("accept: [old_reasoning]")


def test_what_cannot_be_accepted_is_not_said_to_be():
    assert "accept" not in refusal(refused("broken_tokens"), 0.0)


def test_only_refused_findings_are_raised():
    judged = judge([finding(), finding("truncated_answer", 1)], {}, [], {})

    with pytest.raises(SftError) as caught:
        refuse(judged, {})

    [line] = caught.value.args
    assert line.startswith("talks: no_loss: ")


def test_each_refused_finding_is_one_fault():
    judged = judge([finding(), finding(source="tools")], {}, [], {})

    with pytest.raises(SftError) as caught:
        refuse(judged, {})

    assert [line.split(":")[0] for line in caught.value.args] == ["talks", "tools"]


def test_limit_of_the_config_is_said_in_the_refusal():
    limits = {"truncated_answer": 0.001}

    with pytest.raises(SftError, match=r"\(limit 0.1%\)"):
        refuse(judge([finding("truncated_answer")], limits, [], {}), limits)


def test_nothing_refused_is_nothing_raised():
    refuse(judge([finding("truncated_answer", 1)], {}, [], {}), {})
