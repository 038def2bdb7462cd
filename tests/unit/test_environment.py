"""What an environment must hold, and what a job is given."""

import pytest
from packaging.requirements import Requirement

from sft.environment import ask_environment, job_variables, pin_faults, read_pins, without_secrets
from sft.errors import SftError
from sft.site import Site

SITE = Site("here", environments={"otagent": "true", "gone": "source /no/such/activate"})


def faults(pins: str, **versions: str) -> list[str]:
    return pin_faults([Requirement(pin) for pin in pins.split()], versions, "environment", SITE)


@pytest.mark.parametrize("pin", ["torch", "torch==2.9.1+cu128", "torch==2.9.1", "torch>=2.9"])
def test_pin_that_is_kept_is_silent(pin):
    assert faults(pin, torch="2.9.1+cu128") == []


def test_other_version_is_named_with_the_expected_one():
    (line,) = faults("transformers==5.3.0", transformers="4.57.6")

    assert "transformers: found 4.57.6, expected ==5.3.0" in line
    assert "profiles/here/config.yaml" in line


def test_package_that_is_not_installed_is_named():
    (line,) = faults("flash-attn==2.8.3")

    assert "flash-attn: found none, expected ==2.8.3" in line


def test_pin_that_is_no_requirement_is_refused():
    site = Site("here", environment_pins={"otagent": "torch=2.9"})
    with pytest.raises(SftError, match=r"environment_pins, otagent: found 'torch=2.9'"):
        read_pins(site, "otagent")


def test_environment_that_does_not_start_is_said():
    with pytest.raises(SftError, match="'gone' at here does not start"):
        ask_environment(SITE, "gone", "echo 1")


def test_last_line_is_the_answer():
    assert ask_environment(SITE, "otagent", "printf 'loading\\n42\\n'") == "42"


def test_trainer_sees_no_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    assert "HF_TOKEN" not in without_secrets()


def test_job_without_internet_is_offline():
    assert job_variables(Site("here", compute_internet=False))["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in job_variables(Site("here"))


def test_threads_are_shared_among_the_processes_of_a_node():
    site = Site("here", gpus_per_node=4, cpus_per_node=288)

    assert job_variables(site)["OMP_NUM_THREADS"] == "72"
