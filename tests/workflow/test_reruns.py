"""What runs again after each kind of edit, and what does not, in a project that is finished."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sft.files import manifest
from tests.workflow.conftest import Project, Ran, copy_checkout, install_stub

TABLE = """\
name\tbase_config\tmodel\tmix\tnum_nodes\tregister\tlearning_rate\tdeepspeed
first\tsmoke\tsmollm2-135m\tboth\t1\ttrue\t1e-4\t
second\tsmoke\tsmollm2-135m\tboth\t1\ttrue\t3e-4\t
third\tsmoke\tsmollm2-135m\ttools\t1\tfalse\t1e-4\tds_z3.json
"""
MIXES = """\
both: {datasets: [demo_tools, demo_reasoning], strategy: interleave_over, probabilities: [0.6, 0.4]}
tools: {datasets: [demo_tools]}
"""
REGISTERED = ("first", "second", "fourth")
RECEIPTS = ("trained.json", "layout.json", "release.json", "uploaded.json")

TABLE_FILE, MIXES_FILE = "config/experiments.tsv", "config/mixes.yaml"
PROFILE = "profiles/localhost/config.yaml"


@dataclass(frozen=True)
class Finished(Project):
    """A project whose three experiments are through, trained by the stub."""

    def dry_run(self) -> Ran:
        return self.snakemake("--dry-run")

    def rerun_third(self, *arguments: str) -> Ran:
        ran = self.snakemake("--cores", "2", "results/runs/third/uploaded.json", *arguments)
        assert ran.code == 0, ran.text
        return ran

    def starts(self) -> int:
        """How many times the trainer was started for the third experiment."""
        log = self.root / "results" / "runs" / "third" / "logs" / "trainer.log"
        return log.read_text().count("the stub starts")

    def release(self) -> list[dict]:
        """The files of the third experiment's release, by size and hash."""
        return manifest(self.root / "results" / "runs" / "third" / "release")


@dataclass(frozen=True)
class Rerun:
    """The third experiment, run again after an edit: starts of the trainer, and what was there."""

    ran: Ran
    starts: int
    release_before: list[dict]
    release: list[dict]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> tuple[Finished, Path]:
    """A finished project, and a copy of its folder."""
    project = Finished(copy_checkout(tmp_path_factory.mktemp("finished")).root)
    install_stub(project)
    (project.root / TABLE_FILE).write_text(TABLE)
    (project.root / MIXES_FILE).write_text(MIXES)
    ran = project.snakemake("--cores", "2")
    assert ran.code == 0, ran.text
    copy = tmp_path_factory.mktemp("snapshot") / "project"
    shutil.copytree(project.root, copy, symlinks=True)
    return project, copy


@pytest.fixture
def finished(snapshot: tuple[Finished, Path]) -> Finished:
    return restore(*snapshot)


def restore(project: Finished, copy: Path) -> Finished:
    """The project as it was finished, in the same place: receipts name absolute paths."""
    shutil.rmtree(project.root)
    shutil.copytree(copy, project.root, symlinks=True)
    return project


def jobs(ran: Ran) -> set[str]:
    """The jobs that a dry run lists, each as `rule wildcard`; of tokens, the name of their mix."""
    assert ran.code == 0, ran.text
    found = re.findall(
        r"^(?:local)?rule (\w+):\n(?:    .*\n)*?    wildcards: \w+=([\w.]+)", ran.text, re.MULTILINE
    )
    return {f"{rule} {value}" for rule, value in found}


def tokens_of(mix: str) -> set[str]:
    """All jobs that make and check the tokens of a mix."""
    return {f"{stage} {mix}" for stage in ("pretokenize", "inspect_tokens", "check_tokens")}


def runs_of(*experiments: str) -> set[str]:
    """All jobs of experiments, those that they share left out."""
    stages = ("render", "train", "detect_layout", "check_template", "assemble_release", "upload")
    registered = [name for name in experiments if name in REGISTERED]
    return {f"{stage} {name}" for stage in stages for name in experiments} | {
        f"register {name}" for name in registered
    }


def test_nothing_is_done_after_a_finished_run(finished):
    ran = finished.dry_run()

    assert "Nothing to be done" in ran.text


def test_changed_learning_rate_reruns_its_experiment_alone(finished):
    finished.replace(TABLE_FILE, "3e-4", "4e-4")
    ran = finished.dry_run()

    assert jobs(ran) == runs_of("second")
    assert "before: 'learning_rate=0.0003' now: 'learning_rate=0.0004'" in ran.text


def test_added_column_reruns_no_row_that_leaves_it_empty(finished):
    header, first, *others = TABLE.splitlines()
    lines = [f"{header}\tseed", f"{first}\t7", *(f"{line}\t" for line in others)]
    (finished.root / TABLE_FILE).write_text("\n".join(lines))

    assert jobs(finished.dry_run()) == runs_of("first")


@pytest.mark.parametrize(
    ("edit", "change"),
    [
        ("[0.5, 0.5]", "'mix.probabilities=[0.6, 0.4]' now: 'mix.probabilities=[0.5, 0.5]'"),
        ("[0.6, 0.4], seed: 7", "'mix.seed=42' now: 'mix.seed=7'"),
    ],
)
def test_changed_mix_is_tokenized_and_trained_again(finished, edit, change):
    finished.replace(MIXES_FILE, "[0.6, 0.4]", edit)
    ran = finished.dry_run()

    assert jobs(ran) == {*tokens_of("both"), *runs_of("first", "second")}
    assert f"before: {change}" in ran.text


def test_new_row_runs_alone_on_tokens_that_are_there(finished):
    finished.append(TABLE_FILE, "fourth\tsmoke\tsmollm2-135m\tboth\t1\ttrue\t5e-4\t\n")

    assert jobs(finished.dry_run()) == runs_of("fourth")


def test_resources_and_wall_times_rerun_nothing(finished):
    finished.append(PROFILE, "\n  max_minutes: 50\n")
    finished.append(PROFILE, "set-resources:\n  train:\n    runtime: 77\n    mem_mb: 1000\n")

    assert jobs(finished.dry_run()) == set()


def test_comments_in_scripts_rules_and_configs_rerun_nothing(finished):
    for path in (
        *("workflow/scripts/train.py", "workflow/rules/train.smk", "sft/train.py"),
        *("sft/lf_configs/smoke.yaml", TABLE_FILE, MIXES_FILE, PROFILE),
    ):
        finished.append(path, "\n# a remark\n")

    assert jobs(finished.dry_run()) == set()


def test_changed_data_file_reruns_those_that_train_on_it(finished):
    finished.append("demo/chats_messages.jsonl", '{"messages": []}\n')

    assert jobs(finished.dry_run()) == {
        *("fetch_dataset demo_reasoning", *tokens_of("both")),
        *runs_of("first", "second"),
    }


def test_changed_template_is_tokenized_and_trained_again(finished):
    finished.append("sft/templates/chatml_tools.jinja", "{# a remark #}")

    assert jobs(finished.dry_run()) == {
        *(*tokens_of("both"), *tokens_of("tools")),
        *runs_of("first", "second", "third"),
    }


def test_changed_deepspeed_file_is_rendered_again(finished):
    finished.replace("sft/deepspeed/ds_z3.json", 'clipping": "auto"', 'clipping": 1.0')

    assert jobs(finished.dry_run()) == runs_of("third")


def test_changed_hub_id_is_published_again_and_not_rendered(finished):
    finished.replace("config/config.yaml", "namespace: laion", "namespace: mine")
    ran = finished.dry_run()

    assert {job.split()[0] for job in jobs(ran)} == {"assemble_release", "upload", "register"}
    assert "before: 'hub_id=laion/first' now: 'hub_id=mine/first'" in ran.text


def test_changed_registry_name_is_registered_again_and_nothing_else(finished):
    finished.replace("config/models.yaml", "SmolLM2-135M-Instruct\n  declare", "Other\n  declare")

    assert jobs(finished.dry_run()) == {"register first", "register second"}


def test_accepted_fault_is_checked_again_and_not_trained(finished):
    finished.append("sft/lf_configs/smoke.yaml", "accept: [other_prompt]\n")

    assert {"check_tokens both", "render first"} <= jobs(finished.dry_run())
    assert not {"pretokenize both", "inspect_tokens both"} & jobs(finished.dry_run())


def set_nodes(project: Finished) -> tuple[str, ...]:
    project.replace(PROFILE, "max_nodes: 1", "max_nodes: 2")
    project.replace(TABLE_FILE, "tools\t1", "tools\t2")
    return ()


def set_save_steps(project: Finished) -> tuple[str, ...]:
    project.replace("sft/lf_configs/smoke.yaml", "save_steps: 6", "save_steps: 3")
    return ()


def set_activation(project: Finished) -> tuple[str, ...]:
    project.replace(PROFILE, "otagent: source {repository}", "otagent: true && source {repository}")
    return ()


def touch_data(project: Finished) -> tuple[str, ...]:
    """A file of the size that Snakemake does not compare by content."""
    os.utime(project.root / "demo" / "chats_sharegpt.jsonl")
    return ("--max-checksum-file-size", "0")


def remove_receipts(project: Finished) -> tuple[str, ...]:
    for name in RECEIPTS:
        (project.root / "results" / "runs" / "third" / name).unlink()
    return ()


def force_train(project: Finished) -> tuple[str, ...]:
    return ("--forcerun", "train")


EDITS = (set_nodes, set_save_steps, set_activation, touch_data, remove_receipts, force_train)


@pytest.fixture(scope="module", params=EDITS, ids=[edit.__name__ for edit in EDITS])
def rerun(request: pytest.FixtureRequest, snapshot: tuple[Finished, Path]) -> Rerun:
    """The third experiment, run again after an edit that does not change its weights."""
    edit: Callable[[Finished], tuple[str, ...]] = request.param
    project = restore(*snapshot)
    starts, release = project.starts(), project.release()
    ran = project.rerun_third(*edit(project))
    return Rerun(ran, project.starts() - starts, release, project.release())


def test_stage_that_trains_is_run_again(rerun):
    assert "train third" in jobs(rerun.ran)


def test_complete_run_is_not_trained_again(rerun):
    assert rerun.starts == 0


def test_release_of_a_complete_run_stays_byte_for_byte(rerun):
    assert rerun.release == rerun.release_before


def test_run_that_is_changed_back_is_found_again(finished):
    finished.replace(TABLE_FILE, "1e-4\tds", "2e-4\tds")
    finished.rerun_third()
    starts = finished.starts()
    finished.replace(TABLE_FILE, "2e-4\tds", "1e-4\tds")
    ran = finished.rerun_third()

    assert "train third" in jobs(ran)
    assert finished.starts() == starts
