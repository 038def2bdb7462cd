"""What starts a training, beside the golden files: options that few sites use, and the driver."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sft.attempt import exclude_option
from sft.drive import drive_name, drive_text
from sft.launch import kept_checkpoints, launch_text, sbatch_text
from sft.request import Request
from sft.slurm import job_name
from tests.unit.planning import EXPERIMENT, LEONARDO, changed

CHECKPOINTS = Path("/results/runs/run/checkpoints/0123abcd")
REQUEST = Request(minutes=1439, account="a", partition="p", gres="gpu:h100:4", extra="--licenses=x")


def script(site=LEONARDO, request=REQUEST, experiment=EXPERIMENT):
    return sbatch_text(experiment, site, request, CHECKPOINTS, CHECKPOINTS.parents[1])


def options(text):
    mark = "#SBATCH "
    return [line.removeprefix(mark) for line in text.splitlines() if line.startswith(mark)]


def test_jobs_of_a_run_share_a_name_and_no_other_run_has_it():
    other = job_name(CHECKPOINTS.with_name("ffffffff"))

    assert job_name(CHECKPOINTS).startswith("sft-run-")
    assert job_name(CHECKPOINTS) != other
    assert job_name(CHECKPOINTS) != job_name(Path("/elsewhere/runs/run/checkpoints/0123abcd"))


def test_what_the_profile_asks_for_is_asked_of_slurm():
    assert {"--account=a", "--partition=p", "--time=1439", "--nodes=4"} < set(options(script()))
    assert "--licenses=x" in options(script())


@pytest.mark.parametrize(
    ("form", "option"),
    [("gres", "--gres=gpu:h100:4"), ("gpus-per-node", "--gpus-per-node=4"), ("none", None)],
)
def test_gpus_are_asked_for_as_the_site_wants_it(form, option):
    found = [each for each in options(script(replace(LEONARDO, gpu_request=form))) if "gpu" in each]

    assert found == ([option] if option else [])


def test_gpus_without_a_type_are_those_of_a_node():
    text = script(replace(LEONARDO, gpu_request="gres"), replace(REQUEST, gres=""))

    assert "--gres=gpu:4" in options(text)


def test_memory_of_zero_is_no_directive():
    assert not [each for each in options(script()) if each.startswith("--mem")]
    assert "--mem=4000M" in options(script(request=replace(REQUEST, memory_mb=4000)))


def test_wall_time_that_nobody_gives_is_the_longest_of_the_site():
    assert "--time=1440" in options(script(request=replace(REQUEST, minutes=None)))


def test_bad_nodes_are_stayed_away_from():
    site = replace(LEONARDO, bad_nodes={"n[1-2]": "why", "n7": "why"})

    assert "--exclude=n[1-2],n7" in options(script(site))


def test_nodes_to_blame_come_to_the_bad_ones(tmp_path):
    path = tmp_path / "train.sbatch"
    path.write_text(script(replace(LEONARDO, bad_nodes={"n7": "why"})))

    assert exclude_option(path, ["n3"]) == "n7,n3"
    assert exclude_option(path, []) == ""


def test_options_of_the_site_reach_sbatch_and_srun():
    site = replace(LEONARDO, sbatch_options="--exclusive", srun_options="--cpu-bind=none")

    assert "--exclusive" in options(script(site))
    assert "--label --cpu-bind=none bash" in script(site)


def test_path_with_a_space_is_quoted(tmp_path):
    text = sbatch_text(EXPERIMENT, LEONARDO, REQUEST, tmp_path / "a b" / "c", tmp_path / "a b")

    assert f"cd '{tmp_path}/a b' ||" in text
    assert f"--output='{tmp_path}/a b/logs/slurm-%j.log'" in options(text)


def test_checkpoints_that_stay_follow_the_config():
    by_time = {key: each for key, each in EXPERIMENT.config.items() if key != "save_steps"}
    del by_time["save_total_limit"]

    assert kept_checkpoints(EXPERIMENT) == 3
    assert kept_checkpoints(replace(EXPERIMENT, config=by_time)) == 2
    assert kept_checkpoints(replace(EXPERIMENT, config=by_time | {"save_steps": 5})) == 0


def test_faults_of_the_site_are_told_where_training_decides_when_to_save():
    by_time = {key: each for key, each in EXPERIMENT.config.items() if key != "save_steps"}
    site = replace(LEONARDO, node_mtbf_hours=110)
    told = launch_text(replace(EXPERIMENT, config=by_time), site, CHECKPOINTS / "train.yaml")

    assert "export SFT_NODE_MTBF_HOURS=110\n" in told
    assert "MTBF" not in launch_text(changed(), site, CHECKPOINTS / "train.yaml")


def test_suffix_of_the_fast_network_is_added_to_the_first_node():
    site = replace(LEONARDO, master_suffix="i")

    assert "MASTER_ADDR+=i\n" in launch_text(EXPERIMENT, site, CHECKPOINTS / "train.yaml")


@pytest.fixture
def driver(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    request = Request(minutes=235, account="a", partition="serial")
    more = ["--configfile", "mine.yaml"]
    return drive_text("sft-drive-0", Path("profiles/leonardo"), request, tmp_path / "drive", more)


def test_driver_is_a_job_of_one_core_that_waits_for_the_one_before(driver):
    assert {"--dependency=singleton", "--time=235", "--partition=serial"} < set(options(driver))
    assert "--nodes=1 --ntasks=1 --cpus-per-task=1" in options(driver)


def test_driver_runs_snakemake_with_what_it_was_given(driver):
    assert "-m snakemake --profile profiles/leonardo --configfile mine.yaml\n" in driver


def test_driver_is_sound_shell(driver, tmp_path):
    path = tmp_path / "drive.sbatch"
    path.write_text(driver)

    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_drivers_of_two_folders_have_two_names(tmp_path, monkeypatch):
    names = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        names.append(drive_name(Path("profiles/leonardo")))

    assert names[0] != names[1]
