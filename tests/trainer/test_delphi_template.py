"""Delphi: LLaMA-Factory trains exactly the tokens that the jinja template serves, on Llama-3's."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from sft.delphi.slots import TOKENS, rename_slots
from sft.templates import template_path
from sft.trainers.text_only import allow_text_only
from tests import canary, tokenizers
from tests.delphi_conversations import (
    CONVERSATIONS,
    IGNORED,
    TOOLS,
    encode_text,
    label,
    make_conversations,
    render,
)

BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"
TAGS = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}
INFO = {
    "file_name": "rows.jsonl",
    "formatting": "sharegpt",
    "columns": {"messages": "conversations", "tools": "tools"},
}
HEADER = "<|start_header_id|>%s<|end_header_id|>\n\n"


def to_row(messages: list[dict], tools: list[dict]) -> dict:
    """The ShareGPT row that stands for a conversation."""
    turns = []
    for message in messages:
        tag, value = TAGS[message["role"]], message["content"]
        if message["role"] == "tool" and turns[-1]["from"] == "observation":
            turns[-1]["value"] += BETWEEN_RESULTS + value
            continue
        if calls := [each["function"] for each in message.get("tool_calls", ())]:
            made = calls if len(calls) > 1 else calls[0]
            tag, value = "function_call", value + json.dumps(made, ensure_ascii=False)
        turns.append({"from": tag, "value": value})
    return {"conversations": turns, "tools": json.dumps(tools) if tools else ""}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """LLaMA-Factory's own pipeline on Llama-3's tokenizer, prepared as a checkpoint's is."""
    folder = tmp_path_factory.mktemp("llama3")
    for path in tokenizers.llama3().iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for name, text in rename_slots(folder)[0].items():
        (folder / name).write_text(text, encoding="utf-8")
    allow_text_only()
    from llamafactory.data.converter import get_dataset_converter
    from llamafactory.data.parser import get_dataset_list
    from llamafactory.data.processor import SupervisedDatasetProcessor
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments
    from transformers import AutoTokenizer

    from sft.trainers import llamafactory_templates

    llamafactory_templates.register_templates()
    arguments = DataArguments(template="delphi", cutoff_len=65536)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    length = len(tokenizer)
    template = get_template_and_fix_tokenizer(tokenizer, arguments)
    processor = SupervisedDatasetProcessor(template, tokenizer, None, arguments)
    [attributes] = get_dataset_list(["rows"], {"rows": INFO})
    convert = get_dataset_converter("sharegpt", attributes, arguments)

    def encode(rows: list[dict]) -> list[tuple[list[int], list[int]]]:
        aligned = [convert(row) for row in rows]
        made = processor.preprocess_dataset({key: [a[key] for a in aligned] for key in aligned[0]})
        return list(zip(made["input_ids"], made["labels"], strict=True))

    return SimpleNamespace(encode=encode, tokenizer=tokenizer, length=length)


@pytest.fixture(scope="module")
def conversations() -> list[tuple[list[dict], list[dict]]]:
    return make_conversations()


@pytest.fixture(scope="module")
def trained(trainer, conversations) -> list[tuple[list[int], list[int]]]:
    """What LLaMA-Factory makes of each conversation: ids and labels."""
    return trainer.encode([to_row(*each) for each in conversations])


def one(*turns: str, system: str | None = None) -> dict:
    """A row of a question and an answer in turn."""
    head = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant") * len(turns)
    return to_row(
        head + [{"role": r, "content": t} for r, t in zip(roles, turns, strict=False)], []
    )


def trained_text(trainer, row: dict) -> str:
    """What has a loss in a row, as text."""
    [(_, labels)] = trainer.encode([row])
    return trainer.tokenizer.decode([label for label in labels if label != IGNORED])


def test_every_shape_is_among_the_conversations(conversations):
    texts = [json.dumps(each, ensure_ascii=False) for each in conversations]
    for piece in ("tool_calls", "</think>", "<|start_think|>", '"system"', '"tool"', "get_time"):
        assert 100 < sum(piece in text for text in texts) < CONVERSATIONS, piece
    assert sum(not tools for _, tools in conversations) > 500


def test_thousands_of_conversations_are_trained_as_they_are_served(trainer, conversations, trained):
    served = (encode_text(trainer.tokenizer, render(trainer.tokenizer, *c)) for c in conversations)
    differing = [
        (conversation, trainer.tokenizer.decode(ids))
        for conversation, (ids, _), expected in zip(conversations, trained, served, strict=True)
        if ids != expected
    ]
    assert differing == []


def test_answers_with_their_end_are_trained_and_nothing_else(trainer, conversations, trained):
    differing = []
    for conversation, (ids, labels) in list(zip(conversations, trained, strict=True))[::3]:
        if labels != label(trainer.tokenizer, *conversation) or len(ids) != len(labels):
            differing.append(conversation)
    assert differing == []


def test_canary_is_masked_token_by_token_as_it_is_written(trainer):
    [(ids, labels)] = trainer.encode([canary.ROW | {"tools": json.dumps(canary.TOOLS)}])

    assert [
        (trainer.tokenizer.decode([number]), label != IGNORED)
        for number, label in zip(ids, labels, strict=True)
    ] == canary.expected_mask()


def test_plain_turn_is_trained_without_a_think_block(trainer):
    assert trained_text(trainer, one("Hello", "Hi.")) == "Hi.<|eot_id|>"


def test_empty_think_block_is_trained_as_none(trainer):
    assert trained_text(trainer, one("Hello", "<think>\n\n</think>\n\nHi.")) == "Hi.<|eot_id|>"


def test_reasoning_of_each_turn_is_trained_in_delphis_tokens(trainer):
    row = one("1 + 1?", "<think>\nEasy.\n</think>\n\n2", "2 + 2?", "<think>Well.</think>4")

    assert trained_text(trainer, row) == (
        "<|start_think|>\nEasy.\n<|end_think|>\n\n2<|eot_id|>"
        "<|start_think|>\nWell.\n<|end_think|>\n\n4<|eot_id|>"
    )


def test_reasoning_text_and_calls_are_trained_and_results_are_not(trainer):
    call = {"name": "f", "arguments": {"a": 1}}
    row = to_row(
        [
            {"role": "user", "content": "Go."},
            {
                "role": "assistant",
                "content": "<think>\nTwo.\n</think>\n\nBoth.\n",
                "tool_calls": [{"function": call}, {"function": call}],
            },
            *({"role": "tool", "content": result} for result in "78"),
            {"role": "assistant", "content": "Done."},
        ],
        [TOOLS[0]],
    )
    text = '<|tool_call|>\n{"name": "f", "arguments": {"a": 1}}\n<|tool_call_end|>'

    assert trained_text(trainer, row) == (
        f"<|start_think|>\nTwo.\n<|end_think|>\n\nBoth.\n{text}\n{text}<|eot_id|>Done.<|eot_id|>"
    )


def test_served_text_of_a_conversation_with_tools(trainer):
    call = {"name": "f", "arguments": '{"a": 1}'}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": None, "tool_calls": [{"function": call}]},
        {"role": "tool", "content": "7"},
        {"role": "assistant", "reasoning_content": "Seven.", "content": "It is 7."},
    ]

    assert render(trainer.tokenizer, messages, [TOOLS[1]]) == (
        f"<|begin_of_text|>{HEADER % 'system'}Be brief.\n\n# Tools\n\nTo call a tool, write a JSON "
        "object with its name and its arguments between <|tool_call|> and <|tool_call_end|>: "
        '{"name": <tool name>, "arguments": <JSON object>}. Each call has a pair of its own. '
        'The tools:\n{"name": "get_time", "parameters": {}}<|eot_id|>'
        f"{HEADER % 'user'}Go.<|eot_id|>{HEADER % 'assistant'}"
        '<|tool_call|>\n{"name": "f", "arguments": {"a": 1}}\n<|tool_call_end|><|eot_id|>'
        f"{HEADER % 'tool'}<|tool_result|>\n7\n<|tool_result_end|><|eot_id|>"
        f"{HEADER % 'assistant'}<|start_think|>\nSeven.\n<|end_think|>\n\nIt is 7.<|eot_id|>"
    )


def test_reasoning_of_its_own_key_is_served_as_that_in_the_content(trainer):
    user = {"role": "user", "content": "1 + 1?"}
    apart = {"role": "assistant", "reasoning_content": "Easy.", "content": "2"}
    within = {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\n2"}

    texts = {render(trainer.tokenizer, [user, each, user], []) for each in (apart, within)}
    assert len(texts) == 1


def test_system_turn_stands_without_a_text(trainer):
    [(ids, _)] = trainer.encode([one("Hello", "Hi.")])

    start = f"<|begin_of_text|>{HEADER % 'system'}<|eot_id|>{HEADER % 'user'}Hello"
    assert trainer.tokenizer.decode(ids).startswith(start)


@pytest.mark.parametrize(
    ("enabled", "block"), [(True, ""), (False, "<|start_think|>\n\n<|end_think|>\n\n")]
)
def test_generation_prompt_closes_the_think_block_only_where_it_is_told_to(trainer, enabled, block):
    text = trainer.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello"}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=enabled,
    )

    assert text.endswith(f"Hello<|eot_id|>{HEADER % 'assistant'}{block}")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], "user is not text"),
        ([{"role": "tool", "content": None}], "tool is not text"),
        ([{"role": "system", "content": None}], "system turn is not text"),
        (
            [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}],
            "no place here for a turn of role system",
        ),
        ([{"role": "critic", "content": "a"}], "no place here for a turn of role critic"),
        (
            [{"role": "assistant", "content": "<think>a</think>b<think>c</think>d"}],
            "not one block at the start",
        ),
        ([{"role": "assistant", "content": "a<think>b</think>c"}], "not one block at the start"),
    ],
    ids=["parts", "null_result", "null_system", "late_system", "role", "two_blocks", "late_block"],
)
def test_conversation_with_no_place_in_the_template_is_refused(trainer, messages, reason):
    with pytest.raises(Exception, match=reason):  # jinja's, by way of transformers
        render(trainer.tokenizer, messages, [])


def test_answer_that_begins_with_a_newline_is_cut_where_generation_starts(trainer):
    # Rendered as history, the header's newlines and the answer's become one token; LLaMA-Factory
    # trains them apart, as they are generated.
    [(ids, labels)] = trainer.encode([one("Hello", "\nHi.")])

    answer = encode_text(trainer.tokenizer, "\nHi.<|eot_id|>")
    assert ids[-len(answer) :] == answer == labels[-len(answer) :]


def test_end_of_turn_becomes_the_end_token_and_nothing_is_added(trainer):
    assert trainer.tokenizer.eos_token == "<|eot_id|>"
    assert len(trainer.tokenizer) == trainer.length == 128256
    assert trainer.tokenizer.convert_tokens_to_ids(list(TOKENS)) == list(TOKENS.values())


def test_saved_tokenizer_holds_the_jinja_file_byte_for_byte(trainer, tmp_path):
    trainer.tokenizer.save_pretrained(tmp_path)

    saved = (tmp_path / "chat_template.jinja").read_bytes()
    assert saved == Path(template_path("delphi")).read_bytes()
