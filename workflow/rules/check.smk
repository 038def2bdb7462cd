"""
Look at every token that will be trained, and refuse what would ruin a model.

IN   <results>/tokens/{tokens}/pretokenized.json and the receipts before it
OUT  <results>/tokens/{tokens}/inspected.json             what was found, by source; rows to look at
     <results>/tokens/{tokens}/checked-{decisions}.json   what of it the config accepts
     <results>/tokens/{tokens}/preview-{decisions}.html   the examples with their loss mask
"""


wildcard_constraints:
    decisions="strict|[0-9a-f]{8}",


rule inspect_tokens:
    """Hold every example against its row, as the served template renders it."""
    input:
        tokens="<results>/tokens/{tokens}/pretokenized.json",
        model=lambda wildcards: model_receipt_of(CATALOG.tokens[wildcards.tokens]),
        datasets=lambda wildcards: dataset_receipts_of(CATALOG.tokens[wildcards.tokens]),
    output:
        receipt="<results>/tokens/{tokens}/inspected.json",
    log:
        "<results>/tokens/{tokens}/inspect_tokens.log",
    benchmark:
        "<results>/tokens/{tokens}/inspect_tokens.benchmark.tsv"
    threads: 8
    params:
        experiment=lambda wildcards: CATALOG.tokens[wildcards.tokens],
    script:
        "../scripts/inspect_tokens.py"


# The preview is no output: Snakemake would remove it where the rule fails, when it is needed most.
rule check_tokens:
    """Refuse what was found, unless it is accepted by name or within the limits."""
    input:
        receipt="<results>/tokens/{tokens}/inspected.json",
    output:
        receipt="<results>/tokens/{tokens}/checked-{decisions}.json",
    log:
        "<results>/tokens/{tokens}/check_tokens-{decisions}.log",
    localrule: True
    params:
        accepted=lambda wildcards: list(decided_experiment(wildcards).accepted),
        limits=CHECK_LIMITS,
        experiment=decided_experiment,
    script:
        "../scripts/check_tokens.py"
