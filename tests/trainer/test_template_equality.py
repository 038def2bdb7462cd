"""What LLaMA-Factory trains is what the jinja template serves: same tokens, right labels."""

import json
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import pytest

from demo.make_model import load_tokenizer
from sft.templates import CUSTOM_TEMPLATES
from sft.trainers.text_only import allow_text_only
from tests.trainer.demo_data import DATASETS

ROOT = Path(__file__).parents[2]
JINJA = ROOT / "sft" / "templates" / "chatml_tools.jinja"
IGNORED = -100

SHAREGPT, MESSAGES = DATASETS["demo_tools"], DATASETS["demo_reasoning"]

WEATHER = {"name": "get_weather", "description": "°C", "parameters": {"type": "object"}}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {}}}


def chat(*turns: str, system: str | None = None, tools: str = "") -> dict:
    """A ShareGPT row of user and assistant turns, the user first."""
    head = [] if system is None else [{"from": "system", "value": system}]
    pairs = zip(cycle(["human", "gpt"]), turns, strict=False)
    return {"conversations": head + [{"from": tag, "value": v} for tag, v in pairs], "tools": tools}


def call_chat(call: str, result: str, tools: list, system: str | None = None) -> dict:
    """A ShareGPT row with one turn of calls, its results, and a last answer."""
    row = chat("How is it?", call, result, "Fine.", system=system, tools=json.dumps(tools))
    row["conversations"][-3]["from"] = "function_call"
    row["conversations"][-2]["from"] = "observation"
    return row


CALL = {"name": "get_weather", "arguments": {"city": "Łódź", "days": [1, 2], "unit": None}}
PROGRAM = {"name": "run", "arguments": {"code": 'print({"a": "<tool_call>x</tool_call>"})\n'}}
TWO_RESULTS = '{"celsius": 7}\n</tool_response>\n<tool_response>\n"东京: 9"'

HARD_ROWS = {
    "one_turn": chat("Hello", "Hi."),
    "system": chat("Hello", "Hi.", system="Be brief."),
    "empty_system": chat("Hello", "Hi.", system=""),
    "empty_tool_list": chat("Hello", "Hi.", tools="[]"),
    "empty_answer": chat("Say nothing.", "", "And now?", "Something."),
    "tools_without_system": call_chat(json.dumps(CALL), "7", [WEATHER]),
    "tools_with_empty_system": call_chat(json.dumps(CALL), "7", [WEATHER], system=""),
    "tools_and_system": call_chat(json.dumps(CALL), "7", [WEATHER, TIME], system="Look it up."),
    "tools_without_call": chat("Hello", "Hi.", tools=json.dumps([TIME])),
    "two_calls": call_chat(json.dumps([CALL, CALL]), TWO_RESULTS, [WEATHER]),
    "arguments_as_text": call_chat('{"name": "f", "arguments": "{\\"a\\": 1}"}', "7", [WEATHER]),
    "tags_in_arguments": call_chat(json.dumps(PROGRAM), "{'a': 1}", [WEATHER]),
    "reasoning_before_call": call_chat(
        f"<think>\nMaybe {{this}}?\n[no]\n</think>\n\n{json.dumps(CALL)}", "7", [WEATHER]
    ),
    "text_before_calls": call_chat(f"Both.\n{json.dumps([CALL, PROGRAM])}", TWO_RESULTS, [WEATHER]),
    "reasoning_in_every_turn": chat(
        "1 + 1?", "<think>\nEasy.\n</think>\n\n2", "2 + 2?", "<think>\n\n</think>\n\n4"
    ),
    "unicode": chat("नमस्ते 👩🏽‍🚀 שלום", "é é ﬁ 🏳️‍🌈 ありがとう", system="日本語で。\u200b"),
    "braces": chat(
        "What do {{content}}, {{idx}} and {% if tools %}{{ messages }}{% endif %} do?",
        "```c\nint main() { return a[{0}]; }\n```\n{{content}} {{system}} {'a': {}}",
    ),
    "white_space_within": chat("\n a\n\n\nb\t c  ", "x\n\n  y \n", system="\n\n# Title\n"),
}


@pytest.fixture(scope="module")
def trainer() -> SimpleNamespace:
    """LLaMA-Factory's own pipeline: `encode(rows, info)` gives [(input_ids, labels), …]."""
    allow_text_only()
    from llamafactory.data.converter import get_dataset_converter
    from llamafactory.data.parser import get_dataset_list
    from llamafactory.data.processor import SupervisedDatasetProcessor
    from llamafactory.data.template import TEMPLATES, get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments

    from sft.trainers import llamafactory_templates

    llamafactory_templates.register_templates()
    arguments = DataArguments(template="chatml_tools", cutoff_len=8192)
    tokenizer = load_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    template = get_template_and_fix_tokenizer(tokenizer, arguments)
    processor = SupervisedDatasetProcessor(template, tokenizer, None, arguments)

    def encode(rows: list[dict], info: dict) -> list[tuple[list[int], list[int]]]:
        [attributes] = get_dataset_list(["rows"], {"rows": info})
        convert = get_dataset_converter("sharegpt", attributes, arguments)
        aligned = [convert(row) for row in rows]
        made = processor.preprocess_dataset({key: [a[key] for a in aligned] for key in aligned[0]})
        return list(zip(made["input_ids"], made["labels"], strict=True))

    return SimpleNamespace(
        encode=encode,
        tokenizer=tokenizer,
        registry=TEMPLATES,
        templates=llamafactory_templates,
    )


def read_rows(info: dict) -> list[dict]:
    """The rows of one of the demo's files."""
    text = (ROOT / "demo" / info["file_name"]).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def to_conversation(row: dict) -> tuple[list[dict], list[dict] | None]:
    """The messages and the tools of a row, as a client sends them to a served model."""
    if "messages" in row:
        return row["messages"], None
    messages = []
    for turn in row["conversations"]:
        messages += to_messages(turn["from"], turn["value"])
    return messages, json.loads(row["tools"] or "[]")


def to_messages(tag: str, value: str) -> list[dict]:
    """One message, or one for each result of calls that were made together."""
    if tag == "observation":
        results = value.split("\n</tool_response>\n<tool_response>\n")
        return [{"role": "tool", "content": result} for result in results]
    if tag == "function_call":
        # The JSON is the last line of every such turn here.
        text, newline, last_line = value.rpartition("\n")
        calls = json.loads(last_line)
        calls = calls if isinstance(calls, list) else [calls]
        tool_calls = [{"type": "function", "function": call} for call in calls]
        return [{"role": "assistant", "content": text + newline, "tool_calls": tool_calls}]
    return [{"role": {"human": "user", "gpt": "assistant"}.get(tag, tag), "content": value}]


def serve(tokenizer, row: dict) -> list[int]:
    """The tokens that a server makes of the row with the jinja template."""
    messages, tools = to_conversation(row)
    return tokenizer.apply_chat_template(messages, tools=tools, return_dict=False)


def render_labels(tokenizer, row: dict) -> list[int]:
    """The labels by the jinja alone: what follows a generation prompt is trained."""
    messages, tools = to_conversation(row)

    def render(count: int, prompt: bool) -> str:
        return tokenizer.apply_chat_template(
            messages[:count], tools=tools, tokenize=False, add_generation_prompt=prompt
        )

    spans = [
        (len(render(i, prompt=True)), len(render(i + 1, prompt=False)))
        for i, message in enumerate(messages)
        if message["role"] == "assistant"
    ]
    tokens = tokenizer(
        render(len(messages), prompt=False), add_special_tokens=False, return_offsets_mapping=True
    )
    return [
        token if any(first <= start < end for first, end in spans) else IGNORED
        for token, (start, _) in zip(tokens["input_ids"], tokens["offset_mapping"], strict=True)
    ]


@pytest.mark.parametrize("info", [SHAREGPT, MESSAGES], ids=["tools", "reasoning"])
def test_demo_rows_are_trained_as_they_are_served(trainer, info):
    rows = read_rows(info)
    trained = [ids for ids, _ in trainer.encode(rows, info)]
    assert trained == [serve(trainer.tokenizer, row) for row in rows]


@pytest.mark.parametrize("info", [SHAREGPT, MESSAGES], ids=["tools", "reasoning"])
def test_demo_labels_are_what_the_assistant_says(trainer, info):
    rows = read_rows(info)
    labels = [labels for _, labels in trainer.encode(rows, info)]
    assert labels == [render_labels(trainer.tokenizer, row) for row in rows]


@pytest.mark.parametrize("row", HARD_ROWS.values(), ids=HARD_ROWS)
def test_hard_rows_are_trained_as_they_are_served(trainer, row):
    [(ids, _)] = trainer.encode([row], SHAREGPT)
    served = serve(trainer.tokenizer, row)
    assert trainer.tokenizer.decode(ids) == trainer.tokenizer.decode(served)
    assert ids == served


@pytest.mark.parametrize("row", HARD_ROWS.values(), ids=HARD_ROWS)
def test_hard_labels_are_what_the_assistant_says(trainer, row):
    [(_, labels)] = trainer.encode([row], SHAREGPT)
    assert labels == render_labels(trainer.tokenizer, row)


def test_served_text_of_a_conversation_with_tools(trainer):
    row = call_chat(json.dumps([CALL, CALL]), TWO_RESULTS, [WEATHER, TIME], system="Look it up.")
    call = '{"name": "get_weather", "arguments": {"city": "Łódź", "days": [1, 2], "unit": null}}'
    assert trainer.tokenizer.decode(serve(trainer.tokenizer, row)) == (
        "<|im_start|>system\nLook it up.\n\n# Tools\n\n"
        "You can call these functions, given by their JSON schemas:\n<tools>\n"
        '{"name": "get_weather", "description": "°C", "parameters": {"type": "object"}}\n'
        '{"name": "get_time", "parameters": {}}\n</tools>\n\n'
        "To call one, write its name and its arguments as JSON, each call in tags of its own:\n"
        '<tool_call>\n{"name": <function name>, "arguments": <JSON object>}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\nHow is it?<|im_end|>\n<|im_start|>assistant\n"
        f"<tool_call>\n{call}\n</tool_call>\n<tool_call>\n{call}\n</tool_call><|im_end|>\n"
        '<|im_start|>user\n<tool_response>\n{"celsius": 7}\n</tool_response>\n'
        '<tool_response>\n"东京: 9"\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\nFine.<|im_end|>\n"
    )


def test_end_of_turn_and_the_newline_after_it_are_trained(trainer):
    [(_, labels)] = trainer.encode([chat("Hello", "Hi.", system="Be brief.")], SHAREGPT)
    trained = [label for label in labels if label != IGNORED]
    assert trainer.tokenizer.decode(trained) == "Hi.<|im_end|>\n"


def test_answer_that_begins_with_white_space_is_cut_where_generation_starts(trainer):
    # Rendered as history, the prompt's newline and the answer's blanks become one token;
    # LLaMA-Factory trains them apart, as they are generated.
    row = chat("Hello", "  Hi.")
    [(ids, _)] = trainer.encode([row], SHAREGPT)
    prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    encode = trainer.tokenizer.encode
    assert ids == encode(prompt) + encode("  Hi.<|im_end|>\n") != serve(trainer.tokenizer, row)


def test_end_of_turn_becomes_the_end_token(trainer):
    assert trainer.tokenizer.eos_token == "<|im_end|>"


def test_saved_tokenizer_holds_the_jinja_file_byte_for_byte(trainer, tmp_path):
    trainer.tokenizer.save_pretrained(tmp_path)
    assert (tmp_path / "chat_template.jinja").read_bytes() == JINJA.read_bytes()


def test_call_turn_without_json_is_refused(trainer):
    row = call_chat("I would look it up.", "7", [WEATHER])
    with pytest.raises(ValueError, match="I would look it up"):
        trainer.encode([row], SHAREGPT)


def test_registering_again_keeps_the_templates(trainer):
    before = dict(trainer.registry)
    trainer.templates.register_templates()
    assert trainer.registry == before


def test_every_jinja_file_has_its_counterpart(trainer):
    assert set(trainer.templates.DEFINITIONS) == set(CUSTOM_TEMPLATES)
