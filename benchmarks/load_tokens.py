"""How long processes that start at once wait for their tokens: ours, and axolotl's own way.

    .venv-axolotl/bin/python -m benchmarks.load_tokens [FOLDER]

Processes that have imported everything load the same tokens at the same moment; the time is that of
the last one. axolotl's own loader takes a file lock and lets one process in after the other. With
more processes than cores they share the cores, so that time is also given over what cores that were
busy all the time would need: 1.0 is a load where nobody waits for anybody.
"""

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sft.trainers.axolotl import SETTINGS

os.environ |= SETTINGS

from axolotl.utils.data.lock import FileLockLoader
from axolotl.utils.dict import DictDefault
from datasets import Dataset, load_from_disk

from sft.trainers.axolotl_plugin import Plugin

EXAMPLES, TOKENS = 100_000, 50
PROCESSES = (1, 4, 16)
ROUNDS = 5
CONTEXT = multiprocessing.get_context("fork")


def write_tokens(folder: Path) -> None:
    """Write five million tokens."""
    row = [list(range(TOKENS))] * EXAMPLES
    columns = {"input_ids": row, "labels": row, "attention_mask": [[1] * TOKENS] * EXAMPLES}
    Dataset.from_dict(columns).save_to_disk(str(folder))


def load_ours(tokens: Path) -> None:
    """As a training process of this project does."""
    counted = {"micro_batch_size": 1, "gradient_accumulation_steps": 1, "num_epochs": 1}
    Plugin().load_datasets(
        DictDefault({"datasets": [{"path": str(tokens)}], "world_size": 1} | counted)
    )


def load_theirs(tokens: Path) -> None:
    """As axolotl does with the same tokens, prepared before."""
    loader = FileLockLoader(DictDefault({"dataset_prepared_path": str(tokens.parent / "locks")}))
    try:
        loader.load(lambda: load_from_disk(str(tokens)))
    finally:
        loader.cleanup()


def time_loads(load: Callable[[Path], None], tokens: Path, processes: int) -> float:
    """Seconds from the common start to the last process's end."""
    start, ends = CONTEXT.Barrier(processes), CONTEXT.Queue()

    def run() -> None:
        start.wait()
        began = time.perf_counter()
        load(tokens)
        ends.put(time.perf_counter() - began)

    workers = [CONTEXT.Process(target=run) for _ in range(processes)]
    for worker in workers:
        worker.start()
    last = max(ends.get() for _ in workers)
    for worker in workers:
        worker.join()
    return last


def median_s(load: Callable[[Path], None], tokens: Path, processes: int) -> float:
    """The median of several rounds, in seconds."""
    return statistics.median(time_loads(load, tokens, processes) for _ in range(ROUNDS))


def rounds_of_cores(processes: int) -> float:
    """How often the cores of this computer have to be shared by so many processes."""
    return max(1.0, processes / len(os.sched_getaffinity(0)))


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        tokens = Path(folder) / "tokens"
        write_tokens(tokens)
        print(f"{EXAMPLES * TOKENS:,} tokens, {len(os.sched_getaffinity(0))} cores, medians")
        for name, load in {"ours": load_ours, "axolotl's": load_theirs}.items():
            alone = median_s(load, tokens, 1)
            for processes in PROCESSES:
                took = median_s(load, tokens, processes)
                share = took / (alone * rounds_of_cores(processes))
                print(f"{name:>10}, {processes:2} at once: {took:.3f} s, {share:.1f} of one's time")


if __name__ == "__main__":
    main()
