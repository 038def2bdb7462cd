from pathlib import Path

from sft.network import enter_network
from sft.receipt import Clock, read_receipt, read_receipts, write_receipt
from sft.registration import register_experiment
from sft.step import step_log

with step_log(snakemake.log[0], f"register {snakemake.wildcards.experiment}"):
    enter_network(snakemake.params.site)
    clock = Clock()
    inputs = {name: Path(path) for name, path in snakemake.input.items() if name != "datasets"}
    made = register_experiment(
        snakemake.params.experiment,
        snakemake.params.site,
        datasets=read_receipts(map(Path, snakemake.input.datasets)),
        registry_file=Path(snakemake.params.registry_file),
        **{name: read_receipt(path) for name, path in inputs.items()},
    )
    write_receipt(Path(snakemake.output.receipt), clock, made, inputs)
