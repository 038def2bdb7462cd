"""Time a training through the workflow against the same launch.sh started by hand.

    python benchmarks/overhead.py [--steps 300] [--repeats 1] [--check]

As root, with Debian's Slurm: on the private cluster of tests/slurm, with the real LLaMA-Factory and
a model of few weights. The two alternate, so that other load on the computer meets both. By hand is
`bash launch.sh` on this computer, without Slurm: the time of the trainer alone. The workflow is
`snakemake` up to layout.json of a run that is rendered already: it submits the job, waits for it,
writes the receipt and starts the next stage. From the end of the trainer to the beginning of that
stage is the second figure.

The last line is JSON. With --check the exit code is 1 where the workflow takes more than 1.05 times
as long plus 15 s, or the next stage begins more than 15 s after the end.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from tests.slurm.cluster import Cluster, missing  # noqa: E402
from tests.slurm.project import BASE_CONFIG, Project, make_project  # noqa: E402

MOST_TIMES, MOST_MORE_S, MOST_LATENCY_S = 1.05, 15.0, 15.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    BASE_CONFIG.update(max_steps=arguments.steps, save_steps=arguments.steps // 3)
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    cluster = Cluster.start(folder / "c")
    try:
        project = make_project(folder / "p", cluster)
        run(project, "results/runs/one/train.yaml")
        figures = [measure(project) for _ in range(arguments.repeats)]
    finally:
        cluster.stop()
        shutil.rmtree(folder)
    by_hand, workflow, latency = (statistics.median(each) for each in zip(*figures, strict=True))
    ratio = (workflow - MOST_MORE_S) / by_hand
    print(f"by hand {by_hand:.1f} s, workflow {workflow:.1f} s, next stage after {latency:.1f} s")
    print(
        json.dumps(
            {
                **{"by_hand_s": round(by_hand, 1), "workflow_s": round(workflow, 1)},
                **{"ratio_without_15_s": round(ratio, 3), "latency_s": round(latency, 1)},
            }
        )
    )
    if arguments.check and (ratio > MOST_TIMES or latency > MOST_LATENCY_S):
        sys.exit(1)


def measure(project: Project) -> tuple[float, float, float]:
    """Seconds by hand, through the workflow, and from the trainer's end to the next stage."""
    folder = project.root / "results" / "runs" / "one"
    clear(folder)
    start_s = time.monotonic()
    subprocess.run(
        ["bash", folder / "launch.sh"], env=project.environment(), check=True, capture_output=True
    )
    by_hand_s = time.monotonic() - start_s
    clear(folder)
    start_s = time.monotonic()
    run(project, "results/runs/one/layout.json")
    workflow_s = time.monotonic() - start_s
    [checkpoints] = (folder / "checkpoints").iterdir()
    ended_s = (checkpoints / "trainer_state.json").stat().st_mtime
    begun = json.loads((folder / "layout.json").read_text())["started"]
    return by_hand_s, workflow_s, datetime.fromisoformat(begun).timestamp() - ended_s


def clear(folder: Path) -> None:
    """Leave of a run what was rendered."""
    for path in (folder / "checkpoints").iterdir():
        shutil.rmtree(path)
        path.mkdir()
    for name in ("trained.json", "loss.png", "layout.json"):
        (folder / name).unlink(missing_ok=True)


def run(project: Project, target: str) -> None:
    """Let snakemake make a target."""
    snakemake = project.snakemake(target)
    text = snakemake.communicate()[0]
    if snakemake.returncode:
        sys.exit(text)


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    main()
