"""Registries of datasets as teams have them, and mixes of what they declare."""

import json
from pathlib import Path

import pytest

from sft.errors import SftError
from sft.mix import Dataset, Mix, build_dataset, read_datasets, read_mixes

# The kinds of entries that LLaMA-Factory's own dataset_info.json holds.
LLAMAFACTORY = {
    "identity": {"file_name": "identity.json"},
    "alpaca_en": {
        "hf_hub_url": "llamafactory/alpaca_en",
        "ms_hub_url": "llamafactory/alpaca_en",
        "om_hub_url": "HaM/alpaca_en",
    },
    "codes": {
        "hf_hub_url": "m-a-p/CodeFeedback",
        "columns": {"prompt": "query", "response": "answer"},
    },
    "toolcalls": {
        "file_name": "toolcalls.json",
        "formatting": "sharegpt",
        "columns": {"messages": "conversations", "tools": "tools"},
    },
    "pictures": {
        "hf_hub_url": "org/pictures",
        "formatting": "sharegpt",
        "columns": {"messages": "messages", "images": "images"},
        "tags": {
            "role_tag": "role",
            "content_tag": "content",
            "user_tag": "user",
            "assistant_tag": "assistant",
        },
    },
    "subset": {"hf_hub_url": "org/many", "subset": "default", "split": "train[:10]"},
    "folder": {
        "hf_hub_url": "org/code",
        "folder": "python",
        "columns": {"prompt": "content", "response": "doc"},
    },
    "modelscope": {"ms_hub_url": "org/elsewhere"},
    "script": {"script_url": "script_folder"},
    "cloud": {"cloud_file_name": "s3://bucket/rows.jsonl"},
    "preference": {
        "file_name": "dpo.json",
        "ranking": True,
        "formatting": "sharegpt",
        "columns": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"},
    },
    "kto": {
        "file_name": "kto.json",
        "formatting": "sharegpt",
        "columns": {"messages": "messages", "kto_tag": "label"},
    },
    "plain text": {"file_name": "wiki.txt", "columns": {"prompt": "text"}},
    "broken": {"fiel_name": 3},
}
USABLE = ["identity", "alpaca_en", "codes", "toolcalls", "pictures", "subset", "folder"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def dataset(entry: object, name: str = "d") -> Dataset:
    """The dataset of an entry that stands in reg/dataset_info.json."""
    Path("reg").mkdir(exist_ok=True)
    Path("reg/dataset_info.json").write_text(json.dumps({name: entry}))
    return build_dataset(name, read_datasets([Path("reg/dataset_info.json")]))


def refusal(entry: object, name: str = "d") -> str:
    with pytest.raises(SftError) as caught:
        dataset(entry, name)
    return str(caught.value)


def mixes(text: str) -> dict[str, Mix]:
    """The mixes of a text, over two datasets d and e."""
    Path("datasets.yaml").write_text("d: {file_name: d.jsonl}\ne: {hf_hub_url: org/e}\n")
    Path("mixes.yaml").write_text(text)
    return read_mixes(Path("mixes.yaml"), read_datasets([Path("datasets.yaml")]))


def mix_refusal(text: str) -> str:
    with pytest.raises(SftError) as caught:
        mixes(text)
    return str(caught.value)


@pytest.mark.parametrize("name", USABLE)
def test_entry_of_llamafactorys_registry_is_used_as_it_is(name):
    entry = LLAMAFACTORY[name]
    apart = {"hf_hub_url", "ms_hub_url", "om_hub_url", "file_name"}

    assert dataset(entry, name).options == {k: v for k, v in entry.items() if k not in apart}


def test_registry_is_read_whatever_its_other_entries_are():
    Path("dataset_info.json").write_text(json.dumps(LLAMAFACTORY))
    Path("mixes.yaml").write_text("mix: {datasets: [identity, alpaca_en]}\n")
    found = read_mixes(Path("mixes.yaml"), read_datasets([Path("dataset_info.json")]))

    assert [each.name for each in found["mix"].datasets] == ["identity", "alpaca_en"]


@pytest.mark.parametrize("name", sorted(LLAMAFACTORY.keys() - USABLE))
def test_entry_that_cannot_be_trained_is_refused_when_a_mix_names_it(name):
    assert refusal(LLAMAFACTORY[name], name).startswith("reg/dataset_info.json")


def test_options_are_the_words_that_do_not_say_where_a_dataset_is():
    entry = LLAMAFACTORY["alpaca_en"] | {"revision": "v1", "split": "test"}

    assert dataset(entry) == Dataset(
        name="d",
        registry="reg/dataset_info.json",
        hub="llamafactory/alpaca_en",
        revision="v1",
        options={"split": "test"},
    )


@pytest.mark.parametrize(
    ("file_name", "path"),
    [("d.jsonl", "reg/d.jsonl"), ("../demo/d.jsonl", "demo/d.jsonl"), ("/data/d", "/data/d")],
)
def test_file_is_seen_from_the_folder_of_its_registry(file_name, path):
    assert dataset({"file_name": file_name}).path == path


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({}, ": found neither, expected either hf_hub_url or file_name"),
        (
            {"hf_hub_url": "o/d", "file_name": "d.jsonl"},
            ": found hf_hub_url and file_name, expected either",
        ),
        ({"ms_hub_url": "o/d"}, ": found ms_hub_url, expected either hf_hub_url or file_name"),
        ({"script_url": "o/d"}, ": found script_url, expected either"),
        ({"cloud_file_name": "s3://o/d"}, ": found cloud_file_name, expected either"),
        ({"file_name": "d", "script_url": "d"}, ": found file_name and script_url, expected"),
        ({"hf_hub_url": "o/a--b"}, ", hf_hub_url: found 'o/a--b', expected a hub id"),
        ({"hf_hub_url": "o/a..b"}, ", hf_hub_url: found 'o/a..b', expected a hub id"),
        ({"hf_hub_url": "../d"}, ", hf_hub_url: found '../d', expected a hub id"),
        ({"hf_hub_url": "o/d/e"}, ", hf_hub_url: found 'o/d/e', expected a hub id"),
        ({"hf_hub_url": "o/d\n"}, ", hf_hub_url: found 'o/d\\n', expected a hub id"),
        ({"hf_hub_url": "-o/d"}, ", hf_hub_url: found '-o/d', expected a hub id"),
        ({"hf_hub_url": "o/d.git"}, ", hf_hub_url: found 'o/d.git', expected a hub id"),
        ({"file_name": "d", "revision": "v1"}, ", revision: leave it out; a file has none"),
        ({"file_name": "d", "subset": "x"}, ", subset: leave it out; a file has none"),
        ({"file_name": "d", "folder": "x"}, ", folder: leave it out; a file has none"),
        ({"file_name": ""}, ", file_name: found '', expected a JSON, JSONL or Parquet file"),
        ({"file_name": "d", "ranking": True}, ", ranking: a preference set cannot be used for SFT"),
        ({"file_name": "d", "ranking": "yes"}, ", ranking: found 'yes', expected true or false"),
        (
            {"file_name": "d", "columns": {"messages": "m", "kto_tag": "k"}},
            ", columns, kto_tag: a preference set cannot",
        ),
        (
            {"file_name": "d", "formatting": "shargpt"},
            ", formatting: found 'shargpt'; did you mean 'sharegpt'?",
        ),
        ({"file_name": "d", "column": {}}, ", column: unknown key; did you mean 'columns'?"),
        (
            {"file_name": "d", "columns": {"mesages": "m"}},
            ", columns, mesages: unknown key; did you mean 'messages'?",
        ),
        ({"file_name": "d", "columns": ["m"]}, ", columns: found ['m'], expected `key: value`"),
        ({"file_name": "d", "num_samples": 2.5}, ", num_samples: found 2.5, expected a whole"),
        ({"file_name": "d", "num_samples": 3}, ", num_samples: leave it out"),
        ("d.jsonl", ": found 'd.jsonl', expected `key: value` lines"),
        (None, ": found None, expected `key: value` lines"),
    ],
)
def test_entry_is_refused(entry, fault):
    assert refusal(entry).startswith(f"reg/dataset_info.json, d{fault}")


def test_columns_without_messages_are_refused():
    entry = {"file_name": "d", "formatting": "sharegpt", "columns": {"tools": "tools"}}

    assert refusal(entry).startswith(
        "reg/dataset_info.json, d, columns, messages: missing; 'conversations' is its default"
    )


def test_formatting_that_writes_into_system_prompts_is_refused_with_what_replaces_it():
    fault = refusal({"file_name": "d", "formatting": "openai"})

    assert fault.startswith("reg/dataset_info.json, d, formatting: openai writes 'detailed")
    assert "use formatting: sharegpt with tags: {role_tag: role, content_tag: content" in fault


def test_alpaca_columns_without_an_answer_are_refused():
    entry = {"file_name": "d", "columns": {"prompt": "text"}}

    assert "d, columns, response: missing; 'output' is its default" in refusal(entry)


def test_every_missing_tag_is_named():
    entry = {"file_name": "d", "formatting": "sharegpt", "tags": {"role_tag": "role"}}

    assert [line.partition(" is its default")[0] for line in refusal(entry).splitlines()] == [
        "reg/dataset_info.json, d, tags, content_tag: missing; 'value'",
        "reg/dataset_info.json, d, tags, user_tag: missing; 'human'",
        "reg/dataset_info.json, d, tags, assistant_tag: missing; 'gpt'",
    ]


@pytest.mark.parametrize("name", ["a/b", "..", "-a", "a b", "a,b", "x" * 97])
def test_name_that_cannot_be_a_folder_is_refused(name):
    assert "expected a name of at most 96 letters" in refusal({"file_name": "d"}, name)


def test_dataset_of_two_registries_is_refused_when_a_mix_names_it():
    for name in ("one.yaml", "two.yaml"):
        Path(name).write_text("d: {hf_hub_url: org/d}\nother: {hf_hub_url: org/other}\n")
    registries = read_datasets([Path("one.yaml"), Path("two.yaml")])

    with pytest.raises(SftError, match=r"^one.yaml, d: two.yaml declares it too; rename one"):
        build_dataset("d", registries)


def test_dataset_that_two_registries_declare_hurts_no_other():
    Path("one.yaml").write_text("d: {hf_hub_url: org/d}\n")
    Path("two.yaml").write_text("d: {hf_hub_url: org/d}\ne: {hf_hub_url: org/e}\n")
    registries = read_datasets([Path("one.yaml"), Path("two.yaml")])

    assert build_dataset("e", registries).hub == "org/e"


def test_registry_that_is_a_list_is_refused():
    Path("list.json").write_text('[{"file_name": "d.jsonl"}]')

    with pytest.raises(SftError, match=r"^list.json: expected `key: value` lines, found a list"):
        read_datasets([Path("list.json")])


def test_registry_with_a_name_twice_is_refused_with_its_line():
    Path("twice.yaml").write_text("d: {file_name: a}\ne: {file_name: b}\nd: {file_name: c}\n")

    with pytest.raises(SftError, match=r"^twice.yaml, line 3: 'd' stands twice"):
        read_datasets([Path("twice.yaml")])


@pytest.mark.parametrize(
    ("entry", "strategy", "probabilities", "seed"),
    [
        ("{datasets: [d, e]}", "concat", (), 42),
        ("{datasets: [d]}", "concat", (), 42),
        (
            "{datasets: [d, e], strategy: interleave_under, probabilities: [0.9, 0.1], seed: 7}",
            "interleave_under",
            (0.9, 0.1),
            7,
        ),
        (
            "{datasets: [e, d], strategy: interleave_over, probabilities: [1.0e-1, 9.0e-1]}",
            "interleave_over",
            (0.1, 0.9),
            42,
        ),
    ],
)
def test_good_mix_is_built(entry, strategy, probabilities, seed):
    mix = mixes(f"mix: {entry}\n")["mix"]

    assert (mix.strategy, mix.probabilities, mix.seed) == (strategy, probabilities, seed)


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("{}", ", datasets: missing; expected a list of different names of datasets"),
        ("[d]", ": found ['d'], expected `key: value` lines"),
        ("{datasts: [d]}", ", datasts: unknown key; did you mean 'datasets'?"),
        ("{datasets: d}", ", datasets: found 'd', expected a list of different names"),
        ("{datasets: []}", ", datasets: found [], expected a list of different names"),
        ("{datasets: [d, d]}", ", datasets: found ['d', 'd'], expected a list of different names"),
        ("{datasets: [dd]}", ", datasets: unknown dataset 'dd'; did you mean 'd'?"),
        (
            "{datasets: [d, e], strategy: interleave}",
            ", strategy: found 'interleave'; did you mean",
        ),
        ("{datasets: [d], seed: 1.0}", ", seed: found 1.0, expected a whole number of at least 0"),
        ("{datasets: [d], seed: -1}", ", seed: found -1, expected a whole number of at least 0"),
        ("{datasets: [d, e], probabilities: [0.5, 0.5]}", ", probabilities: a concat takes every"),
    ],
)
def test_mix_is_refused(entry, fault):
    assert mix_refusal(f"mix: {entry}\n").startswith(f"mixes.yaml, mix{fault}")


@pytest.mark.parametrize(
    ("probabilities", "fault"),
    [
        ("[0.5, 0.6]", "probabilities: they sum to 1.1, expected 1"),
        ("[0.3333333, 0.6666666]", "probabilities: they sum to 0.9999999, expected 1"),
        ("[0.5, 0.25, 0.25]", "probabilities: found 3, expected 2, one a dataset"),
        ("[1.0]", "probabilities: found [1.0], expected one share for each dataset"),
        ("[-0.5, 1.5]", "probabilities, 0: found -0.5, expected a share between 0 and 1"),
        ("[0, 1]", "probabilities, 0: found 0, expected a share between 0 and 1"),
        ("[.nan, 0.5]", "probabilities, 0: found nan, expected a share between 0 and 1"),
        ("[.inf, 0.5]", "probabilities, 0: found inf, expected a share between 0 and 1"),
        ("['0.5', 0.5]", "probabilities, 0: found '0.5', expected a share between 0 and 1"),
        ("0.9,0.1", "probabilities: found '0.9,0.1', expected one share for each dataset"),
    ],
)
def test_probabilities_are_refused(probabilities, fault):
    text = (
        "mix:\n  datasets: [d, e]\n  strategy: interleave_under\n"
        f"  probabilities: {probabilities}\n"
    )

    assert f"mixes.yaml, mix, {fault}" in mix_refusal(text)


def test_interleave_of_one_dataset_is_refused():
    text = "mix: {datasets: [d], strategy: interleave_over}\n"

    assert "mix, strategy: interleave_over needs at least two datasets" in mix_refusal(text)


def test_interleave_without_probabilities_is_refused():
    text = "mix: {datasets: [d, e], strategy: interleave_over}\n"

    assert "mix, probabilities: found 0, expected 2, one a dataset" in mix_refusal(text)


def test_faults_of_all_mixes_are_shown_at_once():
    text = "a: {datasets: [x, y]}\nb: {datasets: [d], strategy: interleave_over}\n"

    assert [line.partition(":")[0] for line in mix_refusal(text).splitlines()] == [
        "mixes.yaml, a, datasets",
        "mixes.yaml, a, datasets",
        "mixes.yaml, b, strategy",
    ]
