"""What a profile's resources ask Slurm for."""

import pytest

from sft.request import Request, parse_minutes, read_requests


@pytest.mark.parametrize(
    ("runtime", "minutes"),
    [
        (719, 719),
        ("719", 719),
        ("'719'", 719),
        ("12h", 720),
        ("1d", 1440),
        ("1.5 hours", 90),
        ("30 min", 30),
        ("60s", 1),
        ("attempt * 60", None),
        ("", None),
        ("x", None),
        ("3 fortnights", None),
    ],
)
def test_runtime_is_read_as_snakemake_reads_it(runtime, minutes):
    assert parse_minutes(runtime) == minutes


def test_request_of_a_rule_goes_over_the_default():
    requests = read_requests(
        {
            "default-resources": {"runtime": 60, "qos": "normal"},
            "set-resources": {"train": {"runtime": "1d"}, "upload": {"qos": "debug"}},
        }
    )

    assert requests == {
        "": Request(60, "normal"),
        "train": Request(1440, "normal"),
        "upload": Request(60, "debug"),
    }


def test_profile_without_resources_asks_for_nothing():
    assert read_requests({"cores": "all"}) == {"": Request()}


def test_quotes_for_snakemake_are_no_part_of_a_resource():
    profile = {"default-resources": {"gres": "'gpu:4'", "slurm_account": "a", "mem_mb": 0}}

    assert read_requests(profile)[""] == Request(account="a", gres="gpu:4")
