"""Describe LLaMA-Factory, for a workflow that never imports it: what its parser accepts, and what
its chat templates and ours put between the words of a conversation.

    python -m sft.trainers.llamafactory_describe > sft/backends/llamafactory.json

Run it in the LLaMA-Factory environment after changing its version.
"""

import dataclasses
import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, get_type_hints
from unittest import mock

from sft.trainers.describe import BARRED, JINJA_COMMENT, TAG, describe_key, print_description
from sft.trainers.text_only import allow_text_only

# A turn of each kind, to see what a template puts around it.
ANSWER = "(answer)"
CALL = '{"name": "f", "arguments": {}}'
TOOLS = '[{"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}]'


def describe() -> dict[str, Any]:
    """{"version": …, "transformers": …, "keys": {name: …}, "templates": {name: …}}.

    A template is what `describe_template` says of it. A key's description is {"type": …}, with
    "choices" where only some values pass and "null": true where an empty value passes. The type is
    "any" where several kinds of value do (a path or a mapping, say). Half of the keys are
    transformers' own: hence its version.
    """
    allow_text_only()
    from llamafactory.data.template import TEMPLATES
    from llamafactory.hparams.parser import _TRAIN_ARGS

    from sft.trainers.llamafactory_templates import register_templates

    register_templates()
    keys = {}
    for arguments in _TRAIN_ARGS:
        hints = get_type_hints(arguments)
        for field in dataclasses.fields(arguments):
            if field.init:
                keys[field.name] = describe_key(hints[field.name], field.metadata)
    return {
        "version": version("llamafactory"),
        "transformers": version("transformers"),
        "keys": dict(sorted(keys.items())),
        "templates": {name: describe_template(TEMPLATES[name]) for name in sorted(TEMPLATES)},
    }


def describe_template(template: Any) -> dict[str, Any]:
    """What a template needs of a tokenizer and adds by itself; keys without a value stay out.

    strings         control strings, each meant as one token: all with bars, those between the
                    turns in any form (<start_of_turn>), stop words; of a template of ours also
                    those of its jinja
    tags            what can be one token or plain text, by the tokenizer: tags of reasoning, calls
                    and tool results (<think>, <tool_call>), names in brackets ([INST])
    end             what ends an answer: a control string, or "eos_token" for the tokenizer's own
    eos             what the trainer makes the tokenizer's end token; without it, that stays
    bos             true where a conversation begins with the tokenizer's own start token
    thought_words   of a reasoning template: what opens and closes reasoning
    default_system  the system prompt of a conversation that has none
    uses_date       true where the tools prompt names today's date
    """
    from llamafactory.data.template import ReasoningTemplate

    words = template.thought_words if isinstance(template, ReasoningTemplate) else ()
    answer = template.format_assistant.apply(content=ANSWER, idx="0")
    frame = [
        *template.format_prefix.apply(),
        *template.format_system.apply(content="", idx="0"),
        *template.format_user.apply(content="", idx="0"),
        *answer,
    ]
    inner = [
        *template.format_observation.apply(content="", idx="0"),
        *template.format_function.apply(
            content=CALL,
            thought_words=template.thought_words,
            tool_call_words=template.tool_call_words,
        ),
        *words,
    ]
    jinja = JINJA_COMMENT.sub("", getattr(template, "jinja", ""))
    strings = {
        *find(BARRED, [*frame, *inner, jinja]),
        *(tag for tag in find(TAG, frame) if tag.startswith("<")),
        *(piece["token"] for piece in [*frame, *inner] if isinstance(piece, dict)),
        *template.stop_words,
    }
    description = {
        "strings": sorted(strings),
        "tags": sorted({*find(TAG, [*frame, *inner])} - strings),
        "end": "eos_token" if template.efficient_eos else find_end(answer, strings),
        "eos": template.stop_words[0] if template.replace_eos else None,
        "bos": any(isinstance(piece, set) and "bos_token" in piece for piece in frame),
        "thought_words": list(words),
        "default_system": template.default_system,
        "uses_date": uses_date(template.format_tools),
    }
    return {key: value for key, value in description.items() if value}


def find(pattern: re.Pattern, pieces: Iterable[Any]) -> list[str]:
    """All that matches in the pieces that are text (others stand for special tokens)."""
    return [match for piece in pieces if isinstance(piece, str) for match in pattern.findall(piece)]


def find_end(answer: list, strings: Iterable[str]) -> str | None:
    """The first of the strings, or the end token, after the text of an answer."""
    start = next(i for i, piece in enumerate(answer) if isinstance(piece, str) and ANSWER in piece)
    for piece in [answer[start].partition(ANSWER)[2], *answer[start + 1 :]]:
        if isinstance(piece, set) and "eos_token" in piece:
            return "eos_token"
        if found := [string for string in strings if string in piece]:
            return min(found, key=piece.index)
    return None


def uses_date(format_tools: Any) -> bool:
    """Whether the list of tools would be another one tomorrow."""
    from llamafactory.data import tool_utils

    with mock.patch.object(tool_utils, "datetime") as clock:
        clock.now.return_value.strftime.return_value = "(today)"
        return "(today)" in format_tools.apply(content=TOOLS)[0]


if __name__ == "__main__":
    print_description(describe)
