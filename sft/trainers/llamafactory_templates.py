"""Our chat templates as LLaMA-Factory needs them; each one's jinja file is the truth.

LLaMA-Factory tokenizes turn by turn from slots and never runs a jinja template, so each template
stands here a second time; tests/trainer/test_template_equality.py and test_delphi_template.py prove
that both give the same tokens. The trained tokenizer is saved with the jinja file's own text.

Import it after `allow_text_only()`.
"""

import json
import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from llamafactory.data.formatter import EmptyFormatter, StringFormatter, ToolFormatter
from llamafactory.data.template import TEMPLATES, Template, register_template

from sft.templates import template_path

TOOLS_HEAD = "\n\n# Tools\n\nYou can call these functions, given by their JSON schemas:\n<tools>\n"
TOOLS_TAIL = (
    "\n</tools>\n\nTo call one, write its name and its arguments as JSON, each call in tags of its "
    'own:\n<tool_call>\n{"name": <function name>, "arguments": <JSON object>}\n</tool_call>'
)

DELPHI_TOOLS_HEAD = (
    "# Tools\n\nTo call a tool, write a JSON object with its name and its arguments between "
    '<|tool_call|> and <|tool_call_end|>: {"name": <tool name>, "arguments": <JSON object>}. '
    "Each call has a pair of its own. The tools:\n"
)
DELPHI_HEADER = "<|start_header_id|>%s<|end_header_id|>\n\n"
DELPHI_RESULT = DELPHI_HEADER % "tool" + "<|tool_result|>\n"
DELPHI_RESULT_END = "\n<|tool_result_end|><|eot_id|>"

# What LLaMA-Factory puts between the results of calls that were made together (data/converter.py).
BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"
# Where the JSON of a turn of calls may start: at a line's start, or behind the reasoning.
CALL_START = re.compile(r"^(?=[\[{])|(?:</think>|<\|end_think\|>)[ \t]*(?=[\[{])", re.MULTILINE)


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
        tagged = [f"<tool_call>\n{call_json(call)}\n</tool_call>" for call in calls]
        return super().apply(content=text + gap + "\n".join(tagged))


class DelphiToolsFormatter(ToolFormatter):
    """The tools that the system turn lists, from their schemas as a JSON list; "" for none."""

    def apply(self, **values: Any) -> list[str]:
        tools = json.loads(values["content"])
        schemas = [to_json(tool.get("function", tool)) for tool in tools]
        return [DELPHI_TOOLS_HEAD + "\n".join(schemas) if tools else ""]


class DelphiAnswerFormatter(StringFormatter):
    """The slots with an answer, its reasoning in Delphi's tokens."""

    def apply(self, **values: Any) -> list:
        reasoning, answer = split_reasoning(values["content"] or "")
        return super().apply(content=mark_reasoning(reasoning) + answer)


class DelphiCallsFormatter(StringFormatter):
    """The slots with reasoning, text and tool calls, each call in Delphi's tokens."""

    def apply(self, **values: Any) -> list:
        text, calls = split_calls(values["content"])
        reasoning, answer = split_reasoning(text)
        gap = "\n" if (reasoning or answer) and not answer.endswith("\n") else ""
        tagged = [f"<|tool_call|>\n{call_json(call)}\n<|tool_call_end|>" for call in calls]
        return super().apply(content=mark_reasoning(reasoning) + answer + gap + "\n".join(tagged))


class DelphiResultsFormatter(TurnFormatter):
    """The slots with the result of a call; of several results each has a turn of its own."""

    def apply(self, **values: Any) -> list:
        results = values["content"].split(BETWEEN_RESULTS)
        return super().apply(content=(DELPHI_RESULT_END + DELPHI_RESULT).join(results))


def split_calls(value: str) -> tuple[str, list[dict]]:
    """The text before the calls, and the calls: [{"name": …, "arguments": …}, …].

    A function_call turn ends in the JSON of one call or of a list of calls.
    """
    for start in CALL_START.finditer(value):
        try:
            made = json.loads(value[start.end() :])
        except json.JSONDecodeError:
            continue
        calls = made if isinstance(made, list) else [made]
        if calls and all(_is_call(call) for call in calls):
            return value[: start.end()], calls
    raise ValueError(
        f"function_call turn {value!r}: it has to end in JSON, "
        'one {"name": …, "arguments": …} or a list of them'
    )


def _is_call(value: Any) -> bool:
    return isinstance(value, dict) and {"name", "arguments"} <= value.keys()


def call_json(call: dict) -> str:
    """One call as JSON; arguments that are JSON text already stay as they are."""
    arguments = call["arguments"]
    text = arguments if isinstance(arguments, str) else to_json(arguments)
    return f'{{"name": {to_json(call["name"])}, "arguments": {text}}}'


def to_json(value: Any) -> str:
    """As the `tojson` filter of transformers' chat templates writes it."""
    return json.dumps(value, ensure_ascii=False)


def split_reasoning(text: str) -> tuple[str, str]:
    """The reasoning that stands before `</think>`, "" for none, and the answer after it.

    An answer that the jinja refuses, with text before its reasoning or reasoning in several places,
    is read as the first Delphi template did: the last pieces. The gate refuses its row.
    """
    if "</think>" not in text:
        return "", text
    reasoning = text.partition("</think>")[0].rpartition("<think>")[2]
    return reasoning.strip("\n"), text.rpartition("</think>")[2].lstrip("\n")


def mark_reasoning(reasoning: str) -> str:
    """What stands before an answer; nothing at all where there is no reasoning."""
    return f"<|start_think|>\n{reasoning}\n<|end_think|>\n\n" if reasoning else ""


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


@dataclass
class DelphiTemplate(ServedTemplate):
    """Delphi's: its system turn stands even if there is nothing in it."""

    def _encode(self, tokenizer: Any, messages: list, system: str, tools: str) -> list[list[int]]:
        listed = tools if tools and json.loads(tools) else "[]"  # which opens a system turn
        gap = "\n\n" if system and listed != "[]" else ""
        return Template._encode(self, tokenizer, messages, (system or "") + gap, listed)


# The arguments of LLaMA-Factory's register_template, by name of the jinja file.
#
# The newline after the end of a turn is trained too, as in LLaMA-Factory's own ChatML templates:
# it belongs to the answer's slot. It comes after the stop token, so it is never sampled.
DEFINITIONS = {
    "chatml_tools": {
        "template_class": ServedTemplate,
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
    "delphi": {
        "template_class": DelphiTemplate,
        "format_prefix": EmptyFormatter(slots=["<|begin_of_text|>"]),
        "format_system": TurnFormatter(slots=[DELPHI_HEADER % "system" + "{{content}}<|eot_id|>"]),
        "format_user": TurnFormatter(
            slots=[DELPHI_HEADER % "user" + "{{content}}<|eot_id|>" + DELPHI_HEADER % "assistant"]
        ),
        "format_assistant": DelphiAnswerFormatter(slots=["{{content}}<|eot_id|>"]),
        "format_function": DelphiCallsFormatter(slots=["{{content}}<|eot_id|>"]),
        "format_observation": DelphiResultsFormatter(
            slots=[DELPHI_RESULT + "{{content}}" + DELPHI_RESULT_END + DELPHI_HEADER % "assistant"]
        ),
        "format_tools": DelphiToolsFormatter(tool_format="default"),  # only its own chat reads it
        "stop_words": ["<|eot_id|>"],
        "replace_eos": True,
    },
}


def register_templates() -> None:
    """Add our templates to LLaMA-Factory's registry; those that are there already stay."""
    for name in DEFINITIONS.keys() - TEMPLATES.keys():
        definition = dict(DEFINITIONS[name])
        jinja = template_path(name).read_text(encoding="utf-8")
        template_class = partial(definition.pop("template_class"), jinja=jinja)
        register_template(
            name=name, **definition, replace_jinja_template=True, template_class=template_class
        )
