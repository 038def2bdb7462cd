"""ZeRO-3 shards into bfloat16 safetensors: ours, DeepSpeed's own function, and the bare disk.

    .venv-llamafactory/bin/python -m benchmarks.consolidate [FOLDER] [--sizes 0.3 0.6 1.2]

Checkpoints of random numbers in 8 ranks, with the optimizer's states beside the weights as a
training leaves them. Each way runs in a process of its own, in turns, with the files out of the
page cache. The disk's floor reads four bytes and writes two for each parameter, of the same files.
Both make the same tensors, which is checked at the smallest size.

Limits: wall time at most 0.45 of DeepSpeed's and 1.3 of the floor, peak memory below 0.6 GB.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = ("0.3", "0.6", "1.2")  # billions of parameters
ROUNDS = 3
LIMITS = {"of DeepSpeed's": 0.45, "of the floor": 1.3}
MEMORY_GB = 0.6
# Each way is a module of its own, which imports no more than it needs.
CHILD = """
import importlib, sys, time
from pathlib import Path
way = importlib.import_module(f"benchmarks.consolidation.{sys.argv[1]}")
began = time.perf_counter()
way.consolidate(Path(sys.argv[2]), Path(sys.argv[3]))
print(time.perf_counter() - began)
"""


WAYS = ("ours", "deepspeeds", "floor")


def forget(folder: Path) -> None:
    """Let the system drop the files of a folder from its page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(way: str, checkpoint: Path, output: Path) -> tuple[float, float]:
    """Seconds without the imports, and the peak memory of a process that does nothing else, GB."""
    shutil.rmtree(output, ignore_errors=True)
    forget(checkpoint)
    command = [sys.executable, "-c", CHILD, way, str(checkpoint), str(output)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    said = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, f"{way} failed"
    return float(said.splitlines()[-1]), used.ru_maxrss / 1e6


def tell(module: str, *arguments: object) -> str:
    """The last line of a module; this process imports little, since its memory would be counted."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return said.splitlines()[-1] if said else ""


def compare(size: str, folder: Path) -> bool:
    """Print medians and ratios at a size; whether all limits hold."""
    checkpoint = folder / "checkpoint"
    parameters = int(tell("benchmarks.consolidation.shards", checkpoint, size))
    rounds = [
        {name: measure(name, checkpoint, folder / name) for name in WAYS} for _ in range(ROUNDS)
    ]
    if size == min(SIZES):
        tell("benchmarks.consolidation.same", folder / "ours", folder / "deepspeeds")
    times = {name: statistics.median(each[name][0] for each in rounds) for name in WAYS}
    peaks = {name: max(each[name][1] for each in rounds) for name in WAYS}
    print(f"{parameters / 1e9:.2f} B parameters in eight ranks, medians of {ROUNDS} rounds")
    for name in WAYS:
        print(f"  {name:>12}: {times[name]:6.1f} s, peak {peaks[name]:.2f} GB")
    ratios = {
        "of DeepSpeed's": times["ours"] / times["deepspeeds"],
        "of the floor": times["ours"] / times["floor"],
    }
    for name, ratio in ratios.items():
        print(f"  ours is {ratio:.2f} {name} (limit {LIMITS[name]})")
    for name in (*WAYS, "checkpoint"):
        shutil.rmtree(folder / name)
    return peaks["ours"] < MEMORY_GB and all(ratios[name] <= LIMITS[name] for name in ratios)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.consolidate")
    parser.add_argument("folder", nargs="?", help="on the disk that is measured")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        held = [compare(size, Path(folder)) for size in arguments.sizes]
    raise SystemExit(0 if all(held) else "a limit does not hold")


if __name__ == "__main__":
    main()
