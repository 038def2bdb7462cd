"""The shipped sites, looked at from a computer without Slurm, and a new one from the manual."""

import json
import re
from dataclasses import dataclass, fields

import pytest
import yaml

from sft.config import read_config
from sft.site import Site, build_site
from tests.workflow.conftest import CHECKOUT, Project, copy_checkout

SITES = ("leonardo", "jupiter", "vista")
MANUAL = CHECKOUT / "docs" / "add_a_site.md"
ROWS = {"qwen3-8b-openthoughts-bs96": 4, "qwen3-32b-openthoughts-bs96": 8}  # nodes, at every site
DELPHI = dict.fromkeys(
    (
        "delphi-3e18-447Mparams-1_2Btokens-base-magpie_lr1e5-sft",
        "delphi-3e18-447Mparams-1_2Btokens-base-magpie_lr1e5-axolotl",
    ),
    1,
)
ROWS_AT = {"leonardo": ROWS | DELPHI, "jupiter": ROWS | DELPHI, "vista": ROWS}
STAGES = {
    *("fetch_model", "fetch_dataset", "pretokenize", "inspect_tokens"),
    *("check_tokens", "render", "train"),
    *("detect_layout", "check_template", "assemble_release", "upload", "register"),
}


@dataclass(frozen=True)
class Job:
    """A job of a dry run: rule, value of the first wildcard, resources as they are printed."""

    rule: str
    wildcard: str
    resources: dict[str, str]


def listed_jobs(text: str) -> list[Job]:
    """The jobs that a dry run lists."""
    found = re.findall(
        r"^(?:local)?rule (\w+):$.*?^    wildcards: \w+=([^\s,]+).*?$.*?^    resources: (.*?)$",
        text,
        re.MULTILINE | re.DOTALL,
    )
    return [
        Job(rule, wildcard, dict(each.split("=", 1) for each in resources.split(", ")))
        for rule, wildcard, resources in found
    ]


def last_example() -> str:
    """The complete profile at the end of the manual."""
    return re.findall(r"^```yaml\n(.*?)^```$", MANUAL.read_text(), re.MULTILINE | re.DOTALL)[-1]


def read_profile(site: str) -> dict:
    return yaml.safe_load((CHECKOUT / "profiles" / site / "config.yaml").read_text())


@pytest.fixture(scope="module")
def dry_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What a dry run prints at each site."""
    project = copy_checkout(tmp_path_factory.mktemp("project"))
    runs = {site: project.snakemake("--dry-run", site=site) for site in SITES}
    assert {site: ran.code for site, ran in runs.items()} == dict.fromkeys(SITES, 0), runs
    return {site: ran.text for site, ran in runs.items()}


@pytest.mark.parametrize(
    ("site", "asked"),
    [
        (
            "leonardo",
            {
                "slurm_partition": "boost_usr_prod",
                "qos": "normal",
                "gres": "gpu:4",
                "runtime": "1439",
            },
        ),
        ("jupiter", {"slurm_partition": "booster", "gres": "gpu:4", "runtime": "719"}),
        ("vista", {"slurm_partition": "gh", "runtime": "2879"}),
    ],
)
def test_dry_run_shows_what_the_training_of_each_row_asks_for(dry_runs, site, asked):
    jobs = {job.wildcard: job for job in listed_jobs(dry_runs[site]) if job.rule == "train"}

    shown = {name: {**job.resources, **asked} == job.resources for name, job in jobs.items()}
    assert shown == dict.fromkeys(ROWS_AT[site], True), jobs
    assert {name: int(job.resources["nodes"]) for name, job in jobs.items()} == ROWS_AT[site]


@pytest.mark.parametrize("site", SITES)
def test_every_stage_has_a_partition_an_account_and_a_time(dry_runs, site):
    jobs = listed_jobs(dry_runs[site])

    prepared = {"prepare_tokenizer"} if ROWS_AT[site].keys() & DELPHI.keys() else set()
    # The 32B row leaves shards.
    assert {job.rule for job in jobs} == STAGES | prepared | {"consolidate"}
    needed = {"slurm_partition", "slurm_account", "runtime"}
    assert [job for job in jobs if not needed <= job.resources.keys()] == []


def test_vista_gives_neither_a_gpu_nor_a_memory_directive(dry_runs):
    jobs = listed_jobs(dry_runs["vista"])

    assert [job for job in jobs if "gres" in job.resources or job.resources["mem_mb"] != "0"] == []


def test_dry_run_names_what_is_to_be_filled_in(dry_runs):
    assert (
        "profiles/vista/config.yaml: still to be filled in: pathvars.results, hf_home, "
        "environments.otagent, environments.sft-qwen35, environments.sft-axolotl, "
        "default-resources.slurm_account; replace FILL_IN by your own account and folders"
    ) in dry_runs["vista"].splitlines()


def test_real_run_refuses_placeholders_in_facts_and_resources(project: Project):
    project.replace("profiles/leonardo/config.yaml", "qos: normal,", "qos: FILL_IN,")

    ran = project.snakemake(site="leonardo")

    assert ran.code != 0
    assert ran.text.rstrip().splitlines()[-2] == (
        "profiles/leonardo/config.yaml: still to be filled in: pathvars.results, hf_home, "
        "spill_folder, network_prefix, tunnel_credential, environments.otagent, "
        "environments.sft-qwen35, environments.sft-axolotl, default-resources.slurm_account, "
        "set-resources.train.qos; replace FILL_IN by your own account and folders"
    )
    assert "submitted" not in ran.text


def test_results_on_scratch_are_refused_with_the_reason(project: Project):
    project.replace(
        "profiles/leonardo/config.yaml", "/leonardo_work/FILL_IN/sft", "/leonardo_scratch/me"
    )

    ran = project.snakemake("--dry-run", site="leonardo")

    assert ran.code != 0
    assert "pathvars.results: /leonardo_scratch/me lies below /leonardo_scratch" in ran.text
    assert "choose a file system that lasts" in ran.text


def test_configfile_overlays_the_table_and_the_site_stays(project: Project):
    header, *rows = (project.root / "config" / "experiments.tsv").read_text().splitlines()
    (row,) = (row for row in rows if row.startswith("qwen3-8b"))
    (project.root / "mine.tsv").write_text(
        f"{header}\n{row.replace('qwen3-8b-open', 'mine-open')}\n"
    )
    (project.root / "mine.yaml").write_text("experiments: mine.tsv\nnamespace: me\n")

    ran = project.snakemake("--configfile", "mine.yaml", "--dry-run", site="jupiter")

    (job,) = (job for job in listed_jobs(ran.text) if job.rule == "train")
    assert (job.wildcard, job.resources["slurm_partition"], job.resources["nodes"]) == (
        *("mine-openthoughts-bs96", "booster", "4"),
    )


@pytest.mark.parametrize("site", ["leonardo", "jupiter"])
def test_snakemake_and_our_commands_read_the_same_facts(project: Project, site):
    (project.root / "show.smk").write_text(
        'import json\nconfigfile: "config/config.yaml"\nprint("CONFIG", json.dumps(config))\n'
        "rule nothing:\n    shell: 'true'\n"
    )

    ran = project.snakemake("--dry-run", "--snakefile", "show.smk", site=site)

    (shown,) = re.findall(r"^CONFIG (.*)$", ran.text, re.MULTILINE)
    read = read_config(CHECKOUT / "profiles" / site)
    assert build_site(json.loads(shown)) == build_site(read)


@pytest.mark.parametrize("site", SITES)
def test_profile_names_no_configfile_and_only_rules_that_exist(site):
    profile = read_profile(site)

    assert "configfile" not in profile
    assert {*profile["set-resources"], *profile["set-threads"]} <= STAGES


@pytest.mark.parametrize("site", SITES)
def test_as_many_trainings_can_wait_as_jobs_are_allowed(site):
    profile = read_profile(site)

    assert profile["cores"] >= profile["jobs"]


def test_manual_explains_every_fact_of_a_site():
    rows = [line for line in MANUAL.read_text().splitlines() if line.startswith("| `")]
    explained = {key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])}

    facts = {each.name for each in fields(Site)} - {"name"} | {"site", "pathvars"}
    assert facts - explained == set()


def test_complete_example_of_the_manual_is_a_site(project: Project):
    example = last_example()
    profile = project.root / "profiles" / "fjord" / "config.yaml"
    profile.parent.mkdir()
    profile.write_text(example)
    table = project.root / "config" / "experiments.tsv"
    table.write_text(table.read_text().replace("jupiter,leonardo,vista", "fjord"))

    ran = project.snakemake("--dry-run", site="fjord")

    assert ran.code == 0, ran.text
    asked = {
        job.wildcard: (job.resources["nodes"], job.resources["gres"])
        for job in listed_jobs(ran.text)
        if job.rule == "train"
    }
    assert asked == {name: (str(nodes), "gpu:h100:4") for name, nodes in ROWS.items()}
    assert "pathvars.results, hf_home, environments.otagent, default-resources" in ran.text
