from pathlib import Path

from sft.receipt import Clock, read_receipts, write_receipt
from sft.served import check_served, saved_tokenizers
from sft.step import step_log

with step_log(snakemake.log[0], f"check_template {snakemake.wildcards.experiment}"):
    clock = Clock()
    inputs = {name: Path(path) for name, path in snakemake.input.items()}
    layout, trained, tokens = read_receipts(inputs.values())
    folders = saved_tokenizers(Path(layout["weights"]), Path(trained["checkpoints"]))
    made = check_served(Path(tokens["folder"]) / "tokenizer", folders)
    write_receipt(Path(snakemake.output.receipt), clock, made, inputs)
