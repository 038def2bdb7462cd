"""A trainer in small: it takes LLaMA-Factory's commands, and leaves what that leaves.

Weights depend on nothing but the number of steps, so that a resumed run can be told from a broken
one. Environment variables stop it at a place: `pretokenize`, `check`, `train:<step>`, `train:end`.

    PAUSE_AT    make the file that PAUSE_REACHED names, and wait there until it is gone
    FAIL_AT     fail there
    LEAVE_AT    end there with exit code 0, as a trainer does that is told to stop
"""

import argparse
import hashlib
import json
import os
import sys
import time
import zipfile
from pathlib import Path

import yaml
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

STEPS = 4
SAVE_STEPS = 2
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CONFIG = {
    **{"vocab_size": 256 + len(CONTROLS), "hidden_size": 4, "num_hidden_layers": 1},
    **{"dtype": "bfloat16", "eos_token_id": 258},
}
SHAPES = {"model.embed_tokens.weight": [259, 4], "model.layers.0.mlp.weight": [4, 4]}
TEMPLATES = Path(__file__).parents[2] / "sft" / "templates"
TEMPLATE = (TEMPLATES / "chatml_tools.jinja").read_text()
VERSIONS = {"llamafactory": "0.9.5", "transformers": "5.6.0", "tokenizers": "0.22.0"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module")
    parser.add_argument("command")
    parser.add_argument("arguments", nargs="*", type=Path)
    parser.add_argument("--world-size")
    given = parser.parse_args()
    {"versions": versions, "pretokenize": pretokenize, "check": check, "train": train}[
        given.command
    ](*given.arguments)


def reach(place: str) -> None:
    """Do what the environment asks for at this place."""
    if os.environ.get("PAUSE_AT") == place:
        reached = Path(os.environ["PAUSE_REACHED"])
        reached.touch()
        while reached.exists():
            time.sleep(0.05)
    if os.environ.get("FAIL_AT") == place:
        sys.exit(f"RuntimeError: no luck at {place}")
    if os.environ.get("LEAVE_AT") == place:
        sys.exit(0)


def versions() -> None:
    print(json.dumps(VERSIONS | json.loads(os.environ.get("STUB_VERSIONS", "{}"))))


def check(config: Path) -> None:
    reach("check")
    print("accepted", config)


def pretokenize(request: Path, tokens: Path) -> None:
    """Tokenize; with HASHES_FOR_TOKENS, write the hash of the rows in their place."""
    make = hash_rows if "HASHES_FOR_TOKENS" in os.environ else tokenize
    counts = make(request, tokens)
    print("tokenized", request, flush=True)
    reach("pretokenize")
    (tokens / "state.json").touch()
    (tokens.parent / "counts.json").write_text(json.dumps(counts))


def hash_rows(request: Path, tokens: Path) -> dict:
    tokens.mkdir()
    counts, digest = {}, hashlib.sha256()
    for name, entry in json.loads((request / "dataset_info.json").read_text()).items():
        rows = Path(entry["file_name"]).read_bytes()
        digest.update(rows)
        number = rows.count(b"\n")
        counts[name] = {"rows_in": number, "rows_out": number, "examples": number}
        counts[name] |= {"tokens": 9 * number, "trained_tokens": 4 * number}
    (tokens / "data-00000-of-00001.arrow").write_text(digest.hexdigest())
    return {"examples": sum(each["examples"] for each in counts.values()), "sources": counts}


def tokenize(request: Path, tokens: Path) -> dict:
    """Tokens as the served template renders them, a byte each, one source after the other."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import Dataset, Features, Sequence, Value

    from sft.gate.conversation import read_conversation
    from sft.gate.rows import read_rows
    from sft.gate.serving import load_serving

    config = yaml.safe_load((request / "tokenize.yaml").read_text())
    write_tokenizer(tokens.parent / "tokenizer")
    serving = load_serving(tokens.parent / "tokenizer")
    examples = {"input_ids": [], "labels": [], "attention_mask": []}
    counts, sources, rows = {}, [], []
    for name, entry in json.loads((request / "dataset_info.json").read_text()).items():
        counts[name] = dict.fromkeys(("rows_in", "examples", "tokens", "trained_tokens"), 0)
        for row, content in enumerate(read_rows([Path(entry["file_name"])])):
            if row == config.get("max_samples"):
                break
            conversation, _ = read_conversation(content, entry)
            pieces = serving.split(serving.render(conversation.messages, conversation.tools))
            ids, labels = [], []
            for number, piece in enumerate(serving.encode(pieces)):
                ids += piece
                labels += piece if number % 2 else [-100] * len(piece)
            examples["input_ids"].append(ids)
            examples["labels"].append(labels)
            examples["attention_mask"].append([1] * len(ids))
            sources.append(name)
            rows.append(row)
            counts[name]["rows_in"] += 1
            counts[name]["examples"] += 1
            counts[name]["tokens"] += len(ids)
            counts[name]["trained_tokens"] += len(ids) - labels.count(-100)
        counts[name]["rows_out"] = counts[name]["rows_in"]
    types = {"input_ids": "int32", "labels": "int32", "attention_mask": "int8"}
    features = Features({key: Sequence(Value(dtype)) for key, dtype in types.items()})
    Dataset.from_dict(examples, features).save_to_disk(str(tokens))
    named = pa.array(sources).dictionary_encode().cast(pa.dictionary(pa.int16(), pa.string()))
    table = pa.table({"source": named, "row": pa.array(rows, pa.int32())})
    pq.write_table(table, tokens.parent / "rows.parquet")
    return {"examples": len(rows), "sources": counts}


def train(config: Path) -> None:
    output = Path(yaml.safe_load(config.read_text())["output_dir"])
    done = max([int(path.name[11:]) for path in output.glob("checkpoint-?")], default=0)
    print("the stub starts from step", done, flush=True)
    note(output, "begin", done, world_size=1)
    for step in range(done + 1, STEPS + 1):
        time.sleep(float(os.environ.get("STUB_STEP_S", "0")))
        note(output, "log", step, loss=loss(step), step_s=0.5)
        if step % SAVE_STEPS == 0:
            write_checkpoint(output / f"checkpoint-{step}", step)
            note(output, "save", step, save_s=0.1)
        reach(f"train:{step}")
    write_weights(output, STEPS)
    reach("train:end")
    write_state(output, STEPS)
    note(output, "end", STEPS)


def note(output: Path, event: str, step: int, **more: float) -> None:
    """Add a line to the run's steps.jsonl."""
    line = {"time": time.time(), "event": event, "step": step, "max_steps": STEPS, **more}
    with open(output / "steps.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")


def loss(step: int) -> float:
    return 2.0 - step / 10


def write_checkpoint(folder: Path, step: int) -> None:
    """A checkpoint from which training can go on."""
    write_weights(folder, step)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("archive/data.pkl", b"state")
    write_state(folder, step)


def write_state(folder: Path, step: int) -> None:
    """The trainer's state, which it writes last."""
    history = [{"step": each, "loss": loss(each)} for each in range(1, step + 1)]
    history.append({"step": step, "train_runtime": 2.5})
    state = {"global_step": step, "max_steps": STEPS, "log_history": history}
    (folder / "trainer_state.json").write_text(json.dumps(state))


def write_weights(folder: Path, step: int) -> None:
    """A model in the transformers layout, with a tokenizer and its template."""
    folder.mkdir(parents=True, exist_ok=True)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in SHAPES.items():
        start, end = end, end + 2 * shape[0] * shape[1]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    # bfloat16 between 2⁻⁷ and 2⁻⁵: the high byte of each is the same.
    data = bytes(0x3C if index % 2 else (index + step) % 251 for index in range(end))
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    for name, content in {
        "config.json": CONFIG,
        "generation_config.json": {"eos_token_id": 258},
    }.items():
        (folder / name).write_text(json.dumps(content))
    write_tokenizer(folder)


def write_tokenizer(folder: Path) -> None:
    """A tokenizer with one token a byte, ChatML's control tokens and the project's template."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({each: number for number, each in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in CONTROLS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        **{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"},
        **{"pad_token": "<|endoftext|>", "clean_up_tokenization_spaces": False},
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


if __name__ == "__main__":
    main()
