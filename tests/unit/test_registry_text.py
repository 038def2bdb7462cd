"""The table of registered models."""

from datetime import UTC, datetime

import pytest

from sft.registry_text import models_text

BASE = {
    **{"name": "Qwen/Qwen3-8B", "base_model": None, "datasets": [], "created_by": "Qwen"},
    **{"weights_location": "Qwen/Qwen3-8B", "is_external": True},
    **{"training_start": datetime(2026, 3, 1, 8, 30, tzinfo=UTC), "training_end": None},
}
MODEL = {
    **{"name": "laion/agent", "base_model": "Qwen/Qwen3-8B", "datasets": ["org/a", "org/b"]},
    **{"created_by": "laion", "weights_location": "https://hub/laion/agent", "is_external": False},
    **{"training_start": datetime(2026, 3, 1, 8, 30, tzinfo=UTC)},
    **{"training_end": datetime(2026, 3, 1, 13, 31, tzinfo=UTC)},
}


def line_of(text: str, name: str) -> str:
    (line,) = (line for line in text.splitlines() if line.startswith(name))
    return line


def test_line_says_base_creator_place_and_times():
    words = line_of(models_text([MODEL]), "laion/agent").split()
    assert words == [
        *("laion/agent", "Qwen/Qwen3-8B", "org/a", "laion", "https://hub/laion/agent"),
        *("2026-03-01", "08:30", "2026-03-01", "13:31"),
    ]


def test_each_dataset_of_a_mix_has_a_line():
    assert models_text([MODEL]).splitlines()[-1].split() == ["org/b"]


def test_model_that_was_trained_elsewhere_has_no_time_of_another():
    line = line_of(models_text([BASE, MODEL]), "Qwen/Qwen3-8B")
    assert line.endswith("elsewhere")


def test_row_that_was_never_finished_has_no_end():
    unfinished = {key: value for key, value in MODEL.items() if key != "training_end"}
    assert line_of(models_text([unfinished]), "laion/agent").endswith("08:30")


def test_pattern_chooses_models():
    text = models_text([BASE, MODEL], ["laion/*"])
    assert line_of(text, "laion/agent")
    assert "\nQwen/Qwen3-8B" not in text


@pytest.mark.parametrize(
    ("patterns", "said"), [((), "no model is registered"), (("x/*",), "no model of that name")]
)
def test_empty_table_is_said(patterns, said):
    assert models_text([], patterns) == said
