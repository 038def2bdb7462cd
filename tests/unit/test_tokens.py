"""Tokens are made once for the same content, elsewhere for another, and are whole or absent."""

import json
import os
import pickle
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sft import files, tokens
from sft.backends import llamafactory
from sft.errors import SftError
from sft.experiment import Experiment
from sft.fetch import fetch_dataset, fetch_model
from sft.files import read_json
from sft.mix import NEEDED_TAGS, Dataset, Mix
from sft.model import Model
from sft.process import ProcessId, this_process
from sft.site import Site
from sft.tokens import pretokenize, read_tokens
from tests.unit.killing import kill, start, start_until_wait, wait_until
from tests.workflow import stub_trainer

CONFIG = {"environment": "otagent", "template": "chatml_tools", "cutoff_len": 256, "packing": False}
OPTIONS = {"formatting": "sharegpt", "columns": {"messages": "conversations"}}


@dataclass(frozen=True)
class Tokenizing:
    """What is tokenized, and where; copies of it are other requests."""

    folder: Path
    site: Site
    config: dict = field(default_factory=lambda: dict(CONFIG))
    strategy: str = "concat"
    probabilities: tuple[float, ...] = ()
    seed: int = 42
    names: tuple[str, ...] = ("a", "b")
    num_nodes: int = 1
    num_workers: int = 2
    options: dict = field(default_factory=lambda: dict(OPTIONS))

    @property
    def log(self) -> Path:
        return self.folder / "pretokenize.log"

    def experiment(self) -> Experiment:
        paths = {name: str(self.folder / f"{name}.jsonl") for name in self.names}
        datasets = [Dataset(each, "r", path=paths[each], options=self.options) for each in paths]
        return Experiment(
            name="experiment",
            backend="llamafactory",
            base_config="base.yaml",
            config=self.config,
            overrides={},
            model=Model("model", folder=str(self.folder / "model")),
            mix=Mix("mix", tuple(datasets), self.strategy, self.probabilities, self.seed),
            num_nodes=self.num_nodes,
            hub_id="org/experiment",
        )

    def fetch(self) -> tuple[dict, dict]:
        experiment = self.experiment()
        datasets = {each.name: fetch_dataset(each) for each in experiment.mix.datasets}
        return fetch_model(experiment.model), datasets

    def run(self, fetched: tuple[dict, dict] | None = None) -> dict:
        model, datasets = fetched or self.fetch()
        return pretokenize(
            *(self.experiment(), self.site, model, datasets),
            root=self.folder / "tokens",
            num_workers=self.num_workers,
            output=self.log,
        )

    def count(self) -> int:
        """How often the trainer tokenized."""
        return self.log.read_text().count("\ntokenized ")


def chat(text: str) -> list[dict]:
    return [{"from": "human", "value": text}, {"from": "gpt", "value": "Yes."}]


@pytest.fixture
def tokenizing(tmp_path):
    stub_trainer.write_weights(tmp_path / "model", step=0)
    for name in ("a", "b"):
        rows = [{"conversations": chat(f"{name}{n}")} for n in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        f'#!/bin/sh\nHASHES_FOR_TOKENS=1 exec "{sys.executable}" "{stub_trainer.__file__}" "$@"\n'
    )
    python.chmod(0o755)
    (tmp_path / "tokens").mkdir()
    activation = f'PATH="{python.parent}:$PATH"'
    return Tokenizing(tmp_path, Site("here", environments={"otagent": activation}))


def folders(tokenizing):
    return sorted(path.name for path in (tokenizing.folder / "tokens").iterdir())


# --- what is made --------------------------------------------------------------------------------


def test_folder_is_named_by_its_key(tokenizing):
    made = tokenizing.run()
    assert made["folder"] == str(tokenizing.folder / "tokens" / made["key"][:16])
    assert made["tokens"] == f"{made['folder']}/tokens"
    assert folders(tokenizing) == [made["key"][:16]]


def test_counts_and_versions_come_from_the_trainer(tokenizing):
    made = tokenizing.run()
    assert made["sources"]["a"] == {
        **{"rows_in": 3, "rows_out": 3, "examples": 3},
        **{"tokens": 27, "trained_tokens": 12},
    }
    assert made["versions"] == stub_trainer.VERSIONS


def test_manifest_says_what_the_key_stands_for(tokenizing):
    made = tokenizing.run()
    content = read_json(Path(made["folder"]) / "manifest.json")
    assert tokens.hash_json(content["identity"]) == content["key"] == made["key"]
    assert [each["path"] for each in content["files"]] == [
        "data-00000-of-00001.arrow",
        "state.json",
    ]


def test_trainer_sees_no_secret(tokenizing, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    python = tokenizing.folder / "bin" / "python"
    python.write_text(python.read_text().replace("exec", '[ -z "$HF_TOKEN" ] || exit 1\nexec'))
    assert tokenizing.run()


# --- once ----------------------------------------------------------------------------------------


def test_same_content_is_not_tokenized_again(tokenizing):
    first = tokenizing.run()
    assert tokenizing.run() == first
    assert tokenizing.count() == 1


@pytest.mark.parametrize(
    "change",
    [
        {"config": CONFIG | {"learning_rate": 1e-5, "seed": 7, "num_train_epochs": 3}},
        {"config": CONFIG | {"per_device_train_batch_size": 4, "deepspeed": "ds_z3.json"}},
        {"num_nodes": 8},
        {"num_workers": 7},
        {"seed": 7},
    ],
    ids=["how it is trained", "on which hardware", "nodes", "workers", "seed of a concatenation"],
)
def test_what_does_not_change_tokens_shares_them(tokenizing, change):
    made = tokenizing.run()
    assert replace(tokenizing, **change).run() == made
    assert tokenizing.count() == 1


def test_same_content_in_another_place_has_the_same_key(tokenizing, tmp_path):
    key = tokenizing.run()["key"]
    elsewhere = tmp_path / "elsewhere"
    for name in ("a.jsonl", "b.jsonl", "model"):
        elsewhere.mkdir(exist_ok=True)
        (tmp_path / name).rename(elsewhere / name)
    (elsewhere / "tokens").mkdir()
    assert replace(tokenizing, folder=elsewhere).run()["key"] == key


# --- a template that does not fit ----------------------------------------------------------------


def test_a_template_of_another_tokenizer_is_refused_before_the_trainer_starts(tokenizing):
    with pytest.raises(SftError, match=r"template llama3: control string '<\|end_header_id\|>'"):
        replace(tokenizing, config=CONFIG | {"template": "llama3"}).run()
    assert not tokenizing.log.exists() and folders(tokenizing) == []


def test_weights_without_rows_for_the_template_are_refused_though_its_tokens_are_there(tokenizing):
    tokenizing.run()
    path = tokenizing.folder / "model" / "model.safetensors"
    size = path.stat().st_size
    with open(path, "r+b") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        file.seek(start)
        file.write(bytes(size - start))

    with pytest.raises(SftError, match="rows of ordinary tokens are empty"):
        tokenizing.run()


# --- elsewhere -----------------------------------------------------------------------------------


def append_row(tokenizing):
    with open(tokenizing.folder / "a.jsonl", "a") as file:
        file.write('{"conversations": []}\n')


def swap_rows(tokenizing):
    path = tokenizing.folder / "a.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*rest, first]))


def swap_files(tokenizing):
    a, b, c = (tokenizing.folder / name for name in ("a.jsonl", "b.jsonl", "c"))
    a.rename(c), b.rename(a), c.rename(b)


def change_tokenizer(tokenizing):
    with open(tokenizing.folder / "model" / "tokenizer.json", "a") as file:
        file.write("\n")


def change_tokenizer_template(tokenizing):
    (tokenizing.folder / "model" / "chat_template.jinja").write_text("{{ messages }}")


@pytest.mark.parametrize(
    "change", [append_row, swap_rows, swap_files, change_tokenizer, change_tokenizer_template]
)
def test_other_content_has_another_folder(tokenizing, change):
    before = tokenizing.run()
    change(tokenizing)
    after = tokenizing.run()
    assert folders(tokenizing) == sorted([before["key"][:16], after["key"][:16]])
    assert tokenizing.count() == 2
    assert read_tokens(Path(before["folder"]))["key"] == before["key"]


@pytest.mark.parametrize(
    "change",
    [
        {"config": CONFIG | {"cutoff_len": 257}},
        {"config": CONFIG | {"packing": True}},
        {"config": CONFIG | {"template": "qwen3"}},
        {"config": CONFIG | {"train_on_prompt": True}},
        {"config": CONFIG | {"enable_thinking": False}},
        {"options": OPTIONS | {"tags": NEEDED_TAGS | {"system_tag": "rules"}}},
        {"strategy": "interleave_under", "probabilities": (0.5, 0.5)},
        {"names": ("b", "a")},
        {"names": ("a",)},
    ],
    ids=str,
)
def test_other_option_has_another_key(tokenizing, change):
    assert replace(tokenizing, **change).run()["key"] != tokenizing.run()["key"]


@pytest.mark.parametrize("change", [{"seed": 7}, {"probabilities": (0.4, 0.6)}], ids=str)
def test_other_draws_of_an_interleave_have_another_key(tokenizing, change):
    drawn = replace(tokenizing, strategy="interleave_over", probabilities=(0.5, 0.5))
    assert replace(drawn, **change).run()["key"] != drawn.run()["key"]


def test_other_text_of_our_template_has_another_key(tokenizing, monkeypatch, tmp_path):
    path = tmp_path / "chatml_tools.jinja"
    monkeypatch.setattr(llamafactory, "template_path", lambda name: path)
    path.write_text("one")
    before = tokenizing.run()["key"]
    path.write_text("two")
    assert tokenizing.run()["key"] != before


@pytest.mark.parametrize("package", llamafactory.TOKEN_VERSIONS)
def test_other_version_of_the_trainer_has_another_key(tokenizing, monkeypatch, package):
    before = tokenizing.run()["key"]
    monkeypatch.setenv("STUB_VERSIONS", json.dumps({package: "99.0"}))
    assert tokenizing.run()["key"] != before


def test_version_of_what_makes_no_tokens_is_recorded_alone(tokenizing, monkeypatch):
    before = tokenizing.run()
    monkeypatch.setenv("STUB_VERSIONS", '{"torch": "99.0"}')
    after = tokenizing.run()
    assert after["key"] == before["key"] and after["versions"]["torch"] == "99.0"


# --- killed and broken ---------------------------------------------------------------------------

KILLED = """
import pickle
from sft import tokens
setattr(*{place}, wait)
request, fetched = pickle.loads(Path(sys.argv[1], "request").read_bytes())
request.run(fetched)
"""
MOMENTS = {
    "before it is tokenized": "(tokens, 'run_in_environment')",
    "before its manifest is made": "(tokens, 'manifest')",
    "before it gets its name": "(Path, 'rename')",
}


def start_killed(tokenizing, place):
    """A process that tokenizes the same, and waits at a place."""
    (tokenizing.folder / "request").write_bytes(pickle.dumps((tokenizing, tokenizing.fetch())))
    return start_until_wait(KILLED.format(place=place), tokenizing.folder)


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_tokenizing_leaves_no_tokens(tokenizing, moment):
    kill(start_killed(tokenizing, MOMENTS[moment]))
    assert all(name.startswith(".") for name in folders(tokenizing))


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_tokenizing_is_made_anew(tokenizing, moment):
    kill(start_killed(tokenizing, MOMENTS[moment]))
    made = tokenizing.run()
    assert folders(tokenizing) == [made["key"][:16]]


def test_failed_tokenizing_shows_its_last_lines_and_leaves_nothing(tokenizing, monkeypatch):
    monkeypatch.setenv("FAIL_AT", "pretokenize")
    with pytest.raises(SftError, match=r"exit code 1 of python (.|\n)*\| RuntimeError: no luck"):
        tokenizing.run()
    assert folders(tokenizing) == []


def test_environment_that_does_not_start_is_named(tokenizing):
    broken = replace(tokenizing.site, environments={"otagent": "source /absent/activate"})
    with pytest.raises(SftError, match=r"'otagent' at here does not start(.|\n)*/absent/activate"):
        replace(tokenizing, site=broken).run()


def test_environment_that_says_nothing_is_named(tokenizing):
    (tokenizing.folder / "bin" / "python").write_text("#!/bin/sh\n")
    with pytest.raises(SftError, match="'otagent' at here does not start: exit code 0"):
        tokenizing.run()


def test_second_of_two_that_tokenize_at_once_takes_what_the_first_made(tokenizing, monkeypatch):
    """The first is done while the second tokenizes; a trainer may read its tokens by then."""

    def run_beside_another(*arguments):
        monkeypatch.undo()
        made.append(tokenizing.run())
        states.append(state_of(made[0]))
        tokens.run_in_environment(*arguments)

    made, states = [], []
    monkeypatch.setattr(tokens, "run_in_environment", run_beside_another)
    monkeypatch.setattr(files, "this_process", lambda: ProcessId("elsewhere", 1, 1))
    assert tokenizing.run() == made[0]
    assert state_of(made[0]) == states[0]
    assert tokenizing.count() == 2 and folders(tokenizing) == [made[0]["key"][:16]]


def test_four_that_tokenize_at_once_leave_one_folder_though_one_is_killed(tokenizing):
    (tokenizing.folder / "request").write_bytes(pickle.dumps((tokenizing, tokenizing.fetch())))
    code = KILLED.replace("setattr(*{place}, wait)", "")
    writers = [start(code, tokenizing.folder) for _ in range(4)]
    wait_until(lambda: tokenizing.log.exists() and "tokenized" in tokenizing.log.read_text())
    kill(writers[0])
    for writer in writers[1:]:
        assert writer.wait() == 0, writer.stdout.read()
        writer.stdout.close()
    made = tokenizing.run()
    assert folders(tokenizing) == [made["key"][:16]]


def state_of(made):
    return {
        path: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in Path(made["tokens"]).iterdir()
    }


def test_leftovers_go_when_the_tokens_are_there(tokenizing):
    made = tokenizing.run()
    dead = ProcessId(this_process().host, 1, 1)
    (tokenizing.folder / "tokens" / f".{made['key'][:16]}.partial-{dead}").mkdir()
    tokenizing.run()
    assert folders(tokenizing) == [made["key"][:16]]


@pytest.mark.parametrize("name", ["a.jsonl", "model/tokenizer.json"])
def test_file_that_changed_since_it_was_fetched_is_refused(tokenizing, name):
    fetched = tokenizing.fetch()
    path = tokenizing.folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(SftError, match=f"{path.name}: .* since it was fetched"):
        tokenizing.run(fetched)
    assert folders(tokenizing) == []


def test_data_of_the_same_size_and_time_but_other_bytes_is_refused(tokenizing):
    fetched = tokenizing.fetch()
    path = tokenizing.folder / "a.jsonl"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"a0", b"a9"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SftError, match=r"a\.jsonl: changed since it was fetched: found sha256"):
        tokenizing.run(fetched)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tokens/data-00000-of-00001.arrow", "found None bytes, expected 64"),
        ("tokens/state.json", "found None bytes, expected 0"),
        ("manifest.json", "no such file"),
    ],
)
def test_tokens_that_lack_a_file_are_refused(tokenizing, name, words):
    folder = Path(tokenizing.run()["folder"])
    (folder / name).unlink()
    with pytest.raises(SftError, match=words):
        tokenizing.run()


def test_tokens_with_a_truncated_file_are_refused(tokenizing):
    folder = Path(tokenizing.run()["folder"])
    path = folder / "tokens" / "data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SftError, match=f"found 63 bytes, expected 64; move {folder} away"):
        tokenizing.run()


def test_tokens_of_another_key_are_refused(tokenizing):
    folder = Path(tokenizing.run()["folder"])
    content = read_json(folder / "manifest.json") | {"key": "0" * 64}
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(SftError, match="holds tokens of another key"):
        tokenizing.run()
