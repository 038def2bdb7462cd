"""How many examples of each source a mix takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sft.mix import Mix

MOST_DRAWS = 5_000_000  # a fifth of a second; beyond it expected values are as good
BLOCK = 100_000


@dataclass(frozen=True)
class Taken:
    """Examples by source in the mix's order, and which source ends the mix (None in a concat).

    `exact` is whether they are the numbers that will come out, or expected values.
    """

    examples: tuple[int, ...]
    ending: int | None
    exact: bool


def take(mix: Mix, rows: Sequence[int]) -> Taken:
    """What the mix takes of sources with so many rows each, at least one.

    An interleave draws a source at a time by probability: until the first has given its last row
    (interleave_under) or each has given all its rows at least once (interleave_over). The draws
    are those of `datasets.interleave_datasets`, `numpy.random.default_rng(seed).choice` in blocks,
    so the result is exact. Expected values, by the law of large numbers: source i is used up after
    rows[i] / p[i] draws; the smallest of these ends an interleave_under, the largest an
    interleave_over, after N draws of which N × p[i] are of source i.
    """
    if len(rows) == 1 or mix.strategy == "concat":
        return Taken(tuple(rows), None, exact=True)
    shares = np.asarray(mix.probabilities, dtype=float)
    under = mix.strategy == "interleave_under"
    needed = np.asarray(rows) / shares
    ending = int(needed.argmin() if under else needed.argmax())
    if needed[ending] > MOST_DRAWS:
        examples = np.rint(shares * needed[ending]).astype(np.int64)
        return Taken(tuple(examples.tolist()), ending, exact=False)
    return _replay(mix.seed, shares, rows, under)


def _replay(seed: int, shares: np.ndarray, rows: Sequence[int], under: bool) -> Taken:
    generator = np.random.default_rng(seed)
    before, used_up = np.zeros(len(rows), dtype=np.int64), {}
    drawn = 0
    while True:
        block = generator.choice(len(rows), size=BLOCK, p=shares)
        counts = np.bincount(block, minlength=len(rows))
        for source, number in enumerate(rows):
            if source not in used_up and before[source] + counts[source] >= number:
                positions = np.flatnonzero(block == source)
                used_up[source] = drawn + int(positions[number - before[source] - 1])
        if used_up and (under or len(used_up) == len(rows)):
            ending = (min if under else max)(used_up, key=used_up.get)
            last = block[: used_up[ending] - drawn + 1]
            examples = before + np.bincount(last, minlength=len(rows))
            return Taken(tuple(examples.tolist()), ending, exact=True)
        before += counts
        drawn += BLOCK
