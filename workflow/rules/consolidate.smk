"""
Make whole weights of what a run left in parts, where its config says that it will.

IN   <results>/runs/{experiment}/layout.json
OUT  <results>/runs/{experiment}/consolidated/       weights, config and tokenizer
     <results>/runs/{experiment}/consolidated.json   where they are, what was merged, hashes of what was written
"""


rule consolidate:
    """Merge an adapter into its base, or put shards together; prove the result."""
    input:
        layout="<results>/runs/{experiment}/layout.json",
        model=lambda wildcards: model_receipt_of(experiment_of(wildcards)),
    output:
        receipt="<results>/runs/{experiment}/consolidated.json",
    log:
        "<results>/runs/{experiment}/logs/consolidate.log",
    benchmark:
        "<results>/runs/{experiment}/consolidate.benchmark.tsv"
    params:
        site=SITE,
        experiment=experiment_of,
    script:
        "../scripts/consolidate.py"
