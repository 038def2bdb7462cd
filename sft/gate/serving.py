"""The tokenizer as it will be served: how its chat template renders a conversation.

What is trained is held against this. Markers of reasoning are known by family, whatever template
writes them.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sft.errors import SftError, first_few
from sft.gate.conversation import REASONING_MARKERS

_BLOCKS = "|".join(
    f"{re.escape(first)}(?:.*?){re.escape(last)}" for first, last in REASONING_MARKERS
)
_EMPTY = "|".join(rf"{re.escape(first)}\s*{re.escape(last)}" for first, last in REASONING_MARKERS)
REASONING = re.compile(rf"(?:{_BLOCKS})\s*", re.DOTALL)
EMPTY_REASONING = re.compile(rf"(?:{_EMPTY})\s*")

_QUESTION, _ANSWER = "Which colour is it?", "Green, I think."  # no template says so by itself


@dataclass(frozen=True)
class Serving:
    """A tokenizer with its chat template.

    `header` is what generation starts after (`<|im_start|>assistant\\n`), `end` the control string
    that ends an answer, `end_id` its token, `tail` what the template writes after the last one.
    `controls` maps each special token's string to its id, `added` those of every token that stands
    for a string of its own. `thinking` is the template's own switch, where a config sets it.
    """

    tokenizer: Any
    header: str
    end: str
    end_id: int
    tail: str
    controls: Mapping[str, int]
    added: Mapping[str, int]
    thinking: bool | None = None

    @cached_property
    def _control(self) -> re.Pattern:
        return _pattern(self.controls)

    @cached_property
    def _added(self) -> re.Pattern:
        return _pattern(self.added)

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self.added.values())

    @property
    def spelled(self) -> str:
        """Every control string that the template or the tokenizer knows, in one text."""
        template = self.tokenizer.chat_template
        texts = template.values() if isinstance(template, Mapping) else [template]
        return "\n".join([*texts, *self.controls])

    def render(self, messages: Sequence[Mapping], tools: Sequence[Mapping] = ()) -> str:
        """The text of a whole conversation; SftError with the template's own words."""
        return render_chat(self.tokenizer, messages, tools, self.thinking)

    def split(self, text: str) -> list[str]:
        """The text in pieces: prompt, answer, prompt, answer, …, and what follows the last answer.

        A prompt ends in `header`, an answer in `end` (and `tail`); one that was cut has no end.
        """
        pieces, cursor = [], 0
        while (start := text.find(self.header, cursor)) >= 0:
            start += len(self.header)
            stop = text.find(self.end, start)
            stop = len(text) if stop < 0 else stop + len(self.end)
            stop += len(self.tail) if text.startswith(self.tail, stop) else 0
            pieces += [text[cursor:start], text[start:stop]]
            cursor = stop
        return [*pieces, text[cursor:]]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """The tokens of each text, without any that the tokenizer would add by itself."""
        made = self.tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [each.ids for each in made]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens, control strings included."""
        known = [each for each in ids if each >= 0]  # the library takes no others
        return self.tokenizer.backend_tokenizer.decode(known, skip_special_tokens=False)

    def find_controls(self, text: str) -> Iterator[re.Match]:
        """The special strings in a text."""
        return self._control.finditer(text)

    def controls_of(self, ids: Iterable[int]) -> list[int]:
        """The tokens among `ids` that stand for a string of their own, in order."""
        return [each for each in ids if each in self._added_ids]

    def controls_in(self, text: str) -> list[int]:
        """The same of a text that is tokenized."""
        return [self.added[each[0]] for each in self._added.finditer(text)]


def load_serving(folder: Path, thinking: bool | None = None) -> Serving:
    """The serving of a tokenizer folder that holds a chat template.

    Raises SftError where there is none, or where it shows no header or end of an answer.
    """
    # It warns of torch's absence, which nobody needs to render and tokenize.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if not tokenizer.chat_template:
        raise SftError(f"{folder}: the tokenizer would be served without a chat template")
    # A config may have told the tokenizer to split control strings: no server does.
    tokenizer.backend_tokenizer.encode_special_tokens = False
    added = tokenizer.added_tokens_decoder
    controls = {str(token): number for number, token in added.items() if token.special}
    try:
        header, end, tail = _probe(tokenizer, controls)
    except SftError as error:
        raise SftError(f"{folder}: {error}") from error
    return Serving(
        tokenizer=tokenizer,
        header=header,
        end=end,
        end_id=controls[end],
        tail=tail,
        controls=controls,
        # Some tokenizers add runs of blanks, which a text may be cut in at other places.
        added={str(token): number for number, token in added.items() if str(token).strip()},
        thinking=thinking,
    )


def _pattern(controls: Iterable[str]) -> re.Pattern:
    """Any of the control strings, as a tokenizer finds them: the longest at each place."""
    return re.compile("|".join(map(re.escape, sorted(controls, key=len, reverse=True))))


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping],
    tools: Sequence[Mapping] = (),
    thinking: bool | None = None,
    prompt: bool = False,
) -> str:
    """The text of a conversation by a tokenizer's chat template, with a cue to answer on `prompt`.

    Raises SftError with the template's own words.
    """
    import jinja2

    switch = {} if thinking is None else {"enable_thinking": thinking}
    try:
        return tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools) or None,
            tokenize=False,
            add_generation_prompt=prompt,
            **switch,
        )
    except (jinja2.TemplateError, TypeError) as error:
        raise SftError(f"the chat template cannot render it: {error}") from error


def _probe(tokenizer: Any, controls: Mapping[str, int]) -> tuple[str, str, str]:
    """The header, the end of an answer and what follows it, as a small conversation shows them."""
    question = {"role": "user", "content": _QUESTION}
    whole = render_chat(tokenizer, [question, {"role": "assistant", "content": _ANSWER}])
    for text in (_QUESTION, _ANSWER):
        if text not in whole:
            raise SftError(
                f"the chat template does not render a turn: found {whole[:200]!r}, "
                f"expected {text!r} in it"
            )
    before, _, after = whole.partition(_ANSWER)
    header = _find_header(tokenizer, question)
    if not header or header not in before.rpartition(_QUESTION)[2]:
        raise SftError(
            f"the chat template asks for an answer with {header!r}, which is not what stands "
            f"before one: found {before[-80:]!r}; a model would be trained for another prompt"
        )
    end = _pattern(controls).search(after) if controls else None
    if not end:
        raise SftError(
            f"the chat template shows no end of an answer: found {after[:80]!r} after "
            f"one, expected one of {first_few(controls)}; generation would not stop"
        )
    return header, end[0], after[end.end() :]


def _find_header(tokenizer: Any, question: Mapping) -> str:
    """What stands between the question's turn and what a served model generates."""
    history = render_chat(tokenizer, [question]).rpartition(_QUESTION)[2]
    asked = render_chat(tokenizer, [question], prompt=True).rpartition(_QUESTION)[2]
    # A template that takes no notice of the generation prompt ends the question with it.
    header = asked.removeprefix(history) or asked
    for first, _ in REASONING_MARKERS:  # some open the reasoning for the model
        header = header.partition(first)[0]
    return header
