"""Prove that saved tokenizers serve the chat template that was trained, by rendering with both."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sft.errors import SftError, raise_faults
from sft.files import hash_file, read_json
from sft.gate.serving import Serving, load_serving, render_chat

CONFIG, JINJA = "tokenizer_config.json", "chat_template.jinja"
LISTED = "extra_special_tokens"
AROUND = 40  # characters that are shown of a text before and behind its first difference

_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Łódź"}}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
_SYSTEM = {"role": "system", "content": "Answer briefly."}
_ASK = {"role": "user", "content": "What is the weather in Łódź?"}
_SAY = {"role": "assistant", "content": "It is 7 °C and raining.\n\nTake a coat."}
_THOUGHT = {"role": "assistant", "content": "<think>\nA city in Poland.\n</think>\n\nIt rains."}
_CALLING = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
_CALLING_TWICE = {"role": "assistant", "content": "Both.", "tool_calls": [_CALL, _CALL]}
_RESULT = {"role": "tool", "content": '{"celsius": 7}'}
_SPACED = {"role": "assistant", "content": "  two blanks \n"}


@dataclass(frozen=True)
class Case:
    """A conversation to render, with a cue to answer where `prompt` says so."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    prompt: bool = False
    thinking: bool | None = None


CASES: Mapping[str, Case] = {
    "question": Case((_ASK,), prompt=True),
    "question, without reasoning": Case((_ASK,), prompt=True, thinking=False),
    "question, with reasoning": Case((_ASK,), prompt=True, thinking=True),
    "answer": Case((_ASK, _SAY)),
    "system": Case((_SYSTEM, _ASK, _SAY)),
    "empty system": Case(({"role": "system", "content": ""}, _ASK, _SAY)),
    "several turns": Case((_SYSTEM, _ASK, _SAY, _ASK, _SAY, _ASK), prompt=True),
    "reasoning": Case((_ASK, _THOUGHT)),
    "reasoning of an earlier turn": Case((_ASK, _THOUGHT, _ASK, _THOUGHT)),
    "reasoning apart": Case((_ASK, _SAY | {"reasoning_content": "Hm."})),
    "tools": Case((_ASK, _SAY), (_TOOL,)),
    "tools, system": Case((_SYSTEM, _ASK), (_TOOL, _TOOL), prompt=True),
    "call": Case((_ASK, _CALLING), (_TOOL,)),
    "call and result": Case((_ASK, _CALLING, _RESULT, _SAY), (_TOOL,)),
    "two calls, two results": Case((_ASK, _CALLING_TWICE, _RESULT, _RESULT, _SAY), (_TOOL,)),
    "result, to be answered": Case((_ASK, _CALLING, _RESULT), (_TOOL,), prompt=True),
    "blanks": Case((_ASK, _SPACED, _ASK, _SAY)),
    "other scripts": Case(({"role": "user", "content": "東京 🗼 \U0001f1f5\U0001f1f1 é"}, _SAY)),
    "unknown role": Case((_ASK, {"role": "critic", "content": "no"})),
}


def check_served(truth: Path, folders: Iterable[Path]) -> dict[str, Any]:
    """What was proven of tokenizer folders: each serves as `truth`, the tokens' own tokenizer.

    Each renders CASES byte for byte as it does (or refuses them as it does), cuts the texts into
    the same tokens, says the template in tokenizer_config.json, and beside it generation stops at
    the end of an answer. Raises SftError with each difference: folder, key or conversation, what
    was found and expected.
    """
    serving, places = load_serving(truth), list(folders)
    expected = {name: render(serving.tokenizer, case) for name, case in CASES.items()}
    raise_faults(fault for folder in places for fault in served_faults(folder, serving, expected))
    return {
        "template": hash_file(truth / CONFIG),
        "conversations": len(expected),
        "refused": [name for name, text in expected.items() if text is None],
        "folders": [folder.name for folder in places],
    }


def saved_tokenizers(weights: Path, run: Path) -> list[Path]:
    """The folders of a run that people may serve: that of its weights, and each checkpoint left."""
    return list(dict.fromkeys([weights, *sorted(run.glob("checkpoint-*"))]))


def render(tokenizer: Any, case: Case) -> str | None:
    """The text of a case; None where the template refuses it."""
    try:
        return render_chat(tokenizer, case.messages, case.tools, case.thinking, case.prompt)
    except SftError:
        return None


def served_faults(
    folder: Path, truth: Serving, expected: Mapping[str, str | None]
) -> Iterator[str]:
    """A line for each way in which a saved tokenizer, or what stops generation, differs."""
    from transformers import AutoTokenizer

    if not (folder / CONFIG).exists():
        yield (
            f"{folder}/{CONFIG}: missing; nobody could chat with this model: delete the folder if "
            "it is a checkpoint that nobody needs, else train again"
        )
        return
    if fault := _embedding_fault(folder):
        yield fault
        return
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for name, text in expected.items():
        found = render(tokenizer, CASES[name])
        if found != text:
            yield f"{folder}: does not render {name!r} as trained: {_differ(found, text)}"
            return
    texts = [text for text in expected.values() if text is not None]
    for text in texts:
        if tokenizer.encode(text, add_special_tokens=False) != truth.tokenizer.encode(
            text, add_special_tokens=False
        ):
            yield f"{folder}/tokenizer.json: cuts {text[:AROUND]!r}… into other tokens than trained"
            return
    if tokenizer.get_vocab() != truth.tokenizer.get_vocab():
        yield f"{folder}/tokenizer.json: {_first_token(tokenizer, truth.tokenizer)}"
        return
    yield from _stop_faults(folder, tokenizer, truth)


def _embedding_fault(folder: Path) -> str | None:
    """What is wrong with where the template stands."""
    config = read_json(folder / CONFIG)
    embedded = config.get("chat_template")
    separate = folder / JINJA
    if not isinstance(embedded, str):
        return (
            f"{folder}/{CONFIG}, chat_template: found {type(embedded).__name__}, expected the "
            f"template's text; servers that do not read {JINJA} would chat without it: "
            f"{_remedy(folder)}"
        )
    if separate.exists() and (text := separate.read_bytes().decode()) != embedded:
        return (
            f"{folder}/{JINJA}: not what {CONFIG} says: {_differ(text, embedded)}; "
            f"{_remedy(folder)}"
        )
    if isinstance(config.get(LISTED), list):
        return (
            f"{folder}/{CONFIG}, {LISTED}: found a list, expected an object; transformers 4 "
            f"cannot load it: {_remedy(folder)}"
        )
    return None


def _remedy(folder: Path) -> str:
    """What embeds a template; a complete run is not trained again, and so not embedded again."""
    return f"embed it: python -m sft.trainers.served_tokenizer {folder}"


def _first_token(found: Any, expected: Any) -> str:
    """The first token, by its text, that two vocabularies do not both have with the same id."""
    ours, trained = found.get_vocab(), expected.get_vocab()
    token = min(text for text in ours.keys() | trained if ours.get(text) != trained.get(text))
    return f"token {token!r}: found id {ours.get(token)}, expected {trained.get(token)} as trained"


def _differ(found: str | None, expected: str | None) -> str:
    if found is None or expected is None:
        refused, rendered = ("found", "expected") if found is None else ("expected", "found")
        return f"{refused} a refusal, {rendered} {(found or expected)[:AROUND]!r}…"
    pairs = enumerate(zip(found, expected, strict=False))
    place = next((n for n, (a, b) in pairs if a != b), min(len(found), len(expected)))
    cut = slice(max(0, place - AROUND), place + AROUND)
    return f"found {found[cut]!r}, expected {expected[cut]!r} at character {place}"


def _stop_faults(folder: Path, tokenizer: Any, truth: Serving) -> Iterator[str]:
    """Where generation would run on behind an answer."""
    if tokenizer.eos_token_id != truth.end_id:
        yield (
            f"{folder}/{CONFIG}, eos_token: found {tokenizer.eos_token!r}, expected {truth.end!r}, "
            "which ends an answer"
        )
    # Servers read the first, and the second where there is none.
    files = ("generation_config.json", "config.json")
    name = next((name for name in files if (folder / name).exists()), None)
    if name is None:
        return
    stops = read_json(folder / name).get("eos_token_id")
    if truth.end_id not in (stops if isinstance(stops, list) else [stops]):
        yield (
            f"{folder}/{name}, eos_token_id: found {stops}, expected {truth.end_id} ({truth.end}) "
            "among them; generation would not stop there"
        )
