"""What is known of a site's experiments: what earlier stages left, and what is cheap to look at.

Before anything is fetched that is next to nothing. Nothing is made up: what is not known is None.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from sft.backends import BACKENDS
from sft.catalog import Catalog, tokens_name
from sft.draws import take
from sft.errors import SftError
from sft.experiment import Experiment
from sft.files import read_json, read_yaml
from sft.identity import checkpoints_folder, earlier_world_size, fingerprint
from sft.mix import Dataset, Mix
from sft.model import Model
from sft.receipt import read_receipt
from sft.row_counts import COUNTERS, Rows, count_rows
from sft.sizes import Size, read_size


@dataclass(frozen=True)
class Source:
    """One dataset in a mix: rows that can be trained, and what the mix takes of them.

    `tokens` and `trained_tokens` are of what it takes; `about` is whether rows are estimated.
    """

    name: str
    rows: int | None
    examples: int | None
    tokens: int | None = None
    trained_tokens: int | None = None
    about: bool = False


@dataclass(frozen=True)
class Taking:
    """What a mix takes of its sources, and the position of the one that ends it.

    `total` is examples of the mix, `tokens` all of theirs; `tokenized` is whether these are the
    numbers of tokens on disk, or of rows before any of them was looked at.
    """

    sources: tuple[Source, ...]
    ending: int | None
    total: int | None
    tokens: int | None
    about: bool
    tokenized: bool


@dataclass(frozen=True)
class Rate:
    """Tokens a second and GPU of a finished run, and on how many GPUs it ran."""

    tokens_per_second: float
    run: str
    world_size: int


class Facts:
    """What is known below a results folder, each thing read once."""

    def __init__(self, catalog: Catalog, results: Path) -> None:
        self.catalog = catalog
        self.results = results
        self._known: dict[Any, Any] = {}

    def _once(self, key: Any, find: Any) -> Any:
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]

    def model_made(self, model: Model) -> Mapping[str, Any] | None:
        """What is trained of a model, fetched or prepared; None before."""
        stage = "prepared" if model.prepare else "fetched"
        return self._model_receipt(model, stage)

    def _model_receipt(self, model: Model, stage: str) -> Mapping[str, Any] | None:
        path = self.results / "models" / model.name / f"{stage}.json"
        key = ("model", model.name, stage)
        return self._once(key, lambda: read_receipt(path) if path.exists() else None)

    def size(self, model: Model) -> Size | None:
        """The size of a model that was fetched or lies in a folder."""
        return self._once(("size", model.name), lambda: self._find_size(model))

    def _find_size(self, model: Model) -> Size | None:
        made = self.model_made(model) or self._model_receipt(model, "fetched")
        folder = made["path"] if made else model.folder
        return read_size(Path(folder)) if folder else None

    def tokens_made(self, experiment: Experiment) -> Mapping[str, Any] | None:
        """What tokenizing the experiment's mix made; None before."""
        name = self._once(("tokens", id(experiment)), lambda: tokens_name(experiment))
        return self._once(("tokens made", name), lambda: self._find_tokens(name))

    def _find_tokens(self, name: str) -> Mapping[str, Any] | None:
        path = self.results / "tokens" / name / "pretokenized.json"
        return read_receipt(path) if path.exists() else None

    def taking(self, experiment: Experiment) -> Taking:
        """What the experiment's mix takes of its sources."""
        made = self.tokens_made(experiment)
        if made:
            return self._once(("taken", made["folder"]), lambda: tokens_taken(experiment.mix, made))
        recipe = BACKENDS[experiment.backend].read_recipe(experiment.config)
        cap, packing = recipe.max_samples, recipe.packing
        key = ("taking", experiment.mix.name, cap, packing)
        return self._once(key, lambda: self._foresee(experiment.mix, cap, packing))

    def _foresee(self, mix: Mix, max_samples: int | None, packing: bool) -> Taking:
        """What a mix will take if no row is lost; into how many packed examples, nobody knows."""
        rows = [self.rows(dataset) for dataset in mix.datasets]
        about = any(each.about for each in rows if each)
        if None in rows:
            sources = [
                Source(each.name, _cap(known, max_samples), None, about=bool(known and known.about))
                for each, known in zip(mix.datasets, rows, strict=True)
            ]
            return Taking(tuple(sources), None, None, None, about, tokenized=False)
        numbers = [_cap(each, max_samples) for each in rows]
        taken = take(mix, numbers)
        sources = [
            Source(dataset.name, number, examples, about=known.about)
            for dataset, number, examples, known in zip(
                mix.datasets, numbers, taken.examples, rows, strict=True
            )
        ]
        total = None if packing else sum(taken.examples)
        about = about or not taken.exact
        return Taking(tuple(sources), taken.ending, total, None, about, tokenized=False)

    def rows(self, dataset: Dataset) -> Rows | None:
        """The rows of a dataset, as far as they can be told before it is tokenized."""
        return self._once(("rows", dataset.name), lambda: self._find_rows(dataset))

    def _find_rows(self, dataset: Dataset) -> Rows | None:
        if wanted := dataset.options.get("num_samples"):
            return Rows(wanted)  # LLaMA-Factory draws rows again where there are fewer
        receipt = self.results / "datasets" / dataset.name / "fetched.json"
        if receipt.exists():
            made = read_receipt(receipt)
            path, names = Path(made["path"]), [each["path"] for each in made["files"]]
            if made["source"].startswith("hub:"):
                rows = count_rows(path / name for name in choose_files(names, dataset.options))
                return rows and Rows(rows.number, about=True)  # which files are a split is a guess
            return count_rows([path / name for name in names] if path.is_dir() else [path])
        if not dataset.path or not Path(dataset.path).exists():
            return None
        path = Path(dataset.path)
        return count_rows(sorted(path.iterdir()) if path.is_dir() else [path])

    def checkpoints(self, experiment: Experiment) -> Path | None:
        """Where the run's checkpoints lie; None before its model and tokens are made."""
        model, tokens = self.model_made(experiment.model), self.tokens_made(experiment)
        if not model or not tokens:
            return None
        run = self.results / "runs" / experiment.name
        return checkpoints_folder(run, fingerprint(experiment, model, tokens))

    def earlier_world_size(self, experiment: Experiment) -> int | None:
        """Of how many processes the checkpoints are that the run would go on from."""
        folder = self.checkpoints(experiment)
        world_size = earlier_world_size(folder) if folder else None
        if world_size is None or _is_complete(folder):
            return None
        resumable = any(folder.glob("checkpoint-*/trainer_state.json"))
        return world_size if resumable else None

    def measured_rate(self, experiment: Experiment) -> Rate | None:
        """The rate of a finished run of the same base config and model at this site."""
        key = ("rate", experiment.base_config, experiment.model.name)
        return self._once(key, lambda: self._find_rate(self._alike[key[1:]]))

    @cached_property
    def _alike(self) -> Mapping[tuple, list[Experiment]]:
        """The experiments of the catalog by base config and model."""
        groups: dict[tuple, list[Experiment]] = {}
        for each in self.catalog.experiments.values():
            groups.setdefault((each.base_config, each.model.name), []).append(each)
        return groups

    def _find_rate(self, experiments: Iterable[Experiment]) -> Rate | None:
        for each in experiments:
            receipt = self.results / "runs" / each.name / "trained.json"
            if receipt.exists() and (rate := read_rate(each.name, read_receipt(receipt))):
                return rate
        return None


def _cap(rows: Rows | None, most: int | None) -> int | None:
    return rows and min(rows.number, most or rows.number)


def _is_complete(checkpoints: Path) -> bool:
    path = checkpoints / "trainer_state.json"
    state = read_json(path) if path.exists() else {"global_step": 0, "max_steps": 1}
    return state["global_step"] >= state["max_steps"]


def tokens_taken(mix: Mix, made: Mapping[str, Any]) -> Taking:
    """What a mix took, by what tokenizing it made. Packed examples are not of one source."""
    counts = [made["sources"][dataset.name] for dataset in mix.datasets]
    sources = tuple(
        Source(
            dataset.name,
            each.get("rows_out", each["rows_in"]),
            each.get("examples"),
            each.get("tokens"),
            each.get("trained_tokens"),
        )
        for dataset, each in zip(mix.datasets, counts, strict=True)
    )
    ending = None
    if all(each.rows and each.examples is not None for each in sources):
        ending = take(mix, [each.rows for each in sources]).ending
    tokens = [each.tokens for each in sources if each.tokens is not None]
    return Taking(
        sources=sources,
        ending=ending,
        total=count_examples(made),
        tokens=sum(tokens) if len(tokens) == len(sources) else None,
        about=False,
        tokenized=True,
    )


def count_examples(made: Mapping[str, Any]) -> int | None:
    """The examples of a tokenized mix."""
    examples = [each.get("examples") for each in made["sources"].values()]
    if None not in examples:
        return sum(examples)
    rows = count_rows(sorted(Path(made["tokens"]).glob("data-*.arrow")))  # packed
    return rows and rows.number


def choose_files(names: Iterable[str], options: Mapping[str, Any]) -> list[str]:
    """The data files of a repository that hold a dataset's subset and split, by their names."""
    chosen = [name for name in names if Path(name).suffix in COUNTERS]
    for word in (options.get("folder"), options.get("subset"), options.get("split", "train")):
        if word:
            pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])")
            chosen = [name for name in chosen if pattern.search(name)] or chosen
    return chosen


def read_rate(run: str, trained: Mapping[str, Any]) -> Rate | None:
    """Tokens a second and GPU in the longest attempt of a finished run, its start included.

    None where its tokens are gone, or all of its attempts ended unseen.
    """
    steps, seconds, world_size = max(_measure_attempts(trained), default=(0, 0, 0))
    try:
        config = read_yaml(Path(trained["config"]))
        tokens, sequences = _read_rendered(config)
        made = read_json(tokens.parent / "manifest.json")
        counts = made["sources"].values()
        mean = sum(each["tokens"] for each in counts) / sum(each["examples"] for each in counts)
    except (SftError, KeyError):  # tokens were cleaned up, or packed
        return None
    return (
        Rate(steps * sequences * mean / seconds, run, world_size) if steps > 0 < seconds else None
    )


def _read_rendered(config: Mapping[str, Any]) -> tuple[Path, int]:
    """The tokens of a rendered config, and the sequences that a process takes a step.

    Whichever backend's it is: its row may have left the table. Raises KeyError where it is none's.
    """
    for backend in BACKENDS.values():
        with suppress(KeyError):
            return backend.read_rendered(config)
    raise KeyError("tokens")


def _measure_attempts(trained: Mapping[str, Any]) -> Iterator[tuple[int, float, int]]:
    """Steps, seconds and processes of each attempt whose end was seen."""
    attempts = trained["attempts"]
    starts = [int((each["resumed"] or "checkpoint-0")[11:]) for each in attempts]
    for each, start, end in zip(
        attempts, starts, [*starts[1:], trained["global_step"]], strict=True
    ):
        if each["ending"] != "lost" and each["world_size"]:
            begun, ended = (datetime.fromisoformat(each[key]) for key in ("started", "finished"))
            yield end - start, (ended - begun).total_seconds(), each["world_size"]
