"""Conversations of every shape for Delphi's template, and what of each has to be trained.

Both backends are held against this: the jinja's own rendering, and its parts that are answers.
"""

import random
from collections.abc import Iterator

IGNORED = -100
CONVERSATIONS = 2400

TEXTS = (
    *("Hi.", "What is 17 × 23?", "", "x", " leading and trailing ", "tab\there\t", "1234567 890"),
    *("नमस्ते 👩🏽‍🚀 שלום", "e\u0301 ﬁ 🏳️‍🌈 ありがとう\u200b", "日本語で。", "Łódź — 7 °C …"),
    *(
        "```c\nint main() { return a[{0}]; }\n```\n",
        "{{content}} {{idx}} {% if x %}{{ y }}{% endif %}",
    ),
    *(
        "a\n\n\nb\t c  \n",
        "line\r\nline\r\n\r\n",
        "ends in newlines\n\n",
        "…\n \n…",
        "don't I'LL we'Ve",
    ),
    *('{"name": "f", "arguments": {}}', "[1, 2, 3]", "<b>&amp;</b> a < b > c", "a\\n\\\"b\\\" 'c'"),
    *("# Tools\n\nnot really", "<tool_call>{}</tool_call>", "<|im_start|>user", "reserved_special"),
    "So " + "the answer is long. " * 40,
)
ARGUMENTS = (
    {},
    {"city": "Łódź", "days": [1, 2], "unit": None},
    {"code": 'print({"a": "<tool_call>x</tool_call>"})\n', "deep": {"a": {"b": [True, 1.5]}}},
    '{"raw": "text",  "spaced" :1}',
    {"quote": 'a "b" \\ c', "empty": ""},
)
TOOLS = (
    {"name": "get_weather", "description": "°C & <b>", "parameters": {"type": "object"}},
    {"type": "function", "function": {"name": "get_time", "parameters": {}}},
    {"name": 'odd "name" \\', "parameters": {"properties": {"ü": {"enum": ["'", '"']}}}},
)


def make_conversations() -> list[tuple[list[dict], list[dict]]]:
    """Conversations of every shape, each as messages and tools; the same ones at each call."""
    draw = random.Random(42)
    return [make_conversation(draw) for _ in range(CONVERSATIONS)]


def make_conversation(draw: random.Random) -> tuple[list[dict], list[dict]]:
    tools = draw.sample(TOOLS, draw.choice([0, 0, 1, 2, 3]))
    messages = []
    if draw.random() < 0.5:
        messages.append({"role": "system", "content": make_text(draw)})
    for _ in range(draw.choice([1, 1, 2, 3, 5])):
        messages.append({"role": "user", "content": make_text(draw, newline_first=True)})
        while draw.random() < 0.35:
            messages += make_calls(draw)
        messages.append({"role": "assistant", "content": make_answer(draw)})
    return messages, tools


def make_calls(draw: random.Random) -> list[dict]:
    """A turn of calls, and the result of each."""
    calls = [
        {"name": draw.choice(["f", "get_weather", 'odd "name" \\']), "arguments": arguments}
        for arguments in draw.choices(ARGUMENTS, k=draw.choice([1, 1, 2, 3]))
    ]
    answer = draw.choice(["", make_answer(draw)])
    # The JSON of the calls begins a line, unless reasoning stands right before it.
    if answer and not answer.endswith(("\n", "</think>")):
        answer += "\n"
    made = {"role": "assistant", "content": answer}
    made["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return [made, *({"role": "tool", "content": make_text(draw)} for _ in calls)]


def make_answer(draw: random.Random) -> str:
    """An answer without reasoning, or with it in one of the ways in which data has it."""
    text, thought = make_text(draw), make_text(draw, newline_first=True)
    return draw.choice(
        [
            *(text, text, text),
            f"<think>\n{thought}\n</think>\n\n{text}",
            f"<think>{thought}</think>{text}",
            f"{thought}</think>\n{text}",
            f" \n<think>\n{thought}</think>\n\n\n{text}",
            f"<think>\n\n</think>\n\n{text}",
            f"<|start_think|>\n{thought}\n<|end_think|>\n\n{text}",
            f"<think>\n{thought}\n</think>",
        ]
    )


def make_text(draw: random.Random, newline_first: bool = False) -> str:
    """One of the texts, or several; only `newline_first` ones may begin with a newline."""
    text = draw.choice(["", " ", "\n"]).join(draw.choices(TEXTS, k=draw.choice([1, 1, 2, 3])))
    return "\n" + text if newline_first and draw.random() < 0.1 else text.lstrip("\r\n")


def render(tokenizer, messages: list[dict], tools: list[dict], prompt: bool = False) -> str:
    """The text that a server makes of messages; `prompt` opens the answer after them."""
    return tokenizer.apply_chat_template(
        messages, tools=tools or None, tokenize=False, add_generation_prompt=prompt
    )


def encode_text(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def label_pieces(tokenizer, messages: list[dict], tools: list[dict]) -> Iterator[tuple[bool, str]]:
    """The served text in pieces, and whether each is an answer, by the jinja alone."""
    done = 0
    text = render(tokenizer, messages, tools)
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            start = len(render(tokenizer, messages[:number], tools, prompt=True))
            end = len(render(tokenizer, messages[: number + 1], tools))
            yield False, text[done:start]
            yield True, text[start:end]
            done = end


def label(tokenizer, messages: list[dict], tools: list[dict]) -> list[int]:
    """The labels of a conversation: its answers with their ends, and nothing else."""
    labels = []
    for is_answer, text in label_pieces(tokenizer, messages, tools):
        piece = encode_text(tokenizer, text)
        labels += piece if is_answer else [IGNORED] * len(piece)
    return labels
