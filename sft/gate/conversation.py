"""Rows of a dataset as conversations, and what is wrong with a row.

The reading is our own, so that a trainer's can be held against it. What a good row is follows
LLaMA-Factory 0.9.5 (data/parser.py for the words of a registry, data/converter.py and
data/processor/supervised.py for the rows): a system turn may come first, then questions and answers
alternate, and the last turn is an answer.
"""

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any

# What LLaMA-Factory 0.9.5 does with a row that has the fault: it warns and leaves the row out, it
# dies, or it trains on it (measured: tests/trainer/test_conversation_agrees.py).
DROPPED, FAILS, TRAINED = "dropped", "fails", "trained"
KINDS: Mapping[str, str] = {
    "missing_column": FAILS,
    "broken_messages": FAILS,
    "wrong_roles": DROPPED,
    "late_system": DROPPED,
    "turn_order": DROPPED,
    "no_answer": DROPPED,
    "not_text": FAILS,
    "broken_tools": FAILS,
    "broken_call": FAILS,
    "empty_question": TRAINED,
    "empty_answer": TRAINED,
    "unknown_tool": TRAINED,
    "unanswered_call": TRAINED,
    "padded_arguments": TRAINED,
    "ignored_fields": TRAINED,
    "unread_column": TRAINED,
    "broken_reasoning": TRAINED,
    "reasoning_only": TRAINED,
    "foreign_markers": TRAINED,
    "looping_answer": TRAINED,
    "damaged_text": TRAINED,
}

# LLaMA-Factory's words; a registry that names any column (or tag) has none of these but its own.
DEFAULT_COLUMNS = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "messages": "conversations",
}
DEFAULT_TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "observation_tag": "observation",
    "function_tag": "function_call",
    "system_tag": "system",
}
ROLES = {  # in the converter's order: the later wins where two tags are the same word
    "user_tag": "user",
    "assistant_tag": "assistant",
    "observation_tag": "tool",
    "function_tag": "call",
    "system_tag": "system",
}
MEDIA = ("images", "videos", "audios")

# Columns that change what a conversation says, and are lost where the registry does not name them.
TELLING_COLUMNS = {
    "alpaca": ("input", "history", "system", "system_prompt", "tools"),
    "sharegpt": ("system", "system_prompt", "tools", "functions"),
}
# Fields of a message beside role and content that say what is trained.
TELLING_FIELDS = frozenset(
    {
        *("tool_calls", "function_call", "reasoning_content", "reasoning", "reasoning_text"),
        *("thinking", "thought", "thoughts", "images", "videos", "audios"),
    }
)
# Fields by which other trainers leave a turn out of the loss.
MASKING_FIELDS = frozenset({"weight", "train", "trainable", "training", "loss", "loss_mask"})

BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"

# How templates mark reasoning: the opening and the closing string, by family.
REASONING_MARKERS = (("<think>", "</think>"), ("<|start_think|>", "<|end_think|>"))
# Control strings of the families of chat templates that data was ever written out in.
CONTROL_STRINGS = (
    *("<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|endoftext|>"),
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>", "<|finetune_right_pad_id|>"),
    *("<|header_start|>", "<|header_end|>", "<|eot|>", "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"),
    *("[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[gMASK]"),
    *("<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", "<|end|>", "<|tool|>"),
    *("<start_of_turn>", "<end_of_turn>", "<｜User｜>", "<｜Assistant｜>"),
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜tool▁calls▁begin｜>"),
    *("<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>"),
    *("<|start_think|>", "<|end_think|>", "<|tool_call|>", "<|tool_call_end|>"),
    *("<|tool_result|>", "<|tool_result_end|>", "<|tool_calls_section_begin|>"),
    *("<|begin_of_thought|>", "<|end_of_thought|>", "<|begin_of_solution|>"),
    "<|end_of_solution|>",
)

# UTF-8 that was read as Windows-1252: the first byte of a character and those that follow it, as
# what they become. The second is none that may follow such a letter in good text: other letters,
# quotation marks, dashes, superscripts of notes.
_LATIN = "\u00a1-\u00aa\u00ac-\u00ba\u00bc-\u00bf"
_SIGNS = "\x80-\x9f€‚ƒ„†‡ˆ‰‹•˜™›"
_SECOND = f"{_SIGNS}\u00a1-\u00aa\u00ac-\u00b1\u00b4-\u00b8\u00ba\u00bc-\u00bf"
_THIRD = f"{_SIGNS}{_LATIN}ŠŒŽšœžŸ\u00a0«»“”‘’…–—"
DAMAGE = re.compile(
    r"[\x00\ufffd\ud800-\udfff]"
    f"|[ÂÃ][{_LATIN}]|[ÐÑ][{_SECOND}][ÐÑ][{_THIRD}]|[à-ï][{_SECOND}][{_THIRD}]|ð[Ÿ\x9f][{_THIRD}]"
)
SURROGATE = re.compile(r"[\ud800-\udfff]")
# A list of content parts that became text on its way, in Python's or in JSON's way.
PARTS_AS_TEXT = re.compile(
    r"""\[\{(['"])type\1: ?(['"])((input_|output_)?text|reasoning|thinking|image(_url)?)\2"""
)
# Where the JSON of a turn of calls may start: at a line's start, or behind the reasoning.
CALL_START = re.compile(r"^(?=[\[{])|(?:</think>|<\|end_think\|>)[ \t]*(?=[\[{])", re.MULTILINE)

# Prose shrinks to a half or a third, logs and tables to a tenth.
LOOP_FROM, LOOP_RATIO = 2000, 30

SHOWN = 60  # characters of a text in a message


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and tools as a client sends them to a served model, in transformers' form.

    Roles are system, user, assistant and tool; `content` is text. Calls stand in `tool_calls` of an
    assistant's message as {"type": "function", "function": {"name", "arguments"}}, the arguments in
    the form that the row has: an object, or text. Reasoning stays in the content as it was written.
    Rows may share their tools: do not change them.
    """

    messages: tuple[dict, ...]
    tools: tuple[dict, ...] = ()


@dataclass(frozen=True, slots=True)
class RowFault:
    """One fault of a row: its kind (a key of KINDS) and place, what stands there, what should."""

    kind: str
    where: str
    found: str
    expected: str

    @property
    def drops(self) -> bool:
        """Whether LLaMA-Factory leaves a row with this fault out."""
        return KINDS[self.kind] == DROPPED

    @property
    def fails(self) -> bool:
        """Whether LLaMA-Factory dies of a row with this fault."""
        return KINDS[self.kind] == FAILS

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: found {self.found}, expected {self.expected}"


@dataclass(frozen=True)
class Schema:
    """Where a conversation stands in a row, by `formatting`, `columns` and `tags`.

    `columns` and `tags` hold what is named or implied; `roles` gives the role that a tag stands
    for. `asks` and `answers` are the tags of the turns that alternate.
    """

    formatting: str
    columns: Mapping[str, str]
    tags: Mapping[str, str]
    roles: Mapping[str, str]
    asks: tuple[str | None, str | None]
    answers: tuple[str | None, str | None]
    unread: tuple[str, ...]


def read_schema(options: Mapping[str, Any]) -> Schema:
    """The schema that a dataset's options (`Dataset.options`) describe."""
    formatting = options.get("formatting", "alpaca")
    columns, tags = options.get("columns", DEFAULT_COLUMNS), options.get("tags", DEFAULT_TAGS)
    used = set(columns.values())
    return Schema(
        formatting=formatting,
        columns=columns,
        tags=tags,
        roles={tags[tag]: role for tag, role in ROLES.items() if tag in tags},
        asks=(tags.get("user_tag"), tags.get("observation_tag")),
        answers=(tags.get("assistant_tag"), tags.get("function_tag")),
        unread=tuple(name for name in TELLING_COLUMNS[formatting] if name not in used),
    )


def foreign_markers(template: str) -> re.Pattern[str]:
    """A pattern of the control strings that the text of a chat template does not use."""
    return re.compile("|".join(re.escape(each) for each in CONTROL_STRINGS if each not in template))


class _Unreadable(Exception):
    """A row of which no conversation can be made; the arguments are its faults."""


# A turn before it is a message: its role (user, assistant, tool or call) and its content.
Turn = tuple[str, Any]


def read_conversation(
    row: Mapping[str, Any],
    options: Mapping[str, Any] | Schema,
    foreign: re.Pattern[str] | None = None,
) -> tuple[Conversation | None, list[RowFault]]:
    """The conversation of a row, and the row's faults; None where there is no conversation in it.

    `options` is `Dataset.options`, or what `read_schema` made of it, which is faster for many rows;
    `foreign` what `foreign_markers` gives for the template, where its strings are to be looked for.
    """
    schema = options if isinstance(options, Schema) else read_schema(options)
    read = _read_alpaca if schema.formatting == "alpaca" else _read_sharegpt
    try:
        system, turns, first = read(row, schema)
        texts = _check_texts(row, schema, system, turns, first)
        tools = _read_tools(row.get(schema.columns.get("tools")))
        faults: list[RowFault] = []
        messages = [{"role": "system", "content": system}] if system else []
        for number, (role, content) in enumerate(turns, first):
            if role == "call":
                messages.append(_read_calls(content, tools, number, faults))
            elif role == "tool":
                results = content.split(BETWEEN_RESULTS)
                messages += [{"role": "tool", "content": result} for result in results]
            else:
                messages.append({"role": role, "content": content})
    except _Unreadable as error:
        return None, list(error.args)
    faults += tools.faults
    faults += _call_order_faults(turns, first)
    faults += _unread_faults(row, schema, bool(system), first)
    faults += _text_faults(system, turns, first, texts, foreign)
    if not texts.isascii() and SURROGATE.search(texts):
        return None, faults  # no tokenizer takes it
    return Conversation(tuple(messages), tools.listed), faults


def row_digest(conversation: Conversation) -> bytes:
    """16 bytes that are equal for conversations of the same messages and tools."""
    return _digest([conversation.messages, conversation.tools])


def answer_digest(conversation: Conversation) -> bytes:
    """16 bytes that are equal for conversations whose last answer is the same, word for word."""
    return _digest(conversation.messages[-1])


def _digest(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


# Alpaca


def _read_alpaca(row: Mapping, schema: Schema) -> tuple[Any, list[Turn], int]:
    """The system text, the turns, and the number of the first of them."""
    column, turns = schema.columns.get, []
    history = row.get(column("history"))
    for number, pair in enumerate(history if isinstance(history, list) else []):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise _Unreadable(
                RowFault(
                    "broken_messages",
                    f"column {column('history')!r}, item {number + 1}",
                    describe(pair),
                    "a pair of question and answer",
                )
            )
        turns += [("user", pair[0]), ("assistant", pair[1])]
    parts = [name for name in (column("prompt"), column("query")) if name and row.get(name)]
    if broken := [name for name in parts if not isinstance(row[name], str)]:
        place, found = f"column {broken[0]!r}", describe(row[broken[0]])
        raise _Unreadable(RowFault("not_text", place, found, "a text"))
    question = "\n".join(row[name] for name in parts)
    answer = row.get(column("response"))
    if not isinstance(answer, str):
        place, found = f"column {column('response')!r}", describe(answer)
        if column("response") not in row:
            found = f"no such column, only {', '.join(row)}"
        raise _Unreadable(RowFault("no_answer", place, found, "a text"))
    turns += [("user", question), ("assistant", answer)]
    return row.get(column("system")) or None, turns, 1


# ShareGPT


def _read_sharegpt(row: Mapping, schema: Schema) -> tuple[Any, list[Turn], int]:
    """The system text, the turns, and the number of the first of them."""
    messages, role_key = _list_messages(row, schema), schema.tags["role_tag"]
    try:
        roles = [message.get(role_key) for message in messages]
    except AttributeError:
        odd = next(each for each in messages if not isinstance(each, dict))
        raise _broken_messages(schema, describe(odd)) from None
    content_key, system_tag = schema.tags["content_tag"], schema.tags.get("system_tag")
    system, first = row.get(schema.columns.get("system")), 1
    if system_tag is not None and roles[0] == system_tag:
        system, first = messages[0].get(content_key), 2
        messages, roles = messages[1:], roles[1:]
    _check_roles(roles, messages, schema, first)
    names = schema.roles
    contents = [message.get(content_key) for message in messages]
    turns = list(zip(map(names.__getitem__, roles), contents, strict=True))
    return system or None, turns, first


def _list_messages(row: Mapping, schema: Schema) -> list:
    column = schema.columns["messages"]
    messages = row.get(column)
    if messages is None:
        found = "null" if column in row else f"the columns {', '.join(row) or 'of an empty row'}"
        place = f"column {column!r}"
        raise _Unreadable(RowFault("missing_column", place, found, "a list of messages"))
    if not messages and isinstance(messages, list | str | dict):
        raise _Unreadable(RowFault("no_answer", f"column {column!r}", "no turn", "an answer"))
    if not isinstance(messages, list):
        raise _broken_messages(schema, describe(messages))
    return messages


def _broken_messages(schema: Schema, found: str) -> _Unreadable:
    tags = schema.tags
    expected = f"a list of objects with {tags['role_tag']!r} and {tags['content_tag']!r}"
    place = f"column {schema.columns['messages']!r}"
    return _Unreadable(RowFault("broken_messages", place, found, expected))


def _check_roles(roles: list, messages: list, schema: Schema, first: int) -> None:
    """Refuse turns that do not alternate, and roles that are no tag."""
    accepted = (schema.asks, schema.answers)
    for position, role in enumerate(roles):
        if role not in accepted[position & 1] or role is None:
            break
    else:
        if roles and not len(roles) & 1:
            return
        position = len(roles)
    known = [tag for tag in schema.roles if tag is not None]
    system_tag = schema.tags.get("system_tag")
    if any(role not in known for role in roles):
        raise _Unreadable(*_unknown_roles(roles, messages, schema, first))
    if system_tag in roles:
        late = roles.index(system_tag) + first
        found = f"{system_tag!r} after {late - 1} turns"
        fault = RowFault("late_system", f"turn {late}", found, "system as the first turn")
    elif not any(role in schema.answers for role in roles):
        place = f"turn {len(roles) + first - 1}"
        fault = RowFault("no_answer", place, "the end of the row", "an answer")
    else:
        fault = _order_fault(roles, schema, first, position)
    raise _Unreadable(fault)


def _unknown_roles(roles: list, messages: list, schema: Schema, first: int) -> Iterator[RowFault]:
    """One fault for each role that is no tag."""
    tags = [tag for tag in schema.roles if tag is not None]
    expected = f"one of {', '.join(map(repr, tags))}"
    # A tag that a registry does not name is None to LLaMA-Factory, and None a role like another.
    accepted = (schema.asks, schema.answers)
    fits = not len(roles) & 1 and all(r in accepted[i & 1] for i, r in enumerate(roles))
    seen = []
    for number, role in enumerate(roles, first):
        if role in tags or role in seen:
            continue
        seen.append(role)
        found = describe(role)
        if role is None:
            fields = ", ".join(messages[number - first]) or "no fields"
            found = f"no {schema.tags['role_tag']!r} among {fields}"
        kind = "broken_messages" if fits else "wrong_roles"
        yield RowFault(kind, f"turn {number}", found, expected)


def _order_fault(roles: list, schema: Schema, first: int, position: int) -> RowFault:
    if position == len(roles):
        place, found = f"turn {position + first - 1}", f"{roles[-1]!r} as the last turn"
        return RowFault("turn_order", place, found, "an answer at the end")
    role, before = roles[position], roles[position - 1] if position else None
    if not position:
        found, expected = f"{role!r} as the first turn", f"{schema.asks[0]!r}"
    else:
        found = f"{role!r} after {before!r}"
        expected = "questions and answers in turn"
        if role == before == schema.asks[1]:
            expected = (
                f"results of calls made together in one turn, between them {BETWEEN_RESULTS!r}"
            )
    return RowFault("turn_order", f"turn {position + first}", found, expected)


# Tools and calls


@dataclass(frozen=True)
class _Tools:
    """The tools of a row; `arguments` gives the names of a tool's arguments, None if unknown."""

    listed: tuple[dict, ...] = ()
    arguments: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    faults: tuple[RowFault, ...] = ()


NO_TOOLS = _Tools()


def _read_tools(value: Any) -> _Tools:
    if not value:
        return NO_TOOLS
    if not isinstance(value, str):
        raise _broken_tools(describe(value))
    return _parse_tools(value)


@lru_cache(maxsize=256)  # the rows of a source mostly have the same tools
def _parse_tools(text: str) -> _Tools:
    try:
        tools = json.loads(text)
    except ValueError:
        raise _broken_tools(describe(text)) from None
    if not isinstance(tools, list):
        raise _broken_tools(describe(tools))
    arguments, faults = {}, []
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, dict) else tool
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            raise _broken_tools(describe(tool))
        properties = _properties(function)
        padded = [key for key, value in (properties or {}).items() if value is None]
        if padded:
            faults.append(_padded(f"tools, {name!r}", padded))
        known = None if properties is None else frozenset(properties) - set(padded)
        arguments[name] = known
    return _Tools(tuple(tools), arguments, tuple(faults))


def _broken_tools(found: str) -> _Unreadable:
    expected = 'JSON text of a list of {"name": …, "parameters": …}'
    return _Unreadable(RowFault("broken_tools", "tools", found, expected))


def _properties(function: Mapping) -> Mapping | None:
    """The arguments of a function by its JSON schema; None where it names none."""
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return properties if isinstance(properties, dict) else None


def _padded(where: str, keys: Iterable[str]) -> RowFault:
    found = f"null for {', '.join(map(repr, list(keys)[:5]))}"
    return RowFault("padded_arguments", where, found, "only the keys that were written")


def _read_calls(value: str, tools: _Tools, number: int, faults: list[RowFault]) -> dict:
    """The message of a turn of calls; adds what is wrong with them, but not enough to stop."""
    place = f"turn {number}"
    text, calls = _split_calls(value, place)
    functions = []
    for call in calls:
        name, arguments, keys = _read_call(call, place)
        functions.append({"name": name, "arguments": arguments})
        if name not in tools.arguments:
            known = ", ".join(map(repr, list(tools.arguments)[:8])) or "none"
            expected = f"a tool of the row's own list: {known}"
            faults.append(RowFault("unknown_tool", place, describe(name), expected))
            continue
        known_keys = tools.arguments[name]
        nulls = [key for key, each in keys.items() if each is None]
        if known_keys is not None and (padded := [key for key in nulls if key not in known_keys]):
            faults.append(_padded(f"{place}, {name!r}", padded))
    tool_calls = [{"type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": text, "tool_calls": tool_calls}


def _call_order_faults(turns: list[Turn], first: int) -> Iterator[RowFault]:
    """Calls that no result follows, unless they end the row, and results that follow no call."""
    roles = [role for role, _ in turns]
    for number, (role, after) in enumerate(pairwise(roles), first):
        if role == "call" and after != "tool":
            yield RowFault(
                "unanswered_call", f"turn {number}", f"a call, then {after}", "its result"
            )
        if after == "tool" and role != "call":
            found = f"a result after {role}"
            yield RowFault("unanswered_call", f"turn {number + 1}", found, "a call before it")
    if roles[0] == "tool":
        yield RowFault("unanswered_call", f"turn {first}", "a result", "a call before it")


def _split_calls(value: str, place: str) -> tuple[str, list]:
    """The text before the calls, and the calls: the turn ends in the JSON of one or of a list."""
    for start in CALL_START.finditer(value):
        try:
            calls = json.loads(value[start.end() :])
        except ValueError:
            continue
        calls = calls if isinstance(calls, list) else [calls]
        if not calls:
            break
        return value[: start.end()], calls
    raise _broken_call(place, describe(value))


def _read_call(call: Any, place: str) -> tuple[str, Any, Mapping]:
    """The name, the arguments as written, and the arguments as an object."""
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not name or "arguments" not in call:
        raise _broken_call(place, describe(call))
    arguments = keys = call["arguments"]
    if isinstance(arguments, str):
        try:
            keys = json.loads(arguments)
        except ValueError:
            keys = None
    if not isinstance(keys, dict):
        raise _broken_call(place, f"the arguments {describe(arguments)}")
    return name, arguments, keys


def _broken_call(place: str, found: str) -> _Unreadable:
    expected = 'JSON at the end, {"name": …, "arguments": {…}} or a list of them'
    return _Unreadable(RowFault("broken_call", place, found, expected))


# Text


def _check_texts(row: Mapping, schema: Schema, system: Any, turns: list[Turn], first: int) -> str:
    """All text of the conversation in one; refuses what is not text."""
    texts = [content for _, content in turns]
    if system is not None:
        texts.append(system)
    try:
        return "\n".join(texts)
    except TypeError:
        pass
    faults = [
        RowFault(
            "not_text", f"turn {number}", _found_instead(row, schema, number, content), "a text"
        )
        for number, (_, content) in enumerate(turns, first)
        if not isinstance(content, str)
    ]
    if system is not None and not isinstance(system, str):
        faults.append(RowFault("not_text", "system", describe(system), "a text"))
    raise _Unreadable(*faults)


def _found_instead(row: Mapping, schema: Schema, number: int, content: Any) -> str:
    if schema.formatting == "sharegpt":
        key, message = schema.tags["content_tag"], row[schema.columns["messages"]][number - 1]
        if key not in message:
            return f"no {key!r} among {', '.join(message)}"
    return describe(content)


def _unread_faults(
    row: Mapping, schema: Schema, has_system: bool, first: int
) -> Iterator[RowFault]:
    """What the row says in places that the registry does not name and the trainer does not read."""
    for column in map(schema.columns.get, MEDIA):
        if row.get(column):
            yield RowFault("not_text", f"column {column!r}", "files beside the text", "text alone")
    for column in schema.unread:
        value = row.get(column)
        if value and value != "[]" and not (has_system and column.startswith("system")):
            expected = f"{column!r} among `columns` of the registry"
            yield RowFault("unread_column", f"column {column!r}", describe(value), expected)
    if schema.formatting == "alpaca":
        yield from _unread_history(row, schema)
        return
    column = schema.columns.get("system")
    if first == 2 and row.get(column):
        expected = "one system text: the column is not read where the first turn is system"
        yield RowFault("unread_column", f"column {column!r}", describe(row[column]), expected)
    for number, message in enumerate(row[schema.columns["messages"]], 1):
        if len(message) > 2:
            yield from _ignored_faults(message, schema, number)


def _unread_history(row: Mapping, schema: Schema) -> Iterator[RowFault]:
    column = schema.columns.get("history")
    value = row.get(column)
    if value and not isinstance(value, list):
        expected = "a list of pairs of question and answer"
        yield RowFault("unread_column", f"column {column!r}", describe(value), expected)


def _ignored_faults(message: Mapping, schema: Schema, number: int) -> Iterator[RowFault]:
    own = (schema.tags["role_tag"], schema.tags["content_tag"])
    for key in message:
        value = message[key]
        if key in TELLING_FIELDS:
            lost = bool(value) and value != "[]" and key not in own
        else:
            lost = key in MASKING_FIELDS and isinstance(value, int | float) and not value
        if lost:
            found = f"{key!r}: {describe(value)}"
            expected = "nothing beside role and content: other fields are not read"
            yield RowFault("ignored_fields", f"turn {number}", found, expected)


def _text_faults(
    system: str | None,
    turns: list[Turn],
    first: int,
    texts: str,
    foreign: re.Pattern[str] | None,
) -> Iterator[RowFault]:
    """What is wrong with the words themselves; `texts` holds all of them, to find most at once."""
    for number, (role, content) in enumerate(turns, first):
        if not content or content.isspace():
            if role == "assistant":
                found, expected = describe(content), "an answer"
                yield RowFault("empty_answer", f"turn {number}", found, expected)
            elif role == "user":
                found, expected = describe(content), "a question"
                yield RowFault("empty_question", f"turn {number}", found, expected)
        elif role != "tool" and PARTS_AS_TEXT.match(content):
            found, expected = f"a list written as text: {describe(content)}", "the text alone"
            yield RowFault("damaged_text", f"turn {number}", found, expected)
        if role == "assistant" and len(content) >= LOOP_FROM and _loops(content):
            found, expected = (
                f"{len(content)} characters: {describe(content)}",
                "an answer that ends",
            )
            yield RowFault("looping_answer", f"turn {number}", found, expected)
    thinks = "think>" in texts or "think|>" in texts
    damaged = DAMAGE.search(texts) if not texts.isascii() else "\0" in texts
    if thinks or damaged or (foreign and foreign.search(texts)):
        named = [(f"turn {number}", *turn) for number, turn in enumerate(turns, first)]
        if system is not None:
            named.insert(0, ("system", "system", system))
        for place, role, content in named:
            if role == "call":
                content, _ = _split_calls(content, place)
            yield from _reasoning_faults(place, role, content)
            yield from _marker_faults(place, content, foreign)
            yield from _damage_faults(place, content)


def _loops(text: str) -> bool:
    """Whether a text shrinks as no prose, table or program does: a few words again and again."""
    data = text.encode(errors="replace")
    return len(data) > LOOP_RATIO * len(zlib.compress(data, 1))


def _reasoning_faults(place: str, role: str, content: str) -> Iterator[RowFault]:
    if role in ("system", "tool"):
        return  # instructions and documents may speak of the markers
    expected = "one closed block before the answer"
    for opening, closing in REASONING_MARKERS:
        opened, closed = content.count(opening), content.count(closing)
        if not opened and not closed:
            continue
        start, end = content.find(opening), content.find(closing)
        if role == "user":
            found, expected = opening if opened else closing, "no reasoning in a question"
        elif opened != 1 or closed != 1:
            found = f"{opened} {opening} and {closed} {closing}"
        elif end < start:
            found = f"{closing} before {opening}"
        elif content[:start].strip():
            found = f"{describe(content[:start])} before {opening}"
        elif role == "assistant" and not content[end + len(closing) :].strip():
            found, expected = f"nothing after {closing}", "an answer after the reasoning"
            yield RowFault("reasoning_only", place, found, expected)
            continue
        else:
            continue
        yield RowFault("broken_reasoning", place, found, expected)


def _marker_faults(place: str, content: str, foreign: re.Pattern[str] | None) -> Iterator[RowFault]:
    if foreign and (match := foreign.search(content)):
        found = f"{match[0]} in {around(content, match.start())}"
        yield RowFault("foreign_markers", place, found, "no control string of another template")


def _damage_faults(place: str, content: str) -> Iterator[RowFault]:
    if match := DAMAGE.search(content):
        found = f"{match[0]!a} in {around(content, match.start())}"
        yield RowFault("damaged_text", place, found, "text as it was written")


def describe(value: Any) -> str:
    """A value in a message: what it is, and how it begins."""
    if isinstance(value, str):
        text = value if len(value) <= SHOWN else value[: SHOWN - 1] + "…"
        return ascii(text) if SURROGATE.search(text) else repr(text)
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} such as {describe(value[0])}" if value else "an empty list"
    if isinstance(value, dict):
        return f"an object with {', '.join(map(str, list(value)[:6])) or 'no keys'}"
    return repr(value)


def around(text: str, place: int) -> str:
    """A piece of a text around a place in it, for a message."""
    start = max(0, place - SHOWN // 2)
    return describe(("…" if start else "") + text[start : place + SHOWN // 2])
