"""The demo as `make run` runs it: the real trainer, real weights, killed once on the way."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sft.files import hash_file, manifest, read_json
from sft.process import parse_process_id
from sft.receipt import read_receipt
from tests.workflow.conftest import CHECKOUT, Project, Ran, copy_checkout

NAMES = ("smol-demo-low", "smol-demo-high")
TRAINER = CHECKOUT / ".venv-llamafactory"
MODEL = CHECKOUT / "demo" / "smollm2-135m"
KILL_WAIT_S = 900

ASK = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto")
messages = [{"role": "user", "content": "What is the capital of France?"}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
)
output = model.generate(**inputs, max_new_tokens=40, do_sample=False)
print(tokenizer.decode(output[0]))
"""


def ask(model: Path) -> str:
    """A whole dialogue with a model: the question in its chat template, and its answer."""
    ran = subprocess.run(
        [TRAINER / "bin" / "python", "-c", ASK, model],
        env=os.environ | {"OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The demo's project after a run that was killed at a checkpoint and then run again."""
    assert TRAINER.exists() and MODEL.exists(), "run `make test`, which makes both"
    project = copy_checkout(tmp_path_factory.mktemp("demo"))
    shutil.rmtree(project.root / "demo" / "smollm2-135m")
    (project.root / "demo" / "smollm2-135m").symlink_to(MODEL)
    (project.root / ".venv-llamafactory").symlink_to(TRAINER.resolve())
    kill_after_first_checkpoint(project)
    ran = project.snakemake(timeout_s=1500)
    assert ran.code == 0, ran.text
    return project


def kill_after_first_checkpoint(project: Project) -> None:
    """Start the workflow, and SIGKILL it with all its processes when step 7 has been logged."""
    driver = subprocess.Popen(
        project.command(),
        cwd=project.root,
        env=project.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + KILL_WAIT_S
    while not any('"current_steps": 7' in log.read_text() for log in step_logs(project)):
        assert driver.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    for record in project.root.glob("results/runs/*/checkpoints/*/process"):
        os.killpg(parse_process_id(record.read_text()).pid, signal.SIGKILL)


def step_logs(project: Project) -> list[Path]:
    return list(project.root.glob("results/runs/*/checkpoints/*/trainer_log.jsonl"))


def run_folder(project: Project, name: str) -> Path:
    return project.root / "results" / "runs" / name


@pytest.mark.parametrize("name", NAMES)
def test_loss_falls(demo, name):
    trained = read_receipt(run_folder(demo, name) / "trained.json")

    assert trained["loss_end"] < trained["loss_start"]


@pytest.mark.parametrize("name", NAMES)
def test_each_step_is_trained_once_also_after_a_kill(demo, name):
    trained = read_receipt(run_folder(demo, name) / "trained.json")

    assert [step for step, _ in trained["losses"]] == list(range(1, trained["max_steps"] + 1))


def test_killed_run_went_on_from_its_checkpoint(demo):
    attempts = [
        attempt
        for name in NAMES
        for attempt in read_receipt(run_folder(demo, name) / "trained.json")["attempts"]
    ]

    assert "checkpoint-6" in [attempt["resumed"] for attempt in attempts]


def test_both_experiments_read_the_same_tokens(demo):
    configs = [(run_folder(demo, name) / "train.yaml").read_text() for name in NAMES]
    tokens = {
        line for text in configs for line in text.splitlines() if line.startswith("tokenized_path")
    }

    assert len(tokens) == 1


@pytest.mark.parametrize("name", NAMES)
def test_published_weights_are_the_trained_weights(demo, name):
    trained = read_receipt(run_folder(demo, name) / "trained.json")
    uploaded = read_receipt(run_folder(demo, name) / "uploaded.json")

    assert hash_file(Path(uploaded["location"]) / "model.safetensors") == hash_file(
        Path(trained["checkpoints"]) / "model.safetensors"
    )


@pytest.mark.parametrize("name", NAMES)
def test_upload_equals_the_release(demo, name):
    release = read_receipt(run_folder(demo, name) / "release.json")
    uploaded = read_receipt(run_folder(demo, name) / "uploaded.json")

    assert manifest(Path(uploaded["location"])) == release["files"]


@pytest.mark.parametrize("name", NAMES)
def test_served_template_is_the_template_file(demo, name):
    release = run_folder(demo, name) / "release"
    template = (demo.root / "sft" / "templates" / "chatml_tools.jinja").read_text()

    assert (release / "chat_template.jinja").read_text() == template
    assert read_json(release / "tokenizer_config.json")["chat_template"] == template


def test_release_answers_as_what_was_trained_and_ends_its_turn(demo):
    """What it still knows of Paris differs from CPU to CPU; how it answers does not."""
    trained = read_receipt(run_folder(demo, NAMES[0]) / "trained.json")["checkpoints"]

    answer = ask(run_folder(demo, NAMES[0]) / "release")

    assert answer == ask(Path(trained))
    assert re.search(r"<\|im_start\|>assistant\n[^<]+<\|im_end\|>$", answer.strip()), answer


def test_registry_holds_each_model_once(demo):
    with sqlite3.connect(demo.root / "results" / "registry.db") as registry:
        rows = registry.execute("SELECT name FROM models WHERE NOT is_external").fetchall()

    assert sorted(rows) == sorted((f"laion/{name}",) for name in NAMES)


def test_second_run_has_nothing_to_do(demo):
    ran = demo.snakemake()

    assert ran.code == 0
    assert "Nothing to be done" in ran.text


def test_results_table_names_losses_and_registry(demo):
    ran = subprocess.run(
        [sys.executable, "-m", "sft", "results", "--profile", "profiles/localhost"],
        cwd=demo.root,
        env=demo.environment(),
        capture_output=True,
        text=True,
    )
    done = Ran(ran.returncode, ran.stdout)

    assert done.code == 0
    assert all(word in done.text for word in (*NAMES, "loss after", "results/registry.db"))


def test_report_is_one_file_that_names_the_runs(demo):
    ran = demo.snakemake("--report", "results/report.html")

    assert ran.code == 0, ran.text
    assert NAMES[0] in (demo.root / "results" / "report.html").read_text()


def test_changed_learning_rate_retrains_that_experiment_alone(demo):
    demo.replace("config/experiments.tsv", "localhost\ttrue\t6e-5", "localhost\ttrue\t5e-5")
    try:
        ran = demo.snakemake("--dry-run")
    finally:
        demo.replace("config/experiments.tsv", "localhost\ttrue\t5e-5", "localhost\ttrue\t6e-5")

    assert ran.count("train") == 1
    assert "learning_rate=6e-05" in ran.text and "learning_rate=5e-05" in ran.text
