"""Rows read as conversations, and every fault of a row from its smallest input."""

import json
from pathlib import Path

import pytest
import yaml

from sft.gate.conversation import (
    BETWEEN_RESULTS,
    CONTROL_STRINGS,
    KINDS,
    RowFault,
    answer_digest,
    foreign_markers,
    read_conversation,
    read_schema,
    row_digest,
)

ROOT = Path(__file__).parents[2]
REGISTRY = yaml.safe_load((ROOT / "config" / "datasets.yaml").read_text())
DEMO = {
    "demo_tools": ROOT / "demo" / "chats_sharegpt.jsonl",
    "demo_reasoning": ROOT / "demo" / "chats_messages.jsonl",
}

SHAREGPT = {
    "formatting": "sharegpt",
    "columns": {"messages": "conversations", "tools": "tools", "system": "system"},
}
TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user"}
MESSAGES = {
    "formatting": "sharegpt",
    "columns": {"messages": "messages"},
    "tags": TAGS | {"assistant_tag": "assistant", "system_tag": "system"},
}
ALPACA = {
    "columns": {
        **{"prompt": "instruction", "query": "input", "response": "output"},
        **{"history": "history", "system": "system"},
    }
}

WEATHER = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = {"name": "get_weather", "arguments": {"city": "Łódź"}}
LONE = "\ud83d"  # half of a character

ROLES = {"s": "system", "h": "human", "g": "gpt", "f": "function_call", "o": "observation"}


def chat(*turns: str, **columns: object) -> dict:
    """A ShareGPT row of turns such as "h: Hello"; the letter stands for the role."""
    pairs = [turn.split(": ", 1) for turn in turns]
    return {
        "conversations": [{"from": ROLES.get(tag, tag), "value": text} for tag, text in pairs],
        **columns,
    }


def call_chat(call: object, tools: object = None, result: str = "7") -> dict:
    """A ShareGPT row with one turn of calls; what is no text is written as JSON."""
    text = call if isinstance(call, str) else json.dumps(call)
    listed = json.dumps([WEATHER] if tools is None else tools)
    return chat("h: How is it?", f"f: {text}", f"o: {result}", "g: Fine.", tools=listed)


def valued(content: object) -> dict:
    """A ShareGPT row whose question has another content than text."""
    row = chat("h: ", "g: Hi.")
    row["conversations"][0]["value"] = content
    return row


def fielded(**fields: object) -> dict:
    """A ShareGPT row whose answer has more fields."""
    row = chat("h: Hello", "g: Hi.")
    row["conversations"][1] |= fields
    return row


def alpaca(**columns: object) -> dict:
    return {"instruction": "Say hi.", "input": "", "output": "Hi."} | columns


def messages(*turns: tuple[str, str]) -> dict:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def faults(row: dict, options: dict = SHAREGPT, template: str | None = None) -> list[RowFault]:
    foreign = None if template is None else foreign_markers(template)
    return read_conversation(row, options, foreign)[1]


def read(row: dict, options: dict = SHAREGPT) -> tuple[list[dict], list[dict]]:
    """The messages and tools of a row that has no fault."""
    conversation, found = read_conversation(row, options)
    assert not found
    return list(conversation.messages), list(conversation.tools)


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict:
    return {"role": "assistant", "content": text}


# Good rows


@pytest.mark.parametrize("name", DEMO)
def test_rows_of_the_demo_have_no_fault(name):
    schema, foreign = read_schema(REGISTRY[name]), foreign_markers("<|im_start|> <|im_end|>")
    rows = [json.loads(line) for line in DEMO[name].read_text().splitlines()]
    read_all = [read_conversation(row, schema, foreign) for row in rows]
    assert [found for _, found in read_all if found] == []
    assert all(conversation for conversation, _ in read_all)


GOOD = {
    "one turn": chat("h: Hello", "g: Hi."),
    "many turns": chat("h: Hello", "g: Hi.", "h: Bye", "g: Bye."),
    "system": chat("s: Be brief.", "h: Hello", "g: Hi."),
    "empty system": chat("s: ", "h: Hello", "g: Hi."),
    "system column": chat("h: Hello", "g: Hi.", system="Be brief."),
    "empty columns": chat("h: Hello", "g: Hi.", system="", tools=""),
    "null columns": chat("h: Hello", "g: Hi.", system=None, tools=None),
    "empty list of tools": chat("h: Hello", "g: Hi.", tools="[]"),
    "tools without a call": chat("h: Hello", "g: Hi.", tools=json.dumps([WEATHER])),
    "call": call_chat(CALL),
    "call as the last turn": chat(
        "h: How is it?", f"f: {json.dumps(CALL)}", tools=json.dumps([WEATHER])
    ),
    "two calls": call_chat([CALL, CALL], result=f"7{BETWEEN_RESULTS}9"),
    "empty result": call_chat(CALL, result=""),
    "arguments as text": call_chat({"name": "get_weather", "arguments": '{"city": "東京"}'}),
    "no arguments": call_chat({"name": "get_weather", "arguments": {}}),
    "null that was meant": call_chat({"name": "get_weather", "arguments": {"city": None}}),
    "null for a tool of unknown arguments": call_chat(
        {"name": "f", "arguments": {"unit": None}}, [{"name": "f", "parameters": {}}]
    ),
    "tool in OpenAI's wrapping": call_chat(CALL, [{"type": "function", "function": WEATHER}]),
    "text before the call": call_chat(f"I look it up.\n{json.dumps(CALL)}"),
    "reasoning before the call": call_chat(f"<think>\nHm.\n</think>\n\n{json.dumps(CALL)}"),
    "reasoning": chat("h: 1 + 1?", "g: <think>\nEasy.\n</think>\n\n2"),
    "reasoning in every turn": chat(
        *("h: 1 + 1?", "g: <think>\nA.\n</think>\n\n2"),
        *("h: 2 + 2?", "g: <think>\nB.\n</think>\n\n4"),
    ),
    "reasoning in Delphi's tokens": chat("h: 1?", "g: <|start_think|>\nA.\n<|end_think|>\n\n1"),
    "empty reasoning": chat("h: 1 + 1?", "g: <think>\n\n</think>\n\n2"),
    "markers in a system text": chat("s: Think in <think>.", "h: 1?", "g: <think>a</think>1"),
    "markers in a call's arguments": call_chat(
        {"name": "get_weather", "arguments": {"city": "</think>"}}
    ),
    "other columns": chat("h: Hello", "g: Hi.", id=7, source="web", score=0.5),
    "other fields": fielded(id="a1", name="bot", tool_calls=None, weight=1, reasoning=""),
    "letters of many languages": chat(
        "h: «É, não?» – MAÇÃ… déjà‑vu à 20 °C, Tomáš\u00a0H.",
        "g: Ü, ñ, é™ 日本語 नमस्ते שלום 👩🏽‍🚀 société¹",
    ),
    "a list as an answer": chat("h: JSON?", 'g: [{"type": "number", "value": 1}]'),
    "control characters of a terminal": chat("h: ls", "g: \x1b[31mred\x1b[0m\tx\r\n"),
}


@pytest.mark.parametrize("row", GOOD.values(), ids=GOOD)
def test_good_row_has_no_fault(row):
    assert faults(row, template="<|start_think|> <|end_think|>") == []


ALPACA_GOOD = {
    "plain": alpaca(),
    "with input": alpaca(input="Loudly."),
    "with system": alpaca(system="Be brief."),
    "with history": alpaca(history=[["Hello", "Hi."], ["And?", "Well."]]),
    "empty history": alpaca(history=[], system=None),
    "input alone": alpaca(instruction="", input="Say hi."),
}


@pytest.mark.parametrize("row", ALPACA_GOOD.values(), ids=ALPACA_GOOD)
def test_good_alpaca_row_has_no_fault(row):
    assert faults(row, ALPACA) == []


def test_alpaca_columns_are_implied():
    assert read(alpaca(input="Loudly."), {})[0] == [user("Say hi.\nLoudly."), assistant("Hi.")]


def test_alpaca_row_becomes_its_history_question_and_answer():
    row = alpaca(input="Loudly.", history=[["Hello", "Hey."]], system="Be brief.")
    assert read(row, ALPACA)[0] == [
        {"role": "system", "content": "Be brief."},
        *(user("Hello"), assistant("Hey.")),
        *(user("Say hi.\nLoudly."), assistant("Hi.")),
    ]


def test_empty_system_is_none():
    assert read(chat("s: ", "h: Hello", "g: Hi."))[0] == [user("Hello"), assistant("Hi.")]


def test_messages_are_read_by_their_tags():
    row = messages(("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi."))
    assert read(row, MESSAGES)[0] == row["messages"]


def test_reasoning_stays_in_the_content():
    text = "<think>\nEasy.\n</think>\n\n2"
    assert read(chat("h: 1 + 1?", f"g: {text}"))[0][1] == assistant(text)


def test_calls_are_read_behind_their_text_and_results_apart():
    row = call_chat(f"Both.\n{json.dumps([CALL, CALL])}", result=f"7{BETWEEN_RESULTS}9")
    call = {"type": "function", "function": CALL}
    assert read(row) == (
        [
            user("How is it?"),
            assistant("Both.\n") | {"tool_calls": [call, call]},
            *({"role": "tool", "content": "7"}, {"role": "tool", "content": "9"}),
            assistant("Fine."),
        ],
        [WEATHER],
    )


def test_call_may_follow_reasoning_on_its_line():
    text = f"<think>Hm.</think> {json.dumps(CALL)}"
    message = read(call_chat(text))[0][1]
    assert (message["content"], message["tool_calls"][0]["function"]) == (
        *("<think>Hm.</think> ",),
        CALL,
    )


@pytest.mark.parametrize("arguments", [{"city": "Łódź"}, '{ "city":"Łódź"}'])
def test_arguments_keep_their_form(arguments):
    row = call_chat({"name": "get_weather", "arguments": arguments})
    assert read(row)[0][1]["tool_calls"][0]["function"]["arguments"] == arguments


def test_tools_are_given_as_they_stand():
    tool = {"type": "function", "function": WEATHER}
    assert read(call_chat(CALL, [tool]))[1] == [tool]


def test_schema_read_once_gives_the_same_as_the_options():
    row = call_chat(CALL)
    assert read_conversation(row, read_schema(SHAREGPT)) == read_conversation(row, SHAREGPT)


# Faults: kind, row, where, and a part of what was found

ANSWER = {"from": "gpt", "value": "B"}
HERMES = '<tool_call>{"name": "get_weather"}</tool_call>'
FAULTY = [
    ("missing_column", {"messages": []}, "column 'conversations'", "the columns messages"),
    ("missing_column", {"conversations": None}, "column 'conversations'", "null"),
    ("missing_column", {}, "column 'conversations'", "the columns of an empty row"),
    ("broken_messages", {"conversations": "[]"}, "column 'conversations'", "'[]'"),
    ("broken_messages", {"conversations": {"0": 1}}, "column 'conversations'", "an object with 0"),
    ("broken_messages", {"conversations": ["Hello", "Hi."]}, "column 'conversations'", "'Hello'"),
    ("broken_messages", {"conversations": [None]}, "column 'conversations'", "null"),
    ("wrong_roles", chat("user: Hello", "g: Hi."), "turn 1", "'user'"),
    ("wrong_roles", chat("h: Hello", "Gpt: Hi."), "turn 2", "'Gpt'"),
    ("wrong_roles", chat("s: S.", "h: Hello", "g: Hi.", "x: Hm."), "turn 4", "'x'"),
    ("wrong_roles", {"conversations": [{"role": "user"}]}, "turn 1", "no 'from' among role"),
    ("wrong_roles", {"conversations": [{}]}, "turn 1", "no 'from' among no fields"),
    ("wrong_roles", {"conversations": [{"from": ["h"]}]}, "turn 1", "a list of 1 such as 'h'"),
    ("late_system", chat("h: Hello", "g: Hi.", "s: Be brief."), "turn 3", "'system' after 2"),
    ("late_system", chat("s: A.", "s: B.", "h: Hello", "g: Hi."), "turn 2", "'system' after 1"),
    ("turn_order", chat("g: Hi."), "turn 1", "'gpt' as the first turn"),
    ("turn_order", chat("h: Hello", "g: Hi.", "h: Bye"), "turn 3", "'human' as the last turn"),
    ("turn_order", chat("h: A", "h: B", "g: C"), "turn 2", "'human' after 'human'"),
    ("turn_order", chat("s: S.", "h: A", "g: B", "g: C"), "turn 4", "'gpt' after 'gpt'"),
    ("no_answer", {"conversations": []}, "column 'conversations'", "no turn"),
    ("no_answer", chat("s: Be brief."), "turn 1", "the end of the row"),
    ("no_answer", chat("h: Hello"), "turn 1", "the end of the row"),
    ("empty_answer", chat("h: Hello", "g: "), "turn 2", "''"),
    ("empty_answer", chat("h: A", "g: \n \u3000", "h: B", "g: C"), "turn 2", r"'\n \u3000'"),
    ("empty_question", chat("h: ", "g: Hi."), "turn 1", "''"),
    ("not_text", valued(None), "turn 1", "null"),
    ("not_text", valued(5), "turn 1", "5"),
    ("not_text", valued(["a"]), "turn 1", "a list of 1 such as 'a'"),
    ("not_text", valued([{"type": "text"}]), "turn 1", "a list of 1 such as an object with type"),
    ("not_text", {"conversations": [{"from": "human", "content": "A"}, ANSWER]},
     "turn 1", "no 'value' among from, content"),
    ("not_text", chat("h: Hello", "g: Hi.", system=["a"]), "system", "a list of 1 such as 'a'"),
    ("broken_tools", chat("h: A", "g: B", tools="get_weather"), "tools", "'get_weather'"),
    ("broken_tools", chat("h: A", "g: B", tools='{"name": "f"}'), "tools", "an object with name"),
    ("broken_tools", chat("h: A", "g: B", tools="[{}]"), "tools", "an object with no keys"),
    ("broken_tools", chat("h: A", "g: B", tools='["f"]'), "tools", "'f'"),
    ("broken_tools", chat("h: A", "g: B", tools='[{"name": ""}]'), "tools", "an object with name"),
    ("broken_tools", chat("h: A", "g: B", tools=[WEATHER]), "tools", "a list of 1 such as an"),
    ("broken_call", call_chat("I look it up."), "turn 2", "'I look it up.'"),
    ("broken_call", call_chat(""), "turn 2", "''"),
    ("broken_call", call_chat([]), "turn 2", "'[]'"),
    ("broken_call", call_chat(HERMES), "turn 2", "'<tool_call>{"),
    ("broken_call", call_chat(f"{json.dumps(CALL)}\nDone."), "turn 2", "'{\"name\": \"get_we"),
    ("broken_call", call_chat({"name": "get_weather"}), "turn 2", "an object with name"),
    ("broken_call", call_chat({"arguments": {}}), "turn 2", "an object with arguments"),
    ("broken_call", call_chat({"type": "function", "function": CALL}), "turn 2",
     "an object with type, function"),
    ("broken_call", call_chat({"name": "get_weather", "arguments": "city=Łódź"}), "turn 2",
     "the arguments 'city=Łódź'"),
    ("broken_call", call_chat({"name": "get_weather", "arguments": ["Łódź"]}), "turn 2",
     "the arguments a list of 1"),
    ("unknown_tool", call_chat({"name": "getWeather", "arguments": {}}), "turn 2", "'getWeather'"),
    ("unknown_tool", call_chat(CALL, []), "turn 2", "'get_weather'"),
    ("unanswered_call", chat("h: A", f"f: {json.dumps(CALL)}", "h: B", "g: C",
     tools=json.dumps([WEATHER])), "turn 2", "a call, then user"),
    ("unanswered_call", chat("h: A", "g: B", "o: 7", "g: C"), "turn 3", "a result after assistant"),
    ("unanswered_call", chat("o: 7", "g: C"), "turn 1", "a result"),
    ("looping_answer", chat("h: A", "g: " + "Once more. " * 300), "turn 2", "3300 characters"),
    ("padded_arguments", call_chat({"name": "get_weather", "arguments": {"city": "x", "a": None}}),
     "turn 2, 'get_weather'", "null for 'a'"),
    ("padded_arguments", call_chat({"name": "get_weather", "arguments": '{"a": null}'}),
     "turn 2, 'get_weather'", "null for 'a'"),
    ("padded_arguments",
     chat("h: A", "g: B", tools='[{"name": "f", "parameters": {"properties": {"a": null}}}]'),
     "tools, 'f'", "null for 'a'"),
    ("ignored_fields", fielded(tool_calls=[{"function": CALL}]), "turn 2", "'tool_calls': a list"),
    ("ignored_fields", fielded(reasoning_content="Hm."), "turn 2", "'reasoning_content': 'Hm.'"),
    ("ignored_fields", fielded(thinking="Hm."), "turn 2", "'thinking': 'Hm.'"),
    ("ignored_fields", fielded(weight=0), "turn 2", "'weight': 0"),
    ("ignored_fields", fielded(train=False), "turn 2", "'train': False"),
    ("unread_column", chat("s: A.", "h: B", "g: C", system="D."), "column 'system'", "'D.'"),
    ("unread_column", chat("h: B", "g: C", system_prompt="D."), "column 'system_prompt'", "'D.'"),
    ("broken_reasoning", chat("h: 1?", "g: <think>a"), "turn 2", "1 <think> and 0 </think>"),
    ("broken_reasoning", chat("h: 1?", "g: a</think>1"), "turn 2", "0 <think> and 1 </think>"),
    ("broken_reasoning", chat("h: 1?", "g: </think><think>1"), "turn 2", "</think> before <think>"),
    ("broken_reasoning", chat("h: 1?", "g: <think><think>a</think></think>1"), "turn 2",
     "2 <think> and 2 </think>"),
    ("broken_reasoning", chat("h: 1?", "g: Well, <think>a</think>1"), "turn 2",
     "'Well, ' before <think>"),
    ("broken_reasoning", chat("h: <think>", "g: 1"), "turn 1", "<think>"),
    ("broken_reasoning", chat("h: 1?", "g: <|start_think|>a"), "turn 2",
     "1 <|start_think|> and 0 <|end_think|>"),
    ("broken_reasoning", call_chat(f"<think>a\n{json.dumps(CALL)}"), "turn 2",
     "1 <think> and 0 </think>"),
    ("reasoning_only", chat("h: 1?", "g: <think>a</think>\n"), "turn 2", "nothing after </think>"),
    ("damaged_text", chat("h: caf\ufffd", "g: Hi."), "turn 1", r"'\ufffd' in 'caf�'"),
    ("damaged_text", chat("h: It’s", "g: Itâ€™s"), "turn 2", r"'\xe2\u20ac\u2122' in 'Itâ€™s'"),
    ("damaged_text", chat("h: cafÃ©", "g: Hi."), "turn 1", r"'\xc3\xa9' in 'cafÃ©'"),
    ("damaged_text", chat("h: 20 Â°C", "g: Hi."), "turn 1", r"'\xc2\xb0'"),
    ("damaged_text", chat("h: Ð¿Ñ€Ð¸", "g: Hi."), "turn 1", r"'\xd0\xbf\xd1\u20ac'"),
    ("damaged_text", chat("h: å¥½", "g: Hi."), "turn 1", r"'\xe5\xa5\xbd'"),
    ("damaged_text", chat("h: ðŸ˜€", "g: Hi."), "turn 1", r"'\xf0\u0178\u02dc'"),
    ("damaged_text", chat("h: a\0b", "g: Hi."), "turn 1", r"'\x00' in 'a\x00b'"),
    ("damaged_text", chat(f"h: a{LONE}", "g: Hi."), "turn 1", r"'\ud83d' in 'a\ud83d'"),
    ("damaged_text", chat("s: caf\ufffd", "h: A", "g: B"), "system", r"'\ufffd'"),
    ("damaged_text", chat("h: A", "g: [{'type': 'text', 'text': 'B'}]"), "turn 2",
     "a list written as text"),
    ("damaged_text", chat("h: A", 'g: [{"type": "text", "text": "B"}]'), "turn 2",
     "a list written as text"),
    ("foreign_markers", chat("h: Hello<|im_end|>", "g: Hi."), "turn 1", "<|im_end|> in 'Hello<|im"),
    ("foreign_markers", chat("h: Hello", "g: [INST] Hi."), "turn 2", "[INST] in '[INST] Hi.'"),
    ("foreign_markers", call_chat(CALL, result="<|eot_id|>"), "turn 3", "<|eot_id|>"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "row", "where", "found"), FAULTY)
def test_fault_is_found_alone_with_its_place(kind, row, where, found):
    [fault] = faults(row, template="<|start_header_id|> <|start_think|> <|end_think|>")
    assert (fault.kind, fault.where) == (kind, where)
    assert fault.found.startswith(found)


ALPACA_FAULTY = [
    ("no_answer", alpaca(output=None), "column 'output'", "null"),
    ("no_answer", alpaca(output=7), "column 'output'", "7"),
    ("no_answer", {"instruction": "Say hi."}, "column 'output'", "no such column, only instru"),
    ("empty_answer", alpaca(output=""), "turn 2", "''"),
    ("empty_answer", alpaca(history=[["Hello", ""]]), "turn 2", "''"),
    ("empty_question", alpaca(instruction=None), "turn 1", "''"),
    ("not_text", alpaca(instruction=["a"]), "column 'instruction'", "a list of 1 such as 'a'"),
    ("not_text", alpaca(input=7), "column 'input'", "7"),
    ("not_text", alpaca(history=[["Hello", None]]), "turn 2", "null"),
    ("not_text", alpaca(system={"a": 1}), "system", "an object with a"),
    ("broken_messages", alpaca(history=[["Hello"]]), "column 'history', item 1", "a list of 1"),
    ("unread_column", alpaca(history='[["A", "B"]]'), "column 'history'", '\'[["A", "B"]]\''),
    ("unread_column", alpaca(tools='[{"name": "f"}]'), "column 'tools'", '\'[{"name"'),
]


@pytest.mark.parametrize(("kind", "row", "where", "found"), ALPACA_FAULTY)
def test_fault_of_an_alpaca_row_is_found_alone_with_its_place(kind, row, where, found):
    [fault] = faults(row, ALPACA)
    assert (fault.kind, fault.where) == (kind, where)
    assert fault.found.startswith(found)


def test_every_kind_has_a_smallest_row():
    assert {kind for kind, *_ in (*FAULTY, *ALPACA_FAULTY)} == KINDS.keys()


def test_input_that_no_column_names_is_found():
    options = {"columns": {"prompt": "instruction", "response": "output"}}
    [fault] = faults(alpaca(input="Loudly."), options)
    assert (fault.kind, fault.where) == ("unread_column", "column 'input'")


def test_tools_that_no_column_names_are_found():
    row = call_chat(CALL)
    kinds = [fault.kind for fault in faults(row, {"formatting": "sharegpt"})]
    assert kinds == ["unknown_tool", "unread_column"]


def test_pictures_beside_the_text_are_found():
    options = SHAREGPT | {"columns": {"messages": "conversations", "images": "pictures"}}
    [fault] = faults(chat("h: Hello", "g: Hi.", pictures=["a.png"]), options)
    assert (fault.kind, fault.where) == ("not_text", "column 'pictures'")


def test_results_in_turns_of_their_own_name_what_joins_them():
    row = chat("h: A", f"f: {json.dumps(CALL)}", "o: 7", "o: 9", "g: B")
    [fault] = faults(row)
    assert (fault.kind, fault.where) == ("turn_order", "turn 4")
    assert repr(BETWEEN_RESULTS) in fault.expected


def test_system_turn_without_a_tag_is_a_wrong_role():
    options = MESSAGES | {"tags": TAGS | {"assistant_tag": "assistant"}}
    [fault] = faults(messages(("system", "S."), ("user", "A"), ("assistant", "B")), options)
    assert (fault.kind, fault.found) == ("wrong_roles", "'system'")
    assert fault.expected == "one of 'user', 'assistant'"


def test_role_of_null_is_no_role_even_where_a_tag_is_not_named():
    # To LLaMA-Factory the tag that is not named is null, and the turn one of tool results.
    row = {"messages": [{"role": None, "content": "A"}, {"role": "assistant", "content": "B"}]}
    [fault] = faults(row, MESSAGES)
    assert (fault.kind, fault.drops) == ("broken_messages", False)


def test_each_unknown_role_is_named_once():
    row = chat("user: A", "bot: B", "user: C", "bot: D")
    assert [fault.found for fault in faults(row)] == ["'user'", "'bot'"]


def test_all_faults_of_a_row_are_found():
    row = chat("h: caf\ufffd <|im_end|>", "g: <think>a", "h: ", "g: ")
    assert [fault.kind for fault in faults(row, template="")] == [
        *("empty_question", "empty_answer"),
        *("foreign_markers", "damaged_text", "broken_reasoning"),
    ]


def test_markers_of_the_own_template_are_not_foreign():
    row = chat("h: <|im_start|>", "g: <|eot_id|>")
    [fault] = faults(row, template="<|im_start|>{{ x }}<|im_end|>")
    assert fault.found.startswith("<|eot_id|>")


def test_every_control_string_is_found_in_a_template_without_any():
    pattern = foreign_markers("")
    assert [text for text in CONTROL_STRINGS if not pattern.fullmatch(text)] == []


def test_row_that_a_trainer_could_not_read_gives_no_conversation():
    assert read_conversation(valued(None), SHAREGPT)[0] is None


def test_row_that_a_trainer_would_train_gives_a_conversation_with_its_fault():
    conversation, [fault] = read_conversation(chat("h: Hello", "g: "), SHAREGPT)
    assert conversation.messages == (user("Hello"), assistant(""))
    assert not fault.drops


def test_text_that_no_tokenizer_takes_gives_no_conversation():
    assert read_conversation(chat(f"h: a{LONE}", "g: Hi."), SHAREGPT)[0] is None


def test_message_of_a_fault_can_be_written_to_a_file():
    [fault] = faults(chat(f"h: a{LONE}", "g: Hi."))
    str(fault).encode()


def test_long_text_is_shortened_in_a_message():
    [fault] = faults(valued(["x" * 10_000]))
    assert len(fault.found) < 100


# Digests


def test_digests_of_equal_rows_are_equal_and_of_16_bytes():
    one, two = (read_conversation(call_chat(CALL), SHAREGPT)[0] for _ in range(2))
    assert row_digest(one) == row_digest(two)
    assert (len(row_digest(one)), len(answer_digest(one))) == (16, 16)


@pytest.mark.parametrize(
    "other",
    [
        chat("h: Hello", "g: Hi!"),
        chat("h: Hell", "g: oHi."),
        chat("s: S.", "h: Hello", "g: Hi."),
        chat("h: Hello", "g: Hi.", tools=json.dumps([WEATHER])),
    ],
)
def test_digests_of_other_rows_differ(other):
    one = read_conversation(chat("h: Hello", "g: Hi."), SHAREGPT)[0]
    assert row_digest(one) != row_digest(read_conversation(other, SHAREGPT)[0])


def test_answer_digest_is_that_of_the_last_answer_alone():
    one = read_conversation(chat("h: Hello", "g: Hey.", "h: Bye", "g: Bye."), SHAREGPT)[0]
    two = read_conversation(chat("h: Leave", "g: Bye."), SHAREGPT)[0]
    assert answer_digest(one) == answer_digest(two)
