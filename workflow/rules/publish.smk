"""
Assemble what serving needs, upload it, and register the model.

IN   <results>/runs/{experiment}/layout.json, trained.json, train.yaml and the receipts before them
OUT  <results>/runs/{experiment}/release/          weights, config, tokenizer, model card, provenance
     <results>/runs/{experiment}/release.json      its files by size and hash
     <results>/runs/{experiment}/uploaded.json     where it can be had
     <results>/runs/{experiment}/registered.json   ids of its rows in the registry
"""

RESULTS = Path(config.get("pathvars", {}).get("results", "results"))
UPLOAD_FOLDER = config.get("upload_folder") or str(RESULTS / "hub")
REGISTRY_FILE = config.get("registry_file") or str(RESULTS / "registry.db")


def weights_receipt_of(wildcards):
    """The receipt that says where whole weights are; known once the layout is."""
    receipt = checkpoints.detect_layout.get(experiment=wildcards.experiment).output.receipt
    layout = read_receipt(Path(receipt))["layout"]
    if layout != "safetensors":
        raise WorkflowError(
            f"{wildcards.experiment}: the trainer left {layout} and this version releases "
            "safetensors only; choose a DeepSpeed config that gathers weights when it saves"
        )
    return receipt


rule assemble_release:
    """Put together what serving needs and nothing else."""
    input:
        weights=weights_receipt_of,
        trained="<results>/runs/{experiment}/trained.json",
        config="<results>/runs/{experiment}/train.yaml",
        model=lambda wildcards: model_receipt_of(experiment_of(wildcards)),
        datasets=lambda wildcards: dataset_receipts_of(experiment_of(wildcards)),
        tokens=lambda wildcards: tokens_receipt_of(experiment_of(wildcards)),
    output:
        receipt="<results>/runs/{experiment}/release.json",
    log:
        "<results>/runs/{experiment}/logs/assemble_release.log",
    params:
        hub_id=lambda wildcards: experiment_of(wildcards).hub_id,
        site=SITE,
        experiment=experiment_of,
    script:
        "../scripts/assemble_release.py"


rule upload:
    """Send the release to where it is published, and prove that it arrived."""
    localrule: NETWORK_IS_HERE
    input:
        release="<results>/runs/{experiment}/release.json",
    output:
        receipt="<results>/runs/{experiment}/uploaded.json",
    log:
        "<results>/runs/{experiment}/logs/upload.log",
    params:
        hub_id=lambda wildcards: experiment_of(wildcards).hub_id,
        folder=UPLOAD_FOLDER,
        site=SITE,
    script:
        "../scripts/upload.py"


rule register:
    """Write the model, its base and its datasets into the registry."""
    localrule: NETWORK_IS_HERE
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
    params:
        hub_id=lambda wildcards: experiment_of(wildcards).hub_id,
        take_over=lambda wildcards: experiment_of(wildcards).take_over,
        registry_file=REGISTRY_FILE,
        site=SITE,
        experiment=experiment_of,
    script:
        "../scripts/register.py"
