"""
Render a run, train it, and find out how the trainer stored its weights.

IN   <results>/models/{model}/fetched.json
     <results>/tokens/{tokens}/pretokenized.json, checked-{decisions}.json
OUT  <results>/runs/{experiment}/train.yaml       what the trainer reads
     <results>/runs/{experiment}/launch.sh        what starts it on a node
     <results>/runs/{experiment}/train.sbatch     the Slurm job around it, where the site has Slurm
     <results>/runs/{experiment}/checkpoints/     one folder for each fingerprint of the run
     <results>/runs/{experiment}/trained.json     where its checkpoints are, steps, losses, attempts
     <results>/runs/{experiment}/loss.png         the loss by step, for the report
     <results>/runs/{experiment}/layout.json      {"layout": "safetensors" | "zero3" | "fsdp" | "lora"}
"""

RENDERED_FACTS = {name: rendered_facts(each, SITE) for name, each in EXPERIMENTS.items()}


rule render:
    """Write train.yaml and launch.sh, and let the trainer's own parser read the first."""
    input:
        model=lambda wildcards: model_receipt_of(experiment_of(wildcards)),
        tokens=lambda wildcards: tokens_receipt_of(experiment_of(wildcards)),
        checked=lambda wildcards: checked_receipt_of(experiment_of(wildcards)),
    output:
        config="<results>/runs/{experiment}/train.yaml",
        launch="<results>/runs/{experiment}/launch.sh",
    log:
        "<results>/runs/{experiment}/logs/render.log",
    params:
        **tracked(RENDERED_FACTS, "experiment"),
        site=SITE,
        request=TRAINING_REQUEST,
        experiment=experiment_of,
    script:
        "../scripts/render.py"


# Neither input is ancient(): with an ancient input that is rendered anew, Snakemake 9.27 renders
# and forgets to train a run that has not been trained. A run that is complete, whatever was
# rendered anew but does not change its weights, takes this rule a second.
rule train:
    """Train on as many nodes as the row says, or find the run complete."""
    input:
        config="<results>/runs/{experiment}/train.yaml",
        launch="<results>/runs/{experiment}/launch.sh",
    output:
        receipt="<results>/runs/{experiment}/trained.json",
        loss=report(
            "<results>/runs/{experiment}/loss.png",
            caption="../report/loss.rst",
            category="Loss",
            labels={"experiment": "{experiment}"},
        ),
    log:
        "<results>/runs/{experiment}/logs/train.log",
    localrule: True
    resources:
        nodes=lambda wildcards: experiment_of(wildcards).num_nodes,
    params:
        site=SITE,
        request=TRAINING_REQUEST,
        experiment=experiment_of,
    script:
        "../scripts/train.py"


rule detect_layout:
    """Look at what the trainer left: whole weights, or shards that have to be consolidated."""
    input:
        receipt="<results>/runs/{experiment}/trained.json",
    output:
        receipt="<results>/runs/{experiment}/layout.json",
    log:
        "<results>/runs/{experiment}/logs/detect_layout.log",
    localrule: True
    script:
        "../scripts/detect_layout.py"
