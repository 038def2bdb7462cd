"""A trained example against its conversation, as the served template renders it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest

from sft.conversation import Conversation
from sft.serving import EMPTY_REASONING, REASONING, Serving

SHOWN = 60  # characters of a text in a message

_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
DATE = re.compile(
    rf"\d{{1,2}} (?:{_MONTHS})[a-z]* \d{{4}}|"
    rf"(?:{_MONTHS})[a-z]* \d{{1,2}}, \d{{4}}|\d{{4}}-\d\d-\d\d"
)


@dataclass(frozen=True)
class Difference:
    """A fault of one example: what was found there, what was expected, and at which token."""

    fault: str
    found: str
    expected: str
    place: int = 0


@dataclass(frozen=True)
class Example:
    """One example of the tokens: its ids, where they have a loss, and whether the cutoff cut it.

    With `last_first` the cutoff takes the earliest turns first.
    """

    ids: Sequence[int]
    trained: Sequence[bool]
    cut: bool = False
    last_first: bool = False


def compare(
    example: Example, pieces: list[str], encoded: list[list[int]], serving: Serving
) -> list[Difference]:
    """The differences between an example and a rendering; one of a kind at most.

    `pieces` is the rendering in the form of `Serving.split`, `encoded` the tokens of each piece. A
    text that is only tokenized at other places is no difference: what a model generates is cut
    where generation starts, whatever the whole text would merge there.
    """
    expected = [token for piece in encoded for token in piece]
    ids = list(example.ids)
    if ids == expected:
        return []
    if example.cut and len(ids) < len(expected):
        return _compare_cut(example, encoded, serving)
    found = serving.split(serving.decode(ids))
    if serving.controls_of(ids) != serving.controls_of(expected):
        if _without_controls(found, serving) == _without_controls(pieces, serving):
            return [_compare_controls(ids, expected, serving)]
    elif found == pieces:
        return []
    differences = _compare_pieces(example, found, pieces, serving)
    return list({each.fault: each for each in reversed(list(differences))}.values())[::-1]


def _without_controls(pieces: list[str], serving: Serving) -> str:
    return re.sub("|".join(map(re.escape, serving.controls)), "", "".join(pieces))


def _compare_cut(example: Example, encoded: list[list[int]], serving: Serving) -> list[Difference]:
    """What a cut example still has has to be whole turns and the beginning of one."""
    turns = [one + two for one, two in zip(encoded[0::2], encoded[1::2], strict=False)]
    whole, rest, place = _strip_turns(list(example.ids), turns, encoded[-1], example.last_first)
    left = len(turns) - whole
    if not left:
        return []
    number = left - 1 if example.last_first else whole
    prompt, answer = encoded[2 * number], encoded[2 * number + 1]
    if not _is_cut_turn(rest, prompt, answer):
        found, expected = serving.decode(rest), serving.decode(prompt + answer)
        return [Difference("other_prompt", *_first_difference(found, expected), place)]
    left -= any(example.trained[place : place + len(rest)])
    if not left:
        return []  # one answer lost its end: that is seen in the tokens themselves
    kept = f"{len(turns) - left} of {len(turns)} answers in {len(example.ids)} tokens"
    return [Difference("truncated_turns", kept, f"{sum(map(len, encoded))} tokens", place)]


def _strip_turns(
    ids: list[int], turns: list[list[int]], tail: list[int], last_first: bool
) -> tuple[int, list[int], int]:
    """How many whole turns the ids begin with (or end in), what is left, and where that begins."""
    start, stop, whole = 0, len(ids), 0
    if last_first:
        stop -= len(tail)
        for turn in reversed(turns):
            if len(turn) > stop or ids[stop - len(turn) : stop] != turn:
                break
            stop, whole = stop - len(turn), whole + 1
    else:
        for turn in turns:
            if ids[start : start + len(turn)] != turn:
                break
            start, whole = start + len(turn), whole + 1
    return whole, ids[start:stop], start


def _is_cut_turn(rest: list[int], prompt: list[int], answer: list[int]) -> bool:
    """Whether `rest` is a beginning of the prompt followed by a beginning of its answer."""
    common = 0
    while common < min(len(rest), len(prompt)) and rest[common] == prompt[common]:
        common += 1
    return any(
        rest[start:] == answer[: len(rest) - start]
        for start in range(
            common, max(common - 8, -1), -1
        )  # the answer may begin like what was cut
    )


def _compare_pieces(
    example: Example, found: list[str], expected: list[str], serving: Serving
) -> Iterator[Difference]:
    """The differences of pieces, prompts and answers by turns."""
    place = 0
    last = len(expected) - 2
    for number, (here, there) in enumerate(zip_longest(found, expected)):
        if here is None or there is None:
            yield Difference(
                "other_prompt",
                f"{len(found) // 2} answers",
                f"{len(expected) // 2} answers as the served template renders them",
                place,
            )
            return
        if here != there:
            is_answer = number % 2 == 1
            if is_answer:
                yield _judge_answer(example, here, there, place, number == last)
            else:
                yield _judge_prompt(here, there, place)
        place += len(serving.encode([here])[0])


def _judge_answer(example: Example, here: str, there: str, place: int, is_last: bool) -> Difference:
    """The fault of an answer that is not the one that the served template renders."""
    trained = bool(example.trained[min(place, len(example.trained) - 1)])
    found, expected = _first_difference(here, there)
    emptied = EMPTY_REASONING.match(here)
    if emptied and here[emptied.end() :] == there:
        fault = "empty_reasoning" if trained else "masked_reasoning"
        return Difference(fault, show(emptied[0]), "nothing before the answer", place)
    served = EMPTY_REASONING.match(there)
    if served and there[served.end() :] == here:
        return Difference("empty_reasoning", "nothing before the answer", show(served[0]), place)
    if _reasons(here) != _reasons(there) and _without_reasoning(here) == _without_reasoning(there):
        fault = "old_reasoning"
        if is_last and REASONING.search(there):
            fault = "stripped_reasoning"
        return Difference(fault, show(here), show(there), place)
    return Difference("other_answer", found, expected, place)


def _reasons(text: str) -> bool:
    """Whether a text holds a block of reasoning that is not empty."""
    return bool(REASONING.search(EMPTY_REASONING.sub("", text)))


def _without_reasoning(text: str) -> str:
    return REASONING.sub("", text).strip()


def _judge_prompt(here: str, there: str, place: int) -> Difference:
    """The fault of a prompt that is not the one that the served template renders."""
    found, expected = _first_difference(here, there)
    dates = DATE.findall(here), DATE.findall(there)
    if dates[0] != dates[1] and DATE.sub("", here) == DATE.sub("", there):
        return Difference("added_date", ", ".join(dates[0]), ", ".join(dates[1]), place)
    ours, theirs = _odd_parts(here, there)
    if not (ours and theirs) and (ours + theirs).strip():
        fault = "added_date" if DATE.search(ours or theirs) else "added_text"
        return Difference(fault, show(ours or "nothing"), show(theirs or "nothing"), place)
    return Difference("other_prompt", found, expected, place)


def _odd_parts(here: str, there: str) -> tuple[str, str]:
    """What is left of two texts without the beginning and the end that they share."""
    first = _count_common(here, there)
    here, there = here[first:], there[first:]
    last = _count_common(reversed(here), reversed(there))
    return here[: len(here) - last], there[: len(there) - last]


def _count_common(here: Iterable[str], there: Iterable[str]) -> int:
    """How many characters are the same from the beginning on."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(here, there, strict=False))
    )


def _compare_controls(ids: list[int], expected: list[int], serving: Serving) -> Difference:
    """The text is the same and the control tokens are not."""
    found, wanted = serving.controls_of(ids), serving.controls_of(expected)
    return Difference(
        "split_control",
        f"{len(found)} control tokens",
        f"{len(wanted)}: {serving.decode(wanted[:8])} …",
    )


def _first_difference(found: str, expected: str) -> tuple[str, str]:
    """Both texts from a little before the first place where they differ."""
    pairs = enumerate(zip_longest(found, expected))
    start = max(next(place for place, (here, there) in pairs if here != there) - 20, 0)
    return show(found[start:]), show(expected[start:])


def show(text: str) -> str:
    """A short form of a text for a message, in quotes, on one line."""
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")


def lost_text(conversation: Conversation, pieces: list[str]) -> list[Difference]:
    """At most one difference: a turn or a text of it that the served template does not render."""
    answers = [each for each in conversation.messages if each["role"] == "assistant"]
    if len(pieces) // 2 != len(answers):
        return [
            Difference(
                "unserved_text",
                f"{len(pieces) // 2} answers in the served rendering",
                f"{len(answers)} as in the row",
            )
        ]
    number = 0
    for message in conversation.messages:
        is_answer = message["role"] == "assistant"
        piece = pieces[2 * number + is_answer]
        for text in _texts_of(message):
            if text not in piece:
                found = f"no such text in the {message['role']} turn as it will be served"
                return [Difference("unserved_text", found, show(text))]
        number += is_answer
    for tool in conversation.tools:
        name = tool.get("function", tool)["name"]
        if name not in pieces[0]:
            return [Difference("unserved_text", "no such tool in the served prompt", show(name))]
    return []


def _texts_of(message: Mapping) -> Iterator[str]:
    """What has to stand in the rendering of a message, white space around it aside."""
    text = message["content"]
    yield (REASONING.sub("", text) if message["role"] == "assistant" else text).strip()
    for call in message.get("tool_calls", ()):
        yield call["function"]["name"]
