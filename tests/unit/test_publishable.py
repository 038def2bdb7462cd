"""What is never published: local paths, secrets, and files that serving does not need."""

from dataclasses import replace

import pytest

from sft.errors import SftError
from sft.files import read_json
from sft.publishable import check_publishable, foreign_files
from tests.unit.releasing import assemble, base, change_json, provenance, weights

__all__ = ["base", "weights"]

SECRETS = {
    "a Hugging Face token": "hf_" + "A1" * 15,
    "an API key": "sk-" + "proj-Ab3" * 5,
    "an AWS key": "AKIA" + "ABCDEFGH12345678",
    "a private key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "a GitHub token": "ghp_" + "Ab3" * 12,
    "a JSON web token": "eyJ" + "hbGciOiJIUzI1NiJ9." + "eyJ" + "zdWIiOiIxIn0.c2ln",
    "a URL with a password": "postgresql://team:" + "pass@host/db",
}
SERVED = (
    *("model.safetensors", "model-00001-of-00009.safetensors", "model.safetensors.index.json"),
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "README.md"),
    *("preprocessor_config.json", "provenance.json", "loss.png"),
)
LEFT_BY_TRAINERS = (
    *("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin", "latest"),
    *("pytorch_model.bin", "model.pkl", "trainer_state.json", "trainer_log.jsonl", "upload.log"),
    *("checkpoint-2/model.safetensors", "global_step4/zero_pp_rank_0_mp_rank_00_model_states.pt"),
    *(".cache/huggingface/x.lock", "run_summary.json", "wandb/run.txt", "zero_to_fp32.py"),
    *("optimizer.safetensors", "adapter_model.safetensors", "model.safetensors.incomplete"),
)


# --- paths and secrets ---------------------------------------------------------------------------


def test_local_paths_are_shown_by_name(weights, base):
    config = read_json(assemble(weights, base) / "provenance.json")["config"]
    assert config["model_name_or_path"] == "qwen3-8b"
    assert config["output_dir"] == "checkpoints"
    assert config["deepspeed"] == "ds_z3.json"


def test_no_text_file_holds_a_local_path(weights, base, tmp_path):
    change_json(weights / "config.json", _name_or_path="/scratch/me/base")
    change_json(weights / "tokenizer_config.json", name_or_path="/scratch/me/base")
    release = assemble(weights, base)
    for path in release.glob("*"):
        for place in ("/scratch", "/home", str(tmp_path)):
            assert place.encode() not in path.read_bytes(), path.name


def test_a_local_path_in_a_file_that_is_taken_as_it_is_is_refused(weights, base):
    (base / "processor_config.json").write_text('{"processor": "/fsx/team/model"}')
    with pytest.raises(SftError, match=r"processor_config\.json: the local path /fsx/team/model"):
        assemble(weights, base)


def test_the_folder_of_the_weights_in_a_template_is_refused(weights, base):
    (weights / "chat_template.jinja").write_text(f"{{# {weights} #}}")
    with pytest.raises(SftError, match=r"chat_template\.jinja: the local path"):
        assemble(weights, base)


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_is_refused_and_not_shown(weights, base, kind):
    made = replace(provenance(), config={"note": f"token={SECRETS[kind]}"})
    with pytest.raises(SftError) as error:
        assemble(weights, base, made)
    assert f"provenance.json: {kind}" in str(error.value)
    assert SECRETS[kind] not in str(error.value)


def test_a_secret_in_a_template_is_refused(weights, base):
    (weights / "chat_template.jinja").write_text(SECRETS["a Hugging Face token"])
    with pytest.raises(SftError, match=r"chat_template\.jinja: a Hugging Face token"):
        assemble(weights, base)


@pytest.mark.parametrize("name", ["README.md", "config.json", "tokenizer.json", "own.py"])
def test_a_secret_is_found_in_each_text_file_by_kind_and_name(tmp_path, name):
    (tmp_path / name).write_text(f"x = '{SECRETS['a GitHub token']}'")
    with pytest.raises(SftError, match=rf"^{name}: a GitHub token must not be published"):
        check_publishable(tmp_path, [], code=["own.py"])


def test_bytes_that_are_no_text_hide_no_secret(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b"\xff" + SECRETS["an AWS key"].encode())
    with pytest.raises(SftError, match=r"tokenizer\.json: an AWS key"):
        check_publishable(tmp_path, [])


# --- names ---------------------------------------------------------------------------------------


def test_what_serving_needs_is_known():
    assert not foreign_files(SERVED)


@pytest.mark.parametrize("name", LEFT_BY_TRAINERS)
def test_what_trainers_leave_is_refused_by_name(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("x")
    with pytest.raises(SftError) as error:
        check_publishable(tmp_path, [])
    assert str(error.value) == (
        f"{name}: this must not be published: no file that serving needs has that name"
    )


def test_python_is_refused_where_it_is_not_the_code_of_the_model(tmp_path):
    (tmp_path / "own.py").write_text("x")
    check_publishable(tmp_path, [], code=["own.py"])
    with pytest.raises(SftError, match=r"own\.py: this must not be published"):
        check_publishable(tmp_path, [])


def test_a_link_that_leads_nowhere_is_refused(tmp_path):
    (tmp_path / "cache").symlink_to(tmp_path / "gone")
    with pytest.raises(SftError, match="cache: this must not be published"):
        check_publishable(tmp_path, [])
