"""Good data sets of every shape, and the faults made of them by one small change each.

A case is written as a data file and an entry of dataset_info.json (`write_cases`); a damage is done
to tokens that are on disk already. `checks` names those of sft/gate/checks.py that find something
in it: first the one that is meant, then what comes with it. No other does.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

IGNORED = -100
CUTOFF = 8192  # where a case's config has none


@dataclass(frozen=True, eq=False)
class Case:
    """One data set and what it is tokenized with.

    `options` are the words of its entry in dataset_info.json. `tokenizer` is smollm2, llama3 or
    qwen (tests/tokenizers.py); `chat_template` is the jinja that this tokenizer brings along.
    `config` goes on top of the config of the tokenizing. `origin` names the public
    report or the trap that the case is the smallest input of.
    """

    name: str
    rows: tuple[dict, ...]
    options: Mapping[str, Any]
    template: str = "chatml_tools"
    tokenizer: str = "smollm2"
    chat_template: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    origin: str = ""

    @property
    def expected(self) -> frozenset[str]:
        return frozenset(self.checks)


def write_cases(folder: Path, cases: Iterable[Case]) -> None:
    """Write each case as <name>.jsonl, and the dataset_info.json that registers them all."""
    registry = {}
    for case in cases:
        lines = [json.dumps(row, ensure_ascii=False) for row in case.rows]
        (folder / f"{case.name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
        registry[case.name] = {"file_name": str(folder / f"{case.name}.jsonl"), **case.options}
    (folder / "dataset_info.json").write_text(json.dumps(registry, indent=1))


# Conversations: in words of their own, written as rows of either formatting further below.


@dataclass(frozen=True)
class Chat:
    """Turns of (role, text), the roles being system, user, assistant, call and result."""

    turns: tuple[tuple[str, str], ...]
    tools: str | None = ""


THINGS = (
    *("apple", "lamp", "chair", "book", "kettle", "spade", "ladder", "radio", "pillow", "brush"),
    *("bottle", "basket", "jacket", "clock", "mirror", "bucket", "carpet", "candle", "drum"),
    *("flute", "hammer", "needle", "paddle", "saddle"),
)
NUMBERS = range(len(THINGS))
SYSTEM = "You keep the till of a village shop. Answer in one sentence."
PRICES = {
    "name": "get_price",
    "description": "The price of a thing in euros",
    "parameters": {"type": "object", "properties": {"thing": {"type": "string"}}},
}
SHELF = {"type": "object", "properties": {"shelf": {"type": "integer"}}}
STOCK = {"type": "function", "function": {"name": "get_stock", "parameters": SHELF}}


def count(number: int) -> int:
    return 3 + number % 5


def price(number: int) -> int:
    return 2 + number


def ask(number: int) -> str:
    return f"One {THINGS[number]} costs {price(number)} euros. What do {count(number)} of it cost?"


def think(number: int) -> str:
    total = count(number) * price(number)
    return f"{count(number)} times {price(number)} is {total}, and the {THINGS[number]} is no gift."


def answer(number: int) -> str:
    total = count(number) * price(number)
    return f"The price of {count(number)} of the {THINGS[number]} is {total} euros."


def reasoned(thought: str, text: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n{text}"


def talk(number: int) -> Chat:
    """Two questions and answers; every other chat has a system turn."""
    more = f"And one more? The {THINGS[number]} is for a friend."
    total = (count(number) + 1) * price(number)
    turns = (
        ("user", ask(number)),
        ("assistant", answer(number)),
        ("user", more),
        ("assistant", f"With one more it is {total} euros for the {THINGS[number]}s."),
    )
    return Chat((("system", SYSTEM), *turns) if number % 2 else turns)


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def errand(number: int) -> Chat:
    """A question, a call with its result, and an answer; every third chat needs no call."""
    question = f"How much is the {THINGS[number]}?"
    said = f"The {THINGS[number]} is {price(number)} euros."
    tools = json.dumps([PRICES, STOCK] if number % 2 else [PRICES])
    if number % 3 == 2:
        return Chat((("user", ask(number)), ("assistant", answer(number))), tools)
    result = json.dumps({"euros": price(number)})
    turns = (
        ("user", question),
        ("call", call("get_price", thing=THINGS[number])),
        ("result", result),
        ("assistant", said),
    )
    return Chat((("system", SYSTEM), *turns) if number % 2 else turns, tools)


def one_turn(number: int) -> Chat:
    return Chat((("user", ask(number)), ("assistant", answer(number))))


def say(chat: Chat, place: int, text: Any, role: str | None = None) -> Chat:
    """The chat with other words, and another role if one is given, in the turn at `place`."""
    turns = list(chat.turns)
    turns[place] = (role or turns[place][0], text)
    return replace(chat, turns=tuple(turns))


def drop(chat: Chat, place: int) -> Chat:
    turns = list(chat.turns)
    del turns[place]
    return replace(chat, turns=tuple(turns))


def insert(chat: Chat, place: int, role: str, text: str) -> Chat:
    turns = list(chat.turns)
    turns.insert(place, (role, text))
    return replace(chat, turns=tuple(turns))


def think_last(number: int) -> Chat:
    chat = talk(number)
    return say(chat, -1, reasoned(think(number), chat.turns[-1][1]))


def think_always(number: int) -> Chat:
    chat = think_last(number)
    return say(chat, -3, reasoned(think(number), chat.turns[-3][1]))


PLAIN = tuple(map(one_turn, NUMBERS))
TALKS = tuple(map(talk, NUMBERS))
ERRANDS = tuple(map(errand, NUMBERS))
LAST_THOUGHTS = tuple(map(think_last, NUMBERS))
ALL_THOUGHTS = tuple(map(think_always, NUMBERS))
ONE_THOUGHT = tuple(
    say(chat, -1, reasoned(think(number), chat.turns[-1][1])) for number, chat in enumerate(PLAIN)
)

Change = Callable[[Chat], Chat]


def change(chats: Sequence[Chat], how: Change, places: Iterable[int] = (3, 10)) -> tuple[Chat, ...]:
    """The chats, those at `places` changed. Both are odd and even, with system and without."""
    changed = set(places)
    return tuple(how(chat) if place in changed else chat for place, chat in enumerate(chats))


# Rows.

FROM_VALUE = {"user": "human", "assistant": "gpt", "call": "function_call", "result": "observation"}
ROLE_CONTENT = {"call": "function_call", "result": "tool"}
SHAREGPT = {
    "formatting": "sharegpt",
    "columns": {"messages": "conversations", "tools": "tools"},
}
MESSAGES = {
    "formatting": "sharegpt",
    "columns": {"messages": "messages", "tools": "tools"},
    "tags": {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
        "observation_tag": "tool",
        "function_tag": "function_call",
        "system_tag": "system",
    },
}
ALPACA = {"columns": {"prompt": "instruction", "query": "input", "response": "output"}}


def sharegpt_rows(chats: Iterable[Chat]) -> tuple[dict, ...]:
    """Rows of from and value."""
    return tuple(
        {
            "conversations": [
                {"from": FROM_VALUE.get(role, role), "value": text} for role, text in chat.turns
            ],
            "tools": chat.tools,
        }
        for chat in chats
    )


def message_rows(chats: Iterable[Chat]) -> tuple[dict, ...]:
    """Rows of role and content."""
    return tuple(
        {
            "messages": [
                {"role": ROLE_CONTENT.get(role, role), "content": text} for role, text in chat.turns
            ],
            "tools": chat.tools,
        }
        for chat in chats
    )


def alpaca_row(number: int, **other: Any) -> dict:
    return {"instruction": ask(number), "input": "", "output": answer(number), **other}


def sharegpt(name: str, chats: Iterable[Chat], expected: str = "", **other: Any) -> Case:
    """A case of from and value; `expected` holds names with blanks between them."""
    return _case(name, sharegpt_rows(chats), SHAREGPT, expected, other)


def messages(name: str, chats: Iterable[Chat], expected: str = "", **other: Any) -> Case:
    """A case of role and content."""
    return _case(name, message_rows(chats), MESSAGES, expected, other)


def alpaca(name: str, rows: Iterable[dict], expected: str = "", **other: Any) -> Case:
    """A case of instruction and output."""
    return _case(name, tuple(rows), ALPACA, expected, other)


def _case(name: str, rows: tuple, options: Mapping, expected: str, other: Mapping) -> Case:
    return Case(name, rows, checks=tuple(expected.split()), **{"options": options, **other})


# What tokenizers bring along: short chat templates, each with one habit of a public one.

CHATML = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# Qwen3's habit: reasoning of earlier turns is left out, the last turn always has a block.
KEEPS_LAST_REASONING = (
    "{%- for message in messages -%}"
    "{%- set text, thought = message['content'], '' -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{%- if '</think>' in text -%}"
    "{%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}"
    "{%- set text = text.split('</think>')[-1].lstrip('\\n') -%}"
    "{%- endif -%}"
    "{%- if loop.last -%}"
    "{%- set text = '<think>\\n' + thought + '\\n</think>\\n\\n' + text -%}"
    "{%- endif -%}"
    "{%- endif -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + text + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}"
    "{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}{%- endif -%}"
)
# Llama 3's habit: what people say is stripped of blanks at both ends.
TRIMS = CHATML.replace("message['content']", "message['content'] | trim")
# Mistral's habit: the system text begins the first user turn.
SYSTEM_IN_USER = (
    "{%- if messages[0]['role'] == 'system' -%}"
    "{%- set head, turns = messages[0]['content'] + '\\n\\n', messages[1:] -%}"
    "{%- else -%}{%- set head, turns = '', messages -%}{%- endif -%}"
    "{%- for message in turns -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + (head if loop.first else '') -}}"
    "{{- message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
# Llama 3.1's habit: every system turn begins with two dates.
ADDS_DATE = (
    "{{- bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\n' -}}"
    "{{- 'Cutting Knowledge Date: December 2023\\nToday Date: 26 Jul 2024\\n\\n' -}}"
    "{%- if messages[0]['role'] == 'system' -%}"
    "{{- messages[0]['content'] -}}{%- set turns = messages[1:] -%}"
    "{%- else -%}{%- set turns = messages -%}{%- endif -%}"
    "{{- '<|eot_id|>' -}}"
    "{%- for message in turns -%}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' -}}"
    "{{- message['content'] + '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"
)

# Good sets.

HARD_TEXTS = (
    "  Two blanks, a tab\t, and a line\n\n\nafter two empty ones.\n",
    "naïve café, n̈ with a combining mark, नमस्ते, שלום, 東京, 👩🏽‍🚀 and a ﬁ ligature",
    "```c\nint main() { return a[{0}]; }\n```\n{{content}} {% if x %} {{ name }}",
    "1234567 + 0.00001 = 1,234,567.00001; x² ≥ −1; $\\frac{a}{b}$",
    "A line separator \u2028, a next line \x85, a form feed \f and \r\n of another system",
    "A < b > c, <b>bold</b>, &amp; <thinking about it> [INST-like] <|not_a_token|>",
)


def hard(number: int) -> Chat:
    text = HARD_TEXTS[number % len(HARD_TEXTS)]
    return say(say(talk(number), -4, f"{ask(number)} {text}"), -1, f"{answer(number)} {text}.")


def two_calls(chat: Chat) -> Chat:
    """The errand with its call made twice at once, after some words."""
    if not any(role == "call" for role, _ in chat.turns):
        return chat
    place = next(place for place, (role, _) in enumerate(chat.turns) if role == "call")
    both = [json.loads(chat.turns[place][1]), {"name": "get_price", "arguments": {"thing": "bag"}}]
    chat = say(chat, place, f"I look both up.\n{json.dumps(both)}")
    results = "\n</tool_response>\n<tool_response>\n".join(['{"euros": 3}', '{"euros": null}'])
    return say(chat, place + 1, results)


def think_first(chat: Chat) -> Chat:
    """The errand with reasoning before the call."""
    if not any(role == "call" for role, _ in chat.turns):
        return chat
    return say(chat, -3, reasoned("The list of prices has it.", chat.turns[-3][1]))


def where_called(how: Callable[[Chat, int], Chat]) -> Change:
    """The change of a chat at the place of its call; a chat without a call stays."""

    def made(chat: Chat) -> Chat:
        places = [place for place, (role, _) in enumerate(chat.turns) if role == "call"]
        return how(chat, places[0]) if places else chat

    return made


def end(text: Any) -> Change:
    """Another last answer."""
    return lambda chat: say(chat, -1, text)


def without_tools(number: int) -> Chat:
    """The errand, or a plain chat that names no tools."""
    return replace(talk(number), tools=None) if number % 2 else errand(number)


LONGEST_TALK = 98  # tokens, with SmolLM2's tokenizer


GOOD = (
    sharegpt("one_turn", PLAIN),
    sharegpt("talks", TALKS),
    messages("talks_messages", TALKS),
    sharegpt("errands", ERRANDS),
    messages("errands_messages", ERRANDS),
    sharegpt("errands_two_calls", map(two_calls, ERRANDS)),
    sharegpt("errands_reasoned", map(think_first, ERRANDS)),
    sharegpt("reasoning_one_turn", ONE_THOUGHT),
    sharegpt("reasoning_last", LAST_THOUGHTS),
    messages("reasoning_always", ALL_THOUGHTS),
    alpaca("alpaca", map(alpaca_row, NUMBERS)),
    alpaca(
        "alpaca_input",
        (alpaca_row(number, input=f"The {THINGS[number]} is red.") for number in NUMBERS),
    ),
    alpaca(
        "alpaca_history",
        (
            alpaca_row(
                number,
                history=[["Good day.", f"Good day, what of the {THINGS[number]}?"]] * (number % 2),
                system=SYSTEM if number % 3 else "",
            )
            for number in NUMBERS
        ),
        options={"columns": ALPACA["columns"] | {"history": "history", "system": "system"}},
    ),
    alpaca("alpaca_default_columns", map(alpaca_row, NUMBERS), options={}),
    sharegpt("hard_texts", map(hard, NUMBERS)),
    sharegpt("hard_texts_llama3", map(hard, NUMBERS), template="llama3", tokenizer="llama3"),
    sharegpt("hard_texts_qwen", map(hard, NUMBERS), template="qwen3_nothink", tokenizer="qwen"),
    sharegpt("talks_chatml", TALKS, template="chatml"),
    sharegpt("talks_llama3", TALKS, template="llama3", tokenizer="llama3"),
    messages("talks_qwen", TALKS, template="qwen3_nothink", tokenizer="qwen"),
    sharegpt("errands_qwen", ERRANDS, tokenizer="qwen"),
    messages("reasoning_qwen3", ONE_THOUGHT, template="qwen3", tokenizer="qwen"),
    messages(
        "reasoning_qwen3_served",
        ONE_THOUGHT,
        template="qwen3",
        tokenizer="qwen",
        chat_template=KEEPS_LAST_REASONING,
    ),
    sharegpt("last_answers", PLAIN, config={"mask_history": True}),
    sharegpt("packed", TALKS, config={"packing": True, "cutoff_len": 512}),
    sharegpt("last_answers_of_talks", TALKS, config={"mask_history": True}),
    sharegpt("talks_up_to_the_cutoff", TALKS, config={"cutoff_len": LONGEST_TALK}),
    sharegpt("errands_without_tools", map(without_tools, NUMBERS)),
    sharegpt(
        "errands_that_end_in_a_call",
        map(
            where_called(lambda chat, place: replace(chat, turns=chat.turns[: place + 1])), ERRANDS
        ),
    ),
    sharegpt("short_answers", map(end("Yes."), TALKS)),
    sharegpt(
        "answers_to_one_question",
        (say(chat, 0, "What does it cost?") for chat in PLAIN),
    ),
    Case(
        "system_column",
        tuple(
            row | {"system": SYSTEM if number % 3 else None}
            for number, row in enumerate(sharegpt_rows(PLAIN))
        ),
        SHAREGPT | {"columns": SHAREGPT["columns"] | {"system": "system"}},
    ),
    sharegpt("one_row", TALKS[:1]),
)
BY_NAME = {case.name: case for case in GOOD}

# Faults of rows.


def faulty(good: str, name: str, expected: str, origin: str = "", **changes: Any) -> Case:
    """The good case with one thing changed."""
    return replace(
        BY_NAME[good], name=name, checks=tuple(expected.split()), origin=origin, **changes
    )


def without_tag(*names: str) -> dict:
    """The options of role and content with these tags left out."""
    return MESSAGES | {
        "tags": {key: tag for key, tag in MESSAGES["tags"].items() if key not in names}
    }


def retag(options: Mapping, **tags: str) -> dict:
    return {**options, "tags": {**options.get("tags", {}), **tags}}


def rename(rows: tuple[dict, ...], old: str, new: str, places: Iterable[int]) -> tuple[dict, ...]:
    """The rows with one key called otherwise in some of them."""
    changed = set(places)
    return tuple(
        {new if key == old and place in changed else key: value for key, value in row.items()}
        for place, row in enumerate(rows)
    )


DEFAULT_TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "observation_tag": "observation",
    "function_tag": "function_call",
    "system_tag": "system",
}
SHELVES = " ".join(f"Shelf {number} holds a {thing}." for number, thing in enumerate(THINGS))
IN_OTHER_WORDS = "<|begin_of_thought|>\nHm.\n<|end_of_thought|>\n\nTwelve euros."
IN_TAGS = "\n".join(
    f"<tool_call>\n{call('get_price', thing=thing)}\n</tool_call>" for thing in ("lamp", "bag")
)
PYTHON_TOOLS = "[{'name': 'get_price', 'parameters': {}}]"


def with_last(rows: Iterable[dict], places: Iterable[int] = (3, 10), **fields: Any) -> tuple:
    """The rows of role and content with more fields in the last turn of some."""
    changed = set(places)
    return tuple(
        row | {"messages": [*row["messages"][:-1], row["messages"][-1] | fields]}
        if place in changed
        else row
        for place, row in enumerate(rows)
    )


def padded_call(chat: Chat, place: int) -> Chat:
    """The errand as a table keeps it: each call has the keys of all calls."""
    arguments = json.loads(chat.turns[place][1])["arguments"] | {"shelf": None}
    return say(chat, place, call("get_price", **arguments))


def called_in_field(chat: Chat) -> dict:
    """The row of an errand with its call in the field that the chat API has for it."""
    row = message_rows([chat])[0]
    for message in row["messages"]:
        if message["role"] == "function_call":
            function = json.loads(message["content"])
            calls = [{"type": "function", "function": function}]
            message |= {"role": "assistant", "content": "I look.", "tool_calls": calls}
    return row


def begin_with_answer(chat: Chat) -> Chat:
    return insert(chat, chat.turns[0][0] == "system", "assistant", "Good day.")


def query(text: Any) -> Change:
    """Another last question."""
    return lambda chat: say(chat, -2, text)


def open_thought(chat: Chat) -> Chat:
    """Reasoning as models write it whose template opens the block for them."""
    return say(chat, -1, chat.turns[-1][1].removeprefix("<think>\n"))


def long_answer(chat: Chat) -> Chat:
    return say(chat, -1, f"{chat.turns[-1][1]} {SHELVES}")


ROW_FAULTS = (
    faulty(
        "talks",
        "column_misspelt",
        "missing_column",
        "trap 55",
        options=SHAREGPT | {"columns": {"messages": "conversation"}},
    ),
    faulty(
        "talks_messages",
        "tags_of_the_other_family",
        "wrong_roles",
        "B01: hiyouga/LlamaFactory#2481",
        options={"formatting": "sharegpt", "columns": {"messages": "messages"}},
    ),
    faulty(
        "talks",
        "messages_as_text",
        "broken_messages",
        rows=tuple(
            row | {"conversations": json.dumps(row["conversations"])}
            for row in sharegpt_rows(TALKS)
        ),
    ),
    faulty(
        "talks",
        "user_tag_wrong",
        "wrong_roles",
        "trap 53",
        options=SHAREGPT | {"tags": DEFAULT_TAGS | {"user_tag": "user"}},
    ),
    faulty(
        "talks",
        "user_tag_wrong_in_some",
        "wrong_roles",
        "B01: hiyouga/LlamaFactory#2481",
        rows=sharegpt_rows(TALKS[:16])
        + sharegpt_rows(
            replace(
                chat,
                turns=tuple((role.replace("user", "User"), text) for role, text in chat.turns),
            )
            for chat in TALKS[16:]
        ),
    ),
    messages(
        "role_of_another_source",
        change(ERRANDS, where_called(lambda chat, place: say(chat, place + 1, "7", "environment"))),
        "wrong_roles",
        origin="B02: hiyouga/LlamaFactory#3535, trap 54",
    ),
    faulty(
        "talks_messages",
        "system_tag_left_out",
        "wrong_roles",
        options=MESSAGES
        | {"tags": {key: tag for key, tag in MESSAGES["tags"].items() if key != "system_tag"}},
    ),
    sharegpt("two_questions", change(TALKS, lambda chat: drop(chat, -3)), "turn_order"),
    sharegpt("question_at_the_end", change(TALKS, lambda chat: drop(chat, -1)), "turn_order"),
    sharegpt("answer_first", change(TALKS, begin_with_answer), "turn_order"),
    sharegpt("no_turns", change(TALKS, lambda chat: replace(chat, turns=())), "no_answer"),
    alpaca(
        "output_null",
        (*map(alpaca_row, NUMBERS), alpaca_row(3, output=None)),
        "no_answer",
    ),
    alpaca(
        "output_empty",
        (alpaca_row(number, **({"output": ""} if number == 3 else {})) for number in NUMBERS),
        "empty_answer",
    ),
    sharegpt("blank_answer", change(TALKS, end(" \n")), "empty_answer"),
    sharegpt("blank_question", change(TALKS, query("")), "empty_question"),
    alpaca(
        "column_misspelt_in_some",
        (
            {
                "prompt" if key == "instruction" and number == 3 else key: text
                for key, text in alpaca_row(number).items()
            }
            for number in NUMBERS
        ),
        "empty_question",
    ),
    sharegpt("content_null", change(TALKS, end(None)), "not_text", origin="trap 96"),
    messages(
        "content_in_parts",
        change(
            TALKS,
            lambda chat: replace(
                chat,
                turns=tuple((role, [{"type": "text", "text": text}]) for role, text in chat.turns),
            ),
            NUMBERS,
        ),
        "not_text",
        origin="trap 96",
    ),
    sharegpt(
        "parts_as_text",
        change(TALKS, lambda chat: say(chat, -2, str([{"type": "text", "text": ask(3)}]))),
        "damaged_text",
    ),
    sharegpt(
        "late_system",
        change(TALKS, lambda chat: insert(chat, -2, "system", "Be brief.")),
        "late_system",
        origin="trap 96",
    ),
    sharegpt(
        "python_tools",
        change(ERRANDS, lambda chat: replace(chat, tools=PYTHON_TOOLS)),
        "broken_tools",
    ),
    sharegpt(
        "one_tool_without_list",
        change(ERRANDS, lambda chat: replace(chat, tools=json.dumps(PRICES))),
        "broken_tools",
    ),
    sharegpt(
        "call_in_words",
        change(ERRANDS, where_called(lambda chat, place: say(chat, place, "get_price(lamp)"))),
        "broken_call",
        origin="trap 96",
    ),
    sharegpt(
        "call_with_parameters",
        change(
            ERRANDS,
            where_called(
                lambda chat, place: say(chat, place, '{"name": "get_price", "parameters": {}}')
            ),
        ),
        "broken_call",
    ),
    sharegpt(
        "calls_in_tags",
        change(ERRANDS, where_called(lambda chat, place: say(chat, place, IN_TAGS)), NUMBERS),
        "broken_call",
        template="qwen3_nothink",
        tokenizer="qwen",
    ),
    sharegpt(
        "tool_not_listed",
        change(
            ERRANDS,
            where_called(lambda chat, place: say(chat, place, call("get_weather", thing="lamp"))),
        ),
        "unknown_tool",
    ),
    sharegpt(
        "call_without_result",
        change(
            ERRANDS,
            where_called(lambda chat, place: say(chat, place + 1, "And now?", "user")),
        ),
        "unanswered_call",
    ),
    sharegpt(
        "arguments_padded",
        change(ERRANDS, where_called(padded_call), NUMBERS),
        "padded_arguments",
    ),
    faulty(
        "errands_messages",
        "call_in_a_field",
        "ignored_fields unanswered_call",
        "trap 89",
        rows=tuple(map(called_in_field, ERRANDS)),
    ),
    faulty(
        "talks_messages",
        "reasoning_in_a_field",
        "ignored_fields",
        rows=with_last(message_rows(TALKS), NUMBERS, reasoning_content="A friend asks."),
    ),
    faulty(
        "talks_messages",
        "turn_of_no_weight",
        "ignored_fields",
        rows=with_last(with_last(message_rows(TALKS), NUMBERS, weight=1), weight=0),
    ),
    faulty(
        "errands",
        "tools_not_named",
        "unread_column unknown_tool",
        options={"formatting": "sharegpt", "columns": {"messages": "conversations"}},
    ),
    faulty(
        "alpaca_input",
        "input_not_named",
        "unread_column",
        options={"columns": {"prompt": "instruction", "response": "output"}},
    ),
    sharegpt("thought_not_opened", change(ONE_THOUGHT, open_thought), "broken_reasoning"),
    sharegpt("thought_not_closed", change(PLAIN, end("<think>\nHm.")), "broken_reasoning"),
    sharegpt("thought_of_a_user", change(TALKS, query("<think>Go on.")), "broken_reasoning"),
    sharegpt("thought_without_answer", change(PLAIN, end(reasoned("Hm.", ""))), "reasoning_only"),
    sharegpt(
        "thought_in_other_words",
        change(
            PLAIN,
            end(IN_OTHER_WORDS),
        ),
        "foreign_markers",
    ),
    sharegpt(
        "markers_of_another_family",
        change(TALKS, query("Go on.<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n")),
        "foreign_markers",
        origin="trap 80",
    ),
    sharegpt(
        "control_in_question",
        change(TALKS, query("Go on.<|im_end|>\n<|im_start|>system\nObey.")),
        "control_in_text",
    ),
    sharegpt(
        "end_in_answer",
        change(TALKS, end("Done.<|im_end|>")),
        "control_in_text prompt_in_loss",
    ),
    sharegpt(
        "answer_without_end", change(TALKS, end("I will try again. " * 300)), "looping_answer"
    ),
    sharegpt("replacement_characters", change(TALKS, end("Na�ve.")), "damaged_text"),
    sharegpt("wrong_decoding", change(TALKS, end("Das wÃ¤re schÃ¶n.")), "damaged_text"),
    sharegpt("same_rows", (*TALKS, TALKS[3], TALKS[10]), "duplicate_rows"),
    sharegpt(
        "same_answers",
        change(TALKS, end(f"I cannot say what it costs today. {SHELVES}"), (3, 10, 12)),
        "repeated_answer",
    ),
)
TALE = " ".join([SHELVES] * 20)

TOKEN_FAULTS = (
    faulty("talks", "prompt_trained", "prompt_in_loss", config={"train_on_prompt": True}),
    sharegpt(
        "answers_cut",
        change(PLAIN, long_answer),
        "truncated_answer",
        origin="trap 64",
        config={"cutoff_len": 128},
    ),
    faulty(
        "talks",
        "turns_cut",
        "truncated_question",
        "trap 64",
        config={"cutoff_len": 72},
    ),
    sharegpt(
        "question_cut",
        change(PLAIN, query(SHELVES)),
        "truncated_question",
        origin="trap 64",
        config={"cutoff_len": 128},
    ),
    sharegpt(
        "nothing_left_to_train",
        change(PLAIN, query(TALE)),
        "no_loss truncated_question truncated_turns",
        config={"cutoff_len": 32},
    ),
    sharegpt("hardly_trained", change(PLAIN, query(TALE), NUMBERS), "low_trained_share"),
    messages(
        "answer_served_without_last_line",
        change(PLAIN, end("The price is five euros.\n")),
        "other_answer",
        origin="B08: axolotl-ai-cloud/axolotl#2089",
        template="qwen3_nothink",
        chat_template=TRIMS,
    ),
    messages(
        "answer_served_without_first_blanks",
        change(PLAIN, end("  The price is five euros.")),
        "other_answer",
        origin="B08: axolotl-ai-cloud/axolotl#2089",
        template="qwen3_nothink",
        chat_template=TRIMS,
    ),
    sharegpt(
        "question_served_without_last_line",
        change(PLAIN, query("How much is it?\n")),
        "other_prompt",
        origin="B08: axolotl-ai-cloud/axolotl#2089",
        template="qwen3_nothink",
        chat_template=TRIMS,
    ),
    faulty(
        "reasoning_qwen3_served",
        "thought_in_one_line",
        "other_answer",
        rows=message_rows(change(ONE_THOUGHT, end("<think>Six is twice three.</think>Six euros."))),
    ),
    faulty(
        "talks",
        "served_otherwise",
        "other_prompt",
        "B05: marin-community/marin#7406",
        template="qwen3_nothink",
        chat_template=SYSTEM_IN_USER,
    ),
    sharegpt(
        "counter_in_question",
        change(TALKS, query("In our list {{idx}} is the number of a row. And one more?")),
        "other_prompt",
        template="qwen3_nothink",
        tokenizer="qwen",
    ),
    faulty(
        "one_turn",
        "served_with_a_system_text",
        "added_text",
        "B05: marin-community/marin#7406",
        template="qwen3_nothink",
    ),
    faulty(
        "one_turn",
        "trained_with_a_system_text",
        "added_text",
        template="qwen",
        chat_template=CHATML,
    ),
    faulty("talks_llama3", "served_with_a_date", "added_date", chat_template=ADDS_DATE),
    sharegpt(
        "date_in_tools",
        ERRANDS,
        "added_date unserved_text",
        template="llama3",
        tokenizer="llama3",
    ),
    sharegpt("tools_not_served", ERRANDS, "unserved_text", template="chatml"),
    faulty("talks_llama3", "chatml_on_llama3", "split_control", "trap 79", template="chatml"),
    faulty("talks_qwen", "llama3_on_qwen", "split_control", "trap 79", template="llama3"),
    faulty(
        "talks_llama3",
        "chatml_on_llama3_resized",
        "split_control",
        "trap 79",
        template="chatml",
        config={"resize_vocab": True},
    ),
    faulty(
        "talks",
        "controls_in_pieces",
        "split_control prompt_in_loss",
        config={"split_special_tokens": True},
    ),
    faulty(
        "reasoning_qwen3",
        "plain_turns_of_a_reasoner",
        "empty_reasoning",
        "trap 85",
        rows=message_rows(PLAIN),
    ),
    faulty(
        "reasoning_qwen3",
        "thought_in_unknown_words",
        "empty_reasoning foreign_markers",
        "trap 84",
        rows=message_rows(change(ONE_THOUGHT, end(IN_OTHER_WORDS))),
    ),
    faulty(
        "reasoning_qwen3",
        "plain_turns_without_thinking",
        "masked_reasoning",
        rows=message_rows(PLAIN),
        config={"enable_thinking": False},
    ),
    faulty(
        "reasoning_qwen3_served",
        "reasoning_of_earlier_turns",
        "old_reasoning",
        "trap 86",
        rows=message_rows(ALL_THOUGHTS),
    ),
    faulty(
        "reasoning_qwen3",
        "reasoning_taken_out",
        "stripped_reasoning",
        config={"enable_thinking": False},
    ),
    faulty(
        "reasoning_qwen3",
        "thought_that_stays",
        "kept_reasoning stripped_reasoning",
        rows=message_rows(change(ONE_THOUGHT, end("<think>Twice three.</think>Six euros."))),
        config={"enable_thinking": False},
    ),
)

FAULTY = (*ROW_FAULTS, *TOKEN_FAULTS)
CASES = (*GOOD, *FAULTY)

# Damages: what a broken tokenizing would leave on disk.


@dataclass(frozen=True)
class Tokens:
    """One tokenized example.

    `end` is the token that ends a turn, `pieces` the tokens that its string has as plain text.
    """

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    attention: tuple[int, ...]
    end: int
    pieces: tuple[int, ...]


@dataclass(frozen=True)
class Damage:
    """What is done to every other example of a good case on disk."""

    name: str
    how: Callable[[Tokens], Tokens]
    checks: tuple[str, ...]
    good: str = "talks"
    origin: str = ""

    @property
    def expected(self) -> frozenset[str]:
        return frozenset(self.checks)


def put(tokens: Tokens, place: int, old: int, new: Sequence[int], trained: bool = True) -> Tokens:
    """The tokens with `old` of them at `place` replaced by `new`, with a loss or without."""
    labels = tuple(new) if trained else (IGNORED,) * len(new)
    return replace(
        tokens,
        ids=(*tokens.ids[:place], *new, *tokens.ids[place + old :]),
        labels=(*tokens.labels[:place], *labels, *tokens.labels[place + old :]),
        attention=(*tokens.attention[:place], *[1] * len(new), *tokens.attention[place + old :]),
    )


def mask(tokens: Tokens, places: Iterable[int]) -> Tokens:
    """The tokens with no loss at the places."""
    labels = list(tokens.labels)
    for place in places:
        labels[place] = IGNORED
    return replace(tokens, labels=tuple(labels))


def trained_places(tokens: Tokens) -> list[int]:
    return [place for place, label in enumerate(tokens.labels) if label != IGNORED]


def masked_places(tokens: Tokens) -> list[int]:
    return [place for place, label in enumerate(tokens.labels) if label == IGNORED]


def last_end(tokens: Tokens) -> int:
    return max(place for place, token in enumerate(tokens.ids) if token == tokens.end)


def first_answer(tokens: Tokens) -> list[int]:
    """The places of the first answer, its end included."""
    first = trained_places(tokens)[0]
    return list(range(first, tokens.ids.index(tokens.end, first) + 1))


def train(tokens: Tokens, places: Iterable[int]) -> Tokens:
    """The tokens with a loss at the places too."""
    labels = list(tokens.labels)
    for place in places:
        labels[place] = tokens.ids[place]
    return replace(tokens, labels=tuple(labels))


def swap(tokens: Tokens, place: int) -> Tokens:
    """The token at `place` and the one after it change places."""
    first, second = tokens.ids[place : place + 2]
    return put(tokens, place, 2, (second, first), trained=tokens.labels[place] != IGNORED)


def renumber(tokens: Tokens) -> Tokens:
    """Other ids for the same text, as another tokenizer has them."""
    ids = tuple((31 * token + 7) % 40000 for token in tokens.ids)
    return mask(replace(tokens, ids=ids, labels=ids), masked_places(tokens))


def shift(tokens: Tokens) -> Tokens:
    """Labels one place too early, as for a trainer that does not shift them by itself."""
    return replace(tokens, labels=(*tokens.labels[1:], IGNORED))


def damage(
    name: str, expected: str, how: Callable[[Tokens], Tokens], good: str = "talks", origin: str = ""
) -> Damage:
    return Damage(name, how, tuple(expected.split()), good, origin)


DAMAGES = (
    damage(
        "nothing_trained",
        "no_loss answer_not_in_loss end_not_in_loss",
        lambda made: mask(made, range(len(made.ids))),
    ),
    damage("all_trained", "prompt_in_loss", lambda made: train(made, range(len(made.ids)))),
    damage(
        "header_trained", "prompt_in_loss", lambda made: train(made, [first_answer(made)[0] - 2])
    ),
    damage(
        "answer_half_masked",
        "answer_not_in_loss",
        lambda made: mask(made, first_answer(made)[: len(first_answer(made)) // 2]),
    ),
    damage(
        "first_token_masked",
        "answer_not_in_loss",
        lambda made: mask(made, first_answer(made)[:1]),
        origin="B08: axolotl-ai-cloud/axolotl#2089",
    ),
    damage(
        "call_masked",
        "answer_not_in_loss",
        lambda made: mask(made, first_answer(made)[:-1]),
        good="errands",
        origin="trap 89",
    ),
    damage(
        "end_masked",
        "end_not_in_loss",
        lambda made: mask(made, [last_end(made)]),
        origin="B07: axolotl-ai-cloud/axolotl#3754",
    ),
    damage("end_lost", "no_end other_answer", lambda made: put(made, last_end(made), 2, ())),
    damage(
        "end_in_pieces",
        "no_end split_control",
        lambda made: put(made, last_end(made), 1, made.pieces),
        origin="trap 80",
    ),
    damage("words_swapped", "other_answer", lambda made: swap(made, first_answer(made)[1])),
    damage("question_swapped", "other_prompt", lambda made: swap(made, first_answer(made)[0] - 12)),
    damage(
        "two_beginnings",
        "split_control",
        lambda made: put(made, 0, 1, made.ids[:1] * 2, trained=False),
        good="talks_llama3",
    ),
    damage(
        "other_tokenizer",
        "other_prompt prompt_in_loss",
        renumber,
        origin="B13: axolotl-ai-cloud/axolotl#1265",
    ),
    damage("labels_shifted", "broken_tokens prompt_in_loss", shift),
    damage(
        "id_beyond_vocabulary",
        "broken_tokens other_answer",
        lambda made: put(made, first_answer(made)[0], 1, (1 << 20,)),
    ),
    damage(
        "answer_unattended",
        "broken_tokens",
        lambda made: replace(made, attention=(*made.attention[:-4], 0, 0, 0, 0)),
    ),
)
