"""What an experiment says in the registry, and where that goes."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sft.registration import build_registration, registry_place, registry_url, wandb_link
from sft.registry import Registration
from tests.unit.experiments import EXPERIMENT, SITE

FILE = Path("/results/registry.db")
UPLOADED = {"location": "https://huggingface.co/laion/run"}
MODEL = {"revision": "c" * 40, "sha256": "d" * 64}
HUB_DATA = {
    **{"name": "traces", "source": "hub:org/agent-traces", "path": "/cache/traces"},
    **{"revision": "a" * 40, "sha256": "b" * 64},
}
LOCAL_DATA = {
    **{"name": "own", "source": "local:data/own.jsonl", "path": "/data/own.jsonl"},
    **{"revision": None, "sha256": "e" * 64},
}
TOKENS = {"sources": {"traces": {"rows_in": 7}, "own": {"rows_in": 5}}}


def attempt(log: Path, start: int = 0) -> dict:
    return {"log": str(log), "log_start": start, "num_nodes": 4}


def registration(experiment=EXPERIMENT, datasets=(HUB_DATA,), uploaded=UPLOADED) -> Registration:
    trained = {
        **{"started": "2026-03-01T08:30:00+00:00", "finished": "2026-03-01T13:30:00+00:00"},
        **{"attempts": [attempt(Path("/no/log"))], "fingerprint": "0123abcd"},
    }
    return build_registration(experiment, SITE, uploaded, trained, MODEL, list(datasets), TOKENS)


def test_agent_is_the_last_part_of_the_datasets_name():
    assert registration().agent_name == "agent-traces"


def test_agent_of_a_mix_has_the_mixs_name():
    assert registration(datasets=(HUB_DATA, LOCAL_DATA)).agent_name == "demo"


def test_agent_is_what_the_row_says():
    assert registration(replace(EXPERIMENT, agent="terminus")).agent_name == "terminus"


def test_config_is_a_page_of_the_hub():
    parameters = registration().training_parameters
    assert parameters["config_blob"] == "https://huggingface.co/laion/run/blob/main/config.json"
    assert parameters["hf_repo"] == "laion/run"


def test_config_of_a_folder_is_a_file_in_it():
    made = registration(uploaded={"location": "/hub/laion/run"})
    assert made.training_parameters["config_blob"] == "/hub/laion/run/config.json"


def test_creator_is_the_organisation_and_the_base_is_what_the_model_says():
    made = registration()
    assert (made.created_by, made.base_model, made.declare_base) == (
        *("laion", "Qwen/Qwen3-8B"),
        False,
    )


def test_training_is_from_the_first_start_to_the_last_end_in_utc():
    made = registration()
    assert made.training_start == datetime(2026, 3, 1, 8, 30, tzinfo=UTC)
    assert made.training_end == datetime(2026, 3, 1, 13, 30, tzinfo=UTC)


def test_datasets_say_where_they_come_from_and_how_many_rows_were_read():
    hub, local = registration(datasets=(HUB_DATA, LOCAL_DATA)).datasets
    assert (hub.name, hub.created_by, hub.hf_commit_hash) == ("org/agent-traces", "org", "a" * 40)
    assert (local.name, local.created_by, local.hf_commit_hash) == ("own", "laion", None)
    assert (hub.num_tasks, local.num_tasks) == (7, 5)


def test_link_is_the_page_that_the_newest_attempt_names(tmp_path):
    log = tmp_path / "trainer.log"
    log.write_text("wandb: View run at https://wandb.ai/team/sft/runs/old1\n")
    start = log.stat().st_size
    with open(log, "a") as file:
        file.write("wandb: \U0001f680 View run at https://wandb.ai/team/sft/runs/new2\nloss 1.0\n")
    assert wandb_link([attempt(log), attempt(log, start)]) == "https://wandb.ai/team/sft/runs/new2"


def test_link_of_an_earlier_attempt_counts_where_the_newest_named_none(tmp_path):
    log = tmp_path / "trainer.log"
    log.write_text("wandb: View run at https://wandb.ai/team/sft/runs/old1\n")
    after = log.stat().st_size
    assert wandb_link([attempt(log), attempt(log, after)]).endswith("/runs/old1")


@pytest.mark.parametrize("text", ["", "wandb: Tracking run with wandb (offline)\n"])
def test_run_without_a_page_has_no_link(tmp_path, text):
    log = tmp_path / "trainer.log"
    log.write_text(text)
    assert wandb_link([attempt(log), attempt(tmp_path / "gone.log")]) is None


@pytest.mark.parametrize("url", ["", None])
def test_registry_is_the_file_where_no_url_is_set(monkeypatch, url):
    monkeypatch.delenv("SFT_REGISTRY_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("SFT_REGISTRY_URL", url)

    assert (registry_url(FILE), registry_place(FILE)) == (f"sqlite:///{FILE}", str(FILE))


def test_place_of_a_database_shows_no_password(monkeypatch):
    monkeypatch.setenv("SFT_REGISTRY_URL", "postgresql://me:secret@host/models")

    assert registry_url(FILE).endswith("@host/models")
    assert "secret" not in registry_place(FILE)
