from pathlib import Path

from sft.receipt import Clock, read_receipts, write_receipt
from sft.step import step_log
from sft.tokens import pretokenize

with step_log(snakemake.log[0], f"pretokenize {snakemake.wildcards.tokens}"):
    clock = Clock()
    receipt = Path(snakemake.output.receipt)
    receipts = [Path(path) for path in snakemake.input]
    model, *datasets = read_receipts(receipts)
    made = pretokenize(
        snakemake.params.experiment,
        snakemake.params.site,
        model,
        {each["name"]: each for each in datasets},
        root=receipt.parent,
        num_workers=snakemake.threads,
        output=Path(snakemake.log[0]),
    )
    write_receipt(receipt, clock, made, {path.parent.name: path for path in receipts})
