"""A trained example against its conversation, as the served template renders it."""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest

from sft.gate.conversation import Conversation
from sft.gate.serving import EMPTY_REASONING, REASONING, REASONING_MARKERS, Serving

SHOWN = 60  # characters of a text in a message
BEFORE = 20  # of them before the place where two texts differ
ANCHOR = 20  # characters by which a text is found again behind what was added to it
BROKEN = "\ufffd"  # decoded where the cutoff left a part of a character

_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
DATE = re.compile(
    rf"\d{{1,2}} (?:{_MONTHS})[a-z]* \d{{4}}|"
    rf"(?:{_MONTHS})[a-z]* \d{{1,2}}, \d{{4}}|\d{{4}}-\d\d-\d\d"
)
_SOME_DATE = "1 Jan 2000"
_MARKER = re.compile("|".join(re.escape(each) for pair in REASONING_MARKERS for each in pair))
_OPENINGS = "|".join(re.escape(opening) for opening, _ in REASONING_MARKERS)
_CUT_OPENINGS = "|".join(
    re.escape(opening[:length])
    for opening, _ in REASONING_MARKERS
    for length in range(len(opening) - 1, 0, -1)
)
_UNCLOSED_REASONING = re.compile(rf"(?:{_OPENINGS}).*|(?:{_CUT_OPENINGS})\Z", re.DOTALL)


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
    example: Example,
    pieces: list[str],
    encoded: list[list[int]],
    serving: Serving,
    own: Sequence[str] = (),
) -> list[Difference]:
    """The differences between an example and a rendering; one of a kind at most.

    `pieces` is the rendering in the form of `Serving.split`, `encoded` the tokens of each piece,
    `own` the texts of the row's messages: what the trainer left out of them, no template added. A
    text that is only tokenized at other places is no difference: what a model generates is cut
    where generation starts, whatever the whole text would merge there.
    """
    firsts: dict[str, Difference] = {}
    for difference in _Comparison(example, pieces, encoded, serving, own).find_differences():
        firsts.setdefault(difference.fault, difference)
    return list(firsts.values())


@dataclass(frozen=True)
class _Comparison:
    """An example and the rendering that it is held against, as `compare` takes them."""

    example: Example
    pieces: list[str]
    encoded: list[list[int]]
    serving: Serving
    own: Sequence[str]

    @cached_property
    def expected(self) -> list[int]:
        """The tokens of the whole rendering."""
        return [token for piece in self.encoded for token in piece]

    def find_differences(self) -> Iterator[Difference]:
        """All differences, in the order of the tokens."""
        if list(self.example.ids) == self.expected:
            yield from self.judge_thought(self.pieces)
            return
        text = self.serving.decode(self.example.ids)
        if self.has_other_controls(text):
            yield self.describe_controls()
            if self.is_alike(text, self.serving.decode(self.expected)):
                return
        found = self.serving.split(text)
        wanted = self.render_beside(found)
        if not self.example.cut:
            yield from self.judge_pieces(_join_end(found), _join_end(wanted))
            yield from self.judge_thought(found)
        elif self.example.last_first:
            yield from self.judge_cut_beginning(found, wanted)
        else:
            yield from self.judge_cut_end(found, wanted)

    def has_other_controls(self, text: str) -> bool:
        """Whether a control token is in pieces, or is all that is missing or too much."""
        found = self.serving.controls_of(self.example.ids)
        if found == self.serving.controls_of(self.expected):
            return False
        if found != self.serving.controls_in(text):
            return True
        return not self.example.cut and self.is_alike(text, self.serving.decode(self.expected))

    def is_alike(self, here: str, there: str) -> bool:
        """Whether two texts are the same but for control strings."""
        return self.without_controls(here) == self.without_controls(there)

    def describe_controls(self) -> Difference:
        """Both sides from the first token on that is not the same."""
        at = self.find_first_unequal()
        sides = (
            f"{len(self.serving.controls_of(side))} control tokens, "
            f"{show(self.serving.decode(side[at : at + 8]))} at token {at}"
            for side in (self.example.ids, self.expected)
        )
        return Difference("split_control", *sides, at)

    def find_first_unequal(self) -> int:
        """The place of the first token that is not the same."""
        pairs = enumerate(zip_longest(self.example.ids, self.expected))
        return next(place for place, (here, there) in pairs if here != there)

    def without_controls(self, text: str) -> str:
        """The text without control strings."""
        kept, start = [], 0
        for control in self.serving.find_controls(text):
            kept.append(text[start : control.start()])
            start = control.end()
        return "".join([*kept, text[start:]])

    def render_beside(self, found: list[str]) -> list[str]:
        """The pieces of the rendering, in the characters that the tokenizer keeps of them."""
        beside = zip_longest(found[: len(self.pieces)], self.pieces, self.encoded)
        return [
            there if here == there else self.serving.decode(tokens)
            for here, there, tokens in beside
        ]

    def judge_pieces(self, found: list[str], wanted: list[str]) -> Iterator[Difference]:
        """The differences of pieces, prompts and answers by turns."""
        if len(found) != len(wanted):
            sides = (f"{len(side) // 2} answers" for side in (found, wanted))
            yield Difference("other_prompt", *sides, self.find_first_unequal())
            return
        place, passed = 0, []
        for number, (here, there) in enumerate(zip(found, wanted, strict=True)):
            if here == there:
                place += len(self.encoded[number])
                continue
            place += sum(map(len, self.serving.encode(passed)))
            passed = [here]
            if number % 2:
                yield self.judge_answer(here, there, place, number == len(self.pieces) - 2)
            elif self.is_alike(here, there):
                yield self.describe_controls()
            else:
                yield self.judge_prompt(here, there, place)

    def judge_answer(self, here: str, there: str, place: int, is_last: bool) -> Difference:
        """The fault of an answer that is not the one that the served template renders."""
        if _without_reasoning(here) != _without_reasoning(there):
            fault = "other_answer"
        elif _find_reasoning(here) != _find_reasoning(there):
            fault = _judge_reasoning(_find_reasoning(here), _find_reasoning(there), is_last)
        elif bool(EMPTY_REASONING.search(here)) == bool(EMPTY_REASONING.search(there)):
            fault = "other_answer"  # of other white space
        else:
            has_loss = any(self.example.trained[place : place + 1])
            is_masked = EMPTY_REASONING.search(here) and not has_loss
            fault = "masked_reasoning" if is_masked else "empty_reasoning"
        return Difference(fault, *_show_both(here, there), place)

    def judge_prompt(self, here: str, there: str, place: int) -> Difference:
        """The fault of a prompt that is not the one that the served template renders."""
        if DATE.sub("", here) == DATE.sub("", there):
            dates = (", ".join(DATE.findall(side)) for side in (here, there))
            return Difference("added_date", *dates, place)
        first = _count_common(here, there)
        last = _count_common(here[first:][::-1], there[first:][::-1])
        ours, theirs = here[first : len(here) - last], there[first : len(there) - last]
        if (ours + theirs).strip() and not (ours and theirs):
            return self.judge_added(ours, theirs, min(here, there, key=len), place)
        return Difference("other_prompt", *_show_both(here, there), place)

    def judge_added(self, ours: str, theirs: str, rest: str, place: int = 0) -> Difference:
        """The fault of a prompt that has more text on one side: the template's, or the row's."""
        added, first = ours or theirs, self.own[0].strip() if self.own else ""
        fault = "added_date" if DATE.search(added) else "added_text"
        if first in added and first not in rest:
            fault = "other_prompt"
        sides = (show(side) if side else "nothing" for side in (ours, theirs))
        return Difference(fault, *sides, place)

    def judge_thought(self, found: list[str]) -> Iterator[Difference]:
        """A difference where the last answer has lost the reasoning that the row has."""
        *_, thought, _ = ("", "", *_MARKER.split(self.own[-1] if self.own else ""))
        if len(found) > 1 and thought.strip() not in found[-2]:
            yield Difference("stripped_reasoning", "no such reasoning", show(thought.strip()))

    def judge_cut_end(self, found: list[str], wanted: list[str]) -> Iterator[Difference]:
        """The differences where the cutoff took from the end: whole turns, then a part of one."""
        whole = 2 * max(len(found) // 2 - (not found[-1]), 0)
        rest, left = "".join(found[whole:]).rstrip(BROKEN).rstrip(), wanted[whole:]
        question, answer = left[:2] if len(left) > 1 else ("", "")
        yield from self.judge_pieces(found[:whole], wanted[:whole])
        yield from self.judge_cut_turn(rest, question, answer)
        has_answer = any(self.example.trained[-1:]) or not question.startswith(rest)
        yield from self.judge_lost_answers(len(left) // 2 - has_answer)

    def judge_cut_beginning(self, found: list[str], wanted: list[str]) -> Iterator[Difference]:
        """The differences where the cutoff took from the beginning: a part of a turn is left."""
        closed, text = _join_end(wanted), "".join(found).rstrip()
        turns = list(zip(closed[::2], closed[1::2], strict=False))
        for shape in SHAPES:
            rest, left = _strip_turns(shape(text), [shape(one + two) for one, two in turns])
            question, answer = map(shape, turns[left - 1] if left else ("", ""))
            unlike = list(self.judge_cut_turn(rest, question, answer))
            if not unlike:
                break
        if shape is not str:
            yield from self.judge_last_answer(found, wanted)
        yield from unlike
        has_answer = left == len(turns) and any(self.example.trained[-1:])
        yield from self.judge_lost_answers(left - has_answer)

    def judge_cut_turn(self, here: str, question: str, answer: str) -> Iterator[Difference]:
        """A difference where a text is not what a cutoff can have left of a turn.

        What templates do to reasoning and dates is judged in whole turns alone.
        """
        shapes = [tuple(map(shape, (here, question, answer))) for shape in SHAPES]
        if any(_is_cut(*sides) for sides in shapes):
            return
        if _is_cut(*map(self.without_controls, (here, question, answer))):
            yield self.describe_controls()
            return
        if added := next(filter(None, (_find_added(*sides) for sides in shapes)), None):
            yield self.judge_added(*added, rest=question if added[0] else here)
            return
        asked = question and _drop_reasoning(here).startswith(_drop_reasoning(question))
        fault = "other_answer" if asked else "other_prompt"
        yield Difference(fault, *_show_both(here, question + answer))

    def judge_last_answer(self, found: list[str], wanted: list[str]) -> Iterator[Difference]:
        """The difference of the last answer."""
        here, there = _join_end(found)[-1], _join_end(wanted)[-1]
        if len(found) > 1 < len(wanted) and here != there:
            place = len(self.example.ids) - len(self.serving.encode([here])[0])
            yield self.judge_answer(here, there, max(place, 0), is_last=True)

    def judge_lost_answers(self, number: int) -> Iterator[Difference]:
        """A difference where whole answers are gone."""
        if number > 0:
            of = len(self.pieces) // 2
            kept = f"{of - number} of {of} answers in {len(self.example.ids)} tokens"
            yield Difference("truncated_turns", kept, f"{sum(map(len, self.encoded))} tokens")


def _join_end(pieces: list[str]) -> list[str]:
    """The pieces, the last answer with what follows it but white space: nobody reads that."""
    return [*pieces[:-2], "".join(pieces[-2:]).rstrip()]


def _strip_turns(text: str, turns: list[str]) -> tuple[str, int]:
    """What is left of a text without the turns that it ends in, and how many are left of them."""
    left = len(turns)
    while left and text.endswith(turns[left - 1]):
        text, left = text.removesuffix(turns[left - 1]), left - 1
    return text, left


def _judge_reasoning(here: list[str], there: list[str], is_last: bool) -> str:
    """The fault of an answer whose reasoning alone is not the served one."""
    if here and there:
        return "other_answer"
    return "stripped_reasoning" if is_last and there else "old_reasoning"


def _is_cut(here: str, question: str, answer: str) -> bool:
    """Whether a text is a beginning of the question, then one of the answer, characters cut too."""
    here = here.rstrip(BROKEN)
    common = _count_common(here, question)
    return answer.startswith(here[common:].lstrip(BROKEN)) or any(
        here[start] == answer[:1] and answer.startswith(here[start:])
        for start in range(common - 1, -1, -1)  # the answer may begin like what was cut
    )


def _find_added(here: str, question: str, answer: str) -> tuple[str, str] | None:
    """What `here` or the question has too much, where a cutoff can have left the rest."""
    first = _count_common(here, question)
    ours = here.find(question[first : first + ANCHOR], first)
    if ours > first and _is_cut(here[:first] + here[ours:], question, answer):
        return here[first:ours], ""
    theirs = question.find(here[first : first + ANCHOR], first)
    if theirs > first and _is_cut(here, question[:first] + question[theirs:], answer):
        return "", question[first:theirs]
    return None


def _drop_reasoning(text: str) -> str:
    """The text without reasoning, a part of which a cutoff may have left."""
    return _UNCLOSED_REASONING.sub("", REASONING.sub("", text))


def _simplify(text: str) -> str:
    """The text without reasoning, and with one date for all."""
    return _drop_reasoning(DATE.sub(_SOME_DATE, text))


SHAPES = (str, _drop_reasoning, _simplify)  # in which a text is held against what was cut


def _without_reasoning(text: str) -> str:
    return REASONING.sub("", text).strip()


def _find_reasoning(text: str) -> list[str]:
    """The blocks of reasoning that are not empty."""
    blocks = (block.strip() for block in REASONING.findall(text))
    return [block for block in blocks if not EMPTY_REASONING.fullmatch(block)]


def _count_common(here: str, there: str) -> int:
    """How many characters two texts share from their beginning on."""
    lengths = range(1, min(len(here), len(there)) + 1)
    return bisect_left(lengths, True, key=lambda length: here[:length] != there[:length])


def _show_both(here: str, there: str) -> tuple[str, str]:
    """Two texts from a little before the place where they differ."""
    start = max(_count_common(here, there) - BEFORE, 0)
    return show(here[start:]), show(there[start:])


def show(text: str) -> str:
    """A short form of a text for a message, in quotes, on one line."""
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")


def lost_text(conversation: Conversation, pieces: list[str]) -> list[Difference]:
    """At most one difference: a turn or a text of it that the served template does not render."""
    answers = [each for each in conversation.messages if each["role"] == "assistant"]
    if len(pieces) // 2 != len(answers):
        found = f"{len(pieces) // 2} answers in the served rendering"
        return [Difference("unserved_text", found, f"{len(answers)} as in the row")]
    number = 0
    for message in conversation.messages:
        is_answer = message["role"] == "assistant"
        for text in _texts_of(message):
            if not _is_in(text, pieces[2 * number + is_answer]):
                found = f"no such text in the {message['role']} turn as it will be served"
                return [Difference("unserved_text", found, show(text))]
        number += is_answer
    for tool in conversation.tools:
        name = tool.get("function", tool)["name"]
        if not _is_in(name, pieces[0]):
            return [Difference("unserved_text", "no such tool in the served prompt", show(name))]
    return []


def _texts_of(message: Mapping) -> Iterator[str]:
    """What has to stand in the rendering of a message, white space around it aside."""
    text = message["content"]
    yield (_MARKER.split(text)[-1] if message["role"] == "assistant" else text).strip()
    for call in message.get("tool_calls", ()):
        yield call["function"]["name"]


def _is_in(text: str, piece: str) -> bool:
    """Whether a rendering has a text, as it is or as some templates write it: as a JSON string."""
    return text in piece or json.dumps(text, ensure_ascii=False)[1:-1] in piece
