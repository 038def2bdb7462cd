"""What a mix takes of its sources, against the function that mixes them."""

import pytest
from datasets import Dataset, interleave_datasets

from sft import draws
from sft.draws import take
from sft.mix import Mix

STRATEGIES = {"interleave_under": "first_exhausted", "interleave_over": "all_exhausted"}
SIZES = [
    ((10, 1000), (0.9, 0.1)),
    ((632, 3893), (0.5, 0.5)),
    ((10, 40), (0.2, 0.8)),
    ((7, 7, 7), (0.2, 0.3, 0.5)),
    ((1, 1), (0.5, 0.5)),
    ((500, 30, 2000), (0.6, 0.1, 0.3)),
]


def mixed(rows, shares, strategy, seed):
    """The rows of each source that LLaMA-Factory's merge_dataset takes."""
    sets = [Dataset.from_dict({"source": [source] * number}) for source, number in enumerate(rows)]
    mix = interleave_datasets(
        sets, probabilities=list(shares), seed=seed, stopping_strategy=STRATEGIES[strategy]
    )
    sources = mix["source"][:]
    return tuple(sources.count(source) for source in range(len(rows)))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", [42, 7])
@pytest.mark.parametrize(("rows", "shares"), SIZES)
def test_numbers_are_those_that_come_out(rows, shares, seed, strategy):
    taken = take(Mix("mix", (), strategy, shares, seed), rows)

    assert taken.exact
    assert taken.examples == mixed(rows, shares, strategy, seed)


def test_small_source_ends_the_mix_that_takes_what_is_left_by_probability():
    taken = take(Mix("mix", (), "interleave_under", (0.9, 0.1), 42), (10, 1000))

    assert (taken.ending, taken.examples[0]) == (0, 10)


def test_last_source_to_be_used_up_ends_the_larger_mix():
    taken = take(Mix("mix", (), "interleave_over", (0.9, 0.1), 42), (10, 1000))

    assert (taken.ending, taken.examples[1]) == (1, 1000)


def test_concat_takes_all_and_nothing_ends_it():
    assert take(Mix("mix", ()), (632, 3893)) == draws.Taken((632, 3893), None, exact=True)


def test_source_that_is_alone_is_taken_whole():
    assert take(Mix("mix", (), "interleave_under", (1.0,)), (5,)).examples == (5,)


def test_draws_beyond_one_block_are_the_same(monkeypatch):
    mix = Mix("mix", (), "interleave_over", (0.7, 0.3), 42)
    at_once = take(mix, (500, 900))
    monkeypatch.setattr(draws, "BLOCK", 64)

    assert take(mix, (500, 900)) == at_once


def test_expected_numbers_stand_in_for_too_many_draws(monkeypatch):
    mix = Mix("mix", (), "interleave_under", (0.75, 0.25), 42)
    exact = take(mix, (60_000, 90_000))
    monkeypatch.setattr(draws, "MOST_DRAWS", 1000)
    expected = take(mix, (60_000, 90_000))

    assert not expected.exact
    assert expected.ending == exact.ending == 0
    assert expected.examples == (60_000, 20_000)
    assert expected.examples == pytest.approx(exact.examples, rel=0.02)
