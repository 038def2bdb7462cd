"""
Read and check everything that people wrote, before the first job; helpers of the rules.

IN   config, the table of experiments and its registries
OUT  CATALOG, and functions that rules use, each named after what it returns
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, str(workflow.basedir))

from sft.catalog import local_files, read_catalog, rendered_facts, token_science, tokens_name
from sft.config import registry_file, site_names, upload_folder
from sft.errors import SftError
from sft.site import placeholders

try:
    CATALOG = read_catalog(config, site_names(Path(workflow.basedir) / "profiles"))
except SftError as error:
    raise WorkflowError(str(error)) from None

SITE = CATALOG.site
EXPERIMENTS = CATALOG.experiments
REGISTERED = [name for name, experiment in EXPERIMENTS.items() if experiment.register]
NETWORK_IS_HERE = SITE.network_on == "here"


wildcard_constraints:
    experiment="|".join(map(re.escape, EXPERIMENTS)) or "(?!)",
    model="|".join(map(re.escape, CATALOG.models)) or "(?!)",
    dataset="|".join(map(re.escape, CATALOG.datasets)) or "(?!)",
    tokens="|".join(map(re.escape, CATALOG.tokens)) or "(?!)",


def tracked(values_of: Mapping[str, Mapping], wildcard: str) -> dict[str, Callable]:
    """One param a key of the values, `key=value`: a dry run then names just the key that changed.

    Snakemake compares params without their names, and leaves out what is no built-in type: the
    Ellipsis of an absent key, so that a new column of the table reruns no row that leaves it empty.
    """

    def param_of(key: str) -> Callable:
        def param(wildcards):
            values = values_of[wildcards[wildcard]]
            return f"{key}={values[key]}" if key in values else ...

        return param

    keys = {key for values in values_of.values() for key in values}
    return {key.replace(".", "_"): param_of(key) for key in sorted(keys)}


def experiment_of(wildcards):
    """The wildcard's experiment; no built-in type, so that Snakemake does not compare it."""
    return EXPERIMENTS[wildcards.experiment]


def model_receipt_of(experiment) -> str:
    return f"<results>/models/{experiment.model.name}/fetched.json"


def dataset_receipts_of(experiment) -> list[str]:
    return [f"<results>/datasets/{each.name}/fetched.json" for each in experiment.mix.datasets]


def tokens_receipt_of(experiment) -> str:
    return f"<results>/tokens/{tokens_name(experiment)}/pretokenized.json"


def warn_or_refuse_placeholders() -> None:
    """Say which facts of the site are still to be filled in; refuse to start jobs with them."""
    found = placeholders(config)
    defaults = workflow.resource_settings.default_resources
    if defaults:
        found += placeholders(defaults.args_as_dict, "default-resources.")
    if not found:
        return
    text = (
        f"profiles/{SITE.name}/config.yaml: still to be filled in: {', '.join(found)}; "
        "replace FILL_IN by your own account and folders"
    )
    if not workflow.dryrun:
        raise WorkflowError(text)
    logger.warning(text)


warn_or_refuse_placeholders()
