"""Our chat templates as LLaMA-Factory needs them: the jinja in sft/templates is the truth.

LLaMA-Factory tokenizes turn by turn from slots and never runs a jinja template, so each template
stands here a second time; tests/e2e/test_template_equality.py proves that both give the same
tokens. The trained tokenizer is saved with the jinja file's own text.

Import it after `allow_text_only()`.
"""

import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llamafactory.data.formatter import StringFormatter, ToolFormatter
from llamafactory.data.template import TEMPLATES, Template, register_template

FOLDER = Path(__file__).parents[1] / "templates"

TOOLS_HEAD = "\n\n# Tools\n\nYou can call these functions, given by their JSON schemas:\n<tools>\n"
TOOLS_TAIL = (
    "\n</tools>\n\nTo call one, write its name and its arguments as JSON, each call in tags of its "
    'own:\n<tool_call>\n{"name": <function name>, "arguments": <JSON object>}\n</tool_call>'
)


class TurnFormatter(StringFormatter):
    """The slots with a turn's text, untouched."""

    def apply(self, **values: Any) -> list:
        # LLaMA-Factory also gives the turn's number, and would put it where a text says {{idx}}.
        return super().apply(content=values["content"])


class ToolsFormatter(ToolFormatter):
    """The section of the system turn that lists the tools, from their schemas as a JSON list."""

    def apply(self, **values: Any) -> list[str]:
        tools = json.loads(values["content"])
        schemas = [to_json(tool.get("function", tool)) for tool in tools]
        return [TOOLS_HEAD + "\n".join(schemas) + TOOLS_TAIL]


class CallsFormatter(StringFormatter):
    """The slots with an assistant's tool calls, each in its tags, after the text before them."""

    def apply(self, **values: Any) -> list:
        text, calls = split_calls(values["content"])
        gap = "\n" if text and not text.endswith("\n") else ""
        return super().apply(content=text + gap + "\n".join(tag_call(call) for call in calls))


def split_calls(value: str) -> tuple[str, list[dict]]:
    """The text before the calls, and the calls: [{"name": …, "arguments": …}, …].

    A function_call turn ends in the JSON of one call or of a list of calls, which starts a line.
    """
    for line in re.finditer(r"^(?=[\[{])", value, re.MULTILINE):
        try:
            calls = json.loads(value[line.start() :])
        except json.JSONDecodeError:
            continue
        return value[: line.start()], calls if isinstance(calls, list) else [calls]
    raise ValueError(
        f"function_call turn {value!r}: it has to end in JSON, "
        'one {"name": …, "arguments": …} or a list of them'
    )


def tag_call(call: dict) -> str:
    """One call in its tags; arguments that are JSON text already stay as they are."""
    arguments = call["arguments"]
    text = arguments if isinstance(arguments, str) else to_json(arguments)
    return f'<tool_call>\n{{"name": {to_json(call["name"])}, "arguments": {text}}}\n</tool_call>'


def to_json(value: Any) -> str:
    """As the `tojson` filter of transformers' chat templates writes it."""
    return json.dumps(value, ensure_ascii=False)


@dataclass
class ServedTemplate(Template):
    """A template whose tokenizer is saved with the jinja text that it was proven equal to."""

    jinja: str = ""

    def _get_jinja_template(self, tokenizer: Any) -> str:
        return self.jinja

    def _encode(self, tokenizer: Any, messages: list, system: str, tools: str) -> list[list[int]]:
        # For the tools "[]" LLaMA-Factory would open a system turn even if there is no text for it.
        listed = tools if tools and json.loads(tools) else ""
        return super()._encode(tokenizer, messages, system, listed)


# The arguments of LLaMA-Factory's register_template, by name of the jinja file.
#
# The newline after the end of a turn is trained too, as in LLaMA-Factory's own ChatML templates:
# it belongs to the answer's slot. It comes after the stop token, so it is never sampled.
DEFINITIONS = {
    "chatml_tools": {
        "format_system": TurnFormatter(slots=["<|im_start|>system\n{{content}}<|im_end|>\n"]),
        "format_user": TurnFormatter(
            slots=["<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n"]
        ),
        "format_assistant": TurnFormatter(slots=["{{content}}<|im_end|>\n"]),
        "format_function": CallsFormatter(slots=["{{content}}<|im_end|>\n"]),
        "format_observation": TurnFormatter(
            slots=[
                "<|im_start|>user\n<tool_response>\n{{content}}\n</tool_response><|im_end|>\n"
                "<|im_start|>assistant\n"
            ]
        ),
        "format_tools": ToolsFormatter(tool_format="qwen"),  # how its own chat reads calls back
        "stop_words": ["<|im_end|>"],
        "replace_eos": True,  # the first stop word becomes the tokenizer's eos
    },
}


def register_templates() -> None:
    """Add our templates to LLaMA-Factory's registry; those that are there already stay."""
    for name in DEFINITIONS.keys() - TEMPLATES.keys():
        jinja = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
        register_template(
            name=name,
            **DEFINITIONS[name],
            replace_jinja_template=True,
            template_class=partial(ServedTemplate, jinja=jinja),
        )
