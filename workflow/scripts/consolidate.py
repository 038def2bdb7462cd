from pathlib import Path

from sft.checkpoint import Layout
from sft.consolidate import consolidate
from sft.receipt import Clock, read_receipts, write_receipt
from sft.step import step_log

with step_log(snakemake.log[0], f"consolidate {snakemake.wildcards.experiment}"):
    clock = Clock()
    receipt = Path(snakemake.output.receipt)
    inputs = {name: Path(path) for name, path in snakemake.input.items()}
    layout, model = read_receipts(inputs.values())
    made = consolidate(
        snakemake.params.experiment,
        snakemake.params.site,
        Layout(layout["layout"]),
        weights=Path(layout["weights"]),
        base=Path(model["path"]),
        folder=receipt.resolve().with_name("consolidated"),
        output=Path(snakemake.log[0]),
    )
    write_receipt(receipt, clock, made, inputs)
