"""Measure the preparation of a Delphi checkpoint against loading all of it and saving it again.

    python benchmarks/prepare_delphi.py [--columns 1024] [--shards 4] [--repeats 3] [--check]

The checkpoint is made up: an embedding, so many shards of other weights, and a head, each a file of
the same size (of 1024 columns: 263 MB), in fp16. Each way runs in a process of its own and says its
peak memory, what importing takes left out; `rewritten` are the bytes of new files, `linked` those
that both checkpoints share. The two alternate, so that other load on the computer meets both, and
medians count.

The last line is JSON. With --check the exit code is 1 where the preparation takes more memory than
one shard, or rewrites more than the two shards that hold the embedding and the head.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from sft.delphi.prepare_delphi_tokenizer import prepare_delphi  # noqa: E402
from sft.delphi.slots import TOKENS  # noqa: E402
from sft.files import list_files, write_json  # noqa: E402
from tests.delphi_checkpoint import (  # noqa: E402
    EMBEDDING,
    HEAD,
    TRAINED,
    VOCABULARY,
    write_checkpoint,
)

SLOTS = list(TOKENS.values())


def load_and_save(model: Path, output: Path) -> None:
    """The same done with all weights in memory, as `from_pretrained` and `save_pretrained` do."""
    output.mkdir()
    shards = {path.name: load_file(path) for path in sorted(model.glob("*.safetensors"))}
    for tensors in shards.values():
        for name in {EMBEDDING, HEAD} & tensors.keys():
            tensors[name][SLOTS] = tensors[name][:TRAINED].mean(axis=0, dtype=np.float64)
    for name, tensors in shards.items():
        save_file(tensors, output / name)


WAYS = {"prepare": prepare_delphi, "load and save": load_and_save}


def main() -> int:
    arguments = parse_arguments()
    if arguments.way:
        print(json.dumps(measure(arguments.way, *arguments.folders)))
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        model, output = Path(scratch) / "model", Path(scratch) / "output"
        make_model(model, arguments.columns, arguments.shards)
        measured: dict[str, list[dict]] = {way: [] for way in WAYS}
        for _ in range(arguments.repeats):
            for way, found in measured.items():
                found.append(start(way, model, output))
                shutil.rmtree(output)
        shard_mb = max(path.stat().st_size for path in model.glob("*.safetensors")) / 1e6
    result = {
        way: {key: statistics.median(each[key] for each in found) for key in found[0]}
        for way, found in measured.items()
    }
    for way, found in result.items():
        print(f"{way:14}", "  ".join(f"{key} {value:8.1f}" for key, value in found.items()))
    print(json.dumps({"shard_mb": round(shard_mb, 1), **result}))
    ours = result["prepare"]
    too_much = ours["peak_mb"] > shard_mb or ours["rewritten_mb"] > 2.1 * shard_mb
    return int(arguments.check and too_much)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--scratch", type=Path, help="a folder on the file system to measure")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("folders", nargs="*", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def make_model(model: Path, columns: int, shards: int) -> None:
    """Write a checkpoint whose shards hold one tensor each."""
    model.mkdir()
    write_checkpoint(model)
    for path in model.glob("model*"):
        path.unlink()
    layers = [f"model.layers.{number}.mlp.up_proj.weight" for number in range(shards)]
    names = [EMBEDDING, *layers, HEAD]
    tensor = np.random.default_rng(0).normal(0, 1, (VOCABULARY, columns)).astype(np.float16)
    files = {
        name: f"model-{number:05}-of-{len(names):05}.safetensors"
        for number, name in enumerate(names, 1)
    }
    for name, file in files.items():
        save_file({name: tensor}, model / file)
    write_json(model / "model.safetensors.index.json", {"weight_map": files})


def start(way: str, model: Path, output: Path) -> dict[str, float]:
    """What a new process measures of one way."""
    command = [sys.executable, __file__, "--way", way, str(model), str(output)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


def measure(way: str, model: Path, output: Path) -> dict[str, Any]:
    """Seconds, peak memory above that of the start, and bytes that are new or shared."""
    before, clock = peak_mb(), time.monotonic()
    WAYS[way](model, output)
    seconds = time.monotonic() - clock
    sizes: dict[bool, int] = {True: 0, False: 0}
    for name in list_files(output):
        state = (output / name).stat()
        sizes[state.st_nlink > 1] += state.st_size
    return {
        "seconds": round(seconds, 2),
        "peak_mb": round(peak_mb() - before, 1),
        "rewritten_mb": round(sizes[False] / 1e6, 1),
        "linked_mb": round(sizes[True] / 1e6, 1),
    }


def peak_mb() -> float:
    # Not getrusage: its peak of a process goes back to before the exec, to that of the parent.
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
