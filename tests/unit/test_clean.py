"""What a verified upload makes superfluous: found, refused, deleted, and killed on the way."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sft import slurm
from sft.attempt import Attempt, Run, find_place
from sft.catalog import published_facts
from sft.clean import Surplus, delete, find_surplus, surplus_text
from sft.cleaned import find_note, refuse_cleaned
from sft.errors import SftError
from sft.experiment import Experiment
from sft.facts import Facts
from sft.files import list_files, manifest, read_json, size_text, write_json
from sft.process import this_process
from sft.receipt import Clock, read_receipt, write_receipt
from sft.slurm import Job, job_name
from sft.train import train
from tests.hub import Hub
from tests.hub_base import Refused
from tests.unit.killing import kill_at_wait
from tests.unit.planning import catalog_of, changed
from tests.unit.standing import HERE, ROW, Results

KILLED = """
import shutil
import sft.clean
from tests.unit.test_clean import Published

def after(number, function):
    calls = []
    def called(*arguments, **keywords):
        made = function(*arguments, **keywords)
        calls.append(made)
        if len(calls) == number:
            wait()
        return made
    return called

def half(folder):
    next(path for path in sorted(folder.rglob("*")) if path.is_file()).unlink()
    wait()

run = Published(Path(sys.argv[1]))
surplus = run.surplus()
PLACE
sft.clean.delete(surplus, run.site)
"""
PLACES = {
    "noted": "sft.clean.write_note = after(1, sft.clean.write_note)",
    "one renamed": "Path.rename = after(1, Path.rename)",
    "some renamed": "Path.rename = after(4, Path.rename)",
    "half deleted": "shutil.rmtree = half",
}
# What stays: receipts, logs, curves, and what says how it was trained.
KEPT_IN_CHECKPOINTS = [
    *("attempts.json", "cleaned.json", "config.json", "process.lock", "steps.jsonl"),
    *("tokenizer.json", "trainer_state.json"),
]
KEPT = [
    *("consolidated.json", "launch.sh", "layout.json", "logs/train.log", "registered.json"),
    *("release.json", "served.json", "train.yaml", "trained.json", "uploaded.json"),
]


class Published:
    """A results folder with one published run, and the copy that was uploaded."""

    def __init__(self, folder: Path, experiment: Experiment = ROW, site=HERE) -> None:
        self.folder, self.experiment, self.site = folder, experiment, site
        self.results = Results(folder / "results", experiment, site)
        self.run = self.results.run.resolve()
        self.uploaded = folder / "hub" / "laion" / "run"

    @property
    def checkpoints(self) -> Path:
        """Those that were trained and published."""
        return self.run / "checkpoints" / read_receipt(self.run / "trained.json")["fingerprint"]

    def publish(self) -> "Published":
        self.results.render()
        self._train(self.results.checkpoints)
        write(self.run / "launch.sh", 10)
        write(self.run / "logs" / "train.log", 10)
        write(self.run / "consolidated" / "model.safetensors", 3000)
        write(self.run / "release" / "config.json", 20)
        os.link(
            self.run / "consolidated" / "model.safetensors",
            self.run / "release" / "model.safetensors",
        )
        shutil.copytree(self.run / "release", self.uploaded)
        self.write_receipts()
        return self

    def _train(self, checkpoints: Path) -> None:
        write(checkpoints / "checkpoint-2" / "optimizer.pt", 400)
        write(checkpoints / "checkpoint-2" / "global_step2" / "shard.pt", 500)
        write(checkpoints / "broken-checkpoint-1" / "optimizer.pt", 7)
        write(checkpoints / "pruned-checkpoint-1" / "optimizer.pt", 8)
        write(checkpoints / "global_step4" / "shard.pt", 600)
        write(checkpoints / "model.safetensors", 0)
        for name in ("config.json", "tokenizer.json", "trainer_state.json", "steps.jsonl"):
            write(checkpoints / name, 5)
        write_json(checkpoints / "attempts.json", [])
        write(checkpoints.with_name("0ld00000") / "checkpoint-9" / "model.safetensors", 900)

    def write_receipts(self, files: list | None = None, uploaded: dict | None = None) -> None:
        run, checkpoints = self.run, self.results.checkpoints
        trained = {"fingerprint": checkpoints.name, "checkpoints": str(checkpoints)}
        release = {"folder": str(run / "release"), "files": files or manifest(run / "release")}
        uploaded = uploaded or {"location": str(self.uploaded), "files": 2, "sent": 2}
        self.write("trained", trained, config="train.yaml", launch="launch.sh")
        self.write("layout", {"layout": "zero3"}, trained="trained.json")
        self.write("consolidated", {}, layout="layout.json")
        self.write("served", {}, layout="layout.json", trained="trained.json")
        self.write(
            *("release", release),
            **{"weights": "consolidated.json", "served": "served.json", "trained": "trained.json"},
        )
        self.write("uploaded", uploaded, release="release.json")
        self.write("registered", {}, uploaded="uploaded.json")

    def write(self, stage: str, made: dict, **inputs: str) -> None:
        files = {name: self.run / file for name, file in inputs.items()}
        write_receipt(self.run / f"{stage}.json", Clock(), made, files)

    def surplus(self) -> Surplus:
        facts = Facts(catalog_of(self.experiment, site=self.site), self.results.folder)
        return find_surplus(self.experiment, facts)

    def clean(self) -> None:
        delete(self.surplus(), self.site)

    def refusal(self) -> str:
        with pytest.raises(SftError) as caught:
            self.surplus()
        return str(caught.value)

    def files(self) -> list[str]:
        """All files of the run, hidden ones too."""
        paths = (path for path in self.run.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.run).as_posix() for path in paths)


def write(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


@pytest.fixture
def published(tmp_path: Path) -> Published:
    return Published(tmp_path).publish()


def expected_files(run: Published) -> list[str]:
    """What is to be there after a clean-up."""
    folder = f"checkpoints/{run.checkpoints.name}"
    inside = [f"{folder}/{name}" for name in KEPT_IN_CHECKPOINTS]
    return sorted([*inside, *KEPT, "train.sbatch"])


# --- what may go ---------------------------------------------------------------------------------


def test_surplus_is_listed_with_what_it_sets_free(published):
    sizes = {each.what: (each.files, each.size) for each in published.surplus().entries}
    assert sizes == {
        "checkpoint, with its optimizer": (2, 900),
        "broken checkpoint, put aside": (1, 7),
        "old checkpoint, half deleted": (1, 8),
        "shards": (1, 600),
        "weights": (1, 0),
        "consolidated weights": (1, 0),  # the release's own file
        "release, which is a copy": (2, 3020),
        "version of the row before": (1, 900),
    }


def test_file_with_a_name_elsewhere_sets_nothing_free(published, tmp_path):
    os.link(published.run / "consolidated" / "model.safetensors", tmp_path / "mine")
    (release,) = (each for each in published.surplus().entries if each.what.startswith("release"))
    assert (release.files, release.size) == (2, 20)


def test_text_names_place_size_and_total(published):
    surplus = published.surplus()
    text = surplus_text(surplus)
    total = size_text(sum(each.size for each in surplus.entries))
    assert f"run: published at {published.uploaded}" in text
    assert f"checkpoints/{published.checkpoints.name}/checkpoint-2" in text
    assert f"10 files, {total}, below" in text and total.endswith(" kB")


def test_looking_changes_nothing(published):
    before = published.files()
    surplus_text(published.surplus())
    assert published.files() == before


def test_what_is_deleted_is_what_was_listed(published):
    published.clean()
    assert published.files() == expected_files(published)


def test_uploaded_copy_stays(published):
    before = manifest(published.uploaded)
    published.clean()
    assert manifest(published.uploaded) == before


def test_second_clean_up_finds_nothing(published):
    published.clean()
    assert published.surplus().entries == ()
    assert "nothing is left" in surplus_text(published.surplus())


@pytest.fixture
def on_hub(published, tmp_path) -> Iterator[tuple[Published, Hub]]:
    """The run with its copy on a hub."""
    with Hub(tmp_path / "served") as hub:
        commit = hub.commit("laion/run", published.uploaded)
        uploaded = {"location": f"{hub.url}/laion/run", "commit": commit}
        published.write("uploaded", uploaded, release="release.json")
        published.write("registered", {}, uploaded="uploaded.json")
        shutil.rmtree(published.uploaded)
        yield published, hub


def test_release_on_the_hub_is_looked_for_there(on_hub):
    run, hub = on_hub
    run.clean()
    assert run.files() == expected_files(run)
    assert any(each.startswith("GET /api/models/laion/run/tree/") for each in hub.requests)


# --- what may not --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["trained.json", "release.json", "uploaded.json", "registered.json"]
)
def test_run_that_is_not_published_is_left_alone(published, name):
    (published.run / name).unlink()
    assert f": no {name}; nothing is deleted before it is published" in published.refusal()


def test_run_that_is_not_to_be_registered_needs_no_registration(tmp_path):
    run = Published(tmp_path, replace(ROW, register=False)).publish()
    (run.run / "registered.json").unlink()
    assert run.surplus().entries


def test_upload_of_another_release_is_refused(published):
    receipt = read_json(published.run / "release.json")
    write_json(published.run / "release.json", receipt | {"finished": "later"})
    assert "uploaded.json: made of another release.json" in published.refusal()


@pytest.mark.parametrize("name", ["train.yaml", "launch.sh", "layout.json"])
def test_release_of_another_training_is_refused(published, name):
    path = published.run / name
    path.write_text(path.read_text() + "\n")
    assert f"made of another {name}" in published.refusal()


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (Path.unlink, "no file"),
        (lambda path: write(path, 2999), "2999"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/hostname")), "no file"),
    ],
)
def test_uploaded_copy_that_is_not_whole_is_refused(published, damage, found):
    damage(published.uploaded / "model.safetensors")
    assert f"found {found}, expected 3000 bytes" in published.refusal()


def test_copy_that_the_hub_has_lost_is_refused(on_hub):
    run, hub = on_hub
    hub.refusals["laion/run"] = Refused(404, "RepoNotFound", "Repository not found")
    assert "answered 404" in run.refusal()


def test_hub_that_is_not_reached_is_no_answer(on_hub, monkeypatch):
    run, _ = on_hub
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "cannot be asked whether the release is there" in run.refusal()


def test_hub_with_another_release_is_refused(on_hub):
    run, _ = on_hub
    release = read_receipt(run.run / "release.json")
    files = [each | {"size": each["size"] + 1} for each in release["files"]]
    run.write_receipts(files=files, uploaded=read_receipt(run.run / "uploaded.json"))
    assert "model.safetensors: not there, or of another content" in run.refusal()


def test_copy_that_is_the_release_itself_is_refused(published):
    shutil.rmtree(published.uploaded)
    published.uploaded.symlink_to(published.run / "release")
    assert "no copy elsewhere" in published.refusal()


def test_row_that_was_changed_since_is_refused(published):
    published.experiment = changed(ROW, learning_rate=2e-5)
    assert "it was changed since" in published.refusal()


def test_row_that_was_renamed_on_the_hub_is_refused(published):
    published.experiment = replace(ROW, hub_id="laion/other")
    assert "its hub_id is laion/other" in published.refusal()


def test_row_of_which_nothing_can_be_told_is_refused(published):
    (published.results.tokens / "pretokenized.json").unlink()
    assert "cannot be told whether the row is still" in published.refusal()


def test_run_that_trains_is_left_alone(published):
    note = {"launcher": "local", "job_id": None}
    published.results.attempt(str(this_process()), minutes_ago=1, **note)
    assert f"attempt {this_process()} has no ending" in published.refusal()


def test_run_that_trains_on_another_host_is_left_alone(published):
    note = {"launcher": "local", "job_id": None}
    published.results.attempt("elsewhere-12-345", minutes_ago=1, **note)
    assert "it trains at elsewhere, or did" in published.refusal()


def test_process_that_trains_an_earlier_version_is_seen(published):
    record = published.checkpoints.with_name("0ld00000") / "process"
    record.write_text(str(this_process()))
    assert f"0ld00000: process {os.getpid()} trains it" in published.refusal()


def test_job_in_the_queue_is_seen(tmp_path, monkeypatch):
    run = Published(tmp_path, site=Results(tmp_path).site).publish()
    name = job_name(run.checkpoints)
    queue = {name: [Job("7", name, "PENDING")]}
    monkeypatch.setattr(slurm, "read_queue", lambda max_age_s: queue)
    assert "job 7 is in the queue" in run.refusal()


def test_silent_slurm_is_no_answer(tmp_path, monkeypatch):
    def stay_away(max_age_s: float) -> None:
        raise slurm.SlurmAway("squeue: no answer")

    run = Published(tmp_path, site=Results(tmp_path).site).publish()
    monkeypatch.setattr(slurm, "read_queue", stay_away)
    assert "Slurm does not say" in run.refusal()


def test_training_that_began_after_the_look_is_seen(published):
    surplus = published.surplus()
    published.results.attempt(str(this_process()), 0, launcher="local", job_id=None)
    with pytest.raises(SftError, match="has no ending"):
        delete(surplus, published.site)
    assert "release/model.safetensors" in published.files()


def test_checkpoints_behind_a_link_are_not_followed(published, tmp_path):
    folder = published.run / "checkpoints"
    folder.rename(tmp_path / "scratch")
    folder.symlink_to(tmp_path / "scratch")
    assert "no link is followed" in published.refusal()


def test_links_in_the_run_are_not_followed(published, tmp_path):
    outside = tmp_path / "outside"
    write(outside / "precious", 10)
    (published.checkpoints / "checkpoint-3").symlink_to(outside)
    (published.checkpoints / "checkpoint-2" / "data").symlink_to(outside)
    (published.run / "checkpoints" / "link").symlink_to(outside)
    published.clean()
    assert list_files(outside) == ["precious"]
    assert (published.checkpoints / "checkpoint-3").is_symlink()
    assert not (published.checkpoints / "checkpoint-2").exists()


def test_link_in_the_place_of_the_trash_is_refused(published, tmp_path):
    (published.run / ".cleaning").symlink_to(tmp_path)
    assert "a link is in the way" in published.refusal()


def test_two_clean_ups_at_once_end_as_one(published):
    first, second = published.surplus(), published.surplus()
    delete(first, published.site)
    delete(second, published.site)
    assert published.files() == expected_files(published)


# --- killed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_killed_clean_up_is_finished_by_the_next(published, tmp_path, place):
    kill_at_wait(KILLED.replace("PLACE", PLACES[place]), tmp_path)
    names = {path.name for path in published.run.rglob("*") if path.is_dir()}
    for folder in ("release", "consolidated", "checkpoint-2"):
        assert folder not in names or whole(published, folder)
    published.clean()
    assert published.files() == expected_files(published)


def whole(run: Published, name: str) -> bool:
    (folder,) = run.run.rglob(name)
    size = sum((folder / each).stat().st_size for each in list_files(folder))
    return size == {"release": 3020, "consolidated": 3000, "checkpoint-2": 900}[name]


# --- afterwards ----------------------------------------------------------------------------------


def test_row_as_it_was_is_known_to_be_published(published):
    facts = published_facts(published.experiment)
    assert find_note(published.run, lambda: facts) is None
    published.clean()
    note = find_note(published.run, lambda: facts)
    assert note == published.checkpoints / "cleaned.json"
    assert read_json(note)["location"] == str(published.uploaded)


@pytest.mark.parametrize(
    "row", [changed(ROW, learning_rate=2e-5), replace(ROW, hub_id="a/b"), replace(ROW, agent="a")]
)
def test_changed_row_is_asked_for_again(published, row):
    published.clean()
    assert find_note(published.run, lambda: published_facts(row)) is None


@pytest.mark.parametrize("row", [replace(ROW, num_nodes=8), changed(ROW, save_steps=7)])
def test_row_that_makes_the_same_model_stays_published(published, row):
    published.clean()
    assert find_note(published.run, lambda: published_facts(row))


def test_run_that_lost_its_upload_is_asked_for_again(published):
    published.clean()
    (published.run / "uploaded.json").unlink()
    assert find_note(published.run, lambda: published_facts(published.experiment)) is None


def test_run_that_was_cleaned_up_is_not_trained_again(published):
    published.clean()
    before = published.files()
    with pytest.raises(SftError, match=r"published at .*/laion/run and cleaned up.*move this"):
        train(published.site, published.run, 1, 0)
    assert published.files() == before


def test_job_that_is_submitted_by_hand_leaves_it_alone(published):
    published.clean()
    before = published.files()
    config, log = published.run / "train.yaml", published.run / "logs" / "by-hand.log"
    attempt = Attempt(Run(published.checkpoints, config, log, 1, 0, 0, 60.0), find_place())
    with pytest.raises(SftError, match="cleaned up on"):
        attempt.carry_out(["false"])
    assert published.files() == before


def test_run_whose_folder_was_moved_away_may_be_trained_anew(published, tmp_path):
    published.clean()
    folder = published.checkpoints
    folder.rename(tmp_path / "away")
    folder.mkdir()
    refuse_cleaned(folder)
