"""What a person sees before anything runs."""

import pytest

STAGES = {
    *("fetch_model", "fetch_dataset", "pretokenize", "inspect_tokens"),
    *("check_tokens", "render", "train"),
    *("detect_layout", "check_template", "assemble_release", "upload", "register"),
}


@pytest.mark.parametrize("site", ["localhost", "leonardo", "jupiter", "vista"])
def test_dry_run_shows_each_stage_at_each_site(shared_project, site):
    ran = shared_project.snakemake("--dry-run", site=site)

    assert ran.code == 0, ran.text
    assert ran.rules() >= STAGES


def test_two_experiments_share_one_pretokenized_mix(shared_project):
    ran = shared_project.snakemake("--dry-run")

    assert (ran.count("train"), ran.count("pretokenize")) == (2, 1)


def test_missing_site_is_named_with_the_choices(shared_project):
    ran = shared_project.snakemake("--dry-run", "--config", "namespace=mine")

    assert ran.code != 0
    assert "--profile profiles/<site>" in ran.text
