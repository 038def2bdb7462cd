"""The hints that decide which lines are compared with the table of signs."""

from collections.abc import Iterable
from re import _constants, _parser  # nothing public tells what a pattern is made of
from typing import Any

import pytest

from sft.endings.signs import HINTS, SIGNS

START = (
    "[INFO|2026-12-01 04:22:09] llamafactory.hparams.parser:523 >> Process rank: 1, world size: 2, "
    "device: cpu:0, distributed training: True, compute dtype: torch.bfloat16",
    "[INFO|configuration_utils.py:769] 2026-12-01 04:22:10,002 >> loading configuration file "
    "/models/qwen3-8b/config.json",
    '  "attention_dropout": 0.0,',
    '  "transformers_version": "5.6.0",',
    "[INFO|tokenization_utils_base.py:2093] 2026-12-01 04:22:10,002 >> loading file tokenizer.json",
    "[INFO|trainer.py:2519] 2026-12-01 04:22:13,562 >>   Gradient Accumulation steps = 1",
    "[2026-12-01 04:22:11,589] [WARNING] [real_accelerator.py:209:get_accelerator] Setting "
    "accelerator to CPU. If you have GPU or other accelerator, we were unable to detect it.",
    "[W1201 04:22:13.557781418 reducer.cpp:1529] Warning: find_unused_parameters=True was "
    "specified in DDP constructor, but did not find any unused parameters in the forward pass.",
    "lrdn0417:534:1763 [3] NCCL INFO Channel 02/0 : 3[3] -> 4[0] [send] via NET/IB/1/GDRDMA",
)


def alternatives(parsed: Iterable[Any]) -> list[list[str]]:
    """Of each alternative of a pattern the pieces of text that all its matches hold."""
    found: list[list[str]] = [[""]]
    for operation, value in parsed:
        if operation is _constants.LITERAL:
            found = [[*pieces[:-1], pieces[-1] + chr(value)] for pieces in found]
            continue
        inner: list[list[str]] = [[]]
        if operation is _constants.SUBPATTERN:
            inner = alternatives(value[3])
        elif operation is _constants.BRANCH:
            inner = [pieces for branch in value[1] for pieces in alternatives(branch)]
        elif operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT) and value[0] > 0:
            inner = alternatives(value[2])
        found = [[*pieces, *more, ""] for pieces in found for more in inner]
    return found


def has_hint(text: str) -> bool:
    return any(hint in text.lower() for hint in HINTS)


@pytest.mark.parametrize("sign", SIGNS, ids=lambda sign: sign.what[:40])
def test_each_line_that_a_sign_knows_holds_a_hint(sign):
    for pieces in alternatives(_parser.parse(sign.pattern.pattern)):
        assert any(map(has_hint, pieces)), pieces


@pytest.mark.parametrize("line", START, ids=lambda line: line[:40])
def test_line_of_a_usual_start_holds_no_hint(line):
    assert not has_hint(line)
