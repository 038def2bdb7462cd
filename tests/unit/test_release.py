"""What a release holds, what its card says, and what is never published."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from sft.errors import SftError
from sft.files import list_files, manifest, read_json
from sft.release import Provenance, assemble_release, git_state, servable_config

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}"
TOKENIZER = {
    "eos_token": "<|im_end|>",
    "extra_special_tokens": ["<|im_start|>"],
    "tokenizer_class": "TokenizersBackend",
}
CONFIG = {"vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "dtype": "bfloat16"}
SHAPES = {"model.embed_tokens.weight": [8, 4], "model.layers.0.mlp.weight": [4, 4]}
SERVED = [
    *("README.md", "chat_template.jinja", "config.json", "generation_config.json", "loss.png"),
    *("model.safetensors", "provenance.json", "tokenizer.json", "tokenizer_config.json"),
]
SECRETS = {
    "a Hugging Face token": "hf_" + "A1" * 15,
    "an API key": "sk-" + "proj-Ab3" * 5,
    "an AWS key": "AKIA" + "ABCDEFGH12345678",
    "a GitHub token": "ghp_" + "Ab3" * 12,
    "a JSON web token": "eyJ" + "hbGciOiJIUzI1NiJ9." + "eyJ" + "zdWIiOiIxIn0.c2ln",
    "a URL with a password": "postgresql://team:" + "pass@host/db",
}


def write_model(folder: Path) -> None:
    """A folder as LLaMA-Factory leaves it after a run, in small."""
    folder.mkdir(parents=True)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in SHAPES.items():
        start, end = end, end + 2 * shape[0] * shape[1]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    data = bytes(index % 251 for index in range(end))
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    for name, content in {
        "config.json": CONFIG,
        "generation_config.json": {"eos_token_id": 2},
        "tokenizer.json": {"model": {"vocab": {"/usr/bin/": 1}}},
        "tokenizer_config.json": TOKENIZER,
        "trainer_state.json": {"global_step": 4},
    }.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "README.md").write_text("the trainer's own card, with base_model: /home/me/base")
    (folder / "training_args.bin").write_bytes(b"x")
    (folder / "checkpoint-2").mkdir()
    (folder / "checkpoint-2" / "optimizer.pt").write_bytes(b"x")


@pytest.fixture
def weights(tmp_path) -> Path:
    write_model(tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


@pytest.fixture
def base(tmp_path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# Base\n")
    (folder / "config.json").write_text("{}")
    return folder


def provenance() -> Provenance:
    return Provenance(
        experiment={
            **{"name": "smoke", "hub_id": "laion/smoke", "backend": "llamafactory"},
            **{"template": "chatml", "overrides": {"learning_rate": 1e-4}},
        },
        base_model={
            **{"name": "qwen3-8b", "source": "hub:Qwen/Qwen3-8B"},
            **{"revision": "b968826d9c46dd6066d109eabc6255188de91218", "sha256": "0" * 64},
        },
        datasets=[
            {
                **{"name": "web", "source": "hub:org/web", "revision": "c" * 40},
                **{"sha256": "1" * 64, "rows": 1200, "tokens": 340000},
            },
            {
                **{"name": "mine", "source": "local:/scratch/me/mine.jsonl", "revision": None},
                **{"sha256": "2" * 64, "rows": 10, "tokens": 2000},
            },
        ],
        accepted=[
            {
                **{"source": "web", "fault": "duplicate_rows", "count": 40, "of": 1200},
                "by": "accept: web:duplicate_rows",
            }
        ],
        config={
            **{"model_name_or_path": "/scratch/me/cache/snapshots/b968", "learning_rate": 1e-4},
            **{"output_dir": "/scratch/me/runs/smoke/checkpoints", "template": "chatml"},
            **{"deepspeed": "/home/me/sft/deepspeed/ds_z3.json", "bf16": True},
        },
        training={
            **{"global_step": 4, "losses": [(1, 2.5), (2, 2.0), (3, 1.75), (4, 1.5)]},
            **{"started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T01:00:00+00:00"},
            **{"world_size": 8, "num_nodes": 2},
        },
        versions={"torch": "2.13.0", "transformers": "5.6.0"},
        git={"commit": "f" * 40, "dirty": True},
        site="leonardo",
        job_ids=["4711", "4712"],
    )


def assemble(weights: Path, base: Path, made: Provenance | None = None) -> Path:
    release = weights.parent / "release"
    assemble_release(weights, base, release, made or provenance(), accept)
    return release


def accept(folder: Path) -> None:
    """In the place of what looks at the chat template; see test_served.py."""


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**read_json(path), **changes}))


# --- files ---------------------------------------------------------------------------------------


def test_a_release_holds_what_serving_needs_and_nothing_else(weights, base):
    assert list_files(assemble(weights, base)) == SERVED


def test_the_manifest_is_that_of_the_folder(weights, base, tmp_path):
    files = assemble_release(weights, base, tmp_path / "release", provenance(), accept)
    assert files == manifest(tmp_path / "release")


def test_weights_are_linked_not_copied(weights, base):
    release = assemble(weights, base)
    assert (release / "model.safetensors").samefile(weights / "model.safetensors")


def test_processor_files_come_from_the_base_where_it_has_them(weights, base):
    (base / "preprocessor_config.json").write_text('{"size": 1}')
    release = assemble(weights, base)
    assert read_json(release / "preprocessor_config.json") == {"size": 1}
    assert not (release / "video_preprocessor_config.json").exists()


def test_sharded_weights_go_with_their_index(weights, base):
    (weights / "model.safetensors").rename(weights / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(SHAPES, "model-00001-of-00001.safetensors")}
    (weights / "model.safetensors.index.json").write_text(json.dumps(index))
    names = list_files(assemble(weights, base))
    assert [name for name in names if name.startswith("model")] == [
        "model-00001-of-00001.safetensors",
        "model.safetensors.index.json",
    ]


def test_truncated_weights_are_refused_and_leave_nothing(weights, base, tmp_path):
    path = weights / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SftError, match="truncated"):
        assemble(weights, base)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "checkpoints"]


def test_a_model_without_a_vocabulary_is_refused(weights, base):
    (weights / "tokenizer.json").unlink()
    with pytest.raises(SftError, match="no vocabulary"):
        assemble(weights, base)


def test_a_release_that_is_not_proven_leaves_nothing(weights, base, tmp_path):
    def refuse(folder: Path) -> None:
        assert (folder / "tokenizer_config.json").exists()
        raise SftError("it serves another template")

    with pytest.raises(SftError, match="another template"):
        assemble_release(weights, base, tmp_path / "release", provenance(), refuse)
    assert not (tmp_path / "release").exists()


def test_a_release_replaces_the_one_before(weights, base):
    (assemble(weights, base) / "stale.txt").write_text("old")
    assert list_files(assemble(weights, base)) == SERVED


# --- chat template and older transformers --------------------------------------------------------


def test_a_template_in_jinja_alone_is_embedded_too(weights, base):
    release = assemble(weights, base)
    assert read_json(release / "tokenizer_config.json")["chat_template"] == TEMPLATE
    assert (release / "chat_template.jinja").read_text() == TEMPLATE


def test_a_template_in_the_config_alone_becomes_jinja_too(weights, base):
    (weights / "chat_template.jinja").unlink()
    change_json(weights / "tokenizer_config.json", chat_template=TEMPLATE)
    assert (assemble(weights, base) / "chat_template.jinja").read_text() == TEMPLATE


def test_two_different_templates_are_refused_with_their_difference(weights, base):
    change_json(weights / "tokenizer_config.json", chat_template="other\n" + TEMPLATE)
    with pytest.raises(SftError, match=r"(?s)two chat templates.*\n-other\n"):
        assemble(weights, base)


def test_a_model_without_a_template_is_refused(weights, base):
    (weights / "chat_template.jinja").unlink()
    with pytest.raises(SftError, match="no chat template"):
        assemble(weights, base)


def test_the_ends_of_lines_of_a_template_stay(weights, base):
    (weights / "chat_template.jinja").write_bytes(b"a\r\nb\n")
    release = assemble(weights, base)
    assert (release / "chat_template.jinja").read_bytes() == b"a\r\nb\n"
    assert read_json(release / "tokenizer_config.json")["chat_template"] == "a\r\nb\n"


def test_a_list_of_special_tokens_moves_to_the_key_that_older_loaders_know(weights, base):
    tokenizer = read_json(assemble(weights, base) / "tokenizer_config.json")
    assert tokenizer["extra_special_tokens"] == {}
    assert tokenizer["additional_special_tokens"] == ["<|im_start|>"]


def test_the_tokenizer_class_is_one_that_older_loaders_know(weights, base):
    tokenizer = read_json(assemble(weights, base) / "tokenizer_config.json")
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_the_source_is_left_as_it_was(weights, base):
    before = manifest(weights)
    assemble(weights, base)
    assert manifest(weights) == before


def test_rope_theta_stands_where_older_loaders_read_it():
    rope = {"rope_theta": 1e6, "rope_type": "default"}
    config = servable_config({"text_config": {"rope_parameters": rope}})
    assert config["text_config"] == {"rope_parameters": rope, "rope_theta": 1e6}


def test_rope_scaling_stands_where_older_loaders_read_it():
    rope = {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4.0}
    config = servable_config({"rope_parameters": rope})
    assert config["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0}


# --- card and provenance -------------------------------------------------------------------------


def card_of(release: Path) -> ModelCard:
    return ModelCard.load(release / "README.md")


def test_the_front_matter_names_only_what_the_hub_knows(weights, base):
    assert card_of(assemble(weights, base)).data.to_dict() == {
        "base_model": "Qwen/Qwen3-8B",
        "datasets": ["org/web"],
        "library_name": "transformers",
        "license": "apache-2.0",
        "pipeline_tag": "text-generation",
        "tags": ["sft", "llamafactory"],
    }


def test_a_local_base_is_named_but_not_in_the_front_matter(weights, base):
    (base / "README.md").unlink()
    local = {"name": "tiny", "source": "local:/scratch/me/tiny", "sha256": "3" * 64}
    made = replace(provenance(), base_model=local, datasets=[])
    card = card_of(assemble(weights, base, made))
    assert not {"base_model", "datasets", "license"} & card.data.to_dict().keys()
    assert "tiny (local) after supervised fine-tuning" in card.text


def test_what_is_no_hub_id_is_refused(weights, base):
    made = replace(provenance(), base_model={"name": "x", "source": "hub:a b", "sha256": ""})
    with pytest.raises(SftError, match="'a b' is no hub id"):
        assemble(weights, base, made)


@pytest.mark.parametrize(
    "said",
    [
        "| web | [org/web](https://huggingface.co/datasets/org/web) | " + "c" * 40,
        "| web | duplicate_rows | 40 of 1200 | accept: web:duplicate_rows |",
        "| mine | mine (local) | sha256 2222222222222222 | 10 | 2000 |",
        "| learning_rate | 0.0001 |",
        "chat template `chatml`",
        "| 4 | 1.5000 |",
        "![Loss by step](loss.png)",
        "| torch | 2.13.0 |",
        "| git commit | " + "f" * 40 + " with uncommitted changes |",
        'from_pretrained("laion/smoke"',
        "48 parameters in bfloat16",
    ],
)
def test_the_card_says(weights, base, said):
    assert said in card_of(assemble(weights, base)).text


def test_a_long_run_is_shown_in_twenty_steps_with_its_ends(weights, base):
    losses = [(step, 1 / step) for step in range(1, 1001)]
    made = replace(provenance(), training={**provenance().training, "losses": losses})
    table = card_of(assemble(weights, base, made)).text.split("| step | loss |\n")[1]
    rows = table.split("\n\n")[0].splitlines()[1:]
    assert len(rows) == 20
    assert (rows[0], rows[-1]) == ("| 1 | 1.0000 |", "| 1000 | 0.0010 |")


def test_a_run_without_losses_has_no_curve(weights, base):
    made = replace(provenance(), training={**provenance().training, "losses": []})
    release = assemble(weights, base, made)
    assert not (release / "loss.png").exists()
    assert "Not recorded." in card_of(release).text


def test_the_curve_is_a_picture(weights, base):
    assert (assemble(weights, base) / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_provenance_holds_everything(weights, base):
    made = read_json(assemble(weights, base) / "provenance.json")
    expected = json.loads(json.dumps(asdict(provenance())))
    assert made.keys() == expected.keys()
    for key in ("experiment", "base_model", "training", "versions", "git", "site", "job_ids"):
        assert made[key] == expected[key]


# --- never published -----------------------------------------------------------------------------


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


def test_a_refused_release_leaves_the_one_before(weights, base):
    before = manifest(assemble(weights, base))
    made = replace(provenance(), site=SECRETS["an AWS key"])
    with pytest.raises(SftError):
        assemble(weights, base, made)
    assert manifest(weights.parent / "release") == before


# --- git -----------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path) -> Path:
    def git(*command: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, capture_output=True)

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")
    return tmp_path


def test_a_clean_tree_has_a_commit(repository):
    state = git_state(repository)
    assert len(state["commit"]) == 40
    assert state["dirty"] is False


def test_a_changed_tree_is_dirty(repository):
    (repository / "file").write_text("2")
    assert git_state(repository)["dirty"] is True


def test_outside_of_git_nothing_is_known(tmp_path):
    assert git_state(tmp_path) == {"commit": None, "dirty": None}


# --- killed --------------------------------------------------------------------------------------

SLOW = """
import sys, time
from pathlib import Path
import sft.release
from test_release import provenance
def wait(*arguments):
    Path(sys.argv[2], "reached").touch()
    time.sleep(60)
setattr(sft.release, sys.argv[1], wait)
folder = Path(sys.argv[2])
sft.release.assemble_release(
    folder / "checkpoints", folder / "base", folder / "release", provenance(), print
)
"""


@pytest.mark.parametrize("moment", ["link_or_copy", "write_card", "manifest"])
def test_a_killed_release_is_absent_and_the_next_one_whole(weights, base, tmp_path, moment):
    expected = manifest(assemble(weights, base))
    (tmp_path / "release").rename(tmp_path / "undisturbed")
    places = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, moment, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )
    while not (tmp_path / "reached").exists():
        assert child.poll() is None
        time.sleep(0.05)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "release").exists()
    assert manifest(assemble(weights, base)) == expected
    assert not list(tmp_path.glob(".release.*"))
