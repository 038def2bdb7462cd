"""Measure what LLaMA-Factory alone does with the faulty inputs of tests/faults.py.

    python -m tests.trainer.measure_alone OUT.json

Each input goes through LLaMA-Factory's own functions, as its `train` command calls them, in this
one process. OUT.json becomes {name: {"does", "says", "checks"}}, `does` being one of

    trains   it would train, and has said nothing that it does not say of good data too
    warns    it has warned, and would train on what is left
    dies     with the error that `says` holds

A real step is trained where it could fail: with ids beyond the embedding, or an example without a
label. `--update-golden` of test_alone.py writes what is measured into docs/checks.md.
"""

import argparse
import json
import logging
import re
import tempfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sft.gate.checks import CHECKS
from sft.trainers import llamafactory as entry
from tests import faults, tokenizers
from tests.faults import IGNORED, Case, Damage, Tokens

# The templates of our own are not LLaMA-Factory's; these of its own are most like them.
UPSTREAM = {"chatml_tools": "qwen3_nothink", "delphi": "llama3"}
TOKENIZERS = {
    "smollm2": lambda: Path(__file__).parents[2] / "demo" / "smollm2-135m",
    "llama3": tokenizers.llama3,
    "qwen": tokenizers.qwen,
}
# Rows that the embeddings of the hub's models of these tokenizers have.
EMBEDDINGS = {"smollm2": 49152, "llama3": 128256, "qwen": 151936}
SAID_OF_GOOD_DATA = ("mixed precision", "reasoning template", "Loading dataset from disk")
VERDICTS = ("trains", "warns", "dies")
# A row of docs/checks.md's first table: what stands before its last cell, the check, that cell.
CHECK_ROW = re.compile(r"^(\| \[(\w+)\]\(#\w+\) \|.*\|) ([^|]*) \|$", re.MULTILINE)
INPUTS = "| input | checks | does | says |\n|---|---|---|---|"
KEYS = ("input_ids", "labels", "attention_mask")
SHOWN = 90  # characters of what is said
QUOTED = re.compile(r"\[.*\]\.?")


@dataclass(frozen=True)
class Measured:
    """What LLaMA-Factory does and says, and the checks that find it, the meant one first."""

    does: str
    says: str
    checks: tuple[str, ...]


class Trainer:
    """LLaMA-Factory with a folder of data and tiny models."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warnings: list[str] = []
        entry._import_trainer()
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: self.warnings.append(record.getMessage())
        logging.getLogger("llamafactory").addHandler(handler)
        self.model, self.load = cache(self._make_model), cache(self._load)
        self.tokenize = cache(self._tokenize)

    def measure(self, case: Case) -> Measured:
        """What it does with a data set."""

        def work() -> str:
            made = self.tokenize(case)
            self.train_if_doubtful(made, case, {"dataset": case.name, **case.config})
            lost = len(made) < len(case.rows) and not case.config.get("packing")
            return f"{len(made)} of {len(case.rows)} rows" if lost else ""

        return self.watch(work, case.checks)

    def measure_damage(self, damage: Damage) -> Measured:
        """What it does with tokens on disk that a damage was done to."""
        from datasets import Dataset, DatasetDict

        case = next(case for case in faults.GOOD if case.name == damage.good)
        made = apply(damage, self.tokenize(case), self.load_for(case)["tokenizer"])
        options = {"dataset": case.name, "tokenized_path": str(self.folder / damage.name)}
        DatasetDict({"train": Dataset.from_list(made)}).save_to_disk(options["tokenized_path"])

        def work() -> str:
            self.train_if_doubtful(self.read(case, options), case, options)
            return ""

        return self.watch(work, damage.checks)

    def watch(self, work: Callable[[], str], checks: tuple[str, ...]) -> Measured:
        """How the work ends; it returns what is to be said of its result."""
        self.warnings.clear()
        try:
            says = work()
        except Exception as error:  # whatever it dies of is what is measured
            says = f"{type(error).__name__}: {error}".splitlines()[0]
            return Measured("dies", self.shorten(says), checks)
        told = [line for line in self.warnings if not any(s in line for s in SAID_OF_GOOD_DATA)]
        if told:
            says = "; ".join(filter(None, [self.shorten(told[0]), says]))
        return Measured("warns" if told else "trains", says, checks)

    def shorten(self, text: str) -> str:
        """What is said, without the rows that it quotes."""
        line = QUOTED.sub("[…]", text.replace(str(self.folder), "…").replace("\n", " "))
        return line if len(line) <= SHOWN else line[:SHOWN] + "…"

    def _tokenize(self, case: Case) -> list[dict]:
        """The examples that it makes of a data set."""
        return self.read(case, {"dataset": case.name, **case.config})

    def read(self, case: Case, options: Mapping[str, Any]) -> list[dict]:
        from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
        from llamafactory.hparams import get_train_args

        model_args, data_args, training_args, _, _ = get_train_args(self.config(case, options))
        module = self.load_for(case)
        template = get_template_and_fix_tokenizer(module["tokenizer"], data_args)
        made = get_dataset(template, model_args, data_args, training_args, stage="sft", **module)
        return list(made["train_dataset"])

    def train_if_doubtful(self, made: list[dict], case: Case, options: Mapping[str, Any]) -> None:
        """Train one step where ids or labels could stop it."""
        from llamafactory.train.tuner import run_exp

        beyond = any(max(each["input_ids"]) >= EMBEDDINGS[case.tokenizer] for each in made)
        if beyond or any(set(each["labels"]) == {IGNORED} for each in made):
            run_exp(self.config(case, options))

    def config(self, case: Case, options: Mapping[str, Any]) -> dict[str, Any]:
        """What a person would write for `llamafactory-cli train`."""
        return {
            "model_name_or_path": str(self.model(case.tokenizer)),
            "stage": "sft",
            "finetuning_type": "full",
            "do_train": True,
            "dataset_dir": str(self.folder),
            "cache_dir": str(self.folder / "cache"),
            "template": UPSTREAM.get(case.template, case.template),
            "cutoff_len": faults.CUTOFF,
            "max_steps": 1,
            "per_device_train_batch_size": 64,
            "save_strategy": "no",
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
            "output_dir": tempfile.mkdtemp(dir=self.folder),
            **options,
        }

    def load_for(self, case: Case) -> dict[str, Any]:
        """The tokenizer as LLaMA-Factory loads it, with the case's chat template.

        It is one and the same for cases that change it in the same way.
        """
        split = "split_special_tokens" in case.config
        return self.load(case.tokenizer, split, case.template, case.chat_template)

    def _load(self, name: str, split: bool, template: str, chat_template: str | None) -> dict:
        from llamafactory.hparams import ModelArguments
        from llamafactory.model import load_tokenizer

        if template:
            module = deepcopy(self.load(name, split, "", None))
            module["tokenizer"].chat_template = chat_template or module["tokenizer"].chat_template
            return module
        model = str(self.model(name))
        return load_tokenizer(ModelArguments(model_name_or_path=model, split_special_tokens=split))

    def _make_model(self, name: str) -> Path:
        """A llama of two layers with the tokenizer."""
        from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

        folder = self.folder / name
        tokenizer = AutoTokenizer.from_pretrained(TOKENIZERS[name]())
        config = LlamaConfig(
            vocab_size=EMBEDDINGS[name],
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder


def apply(damage: Damage, examples: list[dict], tokenizer: Any) -> list[dict]:
    """The examples after the damage was done to every other one."""
    end = tokenizer.eos_token_id
    split = tokenizer(tokenizer.eos_token, add_special_tokens=False, split_special_tokens=True)
    made = []
    for number, each in enumerate(examples):
        ids, labels, attention = (tuple(each[key]) for key in KEYS)
        tokens = Tokens(ids, labels, attention, end, tuple(split["input_ids"]))
        if number % 2:
            tokens = damage.how(tokens)
        columns = (tokens.ids, tokens.labels, tokens.attention)
        made.append(dict(zip(KEYS, columns, strict=True)))
    return made


def measure_all(folder: Path) -> dict[str, Measured]:
    """What LLaMA-Factory does with each faulty input, by name."""
    faults.write_cases(folder, faults.CASES)
    trainer = Trainer(folder)
    cases = {case.name: trainer.measure(case) for case in faults.FAULTY}
    return cases | {damage.name: trainer.measure_damage(damage) for damage in faults.DAMAGES}


def verdicts(measured: Mapping[str, Measured]) -> dict[str, str]:
    """What LLaMA-Factory does with the inputs of each check: "warns, or dies (`no_roles`)", say.

    Those count that are meant for it; of a check that only comes with others, all. The verdict that
    tells a person least comes first, the inputs of the others are named.
    """
    found = {}
    for name in CHECKS:
        inputs = {each: made for each, made in measured.items() if name in made.checks}
        meant = {each: made for each, made in inputs.items() if made.checks[0] == name}
        found[name] = _sum_up(meant or inputs)
    return found


def _sum_up(inputs: Mapping[str, Measured]) -> str:
    does = {
        word: [f"`{name}`" for name, each in inputs.items() if each.does == word]
        for word in VERDICTS
    }
    first, *others = [word for word, names in does.items() if names] or ["no input is known"]
    return ", or ".join([first, *(f"{word} ({', '.join(does[word])})" for word in others)])


def update(document: str, measured: Mapping[str, Measured]) -> str:
    """The text of docs/checks.md with what was measured in both of its tables."""
    does = verdicts(measured)
    document = CHECK_ROW.sub(lambda row: f"{row[1]} {does.get(row[2], row[3])} |", document)
    head, _, _ = document.partition(INPUTS)
    return head + INPUTS + "\n" + "\n".join(input_rows(measured)) + "\n"


def input_rows(measured: Mapping[str, Measured]) -> list[str]:
    """The lines of the table of inputs."""
    return [
        f"| {name} | {', '.join(each.checks)} | {each.does} | {escape(each.says)} |"
        for name, each in measured.items()
    ]


def escape(text: str) -> str:
    """Text in a cell of a Markdown table, as code; empty where there is none."""
    return f"`` {text} ``".replace("|", "\\|") if text else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        measured = measure_all(Path(folder))
    table = {name: asdict(each) for name, each in measured.items()}
    out.write_text(json.dumps(table, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
