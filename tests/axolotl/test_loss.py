"""Each trained token of a step counts the same, however the batch is made."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset

from tests.axolotl.tiny_run import losses, make_inputs, train, write_config


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, and four examples of which one is nearly all trained, the others hardly."""
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    torch.manual_seed(1)
    rows = torch.randint(64, (4, 12))
    labels = rows.clone()
    labels[1:, :10] = -100
    columns = {"input_ids": rows.tolist(), "labels": labels.tolist()}
    columns["attention_mask"] = [[1] * 12] * 4
    Dataset.from_dict(columns).save_to_disk(str(folder / "uneven"))
    return folder


def first_loss(folder: Path, inputs: Path, processes: int, size: int, accumulated: int) -> float:
    tokens = [{"path": str(inputs / "uneven"), "type": None}]
    batch = {"micro_batch_size": size, "gradient_accumulation_steps": accumulated}
    config = write_config(folder, inputs, datasets=tokens, max_steps=1, **batch)
    assert train(config, processes) == [0] * processes, (folder / "0.log").read_text()[-2000:]
    return losses(folder)[1]


@pytest.mark.parametrize(
    ("processes", "size", "accumulated"), [(1, 1, 4), (1, 2, 2), (2, 1, 2), (2, 2, 1)]
)
def test_loss_does_not_depend_on_how_the_batch_is_made(
    processes, size, accumulated, inputs, tmp_path
):
    at_once = first_loss(tmp_path / "at_once", inputs, 1, 4, 1)
    made = first_loss(tmp_path / "made", inputs, processes, size, accumulated)

    assert made == pytest.approx(at_once, abs=1e-5)
