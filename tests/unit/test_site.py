"""The facts of a site, as a profile writes them."""

from pathlib import Path

import pytest

from sft.errors import SftError
from sft.files import read_yaml
from sft.schema import faults
from sft.site import Site, build_site, placeholders

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"


def config_of(results: str = "/project/sft", **facts) -> dict:
    """A config with what a site needs, and more facts."""
    return {"site": "fjord", "pathvars": {"results": results}, **facts}


def schema_lines(**facts) -> list[str]:
    """What the schema says of the shipped config with a site of these facts."""
    return faults(read_yaml(CONFIG) | config_of(**facts), "config", "config")


def test_limits_of_a_qos_are_numbers_however_they_are_handed_over():
    as_text = build_site(config_of(max_minutes_by_qos={"debug": "30"}))
    as_number = build_site(config_of(max_minutes_by_qos={"debug": 30}))

    assert as_text == as_number == Site(name="fjord", max_minutes_by_qos={"debug": 30})


@pytest.mark.parametrize("limit", ["half an hour", "0", "", 0, True])
def test_limit_that_is_no_whole_number_is_refused(limit):
    (line,) = schema_lines(max_minutes_by_qos={"debug": limit})

    assert line.startswith(f"config, max_minutes_by_qos, debug: found {limit!r}, expected")


@pytest.mark.parametrize("key", ["upload_folder", "registry_file"])
def test_what_must_last_is_refused_below_scratch(key):
    with pytest.raises(SftError) as refused:
        build_site(config_of(scratch_folder="/scratch", **{key: "/scratch/me/x"}))

    assert str(refused.value) == (
        f"config, {key}: /scratch/me/x lies below /scratch, the scratch of fjord: what is there is "
        "purged, or dies on a shared quota; choose a file system that lasts"
    )


def test_results_that_a_link_leads_to_scratch_are_refused(tmp_path: Path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "results").symlink_to(scratch)

    with pytest.raises(SftError, match=r"pathvars\.results: .*results lies below .*scratch"):
        build_site(config_of(str(tmp_path / "results"), scratch_folder=str(scratch)))


def test_folder_whose_name_only_begins_like_scratch_is_taken():
    assert build_site(config_of("/scratch2/sft", scratch_folder="/scratch")).name == "fjord"


@pytest.mark.parametrize(
    "facts",
    [
        {"environments": {"otagent": 'eval "$(conda shell.bash hook)"'}},
        {"bad_nodes": {"n1": "2026-05-02: the rack's switch"}},
        {"setup": "source $HOME/setup.sh"},
        {"variables": {"NAME": "back`tick"}},
        {"hf_home": "relative/hf"},
        {"spill_folder": "/project/$USER/spill"},
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_text_that_jobs_would_not_receive_as_it_is_is_refused(facts):
    (key,) = facts
    (line,) = schema_lines(**facts)

    assert line.startswith(f"config, {key}")
    assert "expected" in line


def test_activation_with_paths_and_connectives_is_taken():
    line = "source {repository}/.venv/bin/activate && module load gcc/15.1.0; ulimit -c 0"

    assert schema_lines(environments={"otagent": line}, setup=line) == []


def test_placeholders_are_named_by_their_place():
    config = {
        "a": "x",
        "hf_home": "/project/FILL_IN/hf",
        "environments": {"otagent": "source FILL_IN"},
    }

    assert placeholders(config) == ["hf_home", "environments.otagent"]


def test_site_without_gpus_trains_one_process_a_node():
    assert Site(name="fjord").processes_per_node == 1


def test_environment_that_the_site_lacks_is_named_with_the_nearest_one():
    site = Site(name="fjord", environments={"otagent": "source x"})

    with pytest.raises(SftError, match=r"no environment 'otagnt'; did you mean 'otagent'\?"):
        site.activation("otagnt")
