"""The tokenizers that the tests make are token for token those of the packages' vocabularies."""

import unicodedata
from pathlib import Path

import pytest
import tiktoken
from transformers import AutoTokenizer

from tests.tokenizers import (
    FOLDER,
    LLAMA3_SPECIAL,
    LLAMA3_VOCABULARY,
    PIECES,
    QWEN_ADDED,
    QWEN_SPECIAL,
    QWEN_VOCABULARY,
    llama3,
    qwen,
    read_ranks,
)

CHECKOUT = Path(__file__).parents[2]
HARD = (
    "नमस्ते 👩🏽‍🚀 שלום é e\u0301 ﬁ 🏳️‍🌈 ありがとう 日本語で。\u200b 1234567 'LL don't\r\n\t  x   \n\n"
    "<|im_start|>user\n<think>\n\n</think><|eot_id|><tool_call><|begin_of_text|> <|im_end|"
)
LLAMA3_CONTROLS = [f"<|{name}|>" for name in LLAMA3_SPECIAL]
QWEN_CONTROLS = [*(f"<|{name}|>" for name in QWEN_SPECIAL), *QWEN_ADDED]


@pytest.mark.parametrize(
    ("folder", "vocabulary", "digits", "controls", "form"),
    [
        (llama3, LLAMA3_VOCABULARY, r"\p{N}{1,3}", LLAMA3_CONTROLS, None),
        (qwen, QWEN_VOCABULARY, r"\p{N}", QWEN_CONTROLS, "NFC"),
    ],
    ids=["llama3", "qwen"],
)
def test_tokens_are_those_of_tiktoken(folder, vocabulary, digits, controls, form):
    ranks = read_ranks(FOLDER / "packages", *vocabulary)
    reference = tiktoken.Encoding(
        folder.__name__,
        pat_str=PIECES % digits,
        mergeable_ranks=ranks,
        special_tokens={text: len(ranks) + place for place, text in enumerate(controls)},
    )
    tokenizer = AutoTokenizer.from_pretrained(str(folder()))
    paths = [*CHECKOUT.glob("sft/*.py"), *CHECKOUT.glob("demo/*.jsonl")]
    texts = [path.read_text(encoding="utf-8") for path in paths]

    assert len(tokenizer) == len(ranks) + len(controls)
    assert sum(map(len, texts)) > 100_000
    for text in [HARD, *texts]:
        expected = unicodedata.normalize(form, text) if form else text
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == reference.encode(expected, allowed_special="all")
        assert tokenizer.decode(ids) == expected
