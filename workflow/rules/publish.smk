"""
Prove the chat template, assemble what serving needs, upload it, and register the model.

IN   <results>/runs/{experiment}/layout.json or consolidated.json, and the receipts before them
OUT  <results>/runs/{experiment}/served.json      which tokenizers serve what was trained
     <results>/runs/{experiment}/release/          weights, config, tokenizer, model card, provenance
     <results>/runs/{experiment}/placed.json       what its weights were made of: a rerun reads none
     <results>/runs/{experiment}/release.json      its files by size and hash
     <results>/runs/{experiment}/uploaded.json     where it can be had
     <results>/runs/{experiment}/registered.json   ids of its rows in the registry
"""

HUB_IDS = {name: {"hub_id": each.hub_id} for name, each in EXPERIMENTS.items()}
REGISTRATION = {
    name: {
        "hub_id": each.hub_id,
        "take_over": each.take_over,
        "base_model": each.model.registry_name,
        "declare_base": each.model.declare,
        **({"agent": each.agent} if each.agent else {}),
    }
    for name, each in EXPERIMENTS.items()
}


rule check_template:
    """Prove that the run and each of its checkpoints serve the template that was trained."""
    input:
        layout="<results>/runs/{experiment}/layout.json",
        trained="<results>/runs/{experiment}/trained.json",
        tokens=lambda wildcards: tokens_receipt_of(experiment_of(wildcards)),
    output:
        receipt="<results>/runs/{experiment}/served.json",
    log:
        "<results>/runs/{experiment}/logs/check_template.log",
    localrule: True
    script:
        "../scripts/check_template.py"


rule assemble_release:
    """Put together what serving needs and nothing else."""
    input:
        weights=lambda wildcards: weights_receipt_of(experiment_of(wildcards)),
        served="<results>/runs/{experiment}/served.json",
        trained="<results>/runs/{experiment}/trained.json",
        model=lambda wildcards: model_receipt_of(experiment_of(wildcards)),
        datasets=lambda wildcards: dataset_receipts_of(experiment_of(wildcards)),
        tokens=lambda wildcards: tokens_receipt_of(experiment_of(wildcards)),
        checked=lambda wildcards: checked_receipt_of(experiment_of(wildcards)),
    output:
        receipt="<results>/runs/{experiment}/release.json",
    log:
        "<results>/runs/{experiment}/logs/assemble_release.log",
    params:
        **tracked(HUB_IDS, "experiment"),
        site=SITE,
        experiment=experiment_of,
    script:
        "../scripts/assemble_release.py"


rule upload:
    """Send the release to where it is published, and prove that it arrived."""
    input:
        release="<results>/runs/{experiment}/release.json",
    output:
        receipt="<results>/runs/{experiment}/uploaded.json",
    log:
        "<results>/runs/{experiment}/logs/upload.log",
    localrule: NETWORK_IS_HERE
    params:
        hub_id=lambda wildcards: experiment_of(wildcards).hub_id,
        private=lambda wildcards: experiment_of(wildcards).private or ...,
        folder=str(upload_folder(config)) if config["upload_to"] == "folder" else "",
        site=SITE,
        experiment=experiment_of,
    script:
        "../scripts/upload.py"


rule register:
    """Write the model, its base and its datasets into the registry."""
    input:
        uploaded="<results>/runs/{experiment}/uploaded.json",
        trained="<results>/runs/{experiment}/trained.json",
        model=lambda wildcards: model_receipt_of(experiment_of(wildcards)),
        datasets=lambda wildcards: dataset_receipts_of(experiment_of(wildcards)),
        tokens=lambda wildcards: tokens_receipt_of(experiment_of(wildcards)),
    output:
        receipt="<results>/runs/{experiment}/registered.json",
    log:
        "<results>/runs/{experiment}/logs/register.log",
    localrule: NETWORK_IS_HERE
    params:
        **tracked(REGISTRATION, "experiment"),
        registry_file=str(registry_file(config)),
        site=SITE,
        experiment=experiment_of,
    script:
        "../scripts/register.py"
