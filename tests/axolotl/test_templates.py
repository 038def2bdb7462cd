"""axolotl trains what its jinja file serves: Delphi's tokens and masks, as LLaMA-Factory's.

tests/trainer/test_delphi_template.py holds LLaMA-Factory against the same conversations.
"""

import json
import logging

import pytest
from axolotl.utils.dict import DictDefault
from transformers import AutoTokenizer

from sft.delphi.slots import rename_slots
from sft.templates import template_path
from sft.trainers.axolotl_tokens import OurLoader, Strategy, dataset_options
from tests import tokenizers
from tests.canary import CANARY, TOOLS, expected_mask
from tests.delphi_conversations import (
    IGNORED,
    encode_text,
    label,
    label_pieces,
    make_conversations,
    render,
)


@pytest.fixture(scope="module")
def strategy(tmp_path_factory: pytest.TempPathFactory) -> Strategy:
    """axolotl's own code on Llama-3's tokenizer, prepared as a checkpoint's is."""
    folder = tmp_path_factory.mktemp("llama3")
    for path in tokenizers.llama3().iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    for name, text in rename_slots(folder)[0].items():
        (folder / name).write_text(text, encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return load(tokenizer, "delphi", "<|eot_id|>")


def load(tokenizer, name: str, end: str) -> Strategy:
    tokenizer.chat_template, tokenizer.eos_token = template_path(name).read_text(), end
    said = {"chat_template": "jinja", "chat_template_jinja": str(template_path(name))}
    logging.disable(logging.WARNING)
    cfg = DictDefault({"sequence_len": 65536, "eot_tokens": [end], **said})
    return OurLoader()(tokenizer, cfg, dataset_options())


def encode(strategy: Strategy, messages: list[dict], tools: list[dict]) -> dict:
    row = {"messages": messages, **({"tools": tools} if tools else {})}
    return strategy.tokenize_prompt(json.loads(json.dumps(row)))


def says_nothing(strategy: Strategy, conversation: tuple[list[dict], list[dict]]) -> bool:
    """Whether one of its answers is but its end; the gate refuses its row."""
    pieces = label_pieces(strategy.tokenizer, *conversation)
    return any(text == "<|eot_id|>" for is_answer, text in pieces if is_answer)


@pytest.fixture(scope="module")
def made(strategy) -> list[tuple]:
    """Each conversation and what axolotl makes of it."""
    return [(each, encode(strategy, *each)) for each in make_conversations()]


def test_thousands_of_conversations_are_trained_as_they_are_served(strategy, made):
    served = (
        encode_text(strategy.tokenizer, render(strategy.tokenizer, *each)) for each, _ in made
    )
    differing = [
        conversation
        for (conversation, tokens), expected in zip(made, served, strict=True)
        if tokens["input_ids"] != expected
    ]
    assert differing == []


def test_answers_with_their_end_are_trained_and_nothing_else(strategy, made):
    differing = [
        conversation
        for conversation, tokens in made[::3]
        if tokens["labels"] != label(strategy.tokenizer, *conversation)
        and not says_nothing(strategy, conversation)
    ]
    assert differing == []


def test_of_an_answer_that_says_nothing_the_end_is_not_trained(strategy):
    # LLaMA-Factory trains it. docs/templates.md: the gate refuses such rows of either.
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": ""}]
    messages += [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    labels = encode(strategy, messages, [])["labels"]

    assert strategy.tokenizer.decode([each for each in labels if each != IGNORED]) == "!<|eot_id|>"


def test_canary_is_masked_token_by_token_as_it_is_written(strategy):
    tokens = encode(strategy, CANARY, TOOLS)
    pairs = zip(tokens["input_ids"], tokens["labels"], strict=True)

    assert [
        (strategy.tokenizer.decode([number]), label != IGNORED) for number, label in pairs
    ] == expected_mask()


@pytest.mark.parametrize("content", ["[[dummy_message]]", "zzdummymessagezz", "]]", "[", "z"])
def test_answer_that_axolotl_itself_uses_as_a_mark_is_trained(content, strategy):
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": content}]
    labels = encode(strategy, messages, [])["labels"]
    trained = strategy.tokenizer.decode([each for each in labels if each != IGNORED])

    assert trained == f"{content}<|eot_id|>"


def test_long_conversation_is_tokenized_in_time(strategy):
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Yes. " * 20}]
    tokens = encode(strategy, turns * 100, [])

    assert sum(each != IGNORED for each in tokens["labels"]) > 100 * 40


def test_newline_behind_the_end_of_a_chatml_answer_is_not_trained():
    tokenizer = AutoTokenizer.from_pretrained(tokenizers.qwen())
    strategy = load(tokenizer, "chatml_tools", "<|im_end|>")
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Yes."}]
    labels = encode(strategy, messages, [])["labels"]

    # LLaMA-Factory trains it too, as part of its answer's slot: it is never sampled.
    assert tokenizer.decode([each for each in labels if each != IGNORED]) == "Yes.<|im_end|>"
