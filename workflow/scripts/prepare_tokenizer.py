from pathlib import Path

from sft.delphi.prepared import prepare_model
from sft.receipt import Clock, read_receipt, write_receipt
from sft.step import step_log

with step_log(snakemake.log[0], f"prepare_tokenizer {snakemake.wildcards.model}"):
    clock = Clock()
    source, receipt = Path(snakemake.input.model), Path(snakemake.output.receipt)
    made = prepare_model(read_receipt(source), receipt.parent / "prepared")
    write_receipt(receipt, clock, made, inputs={"model": source})
