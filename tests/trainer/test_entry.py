"""The entry that trains: what it refuses, and what it leaves alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import load_from_disk
from omegaconf import OmegaConf
from transformers import LlamaConfig, LlamaForCausalLM

from demo.make_model import load_tokenizer
from sft.trainers import llamafactory
from sft.trainers.entry import installed_versions
from tests.trainer.demo_data import CHECKOUT, DATASETS

ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(CHECKOUT),
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
}


def run_entry(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "sft.trainers.llamafactory", *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of two layers with the demo's tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = load_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_request(folder: Path, model: Path, **options: object) -> Path:
    request = folder / "request"
    request.mkdir(parents=True)
    (request / "dataset_info.json").write_text(json.dumps(DATASETS))
    config = {
        "model_name_or_path": str(model),
        "stage": "sft",
        "do_train": True,
        "dataset": ",".join(DATASETS),
        "dataset_dir": str(request),
        "template": "chatml_tools",
        "cutoff_len": 512,
        "seed": 42,
        "mix_strategy": "interleave_under",
        "interleave_probs": "0.6,0.4",
        "preprocessing_num_workers": 2,
        "output_dir": str(folder / "unused"),
        "report_to": "none",
        "use_cpu": True,
        **options,
    }
    OmegaConf.save(OmegaConf.create(config), request / "tokenize.yaml")
    return request


@pytest.fixture(scope="module")
def tokens(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's mix, tokenized by the entry."""
    folder = tmp_path_factory.mktemp("tokens")
    ran = run_entry("pretokenize", write_request(folder, model), folder / "tokens")
    assert ran.returncode == 0, ran.stderr[-2000:]
    return folder / "tokens"


def upstream(folder: Path, request: Path) -> list[dict]:
    """The examples that LLaMA-Factory itself would train on, in its own order."""
    code = (
        "import sys, json\n"
        "from sft.trainers import llamafactory as entry; entry._import_trainer()\n"
        "from llamafactory.hparams import get_train_args\n"
        "from llamafactory.data import get_dataset, get_template_and_fix_tokenizer\n"
        "from llamafactory.model import load_tokenizer\n"
        "from pathlib import Path\n"
        "m, d, t, _, _ = get_train_args(entry._read_config(Path(sys.argv[1])))\n"
        "module = load_tokenizer(m)\n"
        "template = get_template_and_fix_tokenizer(module['tokenizer'], d)\n"
        "made = get_dataset(template, m, d, t, stage='sft', **module)['train_dataset']\n"
        "keys = ['input_ids', 'labels', 'attention_mask']\n"
        "json.dump([{k: row[k] for k in keys} for row in made], open(sys.argv[2], 'w'))\n"
    )
    out = folder / "upstream.json"
    command = [sys.executable, "-c", code, str(request / "tokenize.yaml"), str(out)]
    ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(out.read_text())


def test_tokens_order_and_labels_are_those_of_llamafactory(tokens, tmp_path):
    assert list(load_from_disk(str(tokens))) == upstream(tmp_path, tokens.parent / "request")


def test_packed_tokens_are_those_of_llamafactory(model, tmp_path):
    request = write_request(tmp_path, model, packing=True)
    ran = run_entry("pretokenize", request, tmp_path / "tokens")

    packs = list(load_from_disk(str(tmp_path / "tokens")))
    unpacked = list(load_from_disk(str(tmp_path / "unpacked")))

    assert ran.returncode == 0, ran.stderr[-2000:]
    assert packs == upstream(tmp_path, request)
    assert sum(map(count_trained, packs)) == sum(map(count_trained, unpacked))


def count_trained(example: dict) -> int:
    return sum(label != -100 for label in example["labels"])


def test_files_of_a_folder_are_read_in_the_order_of_their_names(model, tmp_path):
    rows = Path(DATASETS["demo_reasoning"]["file_name"]).read_text().splitlines(keepends=True)
    folder = tmp_path / "parts"
    folder.mkdir()
    for name, part in (("b.jsonl", rows[5:9]), ("a.jsonl", rows[:5]), ("c.jsonl", rows[9:12])):
        (folder / name).write_text("".join(part))
    (tmp_path / "one.jsonl").write_text("".join(rows[:12]))
    options = {"dataset": "rows", "mix_strategy": "concat", "interleave_probs": None}
    made = {}
    for path in (folder, tmp_path / "one.jsonl"):
        request = write_request(tmp_path / f"job-{path.stem}", model, **options)
        entry = DATASETS["demo_reasoning"] | {"file_name": str(path)}
        (request / "dataset_info.json").write_text(json.dumps({"rows": entry}))
        ran = run_entry("pretokenize", request, request.parent / "tokens")
        assert ran.returncode == 0, ran.stderr[-2000:]
        made[path.name] = list(load_from_disk(str(request.parent / "tokens")))

    assert made["parts"] == made["one.jsonl"]


def test_tokenizer_is_kept_as_training_will_save_it(model, tokens, tmp_path):
    saved = tokens.parent / "tokenizer"
    config = train_config(tmp_path, model, tokens, max_steps=1)
    assert run_entry("train", config, "--world-size", 1).returncode == 0

    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (saved / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_tokens_have_the_narrow_types(tokens):
    features = load_from_disk(str(tokens)).features

    assert {name: feature.feature.dtype for name, feature in features.items()} == {
        "input_ids": "int32",
        "labels": "int32",
        "attention_mask": "int8",
    }


def test_rows_name_source_and_row_of_each_example(tokens):
    import pyarrow.parquet as pq

    rows = pq.read_table(tokens.parent / "rows.parquet").to_pylist()
    source = [
        json.loads(line)
        for line in Path(DATASETS["demo_tools"]["file_name"]).read_text().splitlines()
    ]
    first = next(index for index, row in enumerate(rows) if row["source"] == "demo_tools")
    text = load_tokenizer().decode(load_from_disk(str(tokens))[first]["input_ids"])

    assert len(rows) == len(load_from_disk(str(tokens)))
    assert source[rows[first]["row"]]["conversations"][-1]["value"] in text


def test_counts_add_up_to_the_tokens(tokens):
    content = json.loads((tokens.parent / "counts.json").read_text())
    made, counts = load_from_disk(str(tokens)), content["sources"]

    assert content["examples"] == len(made)
    assert sum(each["examples"] for each in counts.values()) == len(made)
    assert sum(each["tokens"] for each in counts.values()) == sum(map(len, made["input_ids"]))
    trained = sum(label != -100 for labels in made["labels"] for label in labels)
    assert sum(each["trained_tokens"] for each in counts.values()) == trained


def test_source_with_wrong_tags_is_refused_by_name(model, tmp_path):
    request = write_request(tmp_path, model)
    wrong = DATASETS | {
        "demo_reasoning": DATASETS["demo_reasoning"]
        | {
            "tags": {
                "role_tag": "role",
                "content_tag": "content",
                "user_tag": "human",
                "assistant_tag": "gpt",
            }
        }
    }
    (request / "dataset_info.json").write_text(json.dumps(wrong))
    ran = run_entry("pretokenize", request, tmp_path / "tokens")

    assert ran.returncode != 0
    assert "demo_reasoning (0 of 160 rows)" in ran.stderr
    assert not (tmp_path / "tokens").exists()


def train_config(folder: Path, model: Path, tokens: Path, **options: object) -> Path:
    config = {
        "model_name_or_path": str(model),
        "stage": "sft",
        "finetuning_type": "full",
        "do_train": True,
        "dataset": "demo",
        "template": "chatml_tools",
        "cutoff_len": 512,
        "tokenized_path": str(tokens),
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 1,
        "max_steps": 2,
        "save_steps": 1,
        "logging_steps": 1,
        "learning_rate": 1.0e-3,
        "use_cpu": True,
        "bf16": True,
        "report_to": "none",
        **options,
    }
    OmegaConf.save(OmegaConf.create(config), folder / "train.yaml")
    return folder / "train.yaml"


def test_other_world_size_than_asked_for_is_refused(model, tokens, tmp_path):
    ran = run_entry("train", train_config(tmp_path, model, tokens), "--world-size", 2)

    assert ran.returncode != 0
    assert "1 training processes found each other, expected 2" in ran.stderr
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def test_training_without_tokens_is_refused_at_once(model, tmp_path):
    ran = run_entry("train", train_config(tmp_path, model, tmp_path / "none"), "--world-size", 1)

    assert ran.returncode != 0
    assert "a training job does not tokenize" in ran.stderr


def test_complete_run_is_not_trained_one_step_further(model, tokens, tmp_path):
    config = train_config(tmp_path, model, tokens)
    assert run_entry("train", config, "--world-size", 1).returncode == 0
    state = (tmp_path / "out" / "trainer_state.json").read_bytes()

    assert "nothing to train" in run_entry("train", config, "--world-size", 1).stdout
    (tmp_path / "out" / "trainer_state.json").unlink()
    assert "nothing to train" in run_entry("train", config, "--world-size", 1).stdout
    assert (tmp_path / "out" / "checkpoint-2" / "trainer_state.json").exists()
    assert json.loads(state)["global_step"] == 2


def test_misspelt_key_is_refused_by_the_trainers_own_parser(model, tokens, tmp_path):
    ran = run_entry("check", train_config(tmp_path, model, tokens, lerning_rate=1.0e-4))

    assert ran.returncode != 0
    assert "lerning_rate" in ran.stderr


def test_flash_attention_that_is_not_installed_is_refused(model, tokens, tmp_path):
    ran = run_entry("check", train_config(tmp_path, model, tokens, flash_attn="fa2"))

    assert ran.returncode != 0
    assert "flash-attn is not installed" in ran.stderr


def test_versions_name_what_decides_the_tokens():
    found = json.loads(run_entry("versions").stdout)

    assert {"llamafactory", "transformers", "tokenizers"} <= set(found)
    assert installed_versions(llamafactory.PACKAGES) == found
