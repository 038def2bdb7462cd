"""What is said of a source whose registry does not fit its rows, and before it is tokenized."""

import json
from pathlib import Path

import pytest
import yaml

from sft.errors import SftError
from sft.gate.roles import diagnose_roles, flow_yaml, source_preflight
from sft.mix import build_dataset

SHAREGPT = {"formatting": "sharegpt", "columns": {"messages": "messages"}}
TAGS = {
    **{"role_tag": "role", "content_tag": "content"},
    **{"user_tag": "user", "assistant_tag": "assistant"},
}
MESSAGES = SHAREGPT | {"tags": TAGS}
ALPACA = {"columns": {"prompt": "instruction", "response": "output"}}

LONG = "A text that is longer than the name of any role could be: "


def row(*roles: str, role: str = "role", content: str = "content", column: str = "messages"):
    """A row of turns by these roles."""
    turns = [{role: each, content: f"{LONG}{number}"} for number, each in enumerate(roles)]
    return {column: turns}


def write(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def refusal(tmp_path: Path, rows: list, options: dict) -> str:
    file = write(tmp_path / "d.jsonl", rows)
    with pytest.raises(SftError) as caught:
        source_preflight([file], options, "reg.yaml, d")
    return str(caught.value)


# B01: role tags that fit no row, or not all of them


def test_tags_that_fit_no_row_are_refused_with_those_that_do(tmp_path):
    message = refusal(tmp_path, [row("user", "assistant")] * 20, SHAREGPT)
    assert message.splitlines() == [
        "reg.yaml, d: 0 of 20 rows can be read, wrong_roles 20",
        "  found the columns 'messages' 20",
        "  found in their messages 'role' 40, 'content' 40",
        "  found the roles 'user' 20, 'assistant' 20",
        "  expected the column 'messages' of messages with 'value' and 'from', which is one of "
        "'human', 'gpt', 'observation', 'function_call', 'system'",
        "  this reads them; write it in the registry: {formatting: sharegpt, columns: "
        "{messages: messages}, tags: {role_tag: role, content_tag: content, user_tag: user, "
        "assistant_tag: assistant}}",
        f"{tmp_path}/d.jsonl, row 0 (from 0), turn 1: wrong_roles: found no 'from' among role, "
        "content, expected one of 'human', 'gpt', 'observation', 'function_call', 'system'",
    ]


def test_tags_that_fit_some_rows_are_counted_and_said_to_be_of_two_kinds():
    rows = [row("user", "assistant")] * 12 + [row("human", "assistant")] * 8
    report = diagnose_roles(rows, MESSAGES)
    assert (report.rows, report.kept, report.unreadable) == (20, 12, {"wrong_roles": 8})
    assert report.roles == {"assistant": 20, "user": 12, "human": 8}
    [(number, fault)] = report.examples
    assert (number, fault.found) == (12, "'human'")
    assert report.proposal is None
    assert "'user' and 'human' mean the same" in report.lines()[-1]


# B02: sources of several schemas


def test_role_that_only_some_rows_have_is_counted_and_proposed():
    rows = [row("user", "assistant")] * 7
    rows += [row("user", "assistant", "environment", "assistant")] * 3
    report = diagnose_roles(rows, MESSAGES)
    assert report.roles == {"assistant": 13, "user": 10, "environment": 3}
    assert report.proposal["tags"] == TAGS | {"observation_tag": "environment"}


def test_rows_of_two_schemas_are_said_to_need_two_datasets():
    rows = [row("user", "assistant")] * 5
    rows += [row("human", "gpt", role="from", content="value")] * 5
    report = diagnose_roles(rows, SHAREGPT)
    assert (report.kept, report.proposal) == (5, None)
    assert "'role' and 'from' mean the same" in report.lines()[-1]


# What is proposed

PROPOSALS = {
    "Harbor's words": (row("user", "assistant"), SHAREGPT, TAGS),
    "ShareGPT's words": (row("human", "gpt", role="from", content="value"), MESSAGES, None),
    "capitals": (
        row("User", "Assistant"),
        MESSAGES,
        TAGS | {"user_tag": "User", "assistant_tag": "Assistant"},
    ),
    "unknown words": (
        row("Kunde", "Agentin", role="wer", content="was"),
        SHAREGPT,
        {"role_tag": "wer", "content_tag": "was", "user_tag": "Kunde", "assistant_tag": "Agentin"},
    ),
    "one more role": (
        row("user", "assistant", "shell", "assistant"),
        MESSAGES,
        TAGS | {"observation_tag": "shell"},
    ),
}


@pytest.mark.parametrize(("row", "options", "tags"), PROPOSALS.values(), ids=PROPOSALS)
def test_tags_that_read_the_rows_are_proposed(row, options, tags):
    report = diagnose_roles([row] * 3, options)
    assert report.proposal == SHAREGPT | ({"tags": tags} if tags else {})


def test_tags_of_calls_and_results_are_proposed():
    call = row("system", "user", "tool_call", "tool", "assistant")
    call["messages"][2]["content"] = '{"name": "f", "arguments": {}}'
    assert diagnose_roles([call] * 3, MESSAGES).proposal["tags"] == TAGS | {
        **{"system_tag": "system", "observation_tag": "tool", "function_tag": "tool_call"},
    }


def test_columns_of_tools_and_system_are_proposed_where_they_hold_text():
    rows = [row("user", "assistant") | {"tools": "", "system": "Be brief.", "id": "1"}] * 3
    columns = diagnose_roles(rows, {}).proposal["columns"]
    assert columns == {"messages": "messages", "system": "system", "tools": "tools"}


def test_conversations_registered_as_alpaca_are_proposed_as_conversations():
    report = diagnose_roles([row("user", "assistant", column="chat")] * 3, {})
    assert report.unreadable == {"no_answer": 3}
    assert report.proposal["formatting"] == "sharegpt"
    assert report.proposal["columns"] == {"messages": "chat"}


def test_questions_registered_as_conversations_are_proposed_as_alpaca():
    rows = [{"question": "1 + 1?", "answer": "2"}] * 3
    assert diagnose_roles(rows, SHAREGPT).proposal == {
        "columns": {"prompt": "question", "response": "answer"}
    }


def test_input_is_proposed_beside_an_instruction():
    rows = [{"instruction": "Say", "input": "hi", "response": "Hi."}] * 3
    assert diagnose_roles(rows, {}).proposal == {
        "columns": {"prompt": "instruction", "response": "response", "query": "input"}
    }


def test_nothing_is_proposed_where_nothing_reads_the_rows():
    rows = [{"messages": [{"role": "user", "content": [{"type": "text"}]}] * 2}] * 3
    report = diagnose_roles(rows, MESSAGES)
    assert report.proposal is None
    assert report.lines()[-1] == "no other words of the registry read them: correct the rows"


def test_nothing_is_proposed_for_good_rows():
    report = diagnose_roles([row("user", "assistant")] * 3, MESSAGES)
    assert (report.kept, report.proposal, report.examples) == (3, None, ())


def test_few_odd_rows_do_not_hide_what_reads_the_others():
    rows = [row("user", "assistant")] * 60 + [row("user")]
    assert diagnose_roles(rows, SHAREGPT).proposal["tags"] == TAGS


@pytest.mark.parametrize(
    "proposal",
    [MESSAGES, ALPACA, {"tags": {"user_tag": "on", "assistant_tag": "a: b", "role_tag": "it's"}}],
)
def test_proposal_is_yaml_that_the_registry_reads(proposal):
    assert yaml.safe_load(flow_yaml(proposal)) == proposal


def test_proposal_is_an_entry_that_is_accepted():
    proposal = diagnose_roles([row("user", "assistant")], SHAREGPT).proposal
    entry = {"file_name": "d.jsonl", **yaml.safe_load(flow_yaml(proposal))}
    assert build_dataset("d", {"d": [("reg.yaml", entry)]}).options == proposal


# Before anything is tokenized


def test_good_source_passes_by_its_first_row(tmp_path):
    file = write(tmp_path / "d.jsonl", [row("user", "assistant")])
    with open(file, "a") as content:
        content.write("no JSON\n")
    source_preflight([file], MESSAGES, "d")


def test_source_passes_where_only_its_first_rows_are_bad(tmp_path):
    rows = [row("user")] * 3 + [row("user", "assistant")]
    source_preflight([write(tmp_path / "d.jsonl", rows)], MESSAGES, "d")


def test_source_without_rows_is_refused(tmp_path):
    assert refusal(tmp_path, [], MESSAGES) == (
        "reg.yaml, d: no rows in it; fill it, or take the dataset out of the mix"
    )


def test_column_that_no_row_has_is_refused(tmp_path):
    options = MESSAGES | {"columns": {"messages": "messages", "tools": "toolz"}}
    rows = [row("user", "assistant") | {"tools": ""}] * 3
    assert refusal(tmp_path, rows, options) == (
        "reg.yaml, d, columns, tools: no row has the column 'toolz'; did you mean 'tools'?"
    )


def test_column_that_a_later_row_has_is_no_fault(tmp_path):
    options = MESSAGES | {"columns": {"messages": "messages", "tools": "tools"}}
    rows = [row("user", "assistant"), row("user", "assistant") | {"tools": ""}]
    source_preflight([write(tmp_path / "d.jsonl", rows)], options, "d")


def test_column_that_alpaca_implies_is_asked_for(tmp_path):
    rows = [{"instruction": "Say hi.", "output": "Hi."}]
    assert refusal(tmp_path, rows, {}).startswith(
        "reg.yaml, d, columns, query: no row has the column 'input'"
    )


@pytest.mark.parametrize("answer", ["2024-02-29", "2024-02-29 12:30", "2024-02-29T12:30:00Z"])
def test_answers_that_are_all_dates_are_refused_in_json_lines(tmp_path, answer):
    message = refusal(tmp_path, [{"instruction": "When?", "output": answer}] * 3, ALPACA)
    assert message.startswith("reg.yaml, d: every 'output' is a date")


@pytest.mark.parametrize("last", ["On 2024-02-29", "2024", "29.02.2024"])
def test_answers_of_which_one_is_no_date_pass(tmp_path, last):
    rows = [{"instruction": "When?", "output": each} for each in ("2024-02-29", last)]
    source_preflight([write(tmp_path / "d.jsonl", rows)], ALPACA, "d")


def test_answers_that_are_all_dates_pass_in_an_array(tmp_path):
    file = tmp_path / "d.json"
    file.write_text(json.dumps([{"instruction": "When?", "output": "2024-02-29"}]))
    source_preflight([file], ALPACA, "d")


def test_examples_are_one_a_fault_with_file_and_row(tmp_path):
    rows = [row("user"), row("user"), row("assistant", "user")]
    message = refusal(tmp_path, rows, MESSAGES)
    places = [line.split(", turn")[0] for line in message.splitlines() if line[0] == "/"]
    assert places == [f"{tmp_path}/d.jsonl, row {number} (from 0)" for number in (0, 2)]


def test_message_stays_short_whatever_the_rows_hold(tmp_path):
    rows = [row(f"role {number}", "x" * 10_000) for number in range(500)]
    message = refusal(tmp_path, rows, MESSAGES)
    assert len(message.splitlines()) < 20 and len(message) < 10_000
