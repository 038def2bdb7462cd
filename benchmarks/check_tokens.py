"""Time the gate against the trainer's own tokenizing of the same rows.

    python benchmarks/check_tokens.py [--rows 20000] [--processes 2] [--repeats 3] [--check]

In one run: LLaMA-Factory tokenizes a set of made-up dialogues (two to eight turns), with so many
processes; `sft.gate.inspection` looks at every example with as many, reading the rows, rendering
them with the jinja template, tokenizing that and comparing; and one core checks the structure of
all tokens alone. Starting up is taken out of the first two: the same is timed with ten rows and
subtracted. The two alternate, so that other load on the computer meets both; medians count.

The trainer's environment and the demo's model must be there (`make run` makes both). The last line
is JSON. With --check the exit code is 1 where inspecting takes more than MOST_RATIO times the
tokenizing, or the structure is checked at less than LEAST_SPEED tokens a second.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from sft.files import read_json  # noqa: E402

MOST_RATIO = 3.0
LEAST_SPEED = 1e6
TRAINER = CHECKOUT / ".venv-llamafactory" / "bin" / "python"
MODEL = CHECKOUT / "demo" / "smollm2-135m"
TEXT = (
    "the model reads a question about rivers and mountains then answers in plain words with "
    "numbers like 42 or 3.14 and names such as Łódź or 東京 before it ends its turn because "
    "nobody asked for more"
)
WORDS = TEXT.split()
TAGS = {
    **{"role_tag": "role", "content_tag": "content", "user_tag": "user"},
    **{"assistant_tag": "assistant", "system_tag": "system"},
}
FEW_ROWS = 10


def main() -> int:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        many, few = Path(folder) / "many", Path(folder) / "few"
        for place, rows in ((many, arguments.rows), (few, FEW_ROWS)):
            write_request(place, rows, arguments.processes)
        times: dict[str, list[float]] = {"tokenize": [], "inspect": []}
        for _ in range(arguments.repeats):
            for name, run in (("tokenize", tokenize), ("inspect", inspect)):
                start_up = run(few)
                times[name].append(run(many) - start_up)
        tokens = count_tokens(many)
        speed = structure_speed(many)
    medians = {name: statistics.median(each) for name, each in times.items()}
    summary = {
        "rows": arguments.rows,
        "tokens": tokens,
        "processes": arguments.processes,
        "tokenize_s": round(medians["tokenize"], 1),
        "inspect_s": round(medians["inspect"], 1),
        "ratio": round(medians["inspect"] / medians["tokenize"], 2),
        "structure_tokens_per_s_a_core": round(speed),
    }
    print(f"{'':10}" + "".join(f"{f'run {n + 1}, s':>12}" for n in range(arguments.repeats)))
    for name, each in times.items():
        print(f"{name:10}" + "".join(f"{seconds:12.1f}" for seconds in each))
    print(json.dumps(summary))
    slow = summary["ratio"] > MOST_RATIO or speed < LEAST_SPEED
    return int(arguments.check and slow)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20000, help="dialogues, 250 tokens each")
    parser.add_argument("--processes", type=int, default=2, help="of each of the two")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--check", action="store_true", help="fail beyond the limits")
    return parser.parse_args()


def write_request(folder: Path, rows: int, processes: int) -> None:
    """What the trainer's entry reads: a config, a registry and the rows."""
    request = folder / "request"
    request.mkdir(parents=True)
    generator = random.Random(7)
    with open(folder / "rows.jsonl", "w", encoding="utf-8") as file:
        for _ in range(rows):
            file.write(json.dumps({"messages": dialogue(generator)}, ensure_ascii=False) + "\n")
    (request / "dataset_info.json").write_text(json.dumps({"rows": registry_entry(folder)}))
    config = {
        **{"model_name_or_path": str(MODEL), "stage": "sft", "do_train": True, "dataset": "rows"},
        **{"dataset_dir": str(request), "template": "chatml_tools", "cutoff_len": 4096},
        **{"preprocessing_num_workers": processes, "output_dir": str(request / "unused")},
        **{"report_to": "none", "use_cpu": True},
    }
    (request / "tokenize.yaml").write_text(yaml.safe_dump(config))


def registry_entry(folder: Path) -> dict[str, Any]:
    return {
        "file_name": str(folder / "rows.jsonl"),
        **{"formatting": "sharegpt", "columns": {"messages": "messages"}, "tags": TAGS},
    }


def dialogue(generator: random.Random) -> list[dict]:
    """A system turn at times, then up to four questions with their answers."""
    turns = [{"role": "system", "content": text(generator, 8)}] if generator.random() < 0.3 else []
    for _ in range(generator.randint(1, 4)):
        turns.append({"role": "user", "content": text(generator, 25)})
        turns.append({"role": "assistant", "content": text(generator, 60)})
    return turns


def text(generator: random.Random, words: int) -> str:
    return " ".join(generator.choices(WORDS, k=generator.randint(words // 2, 2 * words)))


def tokenize(folder: Path) -> float:
    """Seconds that the trainer takes to tokenize the folder's rows."""
    for made in ("tokens", "tokenizer", "cache"):
        shutil.rmtree(folder / made, ignore_errors=True)
    environment = os.environ | {
        **{"PYTHONPATH": str(CHECKOUT), "HF_DATASETS_CACHE": str(folder / "cache")},
        **{"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"},
    }
    command = [TRAINER, "-m", "sft.trainers.llamafactory", "pretokenize"]
    start_s = time.perf_counter()
    ran = subprocess.run(
        [*command, folder / "request", folder / "tokens"],
        env=environment,
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        raise SystemExit(ran.stderr[-2000:])
    return time.perf_counter() - start_s


def inspect(folder: Path) -> float:
    """Seconds that the gate takes for the same rows, in a process of its own."""
    from sft.gate.inspection import Request, inspect
    from sft.gate.tally import Source

    config = yaml.safe_load((folder / "request" / "tokenize.yaml").read_text())
    [counts] = read_json(folder / "counts.json")["sources"].values()
    source = Source(
        name="rows",
        files=(folder / "rows.jsonl",),
        options=registry_entry(folder),
        rows_in=counts["rows_in"],
        rows_out=counts["rows_out"],
    )
    request = Request(
        tokens=folder / "tokens",
        rows=folder / "rows.parquet",
        serving=folder / "tokenizer",
        sources=(source,),
        cutoff=config["cutoff_len"],
        vocabulary=49152,
    )
    start_s = time.perf_counter()
    found = inspect(request, config["preprocessing_num_workers"])
    taken_s = time.perf_counter() - start_s
    if found["findings"]:
        raise SystemExit(f"the rows are good, found {found['findings'][:2]}")
    return taken_s


def count_tokens(folder: Path) -> int:
    return read_json(folder / "counts.json")["sources"]["rows"]["tokens"]


def structure_speed(folder: Path) -> float:
    """Tokens a second that one core checks the structure of."""
    from datasets import load_from_disk

    from sft.gate.inspection import ROWS_AT_ONCE, Request, anatomy_of, read_examples
    from sft.gate.serving import load_serving
    from sft.gate.structure import find_faults

    serving = load_serving(folder / "tokenizer")
    request = Request(folder, folder, folder, (), cutoff=4096, vocabulary=49152)
    anatomy, tokens, taken_s = anatomy_of(serving, request), 0, 0.0
    table = load_from_disk(str(folder / "tokens")).with_format("arrow")
    for batch in table.iter(ROWS_AT_ONCE):
        start_s = time.process_time()
        examples = read_examples(batch)
        find_faults(examples, anatomy)
        taken_s += time.process_time() - start_s
        tokens += len(examples.ids)
    return tokens / taken_s


if __name__ == "__main__":
    sys.exit(main())
