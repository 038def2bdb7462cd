"""Small tokenizers, each with a chat template that has the habits of a public one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers


@dataclass(frozen=True)
class Family:
    """A chat template, the special tokens that it needs, and what it should be seen to have."""

    template: str
    controls: tuple[str, ...]
    header: str
    end: str
    tail: str = ""


# A loop over the turns; what is between the turns' own parts is the same in many templates.
TURNS = "{%%- for message in messages -%%}%s{%%- endfor -%%}"
CUE = "{%%- if add_generation_prompt -%%}{{- '%s' -}}{%%- endif -%%}"

CHATML = (
    TURNS
    % ("{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}")
    + CUE % "<|im_start|>assistant\\n"
)
TRIMS = CHATML.replace("message['content']", "message['content'] | trim")
OPENS_REASONING = CHATML.replace("assistant\\n'", "assistant\\n<think>\\n'")
LLAMA3 = (
    "{{- '<|begin_of_text|>' -}}"
    + TURNS
    % (
        "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' -}}"
        "{{- message['content'] | trim + '<|eot_id|>' -}}"
    )
    + CUE % "<|start_header_id|>assistant<|end_header_id|>\\n\\n"
)
GEMMA = (
    "{{- '<bos>' -}}"
    + TURNS
    % (
        "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}"
        "{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' -}}"
    )
    + CUE % "<start_of_turn>model\\n"
)
# These two have no generation prompt: the question's own end is what an answer follows.
MISTRAL = "{{- '<s>' -}}" + TURNS % (
    "{%- if message['role'] == 'user' -%}{{- '[INST] ' + message['content'] + '[/INST]' -}}"
    "{%- else -%}{{- ' ' + message['content'] + '</s>' -}}{%- endif -%}"
)
LLAMA2 = (
    "{%- if messages[0]['role'] == 'system' -%}"
    "{%- set head = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' -%}"
    "{%- set turns = messages[1:] -%}"
    "{%- else -%}{%- set head, turns = '', messages -%}{%- endif -%}"
    "{%- for message in turns -%}"
    "{%- if message['role'] == 'user' -%}"
    "{{- '<s>[INST] ' + (head if loop.first else '') + message['content'] + ' [/INST]' -}}"
    "{%- else -%}{{- ' ' + message['content'] + ' </s>' -}}{%- endif -%}"
    "{%- endfor -%}"
)
# Reasoning is taken out of the content at </think>; that of earlier turns is left out, and the last
# turn has a block even if there is nothing in it.
QWEN3 = TURNS % (
    "{%- set text, thought = message['content'], '' -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "{%- if '</think>' in text -%}"
    "{%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}"
    "{%- set text = text.split('</think>')[-1].lstrip('\\n') -%}"
    "{%- endif -%}"
    "{%- if loop.last -%}"
    "{%- set text = '<think>\\n' + thought + '\\n</think>\\n\\n' + text -%}"
    "{%- endif -%}"
    "{%- endif -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + text + '<|im_end|>\\n' -}}"
) + (
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}"
    "{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}{%- endif -%}"
)

IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
BRACKETS = ("<s>", "</s>", "[INST]", "[/INST]")

FAMILIES = {
    "chatml": Family(CHATML, IM, "<|im_start|>assistant\n", "<|im_end|>", "\n"),
    "trims": Family(TRIMS, IM, "<|im_start|>assistant\n", "<|im_end|>", "\n"),
    "opens_reasoning": Family(OPENS_REASONING, IM, "<|im_start|>assistant\n", "<|im_end|>", "\n"),
    "qwen3": Family(QWEN3, IM, "<|im_start|>assistant\n", "<|im_end|>", "\n"),
    "llama3": Family(
        LLAMA3, LLAMA, "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"
    ),
    "gemma": Family(
        GEMMA,
        ("<bos>", "<start_of_turn>", "<end_of_turn>"),
        "<start_of_turn>model\n",
        "<end_of_turn>",
        "\n",
    ),
    "mistral": Family(MISTRAL, BRACKETS, "[/INST]", "</s>"),
    "llama2": Family(LLAMA2, ("<s>", "</s>"), " [/INST]", "</s>"),
}


def write_family(folder: Path, family: Family) -> Path:
    """Write the family's tokenizer: one token a byte, and its special tokens."""
    return write_served(folder, family.template, family.controls)


def write_served(
    folder: Path,
    template: str | None,
    controls: Sequence[str],
    *,
    added: Sequence[str] = (),
    merges: Sequence[tuple[str, str]] = (),
    composes: bool = False,
) -> Path:
    """Write a tokenizer with one token a byte, the pairs in `merges`, and its added tokens.

    `added` are tokens that are not special. With `composes` it writes accents in one character, as
    Qwen's does.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*alphabet, *(first + second for first, second in merges)]
    numbers = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(numbers, list(merges)))
    if composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in controls])
    tokenizer.add_tokens([AddedToken(each, special=False, normalized=False) for each in added])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
