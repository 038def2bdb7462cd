"""
From a table of fine-tuning experiments to published, registered models.

Look first:   snakemake --profile profiles/<site> --dry-run
Then run:     snakemake --profile profiles/<site>
"""

from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


include: "workflow/rules/common.smk"


rule all:
    """Every experiment of the table that belongs to this site: published, and registered if asked."""
    default_target: True
    input:
        expand("<results>/runs/{experiment}/uploaded.json", experiment=ASKED),
        expand("<results>/runs/{experiment}/registered.json", experiment=REGISTERED),
        list(CLEANED.values()),
    localrule: True


include: "workflow/rules/prepare.smk"
include: "workflow/rules/check.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/consolidate.smk"
include: "workflow/rules/publish.smk"
