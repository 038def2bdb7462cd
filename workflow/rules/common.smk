"""
Read and check everything that people wrote, before the first job; helpers of the rules.

IN   config, the table of experiments and its registries
OUT  CATALOG, and functions that rules use, each named after what it returns
"""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, str(workflow.basedir))

from sft.backends import BACKENDS
from sft.catalog import (
    decisions_name,
    local_files,
    published_facts,
    read_catalog,
    rendered_facts,
    token_science,
    tokens_name,
)
from sft.cleaned import find_note
from sft.config import registry_file, results_folder, site_names, upload_folder
from sft.environment import REPOSITORY, use_hub_cache
from sft.errors import SftError
from sft.files import read_yaml
from sft.hub_token import NO_TOKEN, NO_TOKEN_REMEDY, token_origins
from sft.limits import request_faults
from sft.locks import free_folder, hold_folder
from sft.request import read_requests, training_request
from sft.revision import git_state, tree_faults
from sft.site import placeholders
from sft.slurm import wait_for_jobs

try:
    for path in workflow.configfiles:
        read_yaml(Path(path))  # Snakemake takes the second of two equal keys without a word
    CATALOG = read_catalog(config, site_names(Path(workflow.basedir) / "profiles"))
except SftError as error:
    raise WorkflowError(str(error)) from None

SITE = CATALOG.site
EXPERIMENTS = CATALOG.experiments
TOKENS = {name: tokens_name(experiment) for name, experiment in EXPERIMENTS.items()}
# Runs that were published and cleaned up: nothing of them is asked for, lest it is made again.
CLEANED = {
    name: str(note)
    for name, each in EXPERIMENTS.items()
    if (note := find_note(results_folder(config) / "runs" / name, partial(published_facts, each)))
}
ASKED = [name for name in EXPERIMENTS if name not in CLEANED or "--report" in sys.argv]
REGISTERED = [name for name in ASKED if EXPERIMENTS[name].register]
NETWORK_IS_HERE = SITE.network_on == "here"
# Experiments with the same tokens that accept the same faults are checked once.
DECISIONS = {(TOKENS[name], decisions_name(each)): each for name, each in EXPERIMENTS.items()}
CHECK_LIMITS = config.get("check_limits", {})

# Where jobs download to. HF_HOME stays as it is: the user's token lies there.
use_hub_cache(SITE)

# Locks that a killed snakemake left have to go before Snakemake looks at them, which it does after
# the Snakefile is read; it does not say before that whether this is a dry run.
if workflow.is_main_process:
    if CLEANED:
        logger.info(f"published and cleaned up, and left so: {', '.join(CLEANED)}")
    DRY_RUN = bool({"-n", "--dry-run", "--dryrun"} & set(sys.argv))
    if not DRY_RUN:
        hold_folder(Path(".snakemake"))
    killed = free_folder(Path(".snakemake"), logger.info, patient=not DRY_RUN)
    if killed and SITE.launcher == "slurm" and not DRY_RUN:
        wait_for_jobs(Path.cwd(), logger.info)
elif workflow.remote_exec:
    os.environ.pop("SFT_DRIVER", None)  # a job of the cluster outlives the driver that queued it


wildcard_constraints:
    experiment="|".join(map(re.escape, EXPERIMENTS)) or "(?!)",
    model="|".join(map(re.escape, CATALOG.models)) or "(?!)",
    dataset="|".join(map(re.escape, CATALOG.datasets)) or "(?!)",
    tokens="|".join(map(re.escape, CATALOG.tokens)) or "(?!)",


def tracked(values_of: Mapping[str, Mapping], wildcard: str) -> dict[str, str | Callable]:
    """One param a key of the values, `key=value`: a dry run then names just the key that changed.

    Snakemake compares params without their names, and leaves out what is no built-in type: the
    Ellipsis of an absent key, so that a new column of the table reruns no row that leaves it empty.
    """
    keys = {key for values in values_of.values() for key in values}
    return {key.replace(".", "_"): param_of(key, values_of, wildcard) for key in sorted(keys)}


def param_of(key: str, values_of: Mapping[str, Mapping], wildcard: str) -> str | Callable:
    """`key=value`, or the function of wildcards that gives it where not all values are the same.

    A function costs Snakemake 40 µs a job; with a text for most of the keys, a dry run of a large
    table is a tenth faster. A text with a brace would be taken for one with wildcards.
    """
    texts = {
        name: f"{key}={values[key]}" if key in values else ... for name, values in values_of.items()
    }
    first = next(iter(texts.values()))
    if first is not ... and "{" not in first and set(texts.values()) == {first}:
        return first
    return lambda wildcards: texts[wildcards[wildcard]]


def experiment_of(wildcards):
    """The wildcard's experiment; no built-in type, so that Snakemake does not compare it."""
    return EXPERIMENTS[wildcards.experiment]


def decided_experiment(wildcards):
    """One of the experiments that share the wildcards' tokens and decisions."""
    return DECISIONS[wildcards.tokens, wildcards.decisions]


def model_receipt_of(experiment) -> str:
    made = "prepared" if experiment.model.prepare else "fetched"
    return f"<results>/models/{experiment.model.name}/{made}.json"


def dataset_receipts_of(experiment) -> list[str]:
    return [f"<results>/datasets/{each.name}/fetched.json" for each in experiment.mix.datasets]


def tokens_receipt_of(experiment) -> str:
    return f"<results>/tokens/{TOKENS[experiment.name]}/pretokenized.json"


def checked_receipt_of(experiment) -> str:
    return f"<results>/tokens/{TOKENS[experiment.name]}/checked-{decisions_name(experiment)}.json"


def weights_receipt_of(experiment) -> str:
    """Where its whole weights are named: what its config leaves decides, and nothing on the disk."""
    recipe = BACKENDS[experiment.backend].read_recipe(experiment.config)
    made = "layout" if recipe.layout == "safetensors" else "consolidated"
    return f"<results>/runs/{experiment.name}/{made}.json"


def asked_resources() -> dict[str, dict]:
    """What jobs ask for, as the profile writes it: the default, and that of each rule."""
    settings = workflow.resource_settings

    def written(resources) -> dict:
        return {name: resource.raw for name, resource in resources.items()}

    own = {rule: written(its_own) for rule, its_own in settings.overwrite_resources.items()}
    return {
        "default-resources": written(settings.default_resources or {}),
        "set-resources": own,
    }


TO_FILL_IN = placeholders(config) + placeholders(asked_resources())
TO_FILL_IN_TEXT = (
    f"profiles/{SITE.name}/config.yaml: still to be filled in: {', '.join(TO_FILL_IN)}; "
    "replace FILL_IN by your own account and folders"
)

if TO_FILL_IN:
    logger.warning(TO_FILL_IN_TEXT)

UNCLEAN = []
if workflow.is_main_process and SITE.require_clean_git:
    UNCLEAN = list(tree_faults(git_state(REPOSITORY), "require_clean_git"))
for fault in UNCLEAN:
    logger.warning(fault)

REQUESTS = read_requests(asked_resources())
TRAINING_REQUEST = training_request(REQUESTS)

if workflow.is_main_process:
    if REFUSED := request_faults(SITE, REQUESTS, EXPERIMENTS.values()):
        raise WorkflowError(str(SftError(*REFUSED)))
    if DRY_RUN:
        from sft.plan_text import plan_table  # its imports are not for each job

        logger.info(plan_table(CATALOG, config, REQUESTS))


# While the Snakefile is read, Snakemake does not say yet whether this is a dry run; a dry run
# never comes here.
onstart:
    if TO_FILL_IN:
        raise WorkflowError(TO_FILL_IN_TEXT)
    if UNCLEAN:
        raise WorkflowError(str(SftError(*UNCLEAN)))
    if config["upload_to"] == "hub" and not token_origins():
        raise WorkflowError(f"the hub's token: {NO_TOKEN}; {NO_TOKEN_REMEDY}")
