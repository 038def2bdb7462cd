"""What is rendered for each shipped kind of experiment at each site, compared with golden files."""

import sys
from pathlib import Path

import pytest
import yaml

from sft.backends import BACKENDS, llamafactory
from sft.batch import derive_batch
from sft.catalog import read_catalog, rendered_facts
from sft.config import read_config, site_names
from sft.environment import REPOSITORY
from sft.files import read_yaml
from sft.identity import fingerprint
from sft.launch import launch_text, sbatch_text
from sft.request import read_requests, training_request

SHIPPED = [
    ("localhost", "smol-demo-low"),
    ("leonardo", "qwen3-8b-openthoughts-bs96"),
    ("jupiter", "qwen3-8b-openthoughts-bs96"),
    ("vista", "qwen3-8b-openthoughts-bs96"),
    ("leonardo", "qwen3-32b-openthoughts-bs96"),
    ("leonardo", "delphi-3e18-447Mparams-1_2Btokens-base-magpie_lr1e5-axolotl"),
]
PATHS = llamafactory.TrainPaths(
    model=Path("/models/m"),
    tokens=Path("/tokens/t"),
    output=Path("/runs/r/checkpoints/01234567"),
    deepspeed=Path("/runs/r/deepspeed.json"),
)


def shipped(site: str, name: str, monkeypatch: pytest.MonkeyPatch):
    """The site and one experiment of the shipped table, wherever the demo's model may be."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr("sft.catalog._missing_files", lambda *arguments: [])
    catalog = read_catalog(read_config(Path("profiles") / site), site_names())
    return catalog.site, catalog.experiments[name]


@pytest.mark.parametrize(("site_name", "name"), SHIPPED)
def test_train_yaml_equals_golden(site_name, name, assert_golden, monkeypatch):
    site, experiment = shipped(site_name, name, monkeypatch)
    backend = BACKENDS[experiment.backend]
    rendered = backend.render_config(experiment, site, derive_batch(experiment, site), PATHS)

    assert_golden(f"{site_name}/{name}/train.yaml", yaml.safe_dump(rendered, sort_keys=False))


@pytest.mark.parametrize(("site_name", "name"), SHIPPED)
def test_launch_script_equals_golden(site_name, name, assert_golden, monkeypatch):
    site, experiment = shipped(site_name, name, monkeypatch)
    text = launch_text(experiment, site, Path("/runs/r/train.yaml"))

    assert_golden(f"{site_name}/{name}/launch.sh", text.replace(str(REPOSITORY), "/repository"))


def test_launcher_keys_are_never_rendered(monkeypatch):
    site, experiment = shipped("leonardo", "qwen3-8b-openthoughts-bs96", monkeypatch)
    rendered = llamafactory.render_config(experiment, site, derive_batch(experiment, site), PATHS)

    assert not {"global_batch_size", "environment", "overwrite_output_dir"} & set(rendered)


def test_fingerprint_does_not_depend_on_nodes_or_site(monkeypatch):
    model = {"revision": "a" * 40, "sha256": "b" * 64}
    here = shipped("leonardo", "qwen3-8b-openthoughts-bs96", monkeypatch)[1]
    there = shipped("vista", "qwen3-8b-openthoughts-bs96", monkeypatch)[1]

    assert fingerprint(here, model, {"key": "k"}) == fingerprint(there, model, {"key": "k"})


def test_fingerprint_depends_on_what_was_fetched(monkeypatch):
    experiment = shipped("leonardo", "qwen3-8b-openthoughts-bs96", monkeypatch)[1]
    prints = [
        fingerprint(experiment, {"revision": revision, "sha256": "b" * 64}, {"key": key})
        for revision, key in (("a" * 40, "k"), ("c" * 40, "k"), ("a" * 40, "l"))
    ]

    assert len({str(each) for each in prints}) == 3


def test_rendered_facts_name_the_activation(monkeypatch):
    site, experiment = shipped("localhost", "smol-demo-low", monkeypatch)

    assert "activate" in rendered_facts(experiment, site)["site.activation"]


@pytest.mark.parametrize(("site_name", "name"), SHIPPED[1:])
def test_sbatch_script_equals_golden(site_name, name, assert_golden, monkeypatch):
    site, experiment = shipped(site_name, name, monkeypatch)
    requests = read_requests(read_yaml(Path("profiles") / site_name / "config.yaml"))
    text = sbatch_text(
        experiment, site, training_request(requests), PATHS.output, PATHS.output.parents[1]
    )

    text = text.replace(sys.executable, "/workflow/bin/python")
    assert_golden(f"{site_name}/{name}/train.sbatch", text.replace(str(REPOSITORY), "/repository"))
