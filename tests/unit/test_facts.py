"""What is known of an experiment from what earlier stages left."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sft.facts import Facts, choose_files, count_examples
from sft.mix import Dataset, Mix
from sft.row_counts import Rows
from tests.unit.planning import (
    EXPERIMENT,
    attempt,
    catalog_of,
    changed,
    finish_run,
    tokenize,
    write_receipt,
)


def over(*datasets: Dataset, **config):
    """The experiment over these sources, one after the other."""
    return replace(changed(**config), mix=Mix("mix", datasets))


def facts_of(experiment, results) -> Facts:
    return Facts(catalog_of(experiment), results)


def local(folder, name: str, rows: int, **options) -> Dataset:
    """A local source of so many rows."""
    path = folder / f"{name}.jsonl"
    path.write_text("{}\n" * rows)
    return Dataset(name, "datasets.yaml", path=str(path), options=options)


def test_rows_of_local_files_are_what_a_mix_takes_if_none_is_lost(tmp_path):
    experiment = over(local(tmp_path, "a", 5), local(tmp_path, "b", 7))
    taking = facts_of(experiment, tmp_path).taking(experiment)

    assert [each.examples for each in taking.sources] == [5, 7]
    assert (taking.total, taking.tokens, taking.tokenized) == (12, None, False)


def test_max_samples_cap_each_source(tmp_path):
    experiment = over(local(tmp_path, "a", 5), local(tmp_path, "b", 50), max_samples=10)

    assert facts_of(experiment, tmp_path).taking(experiment).total == 15


def test_num_samples_draw_rows_again_where_there_are_fewer(tmp_path):
    experiment = over(local(tmp_path, "a", 5, num_samples=20))

    assert facts_of(experiment, tmp_path).taking(experiment).total == 20


def test_packed_examples_are_not_known_before_they_are_packed(tmp_path):
    experiment = over(local(tmp_path, "a", 5), packing=True)
    taking = facts_of(experiment, tmp_path).taking(experiment)

    assert (taking.sources[0].examples, taking.total) == (5, None)


def test_one_unknown_source_makes_the_whole_unknown(tmp_path):
    experiment = over(local(tmp_path, "a", 5), Dataset("b", "datasets.yaml", hub="org/b"))
    taking = facts_of(experiment, tmp_path).taking(experiment)

    assert [each.rows for each in taking.sources] == [5, None]
    assert taking.total is None


def test_local_file_that_is_missing_is_unknown(tmp_path):
    experiment = over(Dataset("a", "datasets.yaml", path=str(tmp_path / "none.jsonl")))

    assert facts_of(experiment, tmp_path).taking(experiment).total is None


def test_files_of_a_fetched_repository_are_about_as_many_rows(tmp_path):
    folder = tmp_path / "snapshot"
    (folder / "data").mkdir(parents=True)
    names = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    for name in [*names, "data/test-00000-of-00001.parquet"]:
        pq.write_table(pa.table({"a": list(range(10))}), folder / name)
    files = [{"path": path.relative_to(folder).as_posix()} for path in folder.rglob("*.parquet")]
    made = {"source": "hub:org/a", "path": str(folder), "files": files}
    write_receipt(tmp_path / "datasets" / "a" / "fetched.json", made)
    dataset = Dataset("a", "datasets.yaml", hub="org/a")

    assert facts_of(over(dataset), tmp_path).rows(dataset) == Rows(20, about=True)


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, ["en/train.jsonl", "de/train.jsonl"]),
        ({"split": "test"}, ["en/test.jsonl"]),
        ({"subset": "de"}, ["de/train.jsonl"]),
        ({"folder": "en"}, ["en/train.jsonl"]),
        ({"split": "validation"}, ["en/train.jsonl", "en/test.jsonl", "de/train.jsonl"]),
    ],
)
def test_files_of_a_split_and_subset_are_known_by_their_names(options, chosen):
    names = ["README.md", "en/train.jsonl", "en/test.jsonl", "de/train.jsonl", "en/train.py"]

    assert choose_files(names, options) == chosen


def test_tokens_on_disk_count_more_than_rows(tmp_path):
    experiment = over(local(tmp_path, "a", 100))
    tokenize(tmp_path, experiment, [90], [90], mean_tokens=10)
    taking = facts_of(experiment, tmp_path).taking(experiment)

    assert (taking.total, taking.tokens, taking.tokenized) == (90, 900, True)


def test_source_that_ended_a_tokenized_mix_is_known(tmp_path):
    tokenize(tmp_path, EXPERIMENT, [900, 600], [900, 100])

    assert facts_of(EXPERIMENT, tmp_path).taking(EXPERIMENT).ending == 0


def test_packed_examples_are_counted_in_their_files(tmp_path):
    table = pa.table({"input_ids": [[1, 2], [3, 4], [5, 6]]})
    for number in range(2):
        path = tmp_path / f"data-0000{number}-of-00002.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)

    assert count_examples({"tokens": str(tmp_path), "sources": {"a": {"rows_in": 9}}}) == 6


def test_rate_of_a_run_counts_the_tokens_of_all_its_steps(tmp_path):
    tokens = tokenize(tmp_path, EXPERIMENT, [900, 100], [900, 100], mean_tokens=600)
    finish_run(tmp_path, EXPERIMENT, tokens, steps=5760, attempts=[attempt(8)])
    rate = facts_of(EXPERIMENT, tmp_path).measured_rate(EXPERIMENT)

    assert rate.tokens_per_second == pytest.approx(5760 * 600 / (8 * 3600))
    assert (rate.run, rate.world_size) == ("run", 16)


@pytest.mark.parametrize(
    ("steps", "attempts"),
    [
        (7200, [attempt(8, ending="failed: exit code 1"), attempt(2, resumed=5760)]),
        (7200, [attempt(23, ending="lost"), attempt(1, resumed=6480)]),
        (5760, [attempt(1, ending="failed: exit code 1"), attempt(8)]),
    ],
    ids=["the longest", "not one that ended unseen", "not one that came to nothing"],
)
def test_one_attempt_of_a_run_is_its_measure(tmp_path, steps, attempts):
    tokens = tokenize(tmp_path, EXPERIMENT, [900, 100], [900, 100], mean_tokens=600)
    finish_run(tmp_path, EXPERIMENT, tokens, steps, attempts)
    rate = facts_of(EXPERIMENT, tmp_path).measured_rate(EXPERIMENT)

    assert rate.tokens_per_second == pytest.approx(120)


def test_run_whose_tokens_are_gone_measures_nothing(tmp_path):
    tokens = tokenize(tmp_path, EXPERIMENT, [900, 100], [900, 100])
    finish_run(tmp_path, EXPERIMENT, tokens, steps=5760, attempts=[attempt(8)])
    (tmp_path / "tokens").rename(tmp_path / "moved")

    assert facts_of(EXPERIMENT, tmp_path).measured_rate(EXPERIMENT) is None


@pytest.mark.parametrize("change", [{"base_config": "other.yaml"}, {"num_nodes": 1}])
def test_rate_belongs_to_a_base_config_and_model(tmp_path, change):
    tokens = tokenize(tmp_path, EXPERIMENT, [900, 100], [900, 100])
    finish_run(tmp_path, EXPERIMENT, tokens, steps=5760, attempts=[attempt(8)])
    other = replace(EXPERIMENT, name="other", **change)
    facts = Facts(catalog_of(EXPERIMENT, other), tmp_path)

    assert (facts.measured_rate(other) is None) == ("base_config" in change)
