"""What a model card says, and what the hub reads of it."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from sft.card import front_matter, read_metadata, write_card
from sft.errors import SftError
from sft.metadata import metadata_faults
from sft.publishable import without_paths
from tests.unit.releasing import CODE, provenance

WEIGHTS = "48 parameters in bfloat16"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# Base\n")
    return folder


def card(base: Path, **changes: object) -> ModelCard:
    """The card of the small release, some of whose provenance is changed."""
    made = without_paths(asdict(replace(provenance(), **changes)))
    write_card(base.parent, made, WEIGHTS, base)
    return ModelCard.load(base.parent / "README.md")


def training(**changes: object) -> Mapping:
    return {**provenance().training, **changes}


# --- front matter --------------------------------------------------------------------------------


def test_front_matter_names_only_what_the_hub_knows(base):
    assert card(base).data.to_dict() == {
        "base_model": "Qwen/Qwen3-8B",
        "datasets": ["org/web"],
        "library_name": "transformers",
        "license": "apache-2.0",
        "pipeline_tag": "text-generation",
        "tags": ["sft", "llamafactory"],
    }


def test_local_base_is_named_but_not_in_the_front_matter(base):
    (base / "README.md").unlink()
    local = {"name": "tiny", "source": "local:/scratch/me/tiny", "sha256": "3" * 64}

    made = card(base, base_model=local, datasets=[])

    assert not {"base_model", "datasets", "license"} & made.data.to_dict().keys()
    assert "tiny (local) after supervised fine-tuning" in made.text


def test_what_is_no_hub_id_is_refused_and_no_card_is_written(base):
    with pytest.raises(SftError, match="base_model: found 'a b', expected an id of the hub"):
        card(base, base_model={"name": "x", "source": "hub:a b", "sha256": ""})
    assert not (base.parent / "README.md").exists()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("license: MIT", {"license": "mit"}),
        ("license: [mit, apache-2.0]", {"license": ["mit", "apache-2.0"]}),
        ("license: Our Own 1.0", {"license": "other", "license_name": "our-own-1.0"}),
        ("license: null", {}),
        (
            "license: other\nlicense_name: Qwen Research\nlicense_link: LICENSE",
            {
                **{"license": "other", "license_name": "qwen-research"},
                "license_link": "https://huggingface.co/Qwen/Qwen3-8B/blob/main/LICENSE",
            },
        ),
        ("license: other\nlicense_link: /home/me/x", {"license": "other", "license_name": "other"}),
    ],
)
def test_license_of_the_base_is_told_in_words_that_the_hub_takes(base, said, expected):
    (base / "README.md").write_text(f"---\n{said}\n---\n")

    found = front_matter(asdict(provenance()), read_metadata(base))

    assert {key: found[key] for key in found if "license" in key} == expected
    assert not list(metadata_faults(found))


@pytest.mark.parametrize("text", ["---\nlicense: [a\n---\n", "---\n- a\n---\n", "# Base\n", ""])
def test_base_whose_card_cannot_be_read_has_no_license(base, text):
    (base / "README.md").write_text(text)

    assert "license" not in card(base).data.to_dict()


# --- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        "[Qwen/Qwen3-8B](https://huggingface.co/Qwen/Qwen3-8B) after supervised fine-tuning; 48",
        "| web | [org/web](https://huggingface.co/datasets/org/web) | " + "c" * 40,
        "| web | duplicate_rows | 40 of 1200 | accept: web:duplicate_rows |",
        "| mine | mine (local) | sha256 2222222222222222 | 10 | 2000 |",
        "4 steps of 96 sequences with llamafactory (world size 8, nodes 2)",
        "81,234 tokens a second on NVIDIA A100-SXM-64GB, 31% of the GPUs' peak.",
        "chat template `chatml`",
        "| learning_rate | 0.0001 |",
        "| 4 | 1.5000 |",
        "![Loss by step](loss.png)",
        "renders 19 fixed conversations byte for byte as they were trained",
        "| torch | 2.13.0 |",
        "Git commit " + "f" * 40 + " with uncommitted changes.",
        'from_pretrained("laion/smoke"',
        WEIGHTS,
    ],
)
def test_card_says(base, said):
    assert said in card(base).text


@pytest.mark.parametrize("place", ["output_dir", "model_name_or_path", "/scratch", "An adapter"])
def test_card_does_not_say(base, place):
    assert place not in card(base).text


@pytest.mark.parametrize(
    ("kept", "said"),
    [(0.981, "merged into 12 matrices; 98% of what it adds is left"), (None, "into 12 matrices.")],
)
def test_card_of_a_merged_adapter_says_what_is_left_of_it(base, kept, said):
    assert said in card(base, weights={"merged": 12, "kept": kept}).text


def test_card_of_a_run_whose_speed_is_not_known_says_nothing_of_it(base):
    unknown = dict.fromkeys(("step_s", "tokens_per_s", "mfu", "device"))

    assert "tokens a second" not in card(base, training=training(throughput=unknown)).text


def test_card_names_other_code_that_trained(base):
    trained = {"commit": "a" * 40, "dirty": False, "pushed": True}
    attempts = [{"code": None}, {"code": trained}, {"code": trained}]

    text = card(base, attempts=attempts, git=CODE).text

    assert f"Git commit {'a' * 40}; released by {'f' * 40} with uncommitted changes." in text


def test_long_run_is_shown_in_twenty_steps_with_its_ends(base):
    losses = [(step, 1 / step) for step in range(1, 1001)]

    table = card(base, training=training(losses=losses)).text.split("| step | loss |\n")[1]

    rows = table.split("\n\n")[0].splitlines()[1:]
    assert len(rows) == 20
    assert (rows[0], rows[-1]) == ("| 1 | 1.0000 |", "| 1000 | 0.0010 |")


def test_run_without_losses_has_no_curve(base):
    assert "Not recorded." in card(base, training=training(losses=[])).text
    assert not (base.parent / "loss.png").exists()


def test_curve_is_a_picture(base):
    card(base)

    assert (base.parent / "loss.png").read_bytes().startswith(b"\x89PNG")
