"""A template against a model's tokenizer and embedding: what fits, and each way not to."""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from sft.backends import llamafactory
from sft.gate.vocabulary import template_faults
from sft.templates import CUSTOM_TEMPLATES
from tests.tokenizers import llama3, qwen
from tests.unit.test_weights import write_matrices

CHATML = {
    "strings": ["<|im_end|>", "<|im_start|>"],
    "tags": ["</think>", "<think>"],
    "end": "<|im_end|>",
    "eos": "<|im_end|>",
}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 256, 257, 258
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
WIDTH = 8
RESERVED = {
    "<|reserved_special_token_0|>": "<|start_think|>",
    "<|reserved_special_token_1|>": "<|end_think|>",
    "<|reserved_special_token_2|>": "<|tool_call|>",
    "<|reserved_special_token_3|>": "<|tool_call_end|>",
    "<|reserved_special_token_4|>": "<|tool_result|>",
    "<|reserved_special_token_5|>": "<|tool_result_end|>",
}


def write_tokenizer(
    folder: Path, special: Iterable[str] = SPECIAL, plain: Iterable[str] = (), **config: Any
) -> None:
    """A tokenizer of the 256 bytes, `plain` words that are no added tokens, and special tokens."""
    letters = sorted(ByteLevel.alphabet())
    known = {letter: row for row, letter in enumerate([*letters, *plain])}
    tokenizer = Tokenizer(BPE(vocab=known, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteDecoder()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|im_end|>"} | config)


def write_weights(
    folder: Path,
    height: int,
    changed: Mapping[str, Mapping[int, float]] | None = None,
    dtype: str = "BF16",
    tied: bool = False,
) -> None:
    """An embedding and, where not tied, a head of random rows; `changed` scales rows by matrix."""
    names = [EMBEDDING] if tied else [EMBEDDING, HEAD]
    matrices = {}
    for seed, name in enumerate(names):
        values = np.random.default_rng(seed).normal(size=(height, WIDTH)).astype(np.float32)
        for row, factor in (changed or {}).get(name, {}).items():
            values[row] *= factor
        matrices[name] = (dtype, values)
    write_matrices(folder / "model.safetensors", **matrices)
    write_json(folder / "config.json", {"vocab_size": height, "tie_word_embeddings": tied})


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose tokenizer fits ChatML, untied, with rows to spare."""
    write_tokenizer(tmp_path)
    write_weights(tmp_path, 272)
    return tmp_path


def faults(model: Path, description: Mapping[str, Any] = CHATML, **others: Mapping) -> list[str]:
    return template_faults(model, description, "chatml", "tiny", others)


# --- Control strings -----------------------------------------------------------------------------


def test_a_template_that_fits_has_no_faults(model):
    assert faults(model) == []


def test_a_control_string_of_several_tokens_is_refused_with_its_tokens(model):
    write_tokenizer(model, SPECIAL[:1] + SPECIAL[2:])

    [fault] = faults(model)
    assert fault.startswith(
        "model tiny, template chatml: control string '<|im_start|>' is 12 tokens: "
    )
    assert "and 4 more, expected one added token; take a template of this tokenizer" in fault


def test_a_string_that_is_in_the_vocabulary_by_accident_is_refused(model):
    write_tokenizer(model, ["<|endoftext|>", "<|im_end|>"], plain=["<|im_start|>"])

    [fault] = faults(model)
    assert "'<|im_start|>' is token 256 by accident, split where other letters touch it" in fault


def test_an_added_token_need_not_be_marked_special(model):
    content = json.loads((model / "tokenizer.json").read_text())
    for token in content["added_tokens"]:
        token["special"] = False
    write_json(model / "tokenizer.json", content)

    assert faults(model) == []


def test_a_token_that_only_the_tokenizer_config_lists_counts(model):
    write_tokenizer(model, SPECIAL[:2], added_tokens_decoder={"258": {"content": "<|im_end|>"}})

    assert faults(model) == []


def test_templates_that_fit_are_named_in_the_remedy(model):
    header = {"strings": ["<|eot|>", "<|header|>"], "end": "<|eot|>", "eos": "<|eot|>"}
    without_end = {"strings": ["<|im_end|>"]}

    found = faults(model, header, chatml=CHATML, other=header, raw=without_end, plain={"end": "x"})
    assert [line.rpartition("; ")[2] for line in found] == [
        "take a template of this tokenizer: chatml"
    ] * 2


def test_a_renamed_token_in_one_of_the_two_files_is_refused(model):
    # transformers would add the other name as token 259, without a row.
    listed = {"256": {"content": "<|start_think|>"}, "257": {"content": "<|im_start|>"}}
    write_tokenizer(model, added_tokens_decoder=listed)

    [fault] = faults(model)
    assert "256 is '<|start_think|>', there '<|endoftext|>'" in fault


# --- Tags ----------------------------------------------------------------------------------------


def test_tags_may_all_be_tokens(model):
    write_tokenizer(model, [*SPECIAL, "<think>", "</think>"])

    assert faults(model) == []


def test_a_pair_of_tags_of_which_one_is_a_token_is_refused(model):
    write_tokenizer(model, [*SPECIAL, "<think>"])

    [fault] = faults(model)
    assert "tag '<think>' is token 259, '</think>' is 8 tokens: " in fault


def test_a_tag_that_is_a_token_needs_a_row(model):
    write_tokenizer(model, [*SPECIAL, "<think>", "</think>"])
    write_weights(model, 272, {EMBEDDING: {260: 0.0}})

    [fault] = faults(model)
    assert f"the row of '</think>' (260) in {EMBEDDING} was never trained" in fault


# --- The end of a turn ---------------------------------------------------------------------------


def test_a_template_without_end_of_turn_is_refused(model):
    [fault] = faults(model, {})

    assert "no end of turn is trained, so what is generated never stops" in fault


def test_an_end_of_turn_that_is_not_what_generation_stops_at_is_refused(model):
    # B07: LLaMA-Factory's `smollm` leaves the end token of the tokenizer.
    kept = {key: value for key, value in CHATML.items() if key != "eos"}
    write_tokenizer(model, eos_token="<|endoftext|>")

    [fault] = faults(model, kept)
    assert "answers end in '<|im_end|>' (258), and the trained model will stop at" in fault
    assert "will stop at <|endoftext|>: it would run on after each answer" in fault
    assert "or add 258 to eos_token_id in the model's generation_config.json" in fault


@pytest.mark.parametrize("stops", [258, [256, 258]])
def test_the_generation_config_can_name_the_end_of_turn(model, stops):
    kept = {key: value for key, value in CHATML.items() if key != "eos"}
    write_tokenizer(model, eos_token="<|endoftext|>")
    write_json(model / "generation_config.json", {"eos_token_id": stops})

    assert faults(model, kept) == []


def test_the_model_config_counts_where_there_is_no_generation_config(model):
    kept = {key: value for key, value in CHATML.items() if key != "eos"}
    write_tokenizer(model, eos_token="<|endoftext|>")
    write_json(model / "config.json", {"vocab_size": 272, "eos_token_id": 258})

    assert faults(model, kept) == []


def test_the_trainer_makes_the_end_of_turn_the_end_token(model):
    write_tokenizer(model, eos_token="<|endoftext|>")
    write_json(model / "generation_config.json", {"eos_token_id": 256})

    assert faults(model) == []


def test_a_template_that_ends_in_the_tokenizers_end_token_needs_one(model):
    own_end = {"end": "eos_token"}
    assert faults(model, own_end) == []

    write_tokenizer(model, eos_token=None)
    [fault] = faults(model, own_end)
    assert "tokenizer_config.json names none" in fault


def test_an_end_token_written_as_an_object_is_read(model):
    write_tokenizer(model, eos_token={"content": "<|endoftext|>", "lstrip": False})

    assert faults(model, {"end": "eos_token"}) == []


def test_special_tokens_map_counts_where_the_tokenizer_config_lists_no_tokens(model):
    write_tokenizer(model, eos_token=None)
    write_json(model / "special_tokens_map.json", {"eos_token": "<|endoftext|>"})

    assert faults(model, {"end": "eos_token"}) == []


def test_a_template_with_a_start_token_needs_one(model):
    begun = CHATML | {"bos": True}
    [fault] = faults(model, begun)
    assert "conversations begin with the tokenizer's start token" in fault

    write_tokenizer(model, bos_token="<|endoftext|>")
    assert faults(model, begun) == []


# --- Rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("matrix", [EMBEDDING, HEAD])
def test_a_row_of_zeros_is_refused_in_either_matrix(model, matrix, dtype):
    write_weights(model, 272, {matrix: {257: 0.0}}, dtype)  # B12

    [fault] = faults(model)
    assert f"the row of '<|im_start|>' (257) in {matrix} was never trained: its norm is 0" in fault
    assert "set the row to a mean of others" in fault


def test_a_row_of_zeros_is_refused_once_where_the_head_is_tied(model):
    write_weights(model, 272, {EMBEDDING: {257: 0.0}}, tied=True)

    assert len(faults(model)) == 1


def test_a_head_in_the_file_of_a_tied_model_is_not_read(model):
    write_weights(model, 272, {HEAD: {257: 0.0}})
    write_json(model / "config.json", {"vocab_size": 272, "tie_word_embeddings": True})

    assert faults(model) == []


def test_a_row_that_only_weight_decay_has_moved_is_refused(model):
    write_weights(model, 272, {EMBEDDING: {258: 1e-5}})

    assert "its norm is" in faults(model)[0]


def test_rows_that_were_set_to_a_mean_are_usable(model):
    # Of 4000 rows without a common direction: the shortest mean that there can be.
    values = np.random.default_rng(0).normal(size=(4000, WIDTH)).astype(np.float32)
    values[256:259] = values.mean(0)
    write_matrices(model / "model.safetensors", **{EMBEDDING: ("BF16", values)})
    write_json(model / "config.json", {"vocab_size": 4000})

    assert faults(model) == []


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_refused(model, factor):
    write_weights(model, 272, {HEAD: {258: factor}})

    [fault] = faults(model)
    assert f"the row of '<|im_end|>' (258) in {HEAD} is not finite" in fault


def test_other_empty_rows_are_no_matter(model):
    write_weights(model, 272, {EMBEDDING: {3: 0.0, 256: 0.0, 270: 0.0}})

    assert faults(model) == []


def test_weights_without_ordinary_rows_are_refused_once(model):
    write_weights(model, 272, {EMBEDDING: dict.fromkeys(range(272), 0.0)}, tied=True)

    [fault] = faults(model)
    assert "rows of ordinary tokens are empty" in fault


def test_a_tokenizer_longer_than_the_embedding_is_refused(model):
    write_weights(model, 258, tied=True)

    [fault] = faults(model)
    assert (
        f"the tokenizer has ids up to 258, {EMBEDDING} has 258 rows: none for <|im_end|>" in fault
    )


def test_a_padding_token_that_is_not_in_the_vocabulary_makes_it_longer(model):
    write_weights(model, 259, tied=True)
    assert faults(model) == []

    write_tokenizer(model, pad_token="[PAD]")
    assert "none for [PAD]" in faults(model)[0]


def test_an_end_token_that_is_not_in_the_vocabulary_is_none(model):
    write_tokenizer(model, eos_token="</s>")

    [fault] = faults(model, {"end": "eos_token"})
    assert "control string '</s>' is 4 tokens: " in fault


def test_another_vocabulary_size_in_the_config_is_refused(model):
    write_json(model / "config.json", {"vocab_size": 280, "tie_word_embeddings": False})

    assert (
        "has 272 rows, config.json says vocab_size 280: the model does not load"
        in (faults(model)[0])
    )


def test_a_head_that_is_not_there_is_refused(model):
    write_weights(model, 272, tied=True)
    write_json(model / "config.json", {"vocab_size": 272, "tie_word_embeddings": False})

    [fault] = faults(model)
    assert "the weights hold no head, expected a tensor *lm_head.weight" in fault


def test_rows_are_found_in_the_shard_that_holds_them(model):
    rows = np.random.default_rng(0).normal(size=(272, WIDTH)).astype(np.float32)
    rows[257] = 0
    (model / "model.safetensors").unlink()
    write_matrices(model / "model-1.safetensors", other=("F32", rows[:2]))
    write_matrices(model / "model-2.safetensors", **{EMBEDDING: ("BF16", rows)})
    places = {"other": "model-1.safetensors", EMBEDDING: "model-2.safetensors"}
    write_json(model / "model.safetensors.index.json", {"weight_map": places})
    write_json(model / "config.json", {"text_config": {"vocab_size": 272}})

    assert len(faults(model)) == 1


# --- Files that are not there --------------------------------------------------------------------


def test_a_missing_tokenizer_is_named(model):
    (model / "tokenizer.json").unlink()

    [fault] = faults(model)
    assert "tokenizer.json: missing; make it, with transformers: AutoTokenizer" in fault


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\x00"])
def test_a_damaged_tokenizer_is_named(model, text):
    (model / "tokenizer.json").write_text(text)

    [fault] = faults(model)
    assert "tokenizer.json: damaged" in fault


def test_a_tokenizer_without_tokens_is_named(model):
    Tokenizer(BPE()).save(str(model / "tokenizer.json"))

    [fault] = faults(model)
    assert "tokenizer.json: damaged: it holds no token" in fault


def test_faults_of_the_tokenizer_are_told_though_the_weights_are_missing(model):
    write_tokenizer(model, SPECIAL[:2])
    (model / "model.safetensors").unlink()

    split, missing = faults(model)
    assert "'<|im_end|>'" in split and "model.safetensors: missing" in missing


# --- The templates of LLaMA-Factory and ours -----------------------------------------------------

DESCRIPTIONS = llamafactory.template_descriptions()


SHIPPED = llamafactory.shipped_templates()


def test_every_template_that_can_be_chosen_is_described():
    assert [*llamafactory.known_keys()["template"]["choices"]] == [*DESCRIPTIONS]


def test_the_shipped_templates_are_ours_and_those_of_the_base_configs():
    assert {*CUSTOM_TEMPLATES, "qwen3", "qwen3_nothink"} <= {*SHIPPED} < {*DESCRIPTIONS}


def test_control_strings_of_reasoning_may_be_plain_text():
    assert DESCRIPTIONS["qwen3"]["strings"] == ["<|im_end|>", "<|im_start|>"]
    assert {"<think>", "</think>", "<tool_call>"} <= {*DESCRIPTIONS["qwen3"]["tags"]}


def test_strings_of_a_template_of_ours_are_those_of_its_jinja():
    assert {*RESERVED.values()} < {*DESCRIPTIONS["delphi"]["strings"]}


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("qwen3", "<|im_end|>"),
        ("llama3", "<|eot_id|>"),
        ("gemma3", "<end_of_turn>"),
        ("default", "eos_token"),
        ("glm4", "eos_token"),
        ("minimax2", "[e~["),
        ("empty", None),
    ],
)
def test_the_end_of_an_answer_is_described(template, end):
    assert DESCRIPTIONS[template].get("end") == end


def test_templates_that_name_the_date_are_marked():
    dated = {name for name, each in DESCRIPTIONS.items() if each.get("uses_date")}

    assert "llama3" in dated and not dated & {*SHIPPED}


def test_only_reasoning_templates_have_thought_words():
    assert DESCRIPTIONS["qwen3"]["thought_words"] == ["<think>\n", "\n</think>\n\n"]
    assert "thought_words" not in DESCRIPTIONS["qwen3_nothink"]


# --- The real tokenizers -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Models of random rows with the tokenizers of Llama-3, of a prepared Delphi, and of Qwen."""
    models = {name: tmp_path_factory.mktemp(name) for name in ("llama3", "delphi", "qwen")}
    for name, source in {"llama3": llama3(), "delphi": llama3(), "qwen": qwen()}.items():
        for file in source.iterdir():
            shutil.copy(file, models[name])
        # As in the released models: Qwen's embedding has rows to spare.
        write_weights(models[name], {"qwen": 151936}.get(name, 128256), dtype="F32", tied=True)
    for file in models["delphi"].iterdir():
        if file.suffix == ".json":
            text = file.read_text()
            for slot, string in RESERVED.items():
                text = text.replace(f'"{slot}"', f'"{string}"')
            file.write_text(text)
    return models


def real_faults(model: Path, template: str) -> list[str]:
    return template_faults(model, DESCRIPTIONS[template], template, model.name, SHIPPED)


@pytest.mark.parametrize("template", SHIPPED)
def test_a_shipped_template_fits_one_real_tokenizer_and_no_other(real, template):
    right, wrong = ("delphi", "qwen") if template == "delphi" else ("qwen", "delphi")

    assert real_faults(real[right], template) == []
    assert real_faults(real[wrong], template)


def test_chatml_on_a_llama3_tokenizer_is_refused_with_the_templates_that_fit(real):
    [end, start] = real_faults(real["delphi"], "qwen3")

    assert "'<|im_end|>' is 6 tokens: 27, 91, 318, 6345, 91, 29, expected one" in end
    assert "'<|im_start|>' is 6 tokens: 27, 91, 318, 5011, 91, 29, expected one" in start
    assert start.endswith("take a template of this tokenizer: delphi")


def test_chatml_on_an_unprepared_delphi_checkpoint_is_refused_with_the_way_to_delphi(real):
    found = real_faults(real["llama3"], "qwen3")

    assert len(found) == 2
    assert all(
        "for a Delphi checkpoint take delphi, and prepare it first" in line for line in found
    )


def test_delphi_on_an_unprepared_checkpoint_says_how_to_prepare_it(real):
    found = real_faults(real["llama3"], "delphi")

    assert len(found) == len(RESERVED)
    assert all("prepare_delphi_tokenizer.py --model CKPT --output DIR" in line for line in found)


@pytest.mark.parametrize("tied", [True, False])
def test_reserved_slots_of_zeros_are_refused_with_the_command_that_fills_them(real, tmp_path, tied):
    for file in real["delphi"].iterdir():
        shutil.copy(file, tmp_path)
    slots = dict.fromkeys((128002, 128003, 128005, 128011, 128012, 128013), 0.0)
    write_weights(tmp_path, 128256, {EMBEDDING: slots, HEAD: slots}, tied=tied)

    found = real_faults(tmp_path, "delphi")
    assert len(found) == len(slots) * (1 if tied else 2)
    assert all("was never trained" in line and "prepare_delphi" in line for line in found)
