"""What becomes of an inspection: a page for a person, a refusal, and what the receipt keeps."""

import json
from pathlib import Path
from typing import Any

import pytest

from sft.errors import SftError
from sft.files import write_json
from sft.gate.gate import check_tokens, inspect_tokens, judge_findings, summaries
from sft.gate.preview import FIRST, Finding, Sample, Summary, Token
from sft.gate.verdict import judge
from tests.unit.planning import EXPERIMENT, changed

COUNTS = {
    "rows_in": 200,
    "rows_out": 199,
    "examples": 198,
    "tokens": 4000,
    "trained_tokens": 900,
    "median_length": 20,
    "length_of_95_percent": 30,
    "longest": 41,
    "truncated": 2,
}


def finding(fault: str, source: str = "big", count: int = 3) -> dict[str, Any]:
    places = [{"row": 7, "found": "nothing", "expected": "a loss"}]
    return {"source": source, "fault": fault, "count": count, "of": 200, "places": places}


def sample(why: str = FIRST, text: str = "A lamp is four euros.") -> dict[str, Any]:
    token = Token(5, text, trained=True, control=False, marked=False, ends_turn=False)
    return Sample("big", 0, why, "", 1, 1, (token,)).to_json()


def inspected(*findings: dict, samples: tuple[dict, ...] = (sample(),)) -> dict[str, Any]:
    """What an inspection leaves, as it is read from its file."""
    sources = {"big": COUNTS, "small": COUNTS | {"rows_in": 20}}
    return {"sources": sources, "findings": list(findings), "samples": list(samples)}


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "preview.html"


# What passes.


def test_tokens_without_findings_pass(page):
    assert check_tokens(EXPERIMENT, inspected(), {}, page) == {
        "accepted": [],
        "noted": [],
        "sources": {"big": COUNTS, "small": COUNTS | {"rows_in": 20}},
        "preview": str(page),
    }


def test_accepted_fault_is_recorded_with_who_accepted_it(page):
    experiment = changed(accept="big:no_loss")

    assert check_tokens(experiment, inspected(finding("no_loss")), {}, page)["accepted"] == [
        {"source": "big", "fault": "no_loss", "count": 3, "of": 200, "by": "accept: big:no_loss"}
    ]


def test_fault_within_the_limit_is_noted(page):
    found = inspected(finding("truncated_answer", count=1))

    assert check_tokens(EXPERIMENT, found, {}, page)["noted"] == [
        {"source": "big", "fault": "truncated_answer", "count": 1, "of": 200, "by": "limit 1%"}
    ]


def test_limit_of_the_site_is_the_one_that_counts(page):
    made = check_tokens(EXPERIMENT, inspected(finding("no_loss")), {"no_loss": 0.015}, page)

    assert [each["by"] for each in made["noted"]] == ["limit 1.5%"]


def test_fault_that_a_key_of_the_config_asks_for_is_accepted(page):
    experiment = changed(enable_thinking=False)
    made = check_tokens(experiment, inspected(finding("masked_reasoning")), {}, page)

    assert [each["by"] for each in made["accepted"]] == ["enable_thinking: false"]


@pytest.mark.parametrize("thinking", [{}, {"enable_thinking": True}, {"enable_thinking": None}])
def test_fault_that_no_key_asks_for_is_refused(thinking):
    [judged] = judge_findings(changed(**thinking), inspected(finding("masked_reasoning")), {})

    assert judged.verdict == "refused"


@pytest.mark.parametrize(
    "entries",
    ["big:no_loss, old_reasoning", ["old_reasoning", "big:no_loss"]],
    ids=["text", "list"],
)
def test_several_faults_are_accepted_in_a_cell_or_a_list(entries):
    found = inspected(finding("no_loss"), finding("old_reasoning", "small"))

    judged = judge_findings(changed(accept=entries), found, {})

    assert [each.verdict for each in judged] == ["accepted", "accepted"]


def test_what_the_gate_leaves_can_be_written(page):
    experiment = changed(accept="big:no_loss")

    assert json.dumps(check_tokens(experiment, inspected(finding("no_loss")), {}, page))


# What is refused.


def test_refusal_names_the_mix_the_page_and_each_fault(page):
    found = inspected(finding("no_loss"), finding("no_end", "small"))

    with pytest.raises(SftError) as caught:
        check_tokens(EXPERIMENT, found, {}, page)

    first, *lines = caught.value.args
    assert first == f"mix: 2 faults are refused, see what would be trained: {page}"
    assert [line.splitlines()[0].split(":")[:2] for line in lines] == [
        ["big", " no_loss"],
        ["small", " no_end"],
    ]


def test_refused_fault_hides_behind_no_accepted_one(page):
    experiment = changed(accept="big:no_loss")
    found = inspected(finding("no_loss"), finding("no_loss", "small"))

    with pytest.raises(SftError, match="small: no_loss: 3 of 200"):
        check_tokens(experiment, found, {}, page)


# The page.


def test_page_of_refused_tokens_is_there(page):
    with pytest.raises(SftError):
        check_tokens(EXPERIMENT, inspected(finding("no_loss")), {}, page)

    assert "no_loss" in page.read_text()


def test_page_shows_the_examples(page):
    check_tokens(EXPERIMENT, inspected(), {}, page)

    assert "A lamp is four euros." in page.read_text()


def test_page_names_the_mix(page):
    check_tokens(EXPERIMENT, inspected(), {}, page)

    assert "mix: what will be trained" in page.read_text()


def test_page_of_a_later_verdict_takes_the_place_of_the_earlier(page):
    with pytest.raises(SftError):
        check_tokens(EXPERIMENT, inspected(finding("no_loss")), {}, page)
    refused = page.read_text()
    check_tokens(changed(accept="big:no_loss"), inspected(finding("no_loss")), {}, page)

    assert page.read_text() != refused


# Summaries.


def test_summary_has_the_counts_and_findings_of_its_source():
    found = inspected(finding("no_loss"), finding("no_end", "small"))

    first, second = summaries(found, judge(found["findings"], {}, ["big:no_loss"], {}))

    assert first == Summary(
        source="big",
        rows_in=200,
        rows_out=199,
        num_examples=198,
        num_tokens=4000,
        num_trained=900,
        longest=41,
        num_truncated=2,
        findings=(
            Finding(
                "no_loss",
                3,
                "accepted",
                "have no token with a loss",
                "drop them: they teach nothing",
            ),
        ),
    )
    assert [each.fault for each in second.findings] == ["no_end"]


# Tokens that were inspected before.


def test_what_was_found_before_by_the_same_code_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("sft.gate.gate._code_hash", lambda: "0123456789")
    write_json(tmp_path / "inspected-01234567.json", inspected())

    found = inspect_tokens(EXPERIMENT, {}, {}, {"folder": str(tmp_path)}, num_workers=1)

    assert found == inspected()
