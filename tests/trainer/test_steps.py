"""The steps that the trainer's own code counts, against the table that the plan is held against."""

from types import SimpleNamespace

import pytest
from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from transformers import Trainer, TrainingArguments

from tests.step_cases import CASES, Case


def train_dataloader(case: Case) -> DataLoader:
    """The batches of the first process, as accelerate deals them out."""
    examples = range(case.examples)
    batches = BatchSampler(SequentialSampler(examples), case.per_device, case.drop_last)
    if case.world_size > 1:
        batches = BatchSamplerShard(batches, case.world_size, 0, even_batches=True)
    return DataLoader(examples, batch_sampler=batches)


def trainer_of(case: Case) -> SimpleNamespace:
    """What `set_initial_training_values` asks of a trainer."""
    return SimpleNamespace(
        get_total_train_batch_size=lambda _: case.per_device * case.accumulation * case.world_size,
        get_sp_size=lambda: 1,
        num_examples=lambda _: case.examples,
    )


def count(case: Case) -> tuple[int, int]:
    """The steps of an epoch and of the run, by the trainer's own code."""
    arguments = SimpleNamespace(
        max_steps=case.max_steps,
        num_train_epochs=case.num_epochs,
        gradient_accumulation_steps=case.accumulation,
    )
    _, per_epoch, *_, total = Trainer.set_initial_training_values(
        trainer_of(case), arguments, train_dataloader(case)
    )
    return per_epoch, total


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_trainer_counts_the_steps_of_the_table(case):
    assert count(case) == (case.per_epoch, case.total)


def test_trainer_dies_where_drop_last_leaves_no_batch():
    with pytest.raises(ValueError, match="max_steps must be set"):
        count(CASES["drop_last loses a step"]._replace(examples=9))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_trainer_warms_up_as_the_table_says(case):
    arguments = SimpleNamespace(warmup_steps=case.warmup)

    assert TrainingArguments.get_warmup_steps(arguments, case.total) == case.warmup_steps


@pytest.mark.parametrize("case", [c for c in CASES.values() if c.examples < 2000], ids=str)
def test_batches_of_the_first_process_are_as_many_as_it_promises(case):
    loader = train_dataloader(case)

    assert sum(1 for _ in loader) == len(loader)
