"""Time a dry run of this workflow against a bare Snakemake workflow of the same jobs.

    python benchmarks/dry_run.py [--experiments 1000] [--repeats 3] [--check]

Both have the same number of jobs of each rule, connected by the same files. The bare one has
inputs, outputs and a line of shell, and nothing else: no table, no checks, no params, no scripts,
no logs. Its time is Snakemake's own for so many jobs; the ratio says what reading and checking the
table, and keeping what a result depends on, cost on top. The seconds belong to the computer, the
ratio hardly. Dry runs of the two alternate, so that other load on the computer meets both, and
medians count. Nothing is made yet in either, which makes the longest dry run that there is.

The last line is JSON. With --check the exit code is 1 where the ratio is above MOST.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

MOST = 1.5
CHECKOUT = Path(__file__).resolve().parents[1]
MIXES = {
    "tools": ["demo_tools"],
    "reasoning": ["demo_reasoning"],
    "both": ["demo_tools", "demo_reasoning"],
}

BARE = """
EXPERIMENTS = {experiments}
MIXES = {mixes}


def mix_of(experiment):
    return list(MIXES)[int(experiment[1:]) % len(MIXES)]


def datasets_of(mix):
    return [f"results/datasets/{{each}}/fetched.json" for each in MIXES[mix]]


def datasets_of_experiment(wildcards):
    return datasets_of(mix_of(wildcards.experiment))


def tokens_of_experiment(wildcards):
    return f"results/tokens/{{mix_of(wildcards.experiment)}}/pretokenized.json"


def checked_of_experiment(wildcards):
    return f"results/tokens/{{mix_of(wildcards.experiment)}}/checked-strict.json"


rule all:
    input:
        expand("results/runs/{{experiment}}/uploaded.json", experiment=EXPERIMENTS),
        expand("results/runs/{{experiment}}/registered.json", experiment=EXPERIMENTS),


rule fetch_model:
    output:
        "results/models/{{model}}/fetched.json",
    shell:
        "touch {{output}}"


rule fetch_dataset:
    output:
        "results/datasets/{{dataset}}/fetched.json",
    shell:
        "touch {{output}}"


rule pretokenize:
    input:
        "results/models/model/fetched.json",
        lambda wildcards: datasets_of(wildcards.tokens),
    output:
        "results/tokens/{{tokens}}/pretokenized.json",
    shell:
        "touch {{output}}"


rule inspect_tokens:
    input:
        "results/tokens/{{tokens}}/pretokenized.json",
        "results/models/model/fetched.json",
        lambda wildcards: datasets_of(wildcards.tokens),
    output:
        "results/tokens/{{tokens}}/inspected.json",
    shell:
        "touch {{output}}"


rule check_tokens:
    input:
        "results/tokens/{{tokens}}/inspected.json",
    output:
        "results/tokens/{{tokens}}/checked-{{decisions}}.json",
    shell:
        "touch {{output}}"


rule render:
    input:
        "results/models/model/fetched.json",
        tokens_of_experiment,
        checked_of_experiment,
    output:
        "results/runs/{{experiment}}/train.yaml",
        "results/runs/{{experiment}}/launch.sh",
    shell:
        "touch {{output}}"


rule train:
    input:
        "results/runs/{{experiment}}/train.yaml",
        "results/runs/{{experiment}}/launch.sh",
    output:
        "results/runs/{{experiment}}/trained.json",
        "results/runs/{{experiment}}/loss.png",
    shell:
        "touch {{output}}"


rule detect_layout:
    input:
        "results/runs/{{experiment}}/trained.json",
    output:
        "results/runs/{{experiment}}/layout.json",
    shell:
        "touch {{output}}"


rule check_template:
    input:
        "results/runs/{{experiment}}/layout.json",
        "results/runs/{{experiment}}/trained.json",
        tokens_of_experiment,
    output:
        "results/runs/{{experiment}}/served.json",
    shell:
        "touch {{output}}"


rule assemble_release:
    input:
        "results/runs/{{experiment}}/layout.json",
        "results/runs/{{experiment}}/served.json",
        "results/runs/{{experiment}}/trained.json",
        "results/runs/{{experiment}}/train.yaml",
        "results/models/model/fetched.json",
        datasets_of_experiment,
        tokens_of_experiment,
        checked_of_experiment,
    output:
        "results/runs/{{experiment}}/release.json",
    shell:
        "touch {{output}}"


rule upload:
    input:
        "results/runs/{{experiment}}/release.json",
    output:
        "results/runs/{{experiment}}/uploaded.json",
    shell:
        "touch {{output}}"


rule register:
    input:
        "results/runs/{{experiment}}/uploaded.json",
        "results/runs/{{experiment}}/trained.json",
        "results/models/model/fetched.json",
        datasets_of_experiment,
        tokens_of_experiment,
    output:
        "results/runs/{{experiment}}/registered.json",
    shell:
        "touch {{output}}"
"""


class DryRun(NamedTuple):
    """What a dry run took and planned: wall seconds, peak memory in MB, jobs by rule."""

    seconds: float
    peak_mb: float
    jobs: dict[str, int]


def main() -> int:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        ours, bare = Path(folder) / "ours", Path(folder) / "bare"
        make_ours(ours, arguments.experiments)
        make_bare(bare, arguments.experiments)
        timed: dict[str, list[DryRun]] = {"ours": [], "bare": []}
        for _ in range(arguments.repeats):
            timed["ours"].append(dry_run(ours, ["--profile", "profiles/localhost"]))
            timed["bare"].append(dry_run(bare, ["--cores", "all"]))
    jobs = timed["ours"][0].jobs
    if jobs != timed["bare"][0].jobs:
        raise SystemExit(f"not the same jobs: {jobs} and {timed['bare'][0].jobs}")
    summary = summarize(timed, arguments.experiments, sum(jobs.values()))
    print(table(timed))
    print(json.dumps(summary))
    return int(arguments.check and summary["ratio"] > MOST)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=int, default=1000, help="rows of the table")
    parser.add_argument("--repeats", type=int, default=3, help="dry runs of each workflow")
    parser.add_argument("--check", action="store_true", help=f"fail above a ratio of {MOST}")
    return parser.parse_args()


def make_ours(root: Path, count: int) -> None:
    """Copy this workflow to `root`, with a table of `count` experiments."""
    ignored = shutil.ignore_patterns("__pycache__", "smollm2-135m", ".*")
    for part in ("workflow", "config", "profiles", "demo", "sft"):
        shutil.copytree(CHECKOUT / part, root / part, ignore=ignored)
    shutil.copy2(CHECKOUT / "Snakefile", root)
    model = root / "demo" / "smollm2-135m"
    model.mkdir()
    (model / "config.json").write_text("{}")
    # JSON is YAML too.
    mixes = {name: {"datasets": datasets} for name, datasets in MIXES.items()}
    (root / "config" / "mixes.yaml").write_text(json.dumps(mixes))
    header = "name base_config model mix num_nodes sites register learning_rate"
    rows = [
        f"e{number} smoke smollm2-135m {mix_of(number)} 1 localhost true {(number + 1) * 1e-6:.3g}"
        for number in range(count)
    ]
    text = "\n".join([header, *rows, ""]).replace(" ", "\t")
    (root / "config" / "experiments.tsv").write_text(text)


def mix_of(number: int) -> str:
    return list(MIXES)[number % len(MIXES)]


def make_bare(root: Path, count: int) -> None:
    """Write a workflow of the same jobs to `root`, made of inputs and outputs alone."""
    root.mkdir()
    names = [f"e{number}" for number in range(count)]
    (root / "Snakefile").write_text(BARE.format(experiments=names, mixes=MIXES))


def dry_run(root: Path, arguments: list[str]) -> DryRun:
    """Dry-run the workflow in `root` and measure it; the run's own text is read for its jobs."""
    command = [sys.executable, "-m", "snakemake", "--dry-run", *arguments]
    output = root / "dry_run.log"
    with open(output, "wb") as file:
        start = time.monotonic()
        process = subprocess.Popen(command, cwd=root, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)  # as Popen.wait, with the memory it took
        seconds = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    text = output.read_text()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} in {root}:\n{text[-2000:]}")
    return DryRun(seconds, usage.ru_maxrss / 1024, count_jobs(text))


def count_jobs(text: str) -> dict[str, int]:
    """The table of job stats that a dry run prints: rule to count, without its total."""
    stats = re.search(r"^job +count\n[- ]+\n((?:\w+ +\d+\n)+)", text, re.MULTILINE)[1]
    pairs = (line.split() for line in stats.splitlines())
    return {rule: int(count) for rule, count in pairs if rule != "total"}


def summarize(timed: dict[str, list[DryRun]], experiments: int, jobs: int) -> dict:
    """Medians of both workflows and their ratio."""
    ours, bare = (median_seconds(timed[name]) for name in ("ours", "bare"))
    return {
        "experiments": experiments,
        "jobs": jobs,
        "ours_s": round(ours, 2),
        "bare_s": round(bare, 2),
        "ratio": round(ours / bare, 3),
        "most": MOST,
    }


def median_seconds(runs: list[DryRun]) -> float:
    return statistics.median(run.seconds for run in runs)


def table(timed: dict[str, list[DryRun]]) -> str:
    """Lines for a person: medians, the fastest and the slowest run, peak memory."""
    lines = [f"{'workflow':<10}{'median s':>10}{'fastest':>10}{'slowest':>10}{'peak MB':>10}"]
    for name, runs in timed.items():
        seconds = [run.seconds for run in runs]
        peak = statistics.median(run.peak_mb for run in runs)
        numbers = (median_seconds(runs), min(seconds), max(seconds))
        cells = "".join(f"{each:>10.2f}" for each in numbers)
        lines.append(f"{name:<10}{cells}{peak:>10.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
