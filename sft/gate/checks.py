"""The faults that ruin a model in silence: their names, what each is, and what to do about it.

docs/checks.md says of each why it ruins a model; a test holds both lists together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sft.errors import nearest


@dataclass(frozen=True)
class Check:
    """One kind of fault.

    `meaning` completes "…: 3 of 200 examples …", `remedy` what a person can do. `limit` is the
    share of a source's rows that may have it before it is refused, where the config says no other.
    A `decision` is a difference between trained and served text that a base config may accept for
    every source; all other faults are accepted for a source by name. What is not `acceptable`
    leaves nothing to train on.
    """

    meaning: str
    remedy: str
    limit: float = 0.0
    decision: bool = False
    acceptable: bool = True


# Of the rows of a source, whatever is made of them (sft/gate/conversation.py).
ROW_CHECKS = {
    "missing_column": Check(
        "lack a column that the registry names",
        "correct `columns` in the dataset registry, or the rows",
    ),
    "broken_messages": Check(
        "hold something else than a list of turns with a role and content",
        "correct the rows, or `columns` and `tags` in the dataset registry",
    ),
    "wrong_roles": Check(
        "hold a role that is not among the declared tags",
        "correct `tags` in the dataset registry, or drop the rows",
    ),
    "turn_order": Check(
        "do not alternate between user and assistant, or do not end in an answer",
        "merge or drop the turns that are out of order",
    ),
    "no_answer": Check("hold no answer", "drop them, or fill in the answer"),
    "empty_question": Check("hold a question without text", "drop these turns or rows"),
    "empty_answer": Check(
        "hold an answer without text: a bare end of turn would be trained",
        "drop these turns or rows",
    ),
    "not_text": Check(
        "hold content that is no text (null, a list of parts, a number)",
        "write the text out, or drop the rows",
    ),
    "late_system": Check(
        "hold a system turn that is not the first: templates drop or refuse it",
        "move its text into the first system turn or a user turn",
    ),
    "broken_tools": Check(
        "list tools that are no JSON list of functions with names",
        "correct the tools column; without tools it is empty",
    ),
    "broken_call": Check(
        "hold a tool call that is no JSON with a name and arguments",
        "correct the call, or drop the rows",
    ),
    "unknown_tool": Check(
        "call a tool that their list of tools does not hold",
        "add the tool to the list, or drop the rows",
    ),
    "unanswered_call": Check(
        "hold a tool call without its result, or a result without its call",
        "fill in what is missing, or drop the rows",
    ),
    "padded_arguments": Check(
        "hold tool calls or schemas with keys of other rows, set to null by a table format",
        "store arguments and tools as JSON text, not as nested columns",
    ),
    "ignored_fields": Check(
        "hold tool calls or reasoning in fields that this formatting does not read",
        "write them into the turns' content, in the words of the formatting",
    ),
    "unread_column": Check(
        "hold a system text, tools, input or history in a column that the registry does not name",
        "name it under `columns` in the dataset registry, or drop the column",
    ),
    "reasoning_only": Check(
        "hold an answer that is reasoning and nothing else",
        "drop these rows: the model would learn to think and not to answer",
    ),
    "broken_reasoning": Check(
        "hold reasoning markers that do not pair, or stand in a user's turn",
        "close each block once, before the answer, or drop the rows",
    ),
    "foreign_markers": Check(
        "spell control strings of another family of templates in their text",
        "take them out: they are trained as text, in pieces",
    ),
    "control_in_text": Check(
        "spell a control string of this tokenizer in their text: it becomes the control token",
        "rewrite or drop the rows",
    ),
    "looping_answer": Check(
        "hold an answer that says the same over and over",
        "drop them: the model would learn not to end",
    ),
    "damaged_text": Check(
        "hold text that was damaged on its way (replacement characters, wrong decoding)",
        "decode the source again with the right encoding, or drop the rows",
    ),
    "duplicate_rows": Check(
        "are repetitions of other rows of the source",
        "drop the repetitions; more weight is given by `probabilities` or epochs",
        limit=0.01,
    ),
    "repeated_answer": Check(
        "share one long answer, word for word",
        "drop most of them, or accept it",
        limit=0.05,
    ),
    "lost_rows": Check(
        "vanished in tokenizing for no reason that is known here",
        "read the log of pretokenize",
    ),
}

# Of the tokens, whoever made them (sft/gate/structure.py, sft/gate/comparison.py).
TOKEN_CHECKS = {
    "broken_tokens": Check(
        "hold labels or ids that no trainer can mean (label beside its id, id beyond the "
        "vocabulary, masked attention, more tokens than the cutoff)",
        "tokenize again: move the tokens folder away",
        acceptable=False,
    ),
    "no_loss": Check("have no token with a loss", "drop them: they teach nothing"),
    "prompt_in_loss": Check(
        "train on what the model is only to read: system, user, tool results or turn headers",
        "leave out train_on_prompt; correct the template's mask",
    ),
    "answer_not_in_loss": Check(
        "hold an answer, or a part of one, without a loss",
        "correct the template's mask; mask_history trains last answers alone",
    ),
    "end_not_in_loss": Check(
        "do not train the end of the turn: the model never stops",
        "correct the template: the end of the turn belongs to the answer",
    ),
    "no_end": Check(
        "hold an answer without an end of turn, though nothing was cut",
        "correct the template: the end of the turn belongs to the answer",
    ),
    "truncated_answer": Check(
        "lose the end of an answer at the cutoff",
        "raise cutoff_len, or split or drop the long rows",
        limit=0.01,
    ),
    "truncated_question": Check(
        "lose the end of a question at the cutoff: the answer follows on half of it",
        "raise cutoff_len, or split or drop the long rows",
        limit=0.01,
    ),
    "truncated_turns": Check(
        "lose whole turns at the cutoff",
        "raise cutoff_len, or split or drop the long rows",
        limit=0.01,
    ),
    "other_answer": Check(
        "train another text than the assistant's as it will be served",
        "correct the template, or the rows that it changes",
    ),
    "other_prompt": Check(
        "show the model another prompt than it will be served",
        "train with the template that is served, or serve with the one that is trained",
        decision=True,
    ),
    "unserved_text": Check(
        "hold turns, text or tools that the served template leaves out",
        "train with a template whose jinja renders them, or take them out of the rows",
        decision=True,
    ),
    "split_control": Check(
        "hold other control tokens than the served rendering: one is split, missing or too much",
        "train with a template of this tokenizer's own control strings",
    ),
    "empty_reasoning": Check(
        "train an empty block of reasoning that will not be served, or the other way round",
        "set enable_thinking: false, or a template without reasoning, or accept it",
        decision=True,
    ),
    "masked_reasoning": Check(
        "show the model an empty block of reasoning without a loss where none will be served",
        "accept it and serve with enable_thinking false, or train with another template",
        decision=True,
    ),
    "old_reasoning": Check(
        "hold reasoning in earlier turns that will not be served, or lack what will be",
        "strip it from earlier turns of the data, or serve with a template that keeps it, "
        "or accept it",
        decision=True,
    ),
    "stripped_reasoning": Check(
        "lose the reasoning of the answer that is trained",
        "set enable_thinking: true, or take the reasoning out of the data",
        decision=True,
    ),
    "kept_reasoning": Check(
        "train reasoning though enable_thinking is false",
        "write the block as the template does, line breaks around it, or take it out of the rows",
        decision=True,
    ),
    "added_date": Check(
        "hold a date that the template adds by itself: other tokens on another day",
        "train with a template that adds none",
        decision=True,
    ),
    "added_text": Check(
        "hold a system text that the template adds by itself and that will not be served, or the "
        "other way round",
        "write the system text into the rows, or set default_system",
        decision=True,
    ),
    "low_trained_share": Check(
        "train hardly any token of a source",
        "look at the preview: is the answer really what is trained?",
        acceptable=True,
    ),
}

PACKS = "packed examples"  # in place of a source

CHECKS: Mapping[str, Check] = ROW_CHECKS | TOKEN_CHECKS


def acceptance_faults(
    entries: Iterable[str], sources: Sequence[str], known_only: bool, where: str
) -> list[str]:
    """One line for each entry of `accept` that names no fault, or (`known_only`) no source.

    An entry is `source:fault`, or for a decision about the template `fault` alone.
    """
    lines = []
    for entry in entries:
        source, _, fault = entry.rpartition(":")
        place = f"{where}, accept: found {entry!r}"
        if fault not in CHECKS:
            lines.append(f"{place}; {nearest(fault, CHECKS)}")
        elif not CHECKS[fault].acceptable:
            lines.append(f"{place}; {fault} cannot be accepted: nothing could be trained on")
        elif source and known_only and source not in sources:
            lines.append(f"{place}; the mix has no source {source!r}; {nearest(source, sources)}")
        elif not source and not CHECKS[fault].decision:
            lines.append(f"{place}, expected its source too, as in {sources[0]}:{fault}")
    return lines


def check_limit_faults(limits: Mapping[str, float], where: str) -> list[str]:
    """One line for each limit of the config that names no fault."""
    return [
        f"{where}, check_limits, {name}: unknown fault; {nearest(name, CHECKS)}"
        for name in limits
        if name not in CHECKS
    ]
