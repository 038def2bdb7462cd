from pathlib import Path

from sft.gate.gate import inspect_tokens
from sft.receipt import Clock, read_receipt, read_receipts, write_receipt
from sft.step import step_log

with step_log(snakemake.log[0], f"inspect_tokens {snakemake.wildcards.tokens}"):
    clock = Clock()
    inputs = {name: Path(path) for name, path in snakemake.input.items() if name != "datasets"}
    datasets = read_receipts(map(Path, snakemake.input.datasets))
    made = inspect_tokens(
        snakemake.params.experiment,
        datasets={each["name"]: each for each in datasets},
        num_workers=snakemake.threads,
        **{name: read_receipt(path) for name, path in inputs.items()},
    )
    write_receipt(Path(snakemake.output.receipt), clock, made, inputs)
