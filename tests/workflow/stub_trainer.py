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

STEPS = 4
SAVE_STEPS = 2
CONFIG = {"vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "dtype": "bfloat16"}
SHAPES = {"model.embed_tokens.weight": [8, 4], "model.layers.0.mlp.weight": [4, 4]}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}"
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
    registry = json.loads((request / "dataset_info.json").read_text())
    tokens.mkdir()
    counts, digest = {}, hashlib.sha256()
    for name, entry in registry.items():
        rows = Path(entry["file_name"]).read_bytes()
        digest.update(rows)
        number = rows.count(b"\n")
        counts[name] = {"rows_in": number, "rows_out": number, "examples": number}
        counts[name] |= {"tokens": 9 * number, "trained_tokens": 4 * number}
    (tokens / "data-00000-of-00001.arrow").write_text(digest.hexdigest())
    print("tokenized", request)
    reach("pretokenize")
    (tokens / "state.json").write_text("{}")
    (tokens.parent / "counts.json").write_text(json.dumps(counts))


def train(config: Path) -> None:
    output = Path(yaml.safe_load(config.read_text())["output_dir"])
    done = max([int(path.name[11:]) for path in output.glob("checkpoint-?")], default=0)
    print("the stub starts from step", done, flush=True)
    for step in range(done + 1, STEPS + 1):
        time.sleep(float(os.environ.get("STUB_STEP_S", "0")))
        with open(output / "trainer_log.jsonl", "a") as file:
            entry = {"current_steps": step, "total_steps": STEPS, "loss": loss(step)}
            file.write(json.dumps(entry) + "\n")
        if step % SAVE_STEPS == 0:
            write_checkpoint(output / f"checkpoint-{step}", step)
        reach(f"train:{step}")
    write_weights(output, STEPS)
    reach("train:end")
    write_state(output, STEPS)


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
    data = bytes((index + step) % 251 for index in range(end))
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    for name, content in {
        "config.json": CONFIG,
        "generation_config.json": {"eos_token_id": 2},
        "tokenizer.json": {},
        "tokenizer_config.json": {"eos_token": "<|im_end|>"},
    }.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


if __name__ == "__main__":
    main()
