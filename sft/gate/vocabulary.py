"""A template against the tokenizer and the embedding of a model, before anything is tokenized.

A template that does not fit its tokenizer is the costliest silent fault: training runs, the loss
falls, and every turn was held together by letters. No template is guessed from an architecture:
Delphi's is Qwen3's and its tokenizer Llama-3's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from sft.errors import SftError, first_few, gathered
from sft.files import read_json
from sft.weights import EMBEDDINGS, HEADS, Tensor, read_rows, read_weights_index

# A row shorter than this share of the median ordinary row was never trained. A new row is as short
# as 1/√n of that where it is the mean of n rows without a common direction: 1/358 of it for the
# 128000 of Llama-3, the usual way to prepare one. Rows that were left at zero, or that weight decay
# alone has moved since, are far below.
LEAST_NORM = 1e-3
NUM_ORDINARY = 64

# The word by which a description says that answers end in the tokenizer's own end token.
OWN_END = "eos_token"

# Where tokenizer_config.json names special tokens: one each, and lists of more.
NAMED_TOKENS = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)
MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")

# Llama-3's name for ids without a use yet, which the delphi template takes for its own strings.
RESERVED = "<|reserved_special_token_"
PREPARE_DELPHI = (
    "prepare it first: `prepare: delphi` in the models file, or "
    "python sft/delphi/prepare_delphi_tokenizer.py --model CKPT --output DIR"
)
NEW_ROW = "start from a model that was trained with it, or set the row to a mean of others"


@dataclass(frozen=True)
class Vocabulary:
    """A model's tokenizer as transformers loads it.

    `added` maps each added token, which text is split at, to its id. `unknown` are special tokens
    that `config`, tokenizer_config.json, names by their use alone: transformers gives them the
    next ids. `size` is one more than the largest id. `stops` are the tokens that the model's own
    files say generation stops at.
    """

    tokenizer: Tokenizer
    config: Mapping[str, Any]
    added: Mapping[str, int]
    unknown: Sequence[str]
    size: int
    stops: Sequence[str]

    def named(self, key: str) -> str | None:
        """The text of `bos_token` or `eos_token`, None where the tokenizer has none."""
        token = self.config.get(key)
        return token["content"] if isinstance(token, dict) else token

    def show(self, string: str) -> str:
        """What a string is to the tokenizer, for a message."""
        if string in self.added:
            return f"token {self.added[string]}"
        ids = self.tokenizer.encode(string, add_special_tokens=False).ids
        if len(ids) == 1:
            return f"token {ids[0]} by accident, split where other letters touch it"
        return f"{len(ids)} tokens: {first_few(ids)}"


def template_faults(
    model_folder: Path,
    description: Mapping[str, Any],
    template: str,
    model_name: str,
    others: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[str]:
    """One line for each way in which a template does not fit the tokenizer and weights of a model.

    `description` is the backend's `template_description`; `others` are those of the templates that
    a remedy may name, the likeliest first. Control strings have to be one token each, with a row in
    the embedding and the output head that training has seen or that was set to a mean; answers have
    to end in what generation stops at once the run is saved.

    Tags of reasoning, tool calls and results may be tokens or plain text (<think> is a token of
    Qwen3, and text of the models distilled to Qwen2.5): both train and serve alike. But a pair has
    to be of one kind, and tokens have to have rows. That a tokenizer would itself begin each text
    with its start token is no fault: templates are tokenized without.
    """
    where = f"model {model_name}, template {template}"
    faults: list[str] = []
    with gathered(faults):
        vocabulary = read_vocabulary(model_folder)
        remedy = _remedy(vocabulary, description, template, others or {})
        faults += _tokenizer_faults(vocabulary, description, remedy)
        faults += _file_faults(vocabulary)
        faults += _weight_faults(vocabulary, description, model_folder, remedy)
    return [f"{where}: {fault}" for fault in faults]


def read_vocabulary(folder: Path) -> Vocabulary:
    """The tokenizer in a model's folder; SftError where tokenizer.json is missing or damaged.

    Added tokens that only tokenizer_config.json lists come after all others, as in transformers.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise SftError(
            f"{path}: missing; make it, with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise SftError(f"{path}: damaged: {error}; fetch the model again") from error
    config = _read_optional(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:  # of before it: transformers reads both then
        config = config | _read_optional(folder / "special_tokens_map.json")
    tokenizer.add_tokens(
        [
            AddedToken(text, normalized=False, special=True)
            for text in _listed(config).values()
            if tokenizer.token_to_id(text) is None
        ]
    )
    added = {token.content: row for row, token in tokenizer.get_added_tokens_decoder().items()}
    known = tokenizer.get_vocab(with_added_tokens=True)
    if not known:
        raise SftError(f"{path}: damaged: it holds no token; fetch the model again")
    unknown = [text for text in dict.fromkeys(_named(config)) if text not in known]
    size = 1 + max(known.values()) + len(unknown)
    return Vocabulary(tokenizer, config, added, unknown, size, _read_stops(folder, known))


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _listed(config: Mapping[str, Any]) -> dict[int, str]:
    """The added tokens that tokenizer_config.json lists, by id."""
    listed = config.get("added_tokens_decoder") or {}
    return {int(row): listed[row]["content"] for row in sorted(listed, key=int)}


def _named(config: Mapping[str, Any]) -> list[str]:
    """The special tokens that tokenizer_config.json names by their use, or without one."""
    tokens = [config.get(key) for key in NAMED_TOKENS]
    for key in MORE_TOKENS:
        more = config.get(key) or ()
        tokens += more.values() if isinstance(more, dict) else more
    return [token["content"] if isinstance(token, dict) else token for token in tokens if token]


def _read_stops(folder: Path, known: Mapping[str, int]) -> list[str]:
    """The tokens that generation stops at: of generation_config.json, else of config.json."""
    generation = folder / "generation_config.json"
    config = _read_optional(generation if generation.exists() else folder / "config.json")
    rows = config.get("eos_token_id")
    texts = {row: text for text, row in known.items()}
    return [
        texts.get(row, f"id {row}") for row in ([rows] if isinstance(rows, int) else rows or [])
    ]


def fitting_templates(
    vocabulary: Vocabulary, descriptions: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """The names of the templates that have control strings and fit the tokenizer."""
    return [
        name
        for name, description in descriptions.items()
        if "strings" in description and not _tokenizer_faults(vocabulary, description, remedy="")
    ]


def _remedy(
    vocabulary: Vocabulary,
    description: Mapping[str, Any],
    template: str,
    others: Mapping[str, Mapping[str, Any]],
) -> str:
    """What to do about tokens that are not there, or that no training has seen."""
    has_all = all(text in vocabulary.added for text in description.get("strings", ()))
    has_reserved = any(text.startswith(RESERVED) for text in vocabulary.added)
    if template == "delphi" and (has_all or has_reserved):
        return PREPARE_DELPHI + (f"; or, for a row that this leaves, {NEW_ROW}" if has_all else "")
    if has_all:
        return NEW_ROW
    fitting = fitting_templates(vocabulary, others)
    remedy = f"take a template of this tokenizer{': ' if fitting else ''}{first_few(fitting)}"
    if has_reserved and "delphi" in others and "delphi" not in fitting:
        remedy += f"; for a Delphi checkpoint take delphi, and {PREPARE_DELPHI}"
    return remedy


def _end_token(vocabulary: Vocabulary, description: Mapping[str, Any]) -> str | None:
    """The tokenizer's end token once the trainer has set it."""
    return description.get("eos") or vocabulary.named("eos_token")


def _tokenizer_faults(
    vocabulary: Vocabulary, description: Mapping[str, Any], remedy: str
) -> list[str]:
    """What the tokenizer lacks that the template puts between and after turns."""
    faults = [
        f"control string {string!r} is {vocabulary.show(string)}, expected one added token; "
        f"{remedy}"
        for string in _controls(vocabulary, description)
        if string not in vocabulary.added
    ]
    tags = description.get("tags", ())
    for tag, closing in ((tag, f"{tag[0]}/{tag[1:]}") for tag in tags):
        if closing in tags and (tag in vocabulary.added) != (closing in vocabulary.added):
            faults.append(
                f"tag {tag!r} is {vocabulary.show(tag)}, {closing!r} is "
                f"{vocabulary.show(closing)}, expected a token each, or plain text both; "
                "add the other to tokenizer.json's added tokens, or remove this one"
            )
    if description.get("bos") and not vocabulary.named("bos_token"):
        faults.append(
            "conversations begin with the tokenizer's start token, and tokenizer_config.json names "
            "none: nothing would stand there; set bos_token, or take a template without"
        )
    return faults + _end_faults(vocabulary, description)


def _controls(vocabulary: Vocabulary, description: Mapping[str, Any]) -> list[str]:
    """The strings that have to be one token: the template's, and the tokenizer's that it uses."""
    start = vocabulary.named("bos_token") if description.get("bos") else None
    is_own = description.get("end") == OWN_END
    end = _end_token(vocabulary, description) if is_own else None
    return list(dict.fromkeys([*description.get("strings", ()), *filter(None, (start, end))]))


def _end_faults(vocabulary: Vocabulary, description: Mapping[str, Any]) -> list[str]:
    """Answers do not end, or in a token at which the trained model will not stop.

    The saved generation_config.json stops at the tokenizer's end token, which the trainer has set
    where the template says so, and at what stood there before (or in config.json, where there was
    no such file): measured with LLaMA-Factory 0.9.5 and transformers 5.6, which writes it so when
    training starts.
    """
    end, own = description.get("end"), _end_token(vocabulary, description)
    if end is None:
        return [
            "no end of turn is trained, so what is generated never stops; take a template whose "
            "answers end in a control string"
        ]
    if end == OWN_END and own is None:
        return [
            "answers end in the tokenizer's end token, and tokenizer_config.json names none: the "
            "trainer would add one without a row; set eos_token to the token that ends a text"
        ]
    stops = dict.fromkeys([own, *vocabulary.stops] if own else vocabulary.stops)
    if end == OWN_END or end in stops or end not in vocabulary.added:
        return []
    return [
        f"answers end in {end!r} ({vocabulary.added[end]}), and the trained model will stop at "
        f"{first_few(stops) or 'nothing'}: it would run on after each answer; take a template that "
        f"makes {end!r} the end token, or add {vocabulary.added[end]} to eos_token_id in the "
        "model's generation_config.json"
    ]


def _file_faults(vocabulary: Vocabulary) -> list[str]:
    """Added tokens of which tokenizer.json and tokenizer_config.json say different things.

    transformers adds the second name as a new token, for which the model has no row.
    """
    tokenizer = vocabulary.tokenizer
    odd = [
        f"{row} is {text!r}, there {tokenizer.id_to_token(row)!r}"
        for row, text in _listed(vocabulary.config).items()
        if tokenizer.token_to_id(text) != row
    ]
    if not odd:
        return []
    return [
        "tokenizer_config.json names added tokens that are others in tokenizer.json: "
        f"{first_few(odd)}; take both files from one model, or rename in both"
    ]


def _weight_faults(
    vocabulary: Vocabulary, description: Mapping[str, Any], model_folder: Path, remedy: str
) -> list[str]:
    """Tokens that lack a row in the embedding or the output head, or have one of no use."""
    config = read_json(model_folder / "config.json")
    text = config.get("text_config", config)
    is_tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
    tensors = read_weights_index(model_folder)
    kinds = {"embedding": EMBEDDINGS} if is_tied else {"embedding": EMBEDDINGS, "head": HEADS}
    matrices = {
        name: tensor
        for name, tensor in sorted(tensors.items())
        if any(name.endswith(endings) for endings in kinds.values())
    }
    faults = [
        f"the weights hold no {kind}, expected a tensor *{' or *'.join(endings)}; "
        "fetch or convert the model again"
        for kind, endings in kinds.items()
        # Without the key some architectures tie and some do not.
        if (kind == "embedding" or is_tied is False)
        and not any(name.endswith(endings) for name in matrices)
    ]
    strings = [*_controls(vocabulary, description), *description.get("tags", ())]
    rows = {string: vocabulary.added[string] for string in strings if string in vocabulary.added}
    for name, tensor in matrices.items():
        if len(tensor.shape) != 2 or 0 in tensor.shape:
            faults.append(f"{name} has shape {tensor.shape}, expected rows; fetch the model again")
            continue
        faults += _height_faults(vocabulary, name, tensor, text.get("vocab_size"))
        faults += _row_faults(vocabulary, model_folder / tensor.file, name, tensor, rows, remedy)
    return faults


def _height_faults(
    vocabulary: Vocabulary, name: str, tensor: Tensor, declared: int | None
) -> list[str]:
    """A matrix with fewer rows than the tokenizer has tokens, or than config.json says."""
    height, faults = tensor.shape[0], []
    if vocabulary.size > height:
        beyond = [text for text, row in vocabulary.added.items() if row >= height]
        beyond += vocabulary.unknown
        faults.append(
            f"the tokenizer has ids up to {vocabulary.size - 1}, {name} has {height} rows: none "
            f"for {first_few(beyond) or 'the last'}; take the model's own tokenizer files, or "
            "remove what was added to them"
        )
    if declared is not None and declared != height:
        faults.append(
            f"{name} has {height} rows, config.json says vocab_size {declared}: the model does not "
            "load; set vocab_size to the number of rows"
        )
    return faults


def _row_faults(
    vocabulary: Vocabulary,
    path: Path,
    name: str,
    tensor: Tensor,
    rows: Mapping[str, int],
    remedy: str,
) -> list[str]:
    """Rows of control strings that are not finite, or far shorter than ordinary rows."""
    height = tensor.shape[0]
    within = {string: row for string, row in rows.items() if row < height}
    others = np.setdiff1d(np.arange(min(vocabulary.size, height)), [*vocabulary.added.values()])
    spread = np.linspace(0, len(others) - 1, min(NUM_ORDINARY, len(others))).astype(int)
    ordinary = np.median(_norms(path, name, others[spread].tolist()))
    if not np.isfinite(ordinary) or not ordinary:
        return [f"{name}: rows of ordinary tokens are empty or not finite; fetch the model again"]
    faults = []
    for (string, row), norm in zip(
        within.items(), _norms(path, name, within.values()), strict=True
    ):
        if not np.isfinite(norm):
            faults.append(f"the row of {string!r} ({row}) in {name} is not finite; {remedy}")
        elif norm < LEAST_NORM * ordinary:
            faults.append(
                f"the row of {string!r} ({row}) in {name} was never trained: its norm is "
                f"{norm:.2g}, that of ordinary rows {ordinary:.2g}; {remedy}"
            )
    return faults


def _norms(path: Path, name: str, rows: Iterable[int]) -> np.ndarray:
    return np.linalg.norm(read_rows(path, name, rows).astype(np.float64), axis=1)
