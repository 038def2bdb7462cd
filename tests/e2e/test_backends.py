"""One mix, trained by both backends through the whole workflow, from the same Delphi-like start.

A third run trains an adapter, which is merged before its release.
"""

import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from datasets import load_from_disk

from sft.files import hash_file, manifest, read_json
from sft.plot import draw_losses
from sft.process import parse_process_id
from sft.receipt import read_receipt
from tests.workflow.conftest import CHECKOUT, Project, copy_checkout

BACKENDS = ("llamafactory", "axolotl")
ARTEFACTS = CHECKOUT / "tests" / "artefacts"
MODEL = "tiny-delphi"
COLUMNS = {
    **{"base_config": "smoke", "model": MODEL, "mix": "ninety", "num_nodes": "1"},
    **{"register": "true", "template": "delphi", "cutoff_len": "256", "bf16": "false"},
    **{"learning_rate": "1e-3", "num_train_epochs": "1", "max_samples": "40", "save_steps": "4"},
    **{"accept": "[masked_reasoning]", "lr_scheduler_type": "constant", "warmup_steps": "0"},
}
END_OF_TURN = 128009  # <|eot_id|>
ADAPTER = {"finetuning_type": "lora", "lora_rank": "4", "lora_alpha": "8", "lora_target": "all"}
KILL_STEP = 6
KILL_WAIT_S = 600


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project after both runs, of which axolotl's was killed on its way and run again."""
    project = copy_checkout(tmp_path_factory.mktemp("series"))
    for name in BACKENDS:
        (project.root / f".venv-{name}").symlink_to((CHECKOUT / f".venv-{name}").resolve())
    make_model(project.root / "demo" / MODEL)
    write_inputs(project)
    kill_axolotl(project)
    ran = project.snakemake(timeout_s=1200)
    assert ran.code == 0, ran.text
    return project


def make_model(folder: Path) -> None:
    python = CHECKOUT / ".venv-llamafactory" / "bin" / "python"
    tokenizer = CHECKOUT / ".tokenizers" / "llama3"
    subprocess.run(
        [python, "-m", "tests.e2e.tiny_delphi", tokenizer, folder], cwd=CHECKOUT, check=True
    )


def write_inputs(project: Project) -> None:
    models = {MODEL: {"folder": f"demo/{MODEL}", "prepare": "delphi", "declare": True}}
    (project.root / "config" / "models.yaml").write_text(yaml.safe_dump(models))
    mixes = {
        "ninety": {
            "datasets": ["demo_reasoning", "demo_tools"],
            "strategy": "interleave_under",
            "probabilities": [0.9, 0.1],
        }
    }
    (project.root / "config" / "mixes.yaml").write_text(yaml.safe_dump(mixes))
    empty = [""] * len(ADAPTER)
    rows = [[f"by-{name}", name, *COLUMNS.values(), *empty] for name in BACKENDS]
    rows.append(["adapter", "axolotl", *COLUMNS.values(), *ADAPTER.values()])
    lines = ["\t".join(row) for row in [["name", "backend", *COLUMNS, *ADAPTER], *rows]]
    (project.root / "config" / "experiments.tsv").write_text("\n".join(lines) + "\n")


def kill_axolotl(project: Project) -> None:
    """Start the workflow, and SIGKILL it with all its processes once axolotl made some steps."""
    said = project.root / "killed.log"
    with open(said, "w") as output:
        driver = subprocess.Popen(
            project.command(),
            cwd=project.root,
            env=project.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + KILL_WAIT_S
    while max((each["step"] for each in read_steps(project, "axolotl")), default=0) < KILL_STEP:
        assert driver.poll() is None and time.monotonic() < deadline, said.read_text()
        time.sleep(0.1)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    for record in project.root.glob("results/runs/by-axolotl/checkpoints/*/process"):
        os.killpg(parse_process_id(record.read_text()).pid, signal.SIGKILL)


def read_steps(project: Project, backend: str) -> list[dict]:
    """The logged steps of a run so far."""
    paths = project.root.glob(f"results/runs/by-{backend}/checkpoints/*/steps.jsonl")
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return [each for each in lines if each["event"] == "log"]


def run_folder(project: Project, backend: str) -> Path:
    return project.root / "results" / "runs" / f"by-{backend}"


def losses(project: Project, backend: str) -> list[list]:
    return read_receipt(run_folder(project, backend) / "trained.json")["losses"]


def tokens_of(project: Project, backend: str) -> Path:
    config = yaml.safe_load((run_folder(project, backend) / "train.yaml").read_text())
    return Path(config.get("tokenized_path") or config["datasets"][0]["path"])


def test_both_trained_the_same_tokens(series):
    folders = [tokens_of(series, name) for name in BACKENDS]
    first, second = (list(load_from_disk(str(folder))) for folder in folders)

    assert folders[0] != folders[1]
    assert first == second


def test_first_losses_are_equal(series):
    (_, first), (_, other) = (losses(series, name)[0] for name in BACKENDS)

    assert first == pytest.approx(other, abs=1e-4)


def test_loss_curves_are_equal(series):
    curves = [losses(series, name) for name in BACKENDS]
    ARTEFACTS.mkdir(exist_ok=True)
    for name, curve in zip(BACKENDS, curves, strict=True):
        draw_losses(ARTEFACTS / f"loss-{name}.png", curve, f"the same mix, {name}")
    rows = [f"{a[0]}\t{a[1]:.6f}\t{b[1]:.6f}" for a, b in zip(*curves, strict=True)]
    header = "\t".join(["step", *BACKENDS])
    (ARTEFACTS / "losses.tsv").write_text("\n".join([header, *rows]) + "\n")

    assert [step for step, _ in curves[0]] == [step for step, _ in curves[1]]
    assert [loss for _, loss in curves[0]] == pytest.approx([b for _, b in curves[1]], abs=1e-3)


def test_killed_run_went_on_from_its_checkpoint(series):
    attempts = read_receipt(run_folder(series, "axolotl") / "trained.json")["attempts"]

    assert [each["resumed"] for each in attempts] == [None, "checkpoint-4"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_published_weights_are_the_trained_weights(series, backend):
    trained = read_receipt(run_folder(series, backend) / "trained.json")
    uploaded = read_receipt(run_folder(series, backend) / "uploaded.json")
    release = read_receipt(run_folder(series, backend) / "release.json")

    assert manifest(Path(uploaded["location"])) == release["files"]
    assert hash_file(Path(uploaded["location"]) / "model.safetensors") == hash_file(
        Path(trained["checkpoints"]) / "model.safetensors"
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_published_template_is_the_jinja_file(series, backend):
    release = run_folder(series, backend) / "release"
    template = (series.root / "sft" / "delphi" / "delphi.jinja").read_text()

    assert (release / "chat_template.jinja").read_text() == template
    assert read_json(release / "tokenizer_config.json")["chat_template"] == template
    assert END_OF_TURN in read_json(release / "generation_config.json")["eos_token_id"]


def test_registry_holds_both(series):
    with sqlite3.connect(series.root / "results" / "registry.db") as registry:
        rows = registry.execute("SELECT name FROM models WHERE NOT is_external").fetchall()

    names = ["laion/adapter", *(f"laion/by-{name}" for name in BACKENDS)]
    assert sorted(rows) == sorted((name,) for name in names)


def test_adapter_is_published_as_a_whole_model(series):
    run = series.root / "results" / "runs" / "adapter"
    merged = read_receipt(run / "consolidated.json")
    release = read_receipt(run / "release.json")

    assert read_receipt(run / "layout.json")["layout"] == "lora"
    assert merged["merged"] == 14  # seven matrices in each of two layers
    assert hash_file(run / "release" / "model.safetensors") == hash_file(
        Path(merged["weights"]) / "model.safetensors"
    )
    assert not any("adapter" in each["path"] for each in release["files"])


def test_second_run_has_nothing_to_do(series):
    ran = series.snakemake()

    assert "Nothing to be done" in ran.text, ran.text


def test_provenance_names_the_trainer(series):
    provenance = read_json(run_folder(series, "axolotl") / "release" / "provenance.json")

    assert provenance["experiment"]["backend"] == "axolotl"
    assert "axolotl" in provenance["versions"]
