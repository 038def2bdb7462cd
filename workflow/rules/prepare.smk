"""
Fetch and pin what experiments start from, prepare tokenizers, and tokenize each mix once.

IN   the hub, local folders and files
OUT  <results>/models/{model}/fetched.json           the model's path, commit or content hash
     <results>/models/{model}/prepared.json          the same of its prepared form, if it has one
     <results>/models/{model}/prepared/<key>/        the prepared model
     <results>/datasets/{dataset}/fetched.json       the same of a dataset
     <results>/tokens/{tokens}/pretokenized.json     key, folder, counts by source
     <results>/tokens/{tokens}/<key>/tokens/         shared by all experiments that train on them
"""

MODEL_SOURCES = {
    name: {"hub": model.hub, "revision": model.revision, "folder": model.folder}
    for name, model in CATALOG.models.items()
}
DATASET_SOURCES = {
    name: {
        "hub": dataset.hub,
        "revision": dataset.revision,
        "path": dataset.path,
        "columns": dataset.options.get("columns"),
        "formatting": dataset.options.get("formatting"),
    }
    for name, dataset in CATALOG.datasets.items()
}
TOKEN_SCIENCE = {name: token_science(each) for name, each in CATALOG.tokens.items()}


rule fetch_model:
    """Pin a model: by commit from the hub, by content hash from a folder."""
    input:
        lambda wildcards: local_files(CATALOG.models[wildcards.model].folder),
    output:
        receipt="<results>/models/{model}/fetched.json",
    log:
        "<results>/models/{model}/fetch_model.log",
    localrule: NETWORK_IS_HERE
    params:
        **tracked(MODEL_SOURCES, "model"),
        site=SITE,
        model=lambda wildcards: CATALOG.models[wildcards.model],
    script:
        "../scripts/fetch_model.py"


rule prepare_tokenizer:
    """Give reserved tokens of a model the names and the rows that its template needs."""
    input:
        model="<results>/models/{model}/fetched.json",
    output:
        receipt="<results>/models/{model}/prepared.json",
    log:
        "<results>/models/{model}/prepare_tokenizer.log",
    benchmark:
        "<results>/models/{model}/prepare_tokenizer.benchmark.tsv"
    params:
        prepare=lambda wildcards: CATALOG.models[wildcards.model].prepare,
    script:
        "../scripts/prepare_tokenizer.py"


rule fetch_dataset:
    """Pin a dataset: by commit from the hub, by content hash from a file or folder."""
    input:
        lambda wildcards: local_files(CATALOG.datasets[wildcards.dataset].path),
    output:
        receipt="<results>/datasets/{dataset}/fetched.json",
    log:
        "<results>/datasets/{dataset}/fetch_dataset.log",
    localrule: NETWORK_IS_HERE
    params:
        **tracked(DATASET_SOURCES, "dataset"),
        site=SITE,
        dataset=lambda wildcards: CATALOG.datasets[wildcards.dataset],
    script:
        "../scripts/fetch_dataset.py"


rule pretokenize:
    """Tokenize a mix once, for all experiments that train on it."""
    input:
        model=lambda wildcards: model_receipt_of(CATALOG.tokens[wildcards.tokens]),
        datasets=lambda wildcards: dataset_receipts_of(CATALOG.tokens[wildcards.tokens]),
    output:
        receipt="<results>/tokens/{tokens}/pretokenized.json",
    log:
        "<results>/tokens/{tokens}/pretokenize.log",
    benchmark:
        "<results>/tokens/{tokens}/pretokenize.benchmark.tsv"
    threads: 8
    params:
        **tracked(TOKEN_SCIENCE, "tokens"),
        site=SITE,
        experiment=lambda wildcards: CATALOG.tokens[wildcards.tokens],
    script:
        "../scripts/pretokenize.py"
