import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from sft.gate.checks import TOKEN_CHECKS
from sft.gate.comparison import DATE, Difference, Example, compare, lost_text, show
from sft.gate.conversation import Conversation
from sft.gate.serving import Serving, load_serving
from tests.unit.served import CHATML, FAMILIES, IM, QWEN3, write_family, write_served
from tests.workflow.stub_trainer import write_tokenizer


def turn(role: str, content: str, **other) -> dict:
    return {"role": role, "content": content, **other}


def user(text: str) -> dict:
    return turn("user", text)


def said(text: str, **other) -> dict:
    return turn("assistant", text, **other)


def thought(text: str, answer: str) -> str:
    return f"<think>\n{text}\n</think>\n\n{answer}"


EMPTY = "<think>\n\n</think>\n\n"
SYSTEM = turn("system", "You keep the till of a village shop.")
ONE = [user("What does a lamp cost?"), said("It costs four euros.")]
TALK = [*ONE, user("And two of them?"), said("Eight euros for both.")]
LOOK = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"thing": "lamp"}}}
ERRAND = [
    user("What does a lamp cost?"),
    said("I look.", tool_calls=[CALL]),
    turn("tool", '{"euros": 4}'),
    said("It costs four euros."),
]
LAST_THOUGHT = [*TALK[:3], said(thought("Two times four.", "Eight euros for both."))]
ALL_THOUGHTS = [TALK[0], said(thought("A lamp.", "It costs four euros.")), *LAST_THOUGHT[2:]]


@pytest.fixture(scope="module")
def servings(tmp_path_factory) -> dict[str, Serving]:
    folder = tmp_path_factory.mktemp("families")
    made = {
        name: load_serving(write_family(folder / name, family)) for name, family in FAMILIES.items()
    }
    write_tokenizer(folder / "tools")
    return made | {"tools": load_serving(folder / "tools")}


@pytest.fixture
def chatml(servings) -> Serving:
    return servings["chatml"]


@pytest.fixture
def qwen3(servings) -> Serving:
    return servings["qwen3"]


def serve(folder: Path, template: str, **other) -> Serving:
    return load_serving(write_served(folder, template, IM, **other))


def rendered(serving: Serving, messages: Sequence[dict], tools: Sequence[dict] = ()) -> list[str]:
    return serving.split(serving.render(messages, tools))


def example(serving: Serving, *parts: tuple[str, bool], **other) -> Example:
    """An example of texts, each tokenized alone, with a loss or without."""
    encoded = serving.encode([text for text, _ in parts])
    trained = [has_loss for (_, has_loss), ids in zip(parts, encoded, strict=True) for _ in ids]
    return Example([token for ids in encoded for token in ids], trained, **other)


def by_turns(serving: Serving, pieces: Iterable[str], **other) -> Example:
    """An example of prompts and answers, as a right trainer makes it."""
    parts = [(piece, number % 2 == 1) for number, piece in enumerate(pieces)]
    return example(serving, *parts, **other)


def differ(
    serving: Serving, made: Example, served: list[str], own: Sequence[str] = ()
) -> list[Difference]:
    return compare(made, served, serving.encode(served), serving, own)


def faults(*given, **named) -> list[str]:
    return [each.fault for each in differ(*given, **named)]


def swap(pieces: list[str], number: int, old: str, new: str) -> list[str]:
    """The pieces with another text in one of them."""
    assert old in pieces[number]
    return [*pieces[:number], pieces[number].replace(old, new, 1), *pieces[number + 1 :]]


def texts(messages: Iterable[dict]) -> list[str]:
    return [message["content"] for message in messages]


# Good examples.

SHAPES = {
    "one_turn": (ONE, ()),
    "talk": (TALK, ()),
    "talk_with_system": ([SYSTEM, *TALK], ()),
    "reasoning_last": (LAST_THOUGHT, ()),
    "reasoning_always": (ALL_THOUGHTS, ()),
    "blanks": ([user("  a\t\n\n"), said("\n b c\n\n"), user("\n"), said("d ")], ()),
    "other_scripts": ([user("naïve n\u0308 日本"), said("👩🏽‍🚀 שלום")], ()),
}
WITH_TOOLS = {
    "errand": (ERRAND, [LOOK]),
    "errand_with_system": ([SYSTEM, *ERRAND], [LOOK]),
    "tools_that_are_not_called": (ONE, [{"type": "function", "function": LOOK}]),
}
GOOD = [
    *((name, shape) for name in FAMILIES for shape in SHAPES.values()),
    *(("tools", shape) for shape in (SHAPES | WITH_TOOLS).values()),
]
NO_SYSTEM = ("mistral",)


@pytest.mark.parametrize(("name", "shape"), GOOD)
def test_good_example_has_no_difference(servings, name, shape):
    messages, tools = shape
    serving = servings[name]
    kept = [each for each in messages if name not in NO_SYSTEM or each["role"] != "system"]
    pieces = rendered(serving, kept, tools)

    assert differ(serving, by_turns(serving, pieces), pieces, own=texts(kept)) == []


@pytest.mark.parametrize("serving", ["chatml", "opens_reasoning", "tools"])
@pytest.mark.parametrize("shape", SHAPES)
def test_template_that_keeps_all_text_loses_none(servings, serving, shape):
    messages, tools = SHAPES[shape]

    assert lost_text(talk_of(messages, tools), rendered(servings[serving], messages, tools)) == []


def talk_of(messages: Iterable[dict], tools: Iterable[dict] = ()) -> Conversation:
    return Conversation(tuple(messages), tuple(tools))


@pytest.mark.parametrize(
    "change",
    [
        lambda pieces: [*pieces[:3], pieces[3].rstrip(), ""],
        lambda pieces: [*pieces[:4], "\n"],
        lambda pieces: [*pieces[:4], " \n\n"],
    ],
    ids=["tail_left_out", "newline_more", "blanks_more"],
)
def test_white_space_after_the_last_answer_is_no_difference(chatml, change):
    pieces = rendered(chatml, TALK)

    assert faults(chatml, by_turns(chatml, change(pieces)), pieces) == []


def test_text_that_is_tokenized_at_other_places_is_no_difference(tmp_path):
    serving = serve(tmp_path, CHATML, merges=[("Ċ", "Ċ")])  # the letter of a newline's byte
    pieces = rendered(serving, [user("Hi."), said("\nYes."), user("So?"), said("\nNo.")])
    made = example(serving, ("".join(pieces), True))

    assert list(made.ids) != [token for ids in serving.encode(pieces) for token in ids]
    assert differ(serving, made, pieces) == []


def test_characters_that_the_tokenizer_composes_are_no_difference(tmp_path):
    serving = serve(tmp_path, CHATML, merges=[("Ċ", "Ċ")], composes=True)
    pieces = rendered(serving, [user("cafe\u0301"), said("\ne\u0301te\u0301")])
    made = example(serving, ("".join(pieces), True))

    assert differ(serving, made, pieces) == []


def test_composed_characters_hide_no_other_difference(tmp_path):
    serving = serve(tmp_path, CHATML, composes=True)
    pieces = rendered(serving, [user("cafe\u0301"), said("e\u0301te\u0301")])

    assert faults(serving, by_turns(serving, swap(pieces, 1, "t", "d")), pieces) == ["other_answer"]


# Prompts and answers.

QWEN_SYSTEM = "<|im_start|>system\nYou are Qwen.<|im_end|>\n"
LLAMA_SYSTEM = "<|start_header_id|>system<|end_header_id|>\n\n"
TODAY = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"


def test_other_word_in_an_answer_is_another_answer(chatml):
    pieces = rendered(chatml, TALK)
    made = by_turns(chatml, swap(pieces, 1, "four", "five"))

    [difference] = differ(chatml, made, pieces)

    assert difference == Difference(
        "other_answer",
        "'It costs five euros.<|im_end|>\\n'",
        "'It costs four euros.<|im_end|>\\n'",
        len(chatml.encode(pieces[:1])[0]),
    )


def test_other_word_in_a_question_is_another_prompt(chatml):
    pieces = rendered(chatml, TALK)
    made = by_turns(chatml, swap(pieces, 2, "two", "six"))

    [difference] = differ(chatml, made, pieces)

    assert (difference.fault, difference.place) == (
        "other_prompt",
        sum(map(len, chatml.encode(pieces[:2]))),
    )


def test_a_fault_is_named_once_with_its_first_place(chatml):
    pieces = rendered(chatml, TALK)
    made = by_turns(chatml, swap(swap(pieces, 1, "four", "five"), 3, "both", "all"))

    [difference] = differ(chatml, made, pieces)

    assert "five" in difference.found


def test_faults_of_several_kinds_are_named_in_their_order(chatml):
    pieces = rendered(chatml, TALK)
    made = by_turns(chatml, swap(swap(pieces, 0, "lamp", "pen"), 3, "both", "all"))

    assert faults(chatml, made, pieces) == ["other_prompt", "other_answer"]


@pytest.mark.parametrize(
    ("number", "old", "new", "fault"),
    [
        (1, "It costs", " It costs", "other_answer"),
        (1, "euros.", "euros. ", "other_answer"),
        (0, "cost?", "cost? ", "other_prompt"),
        (0, "What", "\nWhat", "other_prompt"),
    ],
)
def test_white_space_alone_is_a_difference(chatml, number, old, new, fault):
    pieces = rendered(chatml, TALK)

    assert faults(chatml, by_turns(chatml, swap(pieces, number, old, new)), pieces) == [fault]


def test_place_counts_the_tokens_that_are_there(chatml):
    pieces = rendered(chatml, TALK)
    trained = swap(swap(pieces, 0, "lamp", "street lamp"), 3, "both", "all")

    _, difference = differ(chatml, by_turns(chatml, trained), pieces)

    assert difference.place == sum(map(len, chatml.encode(trained[:3])))


def test_tokens_of_another_row_are_another_prompt_and_answer(chatml):
    pieces = rendered(chatml, TALK)
    other = rendered(chatml, [user("How far is it?"), said("A mile."), *TALK[2:]])

    assert faults(chatml, by_turns(chatml, other), pieces) == ["other_prompt", "other_answer"]


@pytest.mark.parametrize(("trained", "served"), [(ONE, TALK), (TALK, ONE)])
def test_other_number_of_answers_is_another_prompt(chatml, trained, served):
    made = by_turns(chatml, rendered(chatml, trained))

    [difference] = differ(chatml, made, rendered(chatml, served))

    assert difference.fault == "other_prompt"
    assert (difference.found, difference.expected) == (
        f"{len(trained) // 2} answers",
        f"{len(served) // 2} answers",
    )


def test_system_text_that_the_trainer_adds_is_added_text(chatml):
    pieces = rendered(chatml, TALK)
    made = by_turns(chatml, [QWEN_SYSTEM + pieces[0], *pieces[1:]])

    [difference] = differ(chatml, made, pieces, own=texts(TALK))

    assert difference.fault == "added_text"
    assert ("You are Qwen." in difference.found, difference.expected) == (True, "nothing")


def test_system_text_that_the_served_template_adds_is_added_text(chatml):
    pieces = rendered(chatml, TALK)
    served = [QWEN_SYSTEM + pieces[0], *pieces[1:]]

    [difference] = differ(chatml, by_turns(chatml, pieces), served, own=texts(TALK))

    assert difference.fault == "added_text"
    assert (difference.found, "You are Qwen." in difference.expected) == ("nothing", True)


def test_text_that_is_added_behind_a_first_token_is_added_text(servings):
    serving = servings["llama3"]
    pieces = rendered(serving, TALK)
    system = f"<|begin_of_text|>{LLAMA_SYSTEM}Be kind.<|eot_id|>"
    made = by_turns(serving, swap(pieces, 0, "<|begin_of_text|>", system))

    assert faults(serving, made, pieces, own=texts(TALK)) == ["added_text"]


def test_system_text_of_the_row_that_the_trainer_leaves_out_is_another_prompt(chatml):
    messages = [SYSTEM, *TALK]
    made = by_turns(chatml, rendered(chatml, TALK))

    assert faults(chatml, made, rendered(chatml, messages), own=texts(messages)) == ["other_prompt"]


def test_short_text_of_the_row_is_not_looked_for_in_an_addition(chatml):
    pieces = rendered(chatml, [user("e"), said("Yes.")])
    made = by_turns(chatml, [QWEN_SYSTEM + pieces[0], *pieces[1:]])

    assert faults(chatml, made, pieces, own=["e", "Yes."]) == ["added_text"]


def test_date_that_the_trainer_adds_is_an_added_date(servings):
    serving = servings["llama3"]
    pieces = rendered(serving, TALK)
    system = f"<|begin_of_text|>{LLAMA_SYSTEM}{TODAY}<|eot_id|>"
    made = by_turns(serving, swap(pieces, 0, "<|begin_of_text|>", system))

    assert faults(serving, made, pieces, own=texts(TALK)) == ["added_date"]


def test_date_that_the_served_template_adds_to_the_system_turn_is_an_added_date(servings):
    serving, messages = servings["llama3"], [SYSTEM, *TALK]
    pieces = rendered(serving, messages)
    served = swap(pieces, 0, LLAMA_SYSTEM, LLAMA_SYSTEM + TODAY)

    assert faults(serving, by_turns(serving, pieces), served, own=texts(messages)) == ["added_date"]


def test_dates_of_two_days_are_an_added_date(servings):
    serving, messages = servings["llama3"], [SYSTEM, *TALK]
    pieces = swap(rendered(serving, messages), 0, LLAMA_SYSTEM, LLAMA_SYSTEM + TODAY)
    made = by_turns(serving, swap(pieces, 0, "26 Jul 2024", "1 Dec 2026"))

    [difference] = differ(serving, made, pieces)

    assert difference == Difference("added_date", "1 Dec 2026", "26 Jul 2024", 0)


@pytest.mark.parametrize(
    ("text", "is_date"),
    [
        *(("26 Jul 2024", True), ("July 26, 2024", True), ("2024-07-26", True)),
        *(("1 September 2025", True), ("May 2024", False), ("26.7.", False), ("12-34-56", False)),
    ],
)
def test_date_is_one_of_a_day(text, is_date):
    assert bool(DATE.fullmatch(text)) == is_date


# Control tokens.


def in_pieces(serving: Serving, pieces: list[str], control: str, times: int = 1) -> Example:
    """The example with a control string as text, not as its token, the first times it occurs."""
    number = serving.controls[control]
    letters = [token for letter in control for token in serving.encode([letter])[0]]
    made = by_turns(serving, pieces)
    ids, trained = [], []
    for token, has_loss in zip(made.ids, made.trained, strict=True):
        is_split = token == number and times > 0
        times -= is_split
        ids += letters if is_split else [token]
        trained += [has_loss] * (len(letters) if is_split else 1)
    return Example(ids, trained)


@pytest.mark.parametrize("control", ["<|im_start|>", "<|im_end|>"])
@pytest.mark.parametrize("times", [1, 100])
def test_control_string_in_pieces_is_a_split_control(chatml, control, times):
    pieces = rendered(chatml, TALK)

    assert faults(chatml, in_pieces(chatml, pieces, control, times), pieces) == ["split_control"]


def test_split_control_has_the_place_of_the_first(chatml):
    pieces = rendered(chatml, TALK)

    [difference] = differ(chatml, in_pieces(chatml, pieces, "<|im_end|>"), pieces)

    assert difference.place == len(chatml.encode(["<|im_start|>user\nWhat does a lamp cost?"])[0])


def test_marker_that_is_no_special_token_can_be_in_pieces_too(tmp_path):
    serving = serve(tmp_path, CHATML, added=["<think>", "</think>"])
    pieces = rendered(serving, LAST_THOUGHT)
    letters = serving.encode(["<t", "hink>"])
    at = list(by_turns(serving, pieces).ids).index(serving.encode(["<think>"])[0][0])
    made = by_turns(serving, pieces)
    ids = [*made.ids[:at], *letters[0], *letters[1], *made.ids[at + 1 :]]

    assert faults(serving, Example(ids, [True] * len(ids)), pieces) == ["split_control"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<|begin_of_text|>", "<|begin_of_text|><|begin_of_text|>"),
        ("<|begin_of_text|>", ""),
        ("cost?<|eot_id|>", "cost?<|eot_id|><|eot_id|>"),
    ],
    ids=["twice", "missing", "two_ends"],
)
def test_control_token_too_much_or_missing_is_a_split_control(servings, old, new):
    serving = servings["llama3"]
    pieces = rendered(serving, TALK)

    assert faults(serving, by_turns(serving, swap(pieces, 0, old, new)), pieces) == [
        "split_control"
    ]


def test_end_that_stands_elsewhere_is_another_answer(chatml):
    pieces = rendered(chatml, TALK)
    made = by_turns(chatml, swap(pieces, 3, "both.<|im_end|>\n", "<|im_end|>both.\n"))

    assert faults(chatml, made, pieces) == ["other_answer"]


def test_control_in_pieces_hides_no_other_difference(chatml):
    pieces = rendered(chatml, TALK)
    made = in_pieces(chatml, swap(pieces, 1, "four", "five"), "<|im_start|>")

    assert faults(chatml, made, pieces) == ["split_control", "other_answer"]


# Reasoning.


def test_empty_block_with_a_loss_is_empty_reasoning(chatml):
    pieces = rendered(chatml, TALK)
    made = by_turns(chatml, [*pieces[:3], EMPTY + pieces[3], ""])

    [difference] = differ(chatml, made, pieces)

    assert (difference.fault, difference.place) == (
        "empty_reasoning",
        sum(map(len, chatml.encode(pieces[:3]))),
    )


def test_empty_block_without_a_loss_is_masked_reasoning(chatml):
    pieces = rendered(chatml, TALK)
    parts = [(pieces[0], False), (pieces[1], True), (pieces[2] + EMPTY, False), (pieces[3], True)]

    assert faults(chatml, example(chatml, *parts), pieces) == ["masked_reasoning"]


def test_empty_blocks_of_two_kinds_are_told_apart(chatml):
    pieces = rendered(chatml, TALK)
    parts = [(pieces[0] + EMPTY, False), (pieces[1], True), (pieces[2], False)]
    made = example(chatml, *parts, (EMPTY + pieces[3], True))

    assert faults(chatml, made, pieces) == ["masked_reasoning", "empty_reasoning"]


def test_empty_block_that_will_be_served_and_is_not_trained_is_empty_reasoning(qwen3):
    pieces = rendered(qwen3, TALK)

    assert faults(qwen3, by_turns(qwen3, swap(pieces, 3, EMPTY, "")), pieces) == ["empty_reasoning"]


def test_empty_block_of_other_white_space_is_another_answer(qwen3):
    pieces = rendered(qwen3, TALK)
    made = by_turns(qwen3, swap(pieces, 3, EMPTY, "<think></think>"))

    assert faults(qwen3, made, pieces) == ["other_answer"]


def test_reasoning_of_earlier_turns_that_will_be_left_out_is_old_reasoning(servings, qwen3):
    trained = rendered(servings["chatml"], ALL_THOUGHTS)

    assert faults(qwen3, by_turns(qwen3, trained), rendered(qwen3, ALL_THOUGHTS)) == [
        "old_reasoning"
    ]


def test_reasoning_of_earlier_turns_that_the_trainer_leaves_out_is_old_reasoning(chatml):
    made = by_turns(chatml, rendered(chatml, LAST_THOUGHT))

    assert faults(chatml, made, rendered(chatml, ALL_THOUGHTS)) == ["old_reasoning"]


def test_last_reasoning_that_the_served_template_leaves_out_is_old_reasoning(chatml):
    made = by_turns(chatml, rendered(chatml, LAST_THOUGHT))

    assert faults(chatml, made, rendered(chatml, TALK), own=texts(LAST_THOUGHT)) == [
        "old_reasoning"
    ]


@pytest.mark.parametrize("block", ["", EMPTY], ids=["nothing", "empty_block"])
def test_last_reasoning_that_the_trainer_leaves_out_is_stripped(chatml, block):
    trained = rendered(chatml, TALK)
    made = by_turns(chatml, [*trained[:3], block + trained[3], ""])

    assert faults(chatml, made, rendered(chatml, LAST_THOUGHT)) == ["stripped_reasoning"]


def test_last_reasoning_that_both_leave_out_is_stripped(chatml):
    pieces = rendered(chatml, TALK)

    [difference] = differ(chatml, by_turns(chatml, pieces), pieces, own=texts(LAST_THOUGHT))

    assert (difference.fault, difference.expected) == ("stripped_reasoning", "'Two times four.'")


def test_last_reasoning_that_both_leave_out_is_stripped_whatever_else_is_found(chatml):
    pieces = rendered(chatml, TALK)
    made = by_turns(chatml, swap(pieces, 0, "lamp", "pen"))

    assert faults(chatml, made, pieces, own=texts(LAST_THOUGHT)) == [
        "other_prompt",
        "stripped_reasoning",
    ]


def test_earlier_reasoning_that_both_leave_out_is_no_difference(qwen3):
    pieces = rendered(qwen3, ALL_THOUGHTS)

    assert differ(qwen3, by_turns(qwen3, pieces), pieces, own=texts(ALL_THOUGHTS)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Two times four.", "Two times five."),
        ("<think>\n", "<think>"),
        ("<think>\nTwo times four.\n</think>", "<|start_think|>\nTwo times four.\n<|end_think|>"),
    ],
    ids=["words", "white_space", "markers"],
)
def test_other_reasoning_is_another_answer(chatml, old, new):
    pieces = rendered(chatml, LAST_THOUGHT)

    assert faults(chatml, by_turns(chatml, swap(pieces, 3, old, new)), pieces) == ["other_answer"]


# What the cutoff leaves.


def infer_lengths(question: int, answer: int, room: int) -> tuple[int, int]:
    """How much of a turn LLaMA-Factory keeps: `infer_seqlen` of its processor_utils.py, 0.9.5."""
    if answer * 2 < room:
        most = room
    elif question * 2 < room:
        most = room - question
    else:
        most = int(room * (answer / (question + answer)))
    answer = min(most, answer)
    return min(max(room - answer, 0), question), answer


def cut(turns: Sequence[tuple], cutoff: int, last_first: bool) -> tuple[Example, list[tuple]]:
    """The turns as `SupervisedDatasetProcessor` leaves them, and what it kept of each it took."""
    ids, trained, kept = [], [], []
    for number, (question, answer) in enumerate(turns[::-1] if last_first else turns):
        if len(ids) >= cutoff:
            break
        kept.append(infer_lengths(len(question), len(answer), cutoff - len(ids)))
        asks, says = kept[-1]
        part = question[:asks] + answer[:says]
        losses = [False] * asks + [not (last_first and number)] * says
        ids = part + ids if last_first else ids + part
        trained = losses + trained if last_first else trained + losses
    return Example(ids, trained, len(ids) >= cutoff, last_first), kept


def turns_of(serving: Serving, pieces: list[str]) -> list[tuple[list[int], list[int]]]:
    encoded = serving.encode(pieces)
    return list(zip(encoded[::2], encoded[1::2], strict=False))


def count_lost(turns: Sequence[tuple], kept: Sequence[tuple], last_first: bool) -> int:
    """The answers that are gone; of those without a loss, those that are not whole either."""
    left = sum(says > 0 for _, says in kept)
    if last_first and len(kept) > 1:
        whole = [(len(question), len(answer)) for question, answer in turns[::-1]]
        left = sum(one == other for one, other in zip(kept, whole, strict=False))
    return len(turns) - left


WORDS = ("a", "\n", "é ", "<", "assistant", "日", "x y", "\n\n", "👩", "user", "[", "</")


def random_text(draw: random.Random) -> str:
    return "".join(draw.choice(WORDS) for _ in range(draw.randrange(1, 10)))


def random_talk(draw: random.Random, system: bool) -> list[dict]:
    turns = [
        [user(random_text(draw)), said(random_text(draw))] for _ in range(draw.randrange(1, 4))
    ]
    first = [turn("system", random_text(draw))] if system and draw.random() < 0.5 else []
    return [*first, *(message for pair in turns for message in pair)]


@pytest.mark.parametrize("last_first", [False, True], ids=["first_turns", "last_turns"])
@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral"])
def test_cutting_of_the_trainer_is_no_other_prompt_at_any_cutoff(servings, name, last_first):
    serving, draw = servings[name], random.Random(5)
    for _ in range(8):
        pieces = rendered(serving, random_talk(draw, system=name not in NO_SYSTEM))
        turns = turns_of(serving, pieces)
        for cutoff in range(1, sum(map(len, serving.encode(pieces))) + 1):
            made, kept = cut(turns, cutoff, last_first)
            lost = count_lost(turns, kept, last_first)

            found = differ(serving, made, pieces)

            assert [each.fault for each in found] == ["truncated_turns"] * (lost > 0)
            assert all(
                each.found.startswith(f"{len(turns) - lost} of {len(turns)} ") for each in found
            )


LONG = [SYSTEM, *TALK, user("And who made it, do you know?"), said("A smith in the next village.")]


def cut_at_all_lengths(serving: Serving, pieces: list[str], last_first: bool = False):
    """What the trainer leaves of the pieces at every cutoff."""
    turns = turns_of(serving, pieces)
    for cutoff in range(1, sum(map(len, serving.encode(pieces)))):
        yield cut(turns, cutoff, last_first)[0]


@pytest.mark.parametrize("last_first", [False, True], ids=["first_turns", "last_turns"])
@pytest.mark.parametrize(
    ("number", "old", "new", "fault"),
    [
        (1, "It", f"{EMPTY}It", "empty_reasoning"),
        (5, "A smith", f"{EMPTY}A smith", "empty_reasoning"),
        (3, "Eight", f"{thought('Two times four.', '')}Eight", "old_reasoning"),
    ],
    ids=["empty_block", "last_empty_block", "reasoning"],
)
def test_reasoning_has_no_other_name_where_the_example_is_cut(
    chatml, number, old, new, fault, last_first
):
    served = rendered(chatml, [turn("system", "Today is the 26 Jul 2024."), *LONG[1:]])
    for made in cut_at_all_lengths(chatml, swap(served, number, old, new), last_first):
        found = faults(chatml, made, served, own=texts(LONG))

        assert set(found) <= {fault, "truncated_turns"}, chatml.decode(made.ids)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("26 Jul 2024", "1 Dec 2026", "added_date"),
        ("<|im_start|>", f"{QWEN_SYSTEM}<|im_start|>", "added_text"),
        ("<|im_start|>", f"<|im_start|>system\n{TODAY}<|im_end|>\n<|im_start|>", "added_date"),
        ("<|im_start|>", "<|endoftext|><|im_start|>", "split_control"),
    ],
    ids=["date", "system", "system_with_date", "first_token"],
)
def test_addition_has_no_other_name_where_the_example_is_cut_behind_it(chatml, old, new, fault):
    served = rendered(chatml, [turn("system", "Today is the 26 Jul 2024."), *LONG[1:]])
    trained = swap(served, 0, old, new)
    needed = trained[0][: trained[0].index(new) + len(new) + 45]
    cuts = [
        made for made in cut_at_all_lengths(chatml, trained) if needed in chatml.decode(made.ids)
    ]
    for made in cuts:
        found = faults(chatml, made, served, own=texts(LONG))

        assert set(found) <= {fault, "truncated_turns"}, chatml.decode(made.ids)
    assert len(cuts) > 100


def test_last_empty_block_of_a_cut_history_is_found(chatml):
    served = rendered(chatml, LONG)
    trained = turns_of(chatml, swap(served, 5, "A smith", f"{EMPTY}A smith"))
    made, _ = cut(trained, 150, last_first=True)

    assert faults(chatml, made, served) == ["empty_reasoning", "truncated_turns"]


def test_difference_of_a_whole_turn_is_found_where_a_later_one_is_cut(chatml):
    served = rendered(chatml, LONG)
    trained = turns_of(chatml, swap(served, 1, "It", f"{EMPTY}It"))
    two_turns = sum(map(len, (*trained[0], *trained[1])))
    made, _ = cut(trained, two_turns - 5, last_first=False)

    assert faults(chatml, made, served) == ["empty_reasoning", "truncated_turns"]


@pytest.mark.parametrize("last_first", [False, True], ids=["first_turns", "last_turns"])
def test_tokens_of_another_row_are_another_prompt_where_they_are_cut(chatml, last_first):
    served = rendered(chatml, LONG)
    other = rendered(chatml, [user("How far is it to the sea from here?"), said("Two miles.")])
    for made in cut_at_all_lengths(chatml, other, last_first):
        if len(made.ids) > 40:
            assert "other_prompt" in faults(chatml, made, served)


def test_other_word_in_a_cut_answer_is_another_answer(chatml):
    served = rendered(chatml, [user("Hi."), said("It costs four euros. " * 5)])
    trained = turns_of(chatml, swap(served, 1, "It costs", "It cost"))
    made, _ = cut(trained, sum(map(len, trained[0])) - 8, last_first=False)

    assert faults(chatml, made, served) == ["other_answer"]


def test_control_string_in_pieces_is_found_in_a_cut_example(chatml):
    served = rendered(chatml, LONG)
    whole = in_pieces(chatml, served, "<|im_end|>")
    made = Example(whole.ids[:200], whole.trained[:200], cut=True)

    assert "split_control" in faults(chatml, made, served)


def test_example_of_the_cutoffs_length_need_not_be_cut(chatml):
    pieces = rendered(chatml, TALK)

    assert faults(chatml, by_turns(chatml, pieces, cut=True), pieces) == []
    assert faults(chatml, by_turns(chatml, pieces, cut=True, last_first=True), pieces) == []


def test_answer_whose_tail_has_no_loss_is_not_lost(chatml):
    pieces = rendered(chatml, TALK)
    *parts, (last, _) = [(each, number % 2 == 1) for number, each in enumerate(pieces[:4])]
    parts[0] = (pieces[0].replace("lamp", "pen"), False)
    made = example(chatml, *parts, (last.rstrip(), True), ("\n", False), cut=True)

    assert faults(chatml, made, pieces) == ["other_prompt"]


def test_lost_turns_are_counted(chatml):
    served = rendered(chatml, LONG)
    made, _ = cut(turns_of(chatml, served), 150, last_first=False)

    [difference] = differ(chatml, made, served)

    assert difference.found == "2 of 3 answers in 150 tokens"
    assert difference.expected == f"{sum(map(len, chatml.encode(served)))} tokens"


# Whatever a trainer could leave.


def damage(made: Example, draw: random.Random) -> Example:
    """The example after a few changes at random places."""
    ids, trained = list(made.ids), list(made.trained)
    for _ in range(draw.randrange(5)):
        place = draw.randrange(len(ids) + 1)
        count = draw.randrange(30)
        new = [draw.choice([-100, -1, 256, 257, 258, 10, 32, 60, 195, 300, 2**31 - 1])]
        new = new * draw.choice([0, 1, 3])
        ids[place : place + count] = new
        trained[place : place + count] = [draw.random() < 0.5] * len(new)
    return Example(ids, trained, cut=draw.random() < 0.5, last_first=draw.random() < 0.5)


@pytest.mark.parametrize("name", ["chatml", "qwen3", "llama3", "mistral", "llama2"])
def test_any_tokens_give_faults_with_names_and_places(servings, name):
    serving, draw = servings[name], random.Random(7)
    for _ in range(300):
        talks = [random_talk(draw, system=False) for _ in range(2)]
        served, trained = (rendered(serving, talk) for talk in talks)
        made = damage(by_turns(serving, draw.choice([served, trained])), draw)

        for each in differ(serving, made, served, own=draw.choice([(), texts(talks[0])])):
            assert each.fault in TOKEN_CHECKS
            assert each.place >= 0 and each.found and each.expected


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("last_first", [False, True])
def test_no_tokens_are_another_prompt_or_no_turns(chatml, cut, last_first):
    found = faults(chatml, Example([], [], cut, last_first), rendered(chatml, TALK))

    assert found == (["truncated_turns"] if cut else ["other_prompt"])


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("last_first", [False, True])
def test_rendering_without_answers_is_another_prompt(chatml, cut, last_first):
    pieces = rendered(chatml, TALK)
    made = by_turns(chatml, pieces, cut=cut, last_first=last_first)

    assert faults(chatml, made, ["Nothing is rendered."]) == ["other_prompt"]


def test_long_texts_of_one_letter_are_compared_in_time(chatml):
    served = rendered(chatml, [user("a" * 20_000), said("a" * 20_000)])
    made = by_turns(chatml, ["<|im_start|>user\n" + "a" * 30_000, "b"], cut=True)

    assert faults(chatml, made, served) == ["other_prompt"]


# Text that the served template leaves out.


def lost(
    serving: Serving, messages: Sequence[dict], tools: Sequence[dict] = ()
) -> list[Difference]:
    return lost_text(talk_of(messages, tools), rendered(serving, messages, tools))


@pytest.mark.parametrize("name", ["trims", "llama3", "gemma"])
def test_text_that_a_template_trims_is_not_lost(servings, name):
    assert lost(servings[name], [user("\n  Hi. \n"), said("  Yes.\n\n")]) == []


def test_system_text_in_the_first_question_is_not_lost(servings):
    assert lost(servings["llama2"], [SYSTEM, *TALK]) == []


@pytest.mark.parametrize("messages", [LAST_THOUGHT, ALL_THOUGHTS], ids=["last", "always"])
def test_reasoning_that_a_template_keeps_or_leaves_out_is_not_lost_text(qwen3, messages):
    assert lost(qwen3, messages) == []


def test_reasoning_that_the_template_opened_is_not_lost_text(qwen3):
    assert lost(qwen3, [user("Hi."), said("Hm.\n</think>\n\nYes."), *ONE]) == []


def test_call_result_and_tool_are_not_lost_where_they_are_rendered(servings):
    assert lost(servings["tools"], [SYSTEM, *ERRAND], [LOOK]) == []


def test_text_that_is_rendered_as_a_json_string_is_not_lost(tmp_path):
    template = CHATML.replace("message['content']", "(message['content'] | tojson)")

    assert lost(serve(tmp_path, template), [user('Say "é"\n\\ now.'), said('"é"')]) == []


DROPS_SYSTEM = CHATML.replace(
    "-%}{{-", "-%}{%- if message['role'] != 'system' or loop.first -%}{{-", 1
)
DROPS_SYSTEM = DROPS_SYSTEM.replace("{%- endfor -%}", "{%- endif -%}{%- endfor -%}", 1)


def test_later_system_turn_that_a_template_drops_is_lost(tmp_path):
    messages = [SYSTEM, *ONE, turn("system", "Be brief."), *TALK[2:]]

    [difference] = lost(serve(tmp_path, DROPS_SYSTEM), messages)

    assert difference == Difference(
        "unserved_text", "no such text in the system turn as it will be served", "'Be brief.'"
    )


@pytest.mark.parametrize(
    ("messages", "tools", "text"),
    [
        (ERRAND, [], "'look_up'"),
        ([ERRAND[0], said("I look."), *ERRAND[2:]], [LOOK], "'look_up'"),
    ],
    ids=["call", "tool"],
)
def test_call_or_tool_that_a_template_drops_is_lost(chatml, messages, tools, text):
    [difference] = lost(chatml, messages, tools)

    assert (difference.fault, difference.expected) == ("unserved_text", text)


def test_result_that_a_template_drops_is_lost(tmp_path):
    template = CHATML.replace(
        "message['content']", "('' if message['role'] == 'tool' else message['content'])"
    )
    messages = [ERRAND[0], said("I look."), *ERRAND[2:]]

    [difference] = lost(serve(tmp_path, template), messages)

    assert difference.expected == "'{\"euros\": 4}'"


def test_answer_that_a_template_drops_is_lost(tmp_path):
    template = CHATML.replace("in messages", "in messages[-2:]")

    [difference] = lost(serve(tmp_path, template), TALK)

    assert (difference.found, difference.expected) == (
        "1 answers in the served rendering",
        "2 as in the row",
    )


def test_text_before_reasoning_does_not_hide_the_answer(tmp_path):
    drops = QWEN3.replace("text.split('</think>')[-1]", "''")

    [difference] = lost(serve(tmp_path, drops), ALL_THOUGHTS)

    assert difference.expected == "'It costs four euros.'"


# How texts are shown.


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\nb", "'a\\nb'"), ("x" * 60, repr("x" * 60)), ("x" * 61, repr("x" * 60 + "…"))],
)
def test_text_is_shown_on_one_line_and_in_part(text, shown):
    assert show(text) == shown
