"""What axolotl's entry makes of conversations: tokens, labels, where they came from, counts."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from datasets import load_from_disk
from transformers import AutoTokenizer

from sft.trainers.axolotl import pretokenize
from sft.trainers.token_folder import IGNORED

CHECKOUT = Path(__file__).resolve().parents[2]
MODEL = CHECKOUT / "demo" / "smollm2-135m"
JINJA = CHECKOUT / "sft" / "templates" / "chatml_tools.jinja"
ASK = {"role": "user", "content": "What is the capital of France?"}
SAY = {"role": "assistant", "content": "Paris."}
TALK = [ASK, SAY]


def tokenize(folder: Path, sources: dict[str, list], mix: dict | None = None, **options) -> Path:
    """The folder that tokens/ lies in, made of lists of conversations by source."""
    request = folder / "request"
    (request / "sources").mkdir(parents=True)
    for name, conversations in sources.items():
        texts = [
            json.dumps(each if isinstance(each, dict) else {"messages": each})
            for each in conversations
        ]
        columns = {"row": pa.array(range(len(texts)), pa.int32()), "conversation": texts}
        pq.write_table(pa.table(columns), request / "sources" / f"{name}.parquet")
    rows = {name: len(conversations) for name, conversations in sources.items()}
    (request / "sources.json").write_text(json.dumps(rows))
    config = {
        "base_model": str(MODEL),
        "sequence_len": 64,
        "chat_template": "jinja",
        "chat_template_jinja": str(JINJA),
        "special_tokens": {"eos_token": "<|im_end|>"},
        "eot_tokens": ["<|im_end|>"],
        "excess_length_strategy": "truncate",
        "dataset_num_proc": 1,
        **options,
        "mix": {"sources": list(sources), "strategy": "concat", "probabilities": None, "seed": 7}
        | (mix or {}),
    }
    (request / "tokenize.yaml").write_text(yaml.safe_dump(config))
    pretokenize(request, folder / "tokens")
    return folder


def examples(folder: Path) -> list[dict]:
    return list(load_from_disk(str(folder / "tokens")))


def trained_text(folder: Path, example: dict) -> str:
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    return tokenizer.decode([each for each in example["labels"] if each != IGNORED])


def test_answer_and_its_end_are_trained(tmp_path):
    folder = tokenize(tmp_path, {"a": [TALK]})

    assert [trained_text(folder, each) for each in examples(folder)] == ["Paris.<|im_end|>"]


def test_text_is_what_the_template_renders(tmp_path):
    folder = tokenize(tmp_path, {"a": [TALK]})
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")

    assert tokenizer.decode(examples(folder)[0]["input_ids"]) == tokenizer.apply_chat_template(
        TALK, tokenize=False
    )


def test_saved_tokenizer_serves_the_template_and_ends_with_it(tmp_path):
    folder = tokenize(tmp_path, {"a": [TALK]})
    config = json.loads((folder / "tokenizer" / "tokenizer_config.json").read_text())

    assert config["chat_template"] == JINJA.read_text()
    assert config["eos_token"] == "<|im_end|>"


def test_rows_and_sources_are_those_of_the_examples(tmp_path):
    folder = tokenize(tmp_path, {"a": [TALK], "b": [TALK, TALK]})
    made = pq.read_table(folder / "rows.parquet").to_pylist()

    assert [(each["source"], each["row"]) for each in made] == [("a", 0), ("b", 0), ("b", 1)]


def test_counts_are_by_source(tmp_path):
    folder = tokenize(tmp_path, {"a": [TALK], "b": [TALK, TALK]})
    counts = json.loads((folder / "counts.json").read_text())

    assert counts["examples"] == 3
    assert counts["sources"]["b"] | {"tokens": 0, "trained_tokens": 0} == {
        **{"rows_in": 2, "rows_out": 2, "examples": 2},
        **{"tokens": 0, "trained_tokens": 0},
    }


def test_mix_takes_sources_by_their_probabilities(tmp_path):
    mix = {"strategy": "interleave_under", "probabilities": [0.9, 0.1]}
    folder = tokenize(tmp_path, {"a": [TALK] * 60, "b": [TALK] * 60}, mix)
    counts = json.loads((folder / "counts.json").read_text())["sources"]

    assert counts["a"]["examples"] > 5 * counts["b"]["examples"] > 0


def test_long_example_is_cut(tmp_path):
    long = [ASK, {"role": "assistant", "content": "word " * 200}]
    folder = tokenize(tmp_path, {"a": [long]})

    assert [len(each["input_ids"]) for each in examples(folder)] == [64]


def test_long_example_is_dropped_where_the_config_says_so(tmp_path):
    long = [ASK, {"role": "assistant", "content": "word " * 200}]
    folder = tokenize(tmp_path, {"a": [TALK, long]}, excess_length_strategy="drop")
    counts = json.loads((folder / "counts.json").read_text())["sources"]

    assert (counts["a"]["rows_in"], counts["a"]["rows_out"]) == (2, 1)


def test_examples_to_be_packed_have_lengths_and_positions(tmp_path):
    folder = tokenize(tmp_path, {"a": [TALK]}, sample_packing=True)
    [example] = examples(folder)

    assert example["length"] == len(example["input_ids"])
    assert example["position_ids"] == list(range(example["length"]))


def test_arguments_that_are_text_stay_as_they_are(tmp_path):
    arguments = '{"city":   "Paris"}'
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    folder = tokenize(tmp_path, {"a": [{"messages": [ASK, turn]}]})

    assert arguments in trained_text(folder, examples(folder)[0])


def test_conversation_that_the_template_refuses_is_named(tmp_path):
    odd = [ASK, {"role": "critic", "content": "no"}, SAY]

    with pytest.raises(SystemExit, match="a, row 1: chatml_tools: no place for a turn of role"):
        tokenize(tmp_path, {"a": [TALK, odd]})


def test_source_without_any_example_is_refused(tmp_path):
    long = [ASK, {"role": "assistant", "content": "word " * 200}]

    with pytest.raises(SystemExit, match=r"no example came out of a \(0 of 1 rows\)"):
        tokenize(tmp_path, {"a": [long]}, excess_length_strategy="drop")
