"""The record of what made a model: from which receipts each part of it comes."""

import json
from pathlib import Path

import pytest

from sft.assembly import code_faults
from sft.files import write_yaml
from sft.provenance import gather_provenance
from sft.release import Provenance
from tests.unit.experiments import SITE, with_config

CODE = {"commit": "a" * 40, "dirty": False, "pushed": True}
CONFIG = {
    **{"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3},
    **{"tokenized_path": "/tokens/t", "learning_rate": 1e-5},
}


def pinned(name: str) -> dict:
    return {
        **{"name": name, "source": f"hub:org/{name}", "revision": "b" * 40, "sha256": "c" * 64},
        **{"path": "/models/m", "files": []},
    }


def attempt(job: str | None, ending: str, **changes: object) -> dict:
    return {
        **{"id": f"host-{job}", "launcher": "slurm", "job_id": job, "series": 1},
        **{"started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T01:00:00+00:00"},
        **{"ending": ending, "text": "it ended", "lines": ["HF_TOKEN=x"], "nodes": ["node1"]},
        **{"from_step": 0, "to_step": 2, "world_size": 8, "num_nodes": 2, "code": CODE},
        **{"log": "/runs/logs/trainer.log", "next_job": None},
        **changes,
    }


@pytest.fixture
def gather(tmp_path: Path):
    """What gathers the provenance of a run with these attempts, begins and weights."""

    def gather(
        attempts: list[dict], begins: list[dict] | None = None, weights: dict | None = None
    ) -> Provenance:
        write_yaml(tmp_path / "train.yaml", CONFIG)
        events = [{"event": "begin", "step": 0, **each} for each in begins or [{}]]
        lines = [json.dumps({"time": 1.0, "max_steps": 4, **event}) for event in events]
        (tmp_path / "steps.jsonl").write_text("\n".join(lines) + "\n")
        trained = {
            **{"fingerprint": "01234567", "config": str(tmp_path / "train.yaml")},
            **{"checkpoints": str(tmp_path), "global_step": 4, "losses": [[1, 2.0]]},
            **{"started": "s", "finished": "f", "attempts": attempts},
        }
        source = {"examples": 10, "tokens": 1000, "rows_in": 12}
        return gather_provenance(
            *(with_config(template="qwen3"), SITE),
            model=pinned("base"),
            datasets=[pinned("web")],
            tokens={
                **{"key": "e" * 64, "sources": {"web": source}},
                "versions": {"transformers": "5.6.0"},
            },
            trained=trained,
            checked={"accepted": []},
            weights=weights or {"weights": "/w", "layout": "safetensors"},
            served={"template": "d" * 64, "conversations": 19, "refused": [], "folders": ["x"]},
        )

    return gather


def test_jobs_are_those_of_all_attempts_each_once(gather):
    attempts = [
        *(attempt("11", "node_fail"), attempt("11", "out_of_time"), attempt("12", "completed")),
        attempt(None, "lost"),
    ]

    made = gather(attempts)

    assert made.job_ids == ["11", "12"]
    assert [each["ending"] for each in made.attempts] == [
        *("node_fail", "out_of_time", "completed", "lost")
    ]


def test_attempts_tell_neither_computers_nor_logs(gather):
    (made,) = gather([attempt("11", "completed")]).attempts

    assert made.keys().isdisjoint({"id", "nodes", "log", "lines", "text"})


def test_batch_is_that_of_the_config_which_trained(gather):
    assert gather([attempt("11", "completed")]).training["global_batch_size"] == 2 * 3 * 8


def test_data_and_model_have_their_hashes(gather):
    made = gather([attempt("11", "completed")])

    keys = ("name", "source", "revision", "sha256")
    assert made.base_model == {key: pinned("base")[key] for key in keys}
    assert made.datasets == [
        {key: pinned("web")[key] for key in keys} | {"rows": 10, "tokens": 1000}
    ]


def test_versions_are_those_of_the_last_training_process(gather):
    begins = [{"versions": ["torch==2.8.0"]}, {"versions": ["torch==2.9.1", "axolotl==0.16.1"]}]

    made = gather([attempt("11", "completed")], begins)

    assert made.versions["torch"] == "2.9.1"
    assert made.versions["transformers"] == "5.6.0"
    assert "snakemake" in made.versions


def test_versions_of_a_run_that_noted_none_are_those_that_tokenized(gather):
    assert gather([attempt("11", "completed")]).versions["transformers"] == "5.6.0"


def test_merged_adapter_has_the_share_that_is_left(gather):
    weights = {"weights": "/w", "merged": 12, "kept": 0.98, "files": []}

    assert gather([attempt("11", "completed")], weights=weights).weights == {
        **{"merged": 12, "kept": 0.98}
    }
    assert gather([attempt("11", "completed")]).weights == {"merged": 0, "kept": None}


# --- code that others can read -------------------------------------------------------------------


def test_attempt_of_changed_code_is_named(gather):
    dirty = {**CODE, "dirty": True}
    attempts = [attempt("11", "out_of_time", code=dirty), attempt("12", "completed", code=None)]

    faults = list(code_faults(gather(attempts)))

    assert (
        f"run, require_clean_git, attempt 1 to train: {'a' * 12} with changes; train again from a "
        "checkout without" in faults
    )
    assert not any("attempt 2" in fault for fault in faults)


def test_attempt_whose_commit_no_remote_has_is_named(gather):
    faults = list(code_faults(gather([attempt("11", "completed")])))

    assert (
        f"run, require_clean_git, attempt 1 to train: {'a' * 12} is in no branch of a remote; push "
        "it" in faults
    )
