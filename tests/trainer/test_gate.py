"""The gate on what the real trainer makes: every fault has its name, and good data has none."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, load_from_disk

from sft.errors import SftError
from sft.files import read_json
from sft.gate.checks import PACKS
from sft.gate.conversation import read_conversation
from sft.gate.inspection import Request, inspect
from sft.gate.roles import find_fatal_rows, source_preflight
from sft.gate.tally import Source
from tests import faults
from tests.faults import Case, Damage
from tests.trainer.measure_alone import EMBEDDINGS, KEYS, Trainer, apply

GOOD = {case.name: case for case in faults.GOOD}


def is_refused(case: Case) -> bool:
    """Whether the trainer dies of a row, or is left with none: that is refused before it starts."""
    read = [read_conversation(row, case.options) for row in case.rows]
    fails = any(fault.fails for _, found in read for fault in found)
    return fails or not any(conversation for conversation, _ in read)


REFUSED = {case.name for case in faults.FAULTY if is_refused(case)}
# The template is not one of the tokenizer's: that is refused before it starts too.
UNFIT = {"chatml_on_llama3", "chatml_on_llama3_resized", "llama3_on_qwen"}
TOKENIZED = [case for case in faults.CASES if case.name not in REFUSED | UNFIT]


class Gate:
    """Tokenizes cases with the trainer's own code and inspects what it left."""

    def __init__(self, folder: Path) -> None:
        self.trainer, self.folder = Trainer(folder), folder

    def tokenize(self, cases: list[Case]) -> Path:
        """The folder with the tokens of cases that share all but their data."""
        from sft.trainers.llamafactory_tokens import tokenize_mix

        case, names = cases[0], [each.name for each in cases]
        request = self.folder / f"made-{names[0]}"
        request.mkdir()
        faults.write_cases(request, cases)
        config = self.trainer.config(case, {"dataset": ",".join(names), **case.config})
        config |= {"template": case.template, "dataset_dir": str(request)}
        config["model_name_or_path"] = str(self.model(case, request))
        tokenize_mix(config, request / "tokens")
        return request

    def model(self, case: Case, folder: Path) -> Path:
        """The tiny model, its tokenizer with the chat template of the case."""
        made = self.trainer.model(case.tokenizer)
        if case.chat_template is None:
            return made
        (folder / "model").mkdir()
        for path in made.iterdir():
            (folder / "model" / path.name).symlink_to(path)
        (folder / "model" / "chat_template.jinja").unlink(missing_ok=True)
        (folder / "model" / "chat_template.jinja").write_text(case.chat_template)
        return folder / "model"

    def inspect(self, made: Path, cases: list[Case], tokens: str = "tokens") -> dict[str, set[str]]:
        """The names of what is found, by case."""
        counts, config = read_json(made / "counts.json"), cases[0].config
        packed = made / tokens if config.get("packing") else None
        request = Request(
            tokens=made / ("unpacked" if packed else tokens),
            rows=made / "rows.parquet",
            serving=made / "tokenizer",
            sources=tuple(source_of(case, made, counts["sources"][case.name]) for case in cases),
            cutoff=config.get("cutoff_len", faults.CUTOFF) - bool(packed),
            vocabulary=EMBEDDINGS[cases[0].tokenizer],
            thinking=config.get("enable_thinking"),
            last_turn_only=bool(config.get("mask_history")),
            packed=packed,
            num_packs=counts["examples"] if packed else 0,
        )
        found = defaultdict(set)
        for each in inspect(request, num_workers=1)["findings"]:
            found[each["source"]].add(each["fault"])
        assert not found[PACKS]
        return found


def source_of(case: Case, made: Path, counts: Mapping[str, Any]) -> Source:
    return Source(
        name=case.name,
        files=(made / f"{case.name}.jsonl",),
        options=case.options,
        rows_in=counts["rows_in"],
        rows_out=counts["rows_out"],
    )


def groups(cases: Iterable[Case]) -> list[list[Case]]:
    """Cases that can be tokenized together: the same tokenizer, template and config."""
    found = defaultdict(list)
    for case in cases:
        config = tuple(sorted(case.config.items()))
        found[case.tokenizer, case.template, case.chat_template, config].append(case)
    return list(found.values())


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="module")
def found(gate: Gate) -> dict[str, set[str]]:
    """What the gate finds in each case that the trainer tokenizes."""
    found = {}
    for cases in groups(TOKENIZED):
        made = gate.inspect(gate.tokenize(cases), cases)
        found |= {case.name: made.get(case.name, set()) for case in cases}
    return found


@pytest.mark.parametrize("case", faults.GOOD, ids=lambda case: case.name)
def test_good_data_passes(found, case):
    assert found[case.name] == set()


@pytest.mark.parametrize(
    "case",
    [case for case in TOKENIZED if case in faults.FAULTY],
    ids=lambda case: case.name,
)
def test_fault_has_its_name(found, case):
    assert found[case.name] == case.expected


@pytest.mark.parametrize(
    "case", [case for case in faults.FAULTY if case.name in REFUSED], ids=lambda case: case.name
)
def test_rows_that_the_trainer_dies_of_are_refused_before(tmp_path, case):
    faults.write_cases(tmp_path, [case])
    files = [tmp_path / f"{case.name}.jsonl"]

    assert refusals(files, case)
    assert all(line.startswith(case.name) for line in refusals(files, case))


def refusals(files: list[Path], case: Case) -> list[str]:
    """What is said of a source before it is tokenized, or when the trainer died of it."""
    try:
        source_preflight(files, case.options, case.name)
    except SftError as error:
        return [error.args[0]]
    return find_fatal_rows(files, case.options, case.name)


def test_tokens_that_are_not_those_of_the_rows_are_refused(gate):
    cases = [replace(GOOD["one_turn"], name="vanished")]
    made = gate.tokenize(cases)
    load_from_disk(str(made / "tokens")).select(range(5)).save_to_disk(str(made / "five"))

    with pytest.raises(SftError, match="found 5 examples, expected 24"):
        gate.inspect(made, cases, "five")


@pytest.fixture(scope="module")
def damaged(gate: Gate) -> dict[str, set[str]]:
    """What the gate finds in tokens on disk after each damage."""
    made: dict[str, Path] = {}
    found = {}
    for damage in faults.DAMAGES:
        case = GOOD[damage.good]
        folder = made.setdefault(case.name, None) or gate.tokenize([case])
        made[case.name] = folder
        write_damaged(gate, folder, damage, case)
        found[damage.name] = gate.inspect(folder, [case], damage.name).get(case.name, set())
    return found


def write_damaged(gate: Gate, folder: Path, damage: Damage, case: Case) -> None:
    examples = list(load_from_disk(str(folder / "tokens")))
    tokenizer = gate.trainer.load_for(case)["tokenizer"]
    made = Dataset.from_list(apply(damage, examples, tokenizer))
    made.select_columns(list(KEYS)).save_to_disk(str(folder / damage.name))


@pytest.mark.parametrize("damage", faults.DAMAGES, ids=lambda damage: damage.name)
def test_damage_has_its_name(damaged, damage):
    assert damaged[damage.name] == damage.expected
