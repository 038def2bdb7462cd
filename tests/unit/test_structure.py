import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from sft.gate.structure import IGNORED, Anatomy, Examples, find_faults, find_runs

# <|im_start|> 90, assistant 91, newline 92, <|im_end|> 93; an empty block 80 82 81 82.
HEADER, END, TAIL, BLOCK, OTHER_BLOCK = (90, 91, 92), 93, (92,), (80, 82, 81, 82), (70, 71)
USER, SYSTEM, TOOL = (90, 94, 92), (90, 95, 92), (90, 96, 92)
ANATOMY = Anatomy(
    header=HEADER,
    end=END,
    tail=TAIL,
    empty_blocks=(BLOCK, OTHER_BLOCK),
    vocabulary=100,
    cutoff=1000,
)


@dataclass(frozen=True)
class Made:
    """One example: ids, where they have a loss, and the attention."""

    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    attention: tuple[int, ...]


def prompt(*parts: Sequence[int]) -> Made:
    ids = tuple(token for part in parts for token in part)
    return Made(ids, (False,) * len(ids), (1,) * len(ids))


def answer(*parts: Sequence[int]) -> Made:
    made = prompt(*parts)
    return replace(made, trained=(True,) * len(made.ids))


def join(*parts: Made) -> Made:
    return Made(
        *(
            tuple(value for part in parts for value in getattr(part, name))
            for name in ("ids", "trained", "attention")
        )
    )


def ask(*words: int, role: Sequence[int] = USER) -> Made:
    return prompt(role, words, (END, *TAIL), HEADER)


def say(*words: int) -> Made:
    return answer(words, (END, *TAIL))


TALK = join(prompt(SYSTEM, (1, 2), (END, *TAIL)), ask(3, 4), say(5, 6), ask(7), say(8, 9, 10))
SHORT = join(ask(1), say(2))
FIRST = TALK.trained.index(True)  # of the first answer: 5 6 end tail
LAST = len(TALK.ids) - 5  # of the last answer: 8 9 10 end tail


def batch(*made: Made) -> Examples:
    ids = np.array([token for each in made for token in each.ids], dtype=np.int32)
    trained = np.array([value for each in made for value in each.trained], dtype=bool)
    attention = np.array([value for each in made for value in each.attention], dtype=np.int8)
    offsets = np.cumsum([0, *(len(each.ids) for each in made)])
    return Examples(ids, np.where(trained, ids, IGNORED).astype(np.int32), attention, offsets)


def find(*made: Made, **anatomy) -> dict[str, list[tuple[int, int]]]:
    """The faults, each with pairs of example and place."""
    return found_in(batch(*made), **anatomy)


def found_in(examples: Examples, **anatomy) -> dict[str, list[tuple[int, int]]]:
    found = find_faults(examples, replace(ANATOMY, **anatomy))
    return {
        fault: list(zip(which.tolist(), places.tolist(), strict=True))
        for fault, (which, places) in found.items()
    }


def mask(made: Made, *places: int) -> Made:
    trained = [value and place not in places for place, value in enumerate(made.trained)]
    return replace(made, trained=tuple(trained))


def train(made: Made, *places: int) -> Made:
    trained = [value or place in places for place, value in enumerate(made.trained)]
    return replace(made, trained=tuple(trained))


def drop(made: Made, start: int, stop: int) -> Made:
    return Made(
        made.ids[:start] + made.ids[stop:],
        made.trained[:start] + made.trained[stop:],
        made.attention[:start] + made.attention[stop:],
    )


def cut(made: Made, length: int) -> Made:
    return drop(made, length, len(made.ids))


# Good examples.

GOOD = {
    "one_turn": SHORT,
    "talk_with_system": TALK,
    "tool_results": join(ask(1), say(2), ask(3, role=TOOL), say(4)),
    "two_results": join(ask(1), say(2), prompt(TOOL, (3, END, *TAIL)), ask(4, role=TOOL), say(5)),
    "tail_without_loss": mask(TALK, FIRST + 3, LAST + 4),
    "no_tail_at_the_end": cut(TALK, len(TALK.ids) - 1),
    "answer_of_the_end_alone": join(ask(1), answer((END, *TAIL))),
    "masked_empty_block": join(ask(1), prompt(BLOCK), say(2)),
    "masked_block_of_the_other_family": join(ask(1), prompt(OTHER_BLOCK), say(2)),
    "empty_block_with_loss": join(ask(1), say(*BLOCK, 2)),
    "masked_block_in_one_turn": join(ask(1), say(2), ask(3), prompt(BLOCK), say(4)),
    "beginning_of_text": join(prompt((60,)), SHORT),
    "words_of_a_header_in_a_text": join(ask(90, 91, 91, 92), say(90, 91)),
    "end_in_a_prompt": join(ask(1, END, 2), say(3)),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_example_has_no_fault(name):
    assert find(GOOD[name]) == {}


def test_good_examples_of_all_lengths_have_no_fault_together():
    assert find(*GOOD.values()) == {}


def test_no_examples_have_no_fault():
    assert find() == {}


def test_header_of_one_token_and_no_tail_is_enough():
    made = join(prompt((90, 1, 91)), answer((2, END)), prompt((90, 3, 91)), answer((4, END)))

    assert find(made, header=(91,), tail=()) == {}


def test_example_that_is_shorter_than_a_header_has_no_answer():
    assert find(prompt((90, 91)), header=(90, 91, 92, 92, 92, 92)) == {"no_loss": [(0, 0)]}


def test_header_does_not_reach_over_two_examples():
    first, second = prompt((1, *HEADER[:2])), join(prompt(HEADER[2:]), say(5))

    assert find(first, second) == {"no_loss": [(0, 0)], "prompt_in_loss": [(1, 1)]}


# Faults, each by one change of a good example.

PLACES = range(len(TALK.ids))

FAULTS = {
    "system_trained": (train(TALK, 3), {"prompt_in_loss": [(0, 3)]}),
    "user_trained": (train(TALK, 9), {"prompt_in_loss": [(0, 9)]}),
    "result_trained": (
        train(join(ask(1), say(2), ask(3, role=TOOL), say(4)), 14),
        {"prompt_in_loss": [(0, 14)]},
    ),
    "header_trained": (train(TALK, FIRST - 1), {"prompt_in_loss": [(0, FIRST - 1)]}),
    "after_the_tail_trained": (
        join(SHORT, answer((4, 4))),
        {"prompt_in_loss": [(0, len(SHORT.ids))]},
    ),
    "all_trained": (train(TALK, *PLACES), {"prompt_in_loss": [(0, 0)]}),
    "no_answers_at_all": (prompt(USER, (1, 2, END)), {"no_loss": [(0, 0)]}),
    "trained_without_a_header": (answer((1, 2, END)), {"prompt_in_loss": [(0, 0)]}),
    "first_token_of_answer_masked": (
        mask(TALK, LAST),
        {"answer_not_in_loss": [(0, LAST)]},
    ),
    "part_of_answer_masked": (
        mask(TALK, FIRST + 1),
        {"answer_not_in_loss": [(0, FIRST + 1)]},
    ),
    "whole_answer_masked": (
        mask(TALK, *range(FIRST, FIRST + 4)),
        {"answer_not_in_loss": [(0, FIRST)], "end_not_in_loss": [(0, FIRST + 2)]},
    ),
    "answer_but_its_end_masked": (
        mask(TALK, FIRST, FIRST + 1),
        {"answer_not_in_loss": [(0, FIRST)]},
    ),
    "end_masked": (mask(TALK, FIRST + 2), {"end_not_in_loss": [(0, FIRST + 2)]}),
    "nothing_trained": (
        mask(TALK, *PLACES),
        {
            "no_loss": [(0, 0)],
            "answer_not_in_loss": [(0, FIRST)],
            "end_not_in_loss": [(0, FIRST + 2)],
        },
    ),
    "end_lost": (drop(TALK, LAST + 3, LAST + 5), {"no_end": [(0, LAST)]}),
    "end_lost_before_a_header": (
        join(prompt(HEADER), answer((1, 2)), prompt(HEADER), say(3)),
        {"no_end": [(0, 3)]},
    ),
    "header_at_the_very_end": (
        join(TALK, ask(1)),
        {"no_end": [(0, len(TALK.ids) + 9)]},
    ),
    "part_of_an_empty_block_masked": (
        join(ask(1), prompt(BLOCK[:2]), answer(BLOCK[2:]), say(2)),
        {"answer_not_in_loss": [(0, 9)]},
    ),
    "reasoning_masked": (
        join(ask(1), prompt((80, 5, 81, 82)), say(2)),
        {"answer_not_in_loss": [(0, 9)]},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_has_its_name_and_place(name):
    made, faults = FAULTS[name]

    assert find(made) == faults


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_in_its_example_among_others(name):
    made, faults = FAULTS[name]

    found = find(TALK, SHORT, made, SHORT, *GOOD.values())

    assert found == {fault: [(2, place)] for fault, [(_, place)] in faults.items()}


def test_each_example_with_a_fault_is_found():
    first, second = mask(TALK, FIRST), mask(TALK, LAST)

    assert find(first, SHORT, second) == {"answer_not_in_loss": [(0, FIRST), (2, LAST)]}


def test_example_with_two_faults_of_a_kind_is_found_once_with_the_first():
    assert find(train(TALK, 3, 9)) == {"prompt_in_loss": [(0, 3)]}


def test_empty_example_has_no_loss():
    assert find(SHORT, prompt(), SHORT) == {"no_loss": [(1, 0)]}


# Tokens that no trainer can mean.

Change = Callable[[Examples], None]


def put(name: str, place: int, value: int) -> Change:
    """The change of one value of an array of `batch(SHORT, TALK)`, at a place in the second."""

    def change(examples: Examples) -> None:
        getattr(examples, name)[len(SHORT.ids) + place] = value

    return change


@pytest.mark.parametrize(
    ("change", "place", "follows"),
    [
        (put("ids", 3, -1), 3, []),
        (put("ids", 3, 100), 3, []),
        (put("ids", 3, 2**31 - 1), 3, []),
        (put("labels", FIRST, 99), FIRST, []),
        (put("labels", FIRST, -1), FIRST, []),
        (put("labels", 3, 99), 3, ["prompt_in_loss"]),
        (put("attention", 3, 0), 3, []),
        (put("attention", FIRST, 2), FIRST, []),
    ],
    ids=[
        *("negative_id", "id_beyond_the_vocabulary", "greatest_id", "label_beside_its_id"),
        *("negative_label", "label_of_a_prompt_beside_its_id", "no_attention", "two_of_attention"),
    ],
)
def test_broken_token_is_found(change, place, follows):
    examples = batch(SHORT, TALK)
    change(examples)

    assert found_in(examples) == {fault: [(1, place)] for fault in ("broken_tokens", *follows)}


def test_last_id_of_the_vocabulary_is_not_broken():
    assert find(join(ask(99), say(99))) == {}


def test_example_of_more_tokens_than_the_cutoff_is_broken_behind_it():
    assert find(SHORT, TALK, cutoff=len(TALK.ids) - 3) == {
        "broken_tokens": [(1, len(TALK.ids) - 3)]
    }


# Loss on last answers alone (mask_history).

LAST_ONLY = mask(TALK, *range(FIRST, FIRST + 4))


def test_earlier_answers_need_no_loss_where_only_last_ones_are_trained():
    assert find(LAST_ONLY, SHORT, LAST_ONLY, last_turn_only=True) == {}


@pytest.mark.parametrize(
    ("made", "faults"),
    [
        (TALK, {"prompt_in_loss": [(0, FIRST)]}),
        (mask(LAST_ONLY, LAST), {"answer_not_in_loss": [(0, LAST)]}),
        (mask(LAST_ONLY, LAST + 3), {"end_not_in_loss": [(0, LAST + 3)]}),
        (drop(LAST_ONLY, LAST + 3, LAST + 5), {"no_end": [(0, LAST)]}),
        (
            mask(LAST_ONLY, *PLACES),
            {
                "no_loss": [(0, 0)],
                "answer_not_in_loss": [(0, LAST)],
                "end_not_in_loss": [(0, LAST + 3)],
            },
        ),
    ],
    ids=["earlier_trained", "last_masked", "end_masked", "end_lost", "nothing_trained"],
)
def test_fault_is_found_where_only_last_answers_are_trained(made, faults):
    assert find(made, last_turn_only=True) == faults


def test_tail_of_an_earlier_answer_may_have_a_loss():
    assert find(train(LAST_ONLY, FIRST + 3), last_turn_only=True) == {}


# What a cutoff leaves.


def test_answer_that_the_cutoff_cut_is_truncated():
    made = cut(TALK, len(TALK.ids) - 3)

    assert find(SHORT, made, cutoff=len(made.ids)) == {"truncated_answer": [(1, LAST)]}


def test_answer_that_lost_its_tail_alone_is_whole():
    made = cut(TALK, len(TALK.ids) - 1)

    assert find(made, cutoff=len(made.ids)) == {}


def test_shorter_example_was_not_cut():
    made = cut(TALK, len(TALK.ids) - 3)

    assert find(made, cutoff=len(made.ids) + 1) == {"no_end": [(0, LAST)]}


def test_header_that_the_cutoff_left_alone_is_no_truncated_answer():
    made = cut(TALK, LAST)

    assert find(made, cutoff=len(made.ids)) == {}


def test_answer_behind_a_cut_question_is_one_of_a_truncated_question():
    made = join(SHORT, cut(ask(3, 4, 5, 6, 7), 5), say(8, 9))

    assert find(made, cutoff=len(made.ids)) == {"truncated_question": [(0, len(SHORT.ids) + 5)]}


def test_answer_that_was_cut_too_is_one_of_a_truncated_question():
    made = join(cut(ask(3, 4, 5, 6, 7), 5), answer((8, 9)))

    assert find(made, cutoff=len(made.ids)) == {"truncated_question": [(0, 5)]}


def test_answer_behind_a_part_of_an_empty_block_is_one_of_a_truncated_question():
    made = join(ask(1), prompt(BLOCK[:2]), say(2))

    assert find(made, cutoff=len(made.ids)) == {"truncated_question": [(0, 11)]}


def test_answer_that_completes_a_cut_header_is_one_of_a_truncated_question():
    made = join(cut(ask(1), 8), say(HEADER[2], 5))

    assert find(made, cutoff=len(made.ids)) == {"truncated_question": [(0, 8)]}


def test_same_without_a_cut_is_a_trained_prompt():
    made = join(SHORT, cut(ask(3, 4, 5, 6, 7), 5), say(8, 9))

    assert find(made) == {"prompt_in_loss": [(0, len(SHORT.ids) + 5)]}


@pytest.mark.parametrize(
    ("made", "faults"),
    [
        (FAULTS["end_lost_before_a_header"][0], {"no_end": [(0, 3)]}),
        (
            join(ask(1), prompt(BLOCK[:2]), say(2), ask(3), say(4)),
            {"answer_not_in_loss": [(0, 9)]},
        ),
    ],
    ids=["end_lost", "part_of_a_block"],
)
def test_earlier_answer_of_a_cut_example_was_not_cut(made, faults):
    assert find(made, cutoff=len(made.ids)) == faults


@pytest.mark.parametrize(
    ("made", "place"),
    [
        (train(join(SHORT, cut(ask(3, 4, 5), 5)), *range(len(SHORT.ids), 40)), len(SHORT.ids)),
        (train(cut(ask(3, 4, 5), 5), *PLACES), 0),
        (join(train(SHORT, 3), cut(ask(3, 4, 5), 5)), 3),
        (join(SHORT, prompt((1, 2)), answer((3,)), prompt((4,))), len(SHORT.ids) + 2),
        (join(mask(SHORT, 11), answer(USER, (3, 4))), len(SHORT.ids)),
    ],
    ids=[
        *("whole_question", "all_there_is", "earlier_question", "middle_of_a_question"),
        "whole_question_after_a_silent_tail",
    ],
)
def test_trained_question_of_a_cut_example_is_a_trained_prompt(made, place):
    assert find(made, cutoff=len(made.ids)) == {"prompt_in_loss": [(0, place)]}


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


def cut_turns(turns: list[tuple[Made, Made]], cutoff: int, last_first: bool) -> list[Made]:
    """The turns as `SupervisedDatasetProcessor` leaves them: each kept part of each."""
    parts: list[list[Made]] = []
    room = cutoff
    for number, (question, said) in enumerate(turns[::-1] if last_first else turns):
        if room <= 0:
            break
        kept = infer_lengths(len(question.ids), len(said.ids), room)
        pair = [cut(question, kept[0]), cut(said, kept[1])]
        if last_first and number:
            pair[1] = mask(pair[1], *range(kept[1]))
        room -= sum(kept)
        parts = [pair, *parts] if last_first else [*parts, pair]
    return [part for pair in parts for part in pair]


def words(draw: random.Random) -> list[int]:
    return [draw.randrange(60) for _ in range(draw.randrange(1, 12))]


def random_turns(draw: random.Random) -> list[tuple[Made, Made]]:
    system = prompt(SYSTEM, words(draw), (END, *TAIL))
    first = system if draw.random() < 0.5 else prompt((60,))
    block = prompt(BLOCK) if draw.random() < 0.3 else prompt()
    turns = [
        (join(ask(*words(draw)), block), say(*words(draw))) for _ in range(draw.randrange(1, 4))
    ]
    return [(join(first, turns[0][0]), turns[0][1]), *turns[1:]]


def faults_of_cut(turns: list[tuple[Made, Made]], parts: list[Made], last_first: bool) -> set[str]:
    """What LLaMA-Factory's cutting did to what is trained."""
    questions, answers = parts[::2], parts[1::2]
    whole = turns[-len(answers) :] if last_first else turns[: len(answers)]
    faults = set()
    for (question, said), kept, left in zip(whole, questions, answers, strict=True):
        # A block that is gone as a whole leaves a question that only never had one.
        without_block = len(question.ids) - len(BLOCK) * (question.ids[-len(BLOCK) :] == BLOCK)
        if len(kept.ids) not in (len(question.ids), without_block) and any(left.trained):
            faults.add("truncated_question")
        elif 0 < len(left.ids) < len(said.ids) - len(TAIL) and any(left.trained):
            faults.add("truncated_answer")
    return faults if any(any(each.trained) for each in answers) else {"no_loss"}


@pytest.mark.parametrize("last_first", [False, True], ids=["first_turns", "last_turns"])
def test_cutting_of_the_trainer_is_told_apart_at_every_cutoff(last_first):
    draw = random.Random(3)
    for _ in range(40):
        turns = random_turns(draw)
        history = cut_turns(turns, 10**6, last_first)
        for cutoff in range(1, len(join(*history).ids) + 1):
            parts = cut_turns(turns, cutoff, last_first)

            found = find(join(*parts), cutoff=cutoff, last_turn_only=last_first)

            assert found.keys() == faults_of_cut(turns, parts, last_first), (turns, cutoff)


# Packs: examples behind one another in one, and tokens that do not count at the end.

PADDING = Made((0, 0, 0), (False,) * 3, (0, 0, 0))


@pytest.mark.parametrize("attention", [0, 1], ids=["masked", "attended"])
def test_pack_of_good_examples_has_no_fault(attention):
    padding = replace(PADDING, attention=(attention,) * 3)

    assert find(join(SHORT, TALK, padding), SHORT, padded=True) == {}


def test_pack_may_number_its_examples_in_the_attention():
    second = replace(TALK, attention=(2,) * len(TALK.ids))

    assert find(join(SHORT, second, PADDING), padded=True) == {}


def test_pack_may_be_longer_than_the_cutoff_by_padding_alone():
    assert find(join(SHORT, TALK, PADDING), padded=True, cutoff=len(SHORT.ids + TALK.ids)) == {}


@pytest.mark.parametrize(
    ("made", "faults"),
    [
        (join(SHORT, train(TALK, 3), PADDING), {"prompt_in_loss": [(0, len(SHORT.ids) + 3)]}),
        (join(mask(SHORT, 10), TALK, PADDING), {"end_not_in_loss": [(0, 10)]}),
        (join(mask(SHORT, 9), TALK, PADDING), {"answer_not_in_loss": [(0, 9)]}),
        (join(SHORT, train(PADDING, 0)), {"prompt_in_loss": [(0, 12)], "broken_tokens": [(0, 12)]}),
        (prompt((0, 0, 0)), {"no_loss": [(0, 0)]}),
    ],
    ids=["prompt", "end", "answer", "padding", "padding_alone"],
)
def test_fault_is_found_in_a_pack(made, faults):
    assert find(made, padded=True) == faults


def test_pack_of_padding_alone_has_no_other_fault_behind_another():
    padding = prompt((0,) * 20)

    assert find(SHORT, padding, SHORT, padded=True, cutoff=12) == {"no_loss": [(1, 0)]}


def test_answer_that_the_cutoff_cut_is_truncated_in_a_pack_too():
    made = cut(TALK, len(TALK.ids) - 3)

    found = find(join(made, PADDING), padded=True, cutoff=len(made.ids))

    assert found == {"truncated_answer": [(0, LAST)]}


def test_pack_has_one_last_answer_an_example_where_only_those_are_trained():
    made = join(LAST_ONLY, SHORT, LAST_ONLY, PADDING)

    assert find(made, padded=True, last_turn_only=True) == {}


# Runs.


@pytest.mark.parametrize(
    ("ids", "run", "places"),
    [
        ([1, 2, 1, 2, 3], (1, 2), [0, 2]),
        ([1, 1, 1], (1, 1), [0, 1]),
        ([1, 2], (1, 2, 3), []),
        ([], (1,), []),
        ([5], (5,), [0]),
        ([7] * 5, (7,) * 7, []),
    ],
)
def test_run_begins_at_these_places(ids, run, places):
    assert find_runs(np.array(ids, dtype=np.int32), run).tolist() == places


# Any conversation with any one damage.


def damage_one(made: Made, draw: random.Random) -> tuple[Made, dict[str, int]]:
    """The example with one damage, and the faults with their places that it should give."""
    trained = [place for place, value in enumerate(made.trained) if value]
    ends = [place for place in trained if made.ids[place] == END]
    said = [place for place in trained if made.ids[place] < 60]
    silent = [place for place, value in enumerate(made.trained) if not value]
    asked = [place for place in silent if made.ids[place] not in BLOCK]
    kind = draw.choice(["prompt", "word", "end", "attention", "number", "all", "cut"])
    if kind == "prompt":
        place = draw.choice(asked)
        return train(made, place), {"prompt_in_loss": place}
    if kind == "word":
        place = draw.choice(said)
        return mask(made, place), {"answer_not_in_loss": place}
    if kind == "end":
        place = draw.choice(ends)
        return mask(made, place), {"end_not_in_loss": place}
    if kind == "attention":
        place = draw.randrange(len(made.ids))
        attention = [*made.attention[:place], 0, *made.attention[place + 1 :]]
        return replace(made, attention=tuple(attention)), {"broken_tokens": place}
    if kind == "number":
        place = draw.choice(said)
        ids = (*made.ids[:place], 100, *made.ids[place + 1 :])
        return replace(made, ids=ids), {"broken_tokens": place}
    if kind == "all":
        faults = {"no_loss": 0, "answer_not_in_loss": trained[0], "end_not_in_loss": ends[0]}
        return mask(made, *trained), faults
    start = max(place for place in silent if place + 1 in trained) + 1
    return drop(made, ends[-1], len(made.ids)), {"no_end": start}


def test_one_damage_is_found_in_its_example_and_place_and_nothing_else():
    draw = random.Random(11)
    for _ in range(100):
        made, expected = [], defaultdict(list)
        for number in range(draw.randrange(60)):
            made.append(join(*(part for turn in random_turns(draw) for part in turn)))
            if draw.random() < 0.5:
                made[-1], faults = damage_one(made[-1], draw)
                for fault, place in faults.items():
                    expected[fault].append((number, place))

        assert find(*made) == expected


def test_random_examples_have_no_fault():
    draw = random.Random(12)
    turns = [random_turns(draw) for _ in range(3000)]

    assert find(*(join(*(part for turn in each for part in turn)) for each in turns)) == {}
