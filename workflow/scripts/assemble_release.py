from pathlib import Path

from sft.assembly import release_experiment
from sft.receipt import Clock, write_receipt
from sft.step import step_log

with step_log(snakemake.log[0], f"assemble_release {snakemake.wildcards.experiment}"):
    clock = Clock()
    inputs = {name: Path(path) for name, path in snakemake.input.items() if name != "datasets"}
    datasets = map(Path, snakemake.input.datasets)
    receipt = Path(snakemake.output.receipt)
    experiment, site = snakemake.params.experiment, snakemake.params.site
    release = receipt.resolve().with_name("release")
    made = release_experiment(experiment, site, inputs, datasets, release)
    write_receipt(receipt, clock, made, inputs)
