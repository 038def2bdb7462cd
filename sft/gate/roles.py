"""Which roles and columns a source really has, and the words of a registry that would read it."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sft.errors import SHOWN, SftError, nearest
from sft.gate.conversation import (
    DEFAULT_TAGS,
    MEDIA,
    RowFault,
    Schema,
    read_conversation,
    read_schema,
)
from sft.gate.rows import Files, has_inferred_dates, locate_row, read_rows

SHOWN_ROWS = 9
SAMPLED_ROWS = 200  # of those that can be read, and of those that cannot
ENOUGH = 0.95  # of the sampled rows of either sort have to be read by what is proposed
MOST_ROLES = 20  # a field with more different values holds no roles
LONGEST_ROLE = 40  # characters

# How the parts of chat sets are called; what stands earlier is taken first.
ROLE_NAMES = {
    "user_tag": ("user", "human", "prompter", "question", "customer"),
    "assistant_tag": ("assistant", "gpt", "model", "bot", "chatgpt", "ai", "answer", "agent"),
    "system_tag": ("system", "developer"),
    "observation_tag": (
        *("tool", "observation", "environment", "tool_response", "tool_result", "ipython"),
        *("function_response", "function_result", "function"),
    ),
    "function_tag": ("function_call", "tool_call", "tool_calls", "function-call"),
}
ROLE_FIELDS = ("role", "from", "speaker", "author")
CONTENT_FIELDS = ("content", "value", "text", "message", "utterance")
PROMPTS = ("instruction", "prompt", "question", "query", "problem", "input")
RESPONSES = ("output", "response", "answer", "completion", "solution", "target")
# Columns that the trainer asks every row for, where they are named or implied.
READ_COLUMNS = {
    "alpaca": ("prompt", "query", "response", "history", "system", "tools", *MEDIA),
    "sharegpt": ("messages", "system", "tools", *MEDIA),
}
# Texts that become points in time where a column of a file of JSON lines holds no other.
DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d(:\d\d(:\d\d)?)?Z?)?")
YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


@dataclass(frozen=True)
class RoleReport:
    """What a source's rows are made of, against what its registry declares.

    `unreadable` counts the rows that no conversation can be made of, by their first fault;
    `examples` are the first rows with each fault. `columns` counts the columns of rows,
    `fields` those of messages, `roles` the values of the declared role field, or of the one that
    looks like it. `proposal` holds the options that read nearly all rows, None if none were found.
    """

    schema: Schema
    rows: int
    kept: int
    unreadable: Mapping[str, int]
    columns: Mapping[str, int]
    fields: Mapping[str, int]
    roles: Mapping[str, int]
    examples: tuple[tuple[int, RowFault], ...]
    proposal: Mapping[str, Any] | None

    def lines(self) -> list[str]:
        """How many rows are read, what they hold, what was expected, and what to write."""
        lost = "".join(f", {kind} {count}" for kind, count in self.unreadable.items())
        lines = [f"{self.kept} of {self.rows} rows can be read{lost}"]
        lines.append(f"found the columns {_counted(self.columns)}")
        if self.fields:
            lines.append(f"found in their messages {_counted(self.fields)}")
            lines.append(f"found the roles {_counted(self.roles) or 'none'}")
        lines.append(f"expected {self._expected()}")
        if self.proposal:
            lines.append(f"this reads them; write it in the registry: {flow_yaml(self.proposal)}")
        elif rivals := self._rivals():
            lines.append(
                f"no one set of tags reads them all: {' and '.join(map(repr, rivals))} mean the "
                "same; rename them in the rows, or make a dataset of each"
            )
        elif self.unreadable:
            lines.append("no other words of the registry read them: correct the rows")
        return lines

    def _expected(self) -> str:
        columns, tags = self.schema.columns, self.schema.tags
        if self.schema.formatting == "alpaca":
            return f"the columns {columns['prompt']!r} and {columns['response']!r}"
        roles = ", ".join(map(repr, self.schema.roles))
        return (
            f"the column {columns['messages']!r} of messages with {tags['content_tag']!r} and "
            f"{tags['role_tag']!r}, which is one of {roles}"
        )

    def _rivals(self) -> list[str]:
        """Fields or roles of one meaning, of which a set of tags can name only one."""
        for words, names in (
            (self.fields, ROLE_FIELDS),
            *((self.roles, names) for names in ROLE_NAMES.values()),
        ):
            found = [word for word in words if word.lower() in names]
            if len(found) > 1:
                return found
        return []


def _counted(counts: Mapping[str, int]) -> str:
    shown = ", ".join(f"{name!r} {number}" for name, number in list(counts.items())[:12])
    return shown + (", …" if len(counts) > 12 else "")


def flow_yaml(value: Any) -> str:
    """A mapping of words as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {flow_yaml(each)}" for key, each in value.items()) + "}"
    plain = re.fullmatch(r"[A-Za-z][\w-]*", value) and value.lower() not in YAML_WORDS
    return value if plain else "'" + value.replace("'", "''") + "'"


# Before anything is tokenized


def source_preflight(files: Files, options: Mapping[str, Any], name: str) -> None:
    """Refuse a source none of whose rows can be trained; of a good one the first rows decide.

    `name` says in messages which source it is. Raises SftError with a RoleReport; and where a
    column that the trainer asks for is in no row, or all answers are dates.
    """
    files, schema = list(files), read_schema(options)
    names = ((key, schema.columns.get(key)) for key in READ_COLUMNS[schema.formatting])
    absent = {column: key for key, column in names if column}
    only_dates = schema.formatting == "alpaca" and has_inferred_dates(files)
    usable, found = False, set()
    for row in read_rows(files):
        found |= row.keys()
        usable = usable or read_conversation(row, schema)[0] is not None
        only_dates = only_dates and _is_date(row.get(schema.columns["response"]))
        if usable and not only_dates and absent.keys() <= found:
            return
    if not found:
        raise SftError(f"{name}: no rows in it; fill it, or take the dataset out of the mix")
    if not usable:
        raise _refusal(files, options, name)
    if only_dates:
        raise SftError(
            f"{name}: every {schema.columns['response']!r} is a date; from JSON lines they are "
            "read as times and the rows are left out; write the rows as one JSON array or Parquet"
        )
    raise SftError(
        *(
            f"{name}, columns, {key}: no row has the column {column!r}; {nearest(column, found)}"
            for column, key in absent.items()
            if column not in found
        )
    )


def find_fatal_rows(files: Files, options: Mapping[str, Any], name: str) -> list[str]:
    """One line for each of the first rows that trainers are known to die of."""
    schema, lines, found = read_schema(options), [], 0
    for number, row in enumerate(read_rows(files)):
        fatal = [each for each in read_conversation(row, schema)[1] if each.fails]
        lines += [f"{name}, row {number} (from 0), {each}; correct or drop it" for each in fatal]
        found += bool(fatal)
        if found == SHOWN:
            break
    return lines


def _is_date(value: Any) -> bool:
    return value is None or (isinstance(value, str) and DATE.fullmatch(value) is not None)


def _refusal(files: Files, options: Mapping[str, Any], name: str) -> SftError:
    report = diagnose_roles(read_rows(files), options)
    examples = []
    for number, fault in report.examples:
        file, row = locate_row(files, number)
        examples.append(f"{file}, row {row} (from 0), {fault}")
    return SftError("\n  ".join([f"{name}: {report.lines()[0]}", *report.lines()[1:]]), *examples)


# What is there


def diagnose_roles(rows: Iterable[Mapping[str, Any]], options: Mapping[str, Any]) -> RoleReport:
    """What the rows of a source hold, how many of them the options read, and which would."""
    schema, survey = read_schema(options), _Survey()
    unreadable: Counter[str] = Counter()
    examples: dict[RowFault, int] = {}
    good, bad = [], []
    for number, row in enumerate(rows):
        survey.add(row)
        conversation, faults = read_conversation(row, schema)
        sample = bad if conversation is None else good
        if len(sample) < SAMPLED_ROWS:
            sample.append(row)
        if conversation is None:
            unreadable[faults[0].kind] += 1
            if len(examples) < SHOWN_ROWS:
                examples.setdefault(faults[0], number)
    declared = schema.columns.get("messages")
    messages = survey.messages.get(declared) or next(iter(survey.messages.values()), _Messages())
    return RoleReport(
        schema=schema,
        rows=survey.rows,
        kept=survey.rows - unreadable.total(),
        unreadable=dict(unreadable.most_common()),
        columns=dict(survey.columns.most_common()),
        fields=dict(messages.fields.most_common()),
        roles=dict(messages.roles(schema.tags["role_tag"]).most_common()),
        examples=tuple((number, fault) for fault, number in examples.items()),
        proposal=_propose(survey, schema, good, bad) if bad else None,
    )


@dataclass
class _Messages:
    """What the messages in one column are made of.

    `values` has the counts of a field's values, None where it is no role; `first` and `last` those
    in the first and last message of a row.
    """

    fields: Counter[str] = field(default_factory=Counter)
    values: dict[str, Counter[str] | None] = field(default_factory=dict)
    first: dict[str, Counter[str]] = field(default_factory=dict)
    last: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, messages: list[Mapping[str, Any]]) -> None:
        """Count one row's."""
        for message in messages:
            self.fields.update(message.keys())
            for key, value in message.items():
                self._add_value(key, value)
        for ends, message in ((self.first, messages[0]), (self.last, messages[-1])):
            for key in message.keys() & self.role_fields():
                ends.setdefault(key, Counter())[message[key]] += 1

    def _add_value(self, key: str, value: Any) -> None:
        counts = self.values.setdefault(key, Counter())
        if counts is None or value is None:
            return
        if isinstance(value, str) and value and len(value) <= LONGEST_ROLE:
            counts[value] += 1
        else:
            self.values[key] = None
        if len(counts) > MOST_ROLES:
            self.values[key] = None

    def role_fields(self) -> list[str]:
        """The fields that may hold roles, those first that are called so."""
        return sorted((key for key, counts in self.values.items() if counts), key=_by(ROLE_FIELDS))

    def roles(self, declared: str) -> Counter[str]:
        """The values of the declared role field, or of the one that looks like it."""
        names = [declared, *self.role_fields()]
        return next((self.values[name] for name in names if self.values.get(name)), Counter())


class _Survey:
    """What the rows of a source are made of; `messages` by column."""

    def __init__(self) -> None:
        self.rows = 0
        self.columns: Counter[str] = Counter()
        self.texts: Counter[str] = Counter()
        self.messages: dict[str, _Messages] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one row."""
        self.rows += 1
        self.columns.update(row.keys())
        for column, value in row.items():
            if isinstance(value, str):
                self.texts[column] += 1
            elif value and isinstance(value, list) and all(isinstance(m, dict) for m in value):
                self.messages.setdefault(column, _Messages()).add(value)


def _by(names: tuple[str, ...]) -> Any:
    """A key that sorts by the place in `names`, what is not there last."""
    return lambda name: names.index(name) if name in names else len(names)


# What would read it


def _propose(survey: _Survey, schema: Schema, good: list, bad: list) -> dict[str, Any] | None:
    """The first options that read nearly all of the sampled rows of either sort."""
    for options in (*_sharegpt_options(survey, schema), *_alpaca_options(survey)):
        proposed = read_schema(options)
        if all(_share(rows, proposed) >= ENOUGH for rows in (good, bad) if rows):
            return options
    return None


def _share(rows: list, schema: Schema) -> float:
    return sum(read_conversation(row, schema)[0] is not None for row in rows) / len(rows)


def _sharegpt_options(survey: _Survey, schema: Schema) -> Iterator[dict[str, Any]]:
    for column, messages in survey.messages.items():
        columns = {"messages": column}
        for key in ("system", "tools"):
            named = schema.columns.get(key, key)
            if named in survey.texts:
                columns[key] = named
        for role_field in messages.role_fields()[:3]:
            tags = _match_roles(messages, role_field)
            contents = sorted(messages.fields.keys() - {role_field}, key=_by(CONTENT_FIELDS))
            for content_field in contents[:2] if tags else []:
                named = {"role_tag": role_field, "content_tag": content_field, **tags}
                options = {"formatting": "sharegpt", "columns": columns}
                yield (
                    options if named.items() <= DEFAULT_TAGS.items() else options | {"tags": named}
                )


def _match_roles(messages: _Messages, role_field: str) -> dict[str, str]:
    """The tags of the roles in a field: by their names, else by where they stand; or nothing."""
    counts = messages.values[role_field]
    tags, rest = {}, set(counts)
    for tag, names in ROLE_NAMES.items():
        found = [role for role in counts if role.lower() in names]
        if found:
            tags[tag] = max(found, key=counts.__getitem__)
            rest -= set(found)
    for tag, ends in (("user_tag", messages.first), ("assistant_tag", messages.last)):
        places = ends.get(role_field, Counter())
        left = [role for role in places if role in rest]
        if tag not in tags and left:
            tags[tag] = max(left, key=places.__getitem__)
            rest.discard(tags[tag])
    if "observation_tag" not in tags and len(rest) == 1:
        tags["observation_tag"] = rest.pop()
    return tags if {"user_tag", "assistant_tag"} <= tags.keys() else {}


def _alpaca_options(survey: _Survey) -> Iterator[dict[str, Any]]:
    texts = survey.texts
    prompt = next((name for name in PROMPTS if name in texts), None)
    response = next((name for name in RESPONSES if name in texts and name != prompt), None)
    if prompt and response:
        columns = {"prompt": prompt, "response": response}
        columns |= {"query": "input"} if prompt != "input" and "input" in texts else {}
        columns |= {key: key for key in ("history", "system", "tools") if key in survey.columns}
        yield {"columns": columns}
