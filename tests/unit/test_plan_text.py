"""A plan as a person reads it."""

from dataclasses import replace

import pytest

from sft.environment import REPOSITORY
from sft.facts import Facts
from sft.mix import Dataset, Mix
from sft.plan_text import (
    describe_tags,
    list_findings,
    make_plans,
    plan_page,
    plan_table,
    short,
    sum_up,
)
from sft.request import Request
from tests.unit.planning import (
    DAY,
    DELPHI_CONFIG,
    EXPERIMENT,
    LEONARDO,
    SHAREGPT,
    catalog_of,
    changed,
    fetch_model,
    stop_run,
    tokenize,
)


def config_of(results) -> dict:
    return {"pathvars": {"results": str(results)}, "upload_to": "folder", "upload_folder": "/hub"}


def table(results, *experiments) -> list[str]:
    return plan_table(catalog_of(*experiments), config_of(results), DAY).splitlines()


def page(results, experiment) -> str:
    facts = Facts(catalog_of(experiment), results)
    (plan,), _ = make_plans(facts.catalog, facts, DAY, [experiment.name])
    return plan_page(plan, LEONARDO, facts, config_of(results))


@pytest.fixture
def delphi(tmp_path):
    """Results with the model fetched and the mix tokenized."""
    fetch_model(tmp_path, DELPHI_CONFIG)
    tokenize(tmp_path, EXPERIMENT, [385_700, 45_000], [385_700, 42_900])
    return tmp_path


def test_table_has_a_line_of_cells_for_each_experiment(delphi):
    experiment = changed(tokens_per_second_per_gpu=120)

    assert table(delphi, experiment)[2].split() == [
        *("run", "1e-05", "1", "26,788", "257M", "16=16×1×1", "4", "37.2", "1", "~15/64"),
        "safetensors",
    ]


def test_guessed_hours_are_marked(delphi):
    assert table(delphi, EXPERIMENT)[2].split()[7].startswith("~")


def test_what_is_not_known_is_a_question_mark(tmp_path):
    assert table(tmp_path, EXPERIMENT)[2].split()[3:] == [
        *("?", "?", "16=16×1×1", "4", "?", "?", "?", "safetensors")
    ]


def test_table_that_fits_says_so_and_where_more_is_said(tmp_path):
    assert table(tmp_path, EXPERIMENT)[3:] == [
        "all that is known so far fits",
        "batch = ranks × device × accumulation; ? is not known yet, ~ is a guess; in full: "
        "python -m sft plan --profile profiles/leonardo [EXPERIMENT…]",
    ]


def test_long_table_is_cut_with_a_count(tmp_path):
    many = [replace(EXPERIMENT, name=f"run-{number}") for number in range(1000)]
    lines = table(tmp_path, *many)

    assert len(lines) == 45
    assert lines[42] == "… and 960 more experiments"


def test_faults_of_rows_that_are_not_shown_are_found(tmp_path):
    many = [replace(EXPERIMENT, name=f"run-{number}") for number in range(60)]
    last = replace(changed(dataloader_num_workers=64), name="last", where="t.tsv, line 99 (last)")
    lines = table(tmp_path, *many, last)

    assert "! t.tsv, line 99 (last), dataloader_num_workers: found 64" in lines[-2]


def test_same_doubt_of_many_rows_is_said_once(tmp_path):
    rows = [
        replace(changed(dataloader_num_workers=64), name=name, where=f"t.tsv, {name}")
        for name in ("a", "b", "c")
    ]
    lines = [line for line in table(tmp_path, *rows) if line.startswith("!")]

    assert len(lines) == 1
    assert lines[0].startswith("! t.tsv, a, dataloader_num_workers")
    assert lines[0].endswith("(and 2 more rows)")


def test_at_most_ten_findings_are_listed_with_a_count(tmp_path):
    rows = [
        replace(changed(dataloader_num_workers=64 + number), name=f"run-{number}")
        for number in range(13)
    ]
    lines = table(tmp_path, *rows)

    assert sum(line.startswith("! ") for line in lines) == 10
    assert "… and 3 more" in lines


def test_refusals_come_first_and_are_marked_in_the_table(delphi):
    experiment = changed(dataloader_num_workers=64)
    stop_run(delphi, experiment, world_size=32)
    lines = table(delphi, experiment)

    assert lines[2].split()[-1] == "X!"
    assert [line[:1] for line in lines[4:6]] == ["X", "!"]


def test_faults_of_the_site_are_listed_before_those_of_rows(tmp_path):
    catalog = catalog_of(EXPERIMENT)
    facts = Facts(catalog, tmp_path)
    plans, faults = make_plans(catalog, facts, {"": Request(2880)}, ["run"])

    assert list_findings(plans, faults, 10)[1].startswith("X profiles/leonardo/config.yaml")


def test_receipt_that_is_none_leaves_the_other_rows_in_peace(tmp_path):
    broken = tmp_path / "models" / "delphi" / "fetched.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{")
    other = replace(EXPERIMENT, name="other", model=replace(EXPERIMENT.model, name="other"))
    lines = table(tmp_path, EXPERIMENT, other)

    assert lines[2].startswith("other")
    assert f"X {broken}: not JSON" in lines[4]


def test_each_column_of_the_table_is_explained(tmp_path):
    explained = (REPOSITORY / "docs" / "plan.md").read_text()
    header = table(tmp_path, EXPERIMENT)[1].split()[1:]

    assert [column for column in header if f"`{column}`" not in explained] == []


# The page of an experiment


def test_page_says_what_is_trained_and_how_long(delphi):
    text = page(delphi, changed(tokens_per_second_per_gpu=120))

    for part in (
        "delphi (org/delphi, 9.71B parameters)",
        "template qwen3, 1 epochs, learning rate 1e-05, cutoff 4096 tokens",
        "mix: interleave_under 0.9, 0.1; tokenized",
        "16 sequences a step = 16 processes (4 nodes × 4) × 1 a process × 1 accumulated",
        "26,788 (26,788 an epoch), 0 of them warm up",
        "37.2 h, 149 node-hours; 5 s a step",
        "tokens_per_second_per_gpu of 120 in the base config or row",
        "a job ends after 1439 minutes",
        "2 jobs, 1 restarts; a job trains for 23.8 h after its start",
        "every 2000 steps, 2.78 h: 8 in a whole job; keeps 3",
        "safetensors in the root: no consolidation",
        "folder: /hub/laion/run",
        "does not register it",
    ):
        assert part in text


def test_page_shows_each_source_with_its_tags_epochs_and_what_is_never_seen(delphi):
    lines = page(delphi, EXPERIMENT).splitlines()
    big, small = (next(line for line in lines if name in line) for name in (" big ", " small "))

    assert big.split() == [
        *("big", "conversations:", "from/value,", "human/gpt", "385,700", "385,700", "231M"),
        *("116M", "1", "0%"),
    ]
    assert small.split()[-2:] == ["0.953", "5%"]
    assert any("is used up first, which ends the mix" in line for line in lines)


def test_page_before_anything_is_fetched_says_what_is_missing(tmp_path):
    text = page(tmp_path, EXPERIMENT)

    assert "not known before the mix is tokenized" in text
    assert "not known without the tokens of the mix, the size of the model" in text


def test_page_foretells_consolidation(tmp_path):
    text = page(tmp_path, changed(deepspeed="ds_z3_nogather.json"))

    assert "ZeRO-3 shards, which are put together after training" in text


def test_page_lists_what_row_and_workflow_change_in_the_base_config(tmp_path):
    experiment = replace(changed(learning_rate=3e-5), overrides={"learning_rate": 3e-5})
    text = page(tmp_path, experiment)

    assert "  learning_rate: 4e-05 → 3e-05 (row)" in text
    assert "+ gradient_accumulation_steps: 1 (workflow)" in text
    assert "− global_batch_size: 16 (for the workflow alone)" in text
    assert "num_train_epochs: 7 → 1" in text


def test_rate_for_the_plan_is_not_rendered(tmp_path):
    assert (
        "tokens_per_second_per_gpu"
        not in page(tmp_path, changed(tokens_per_second_per_gpu=120)).partition("config ")[2]
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "alpaca: instruction → output"),
        ({"columns": {"prompt": "q", "response": "a"}}, "alpaca: q → a"),
        (SHAREGPT, "conversations: from/value, human/gpt"),
        (
            {
                "formatting": "sharegpt",
                "columns": {"messages": "messages"},
                "tags": {
                    "role_tag": "role",
                    "content_tag": "content",
                    "user_tag": "user",
                    "assistant_tag": "assistant",
                },
            },
            "messages: role/content, user/assistant",
        ),
    ],
)
def test_tags_in_force_are_shown_also_where_they_are_defaults(options, text):
    assert describe_tags(Dataset("a", "datasets.yaml", options=options)) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "?"), (0, "0"), (999, "999"), (1234, "1.23k"), (2.57e8, "257M"), (3e12, "3T")],
)
def test_large_numbers_are_short(number, text):
    assert short(number) == text


def test_sum_says_of_how_many_it_knows(delphi):
    unknown = replace(EXPERIMENT, name="other", mix=Mix("other", EXPERIMENT.mix.datasets[:1]))
    catalog = catalog_of(changed(tokens_per_second_per_gpu=120), unknown)
    plans, _ = make_plans(catalog, Facts(catalog, delphi), DAY, catalog.experiments)

    assert sum_up(plans) == (
        "together: 149 node-hours (known of 1 of 2), 1.13TB of disk (known of 2)"
    )
