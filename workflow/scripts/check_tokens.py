from pathlib import Path

from sft.gate.gate import check_tokens
from sft.receipt import Clock, read_receipt, write_receipt
from sft.step import step_log

with step_log(snakemake.log[0], f"check_tokens {snakemake.wildcards.tokens}"):
    clock = Clock()
    inspected, receipt = Path(snakemake.input.receipt), Path(snakemake.output.receipt)
    made = check_tokens(
        snakemake.params.experiment,
        read_receipt(inspected),
        limits=snakemake.params.limits,
        page=receipt.with_name(f"preview-{snakemake.wildcards.decisions}.html").resolve(),
    )
    write_receipt(receipt, clock, made, {"inspected": inspected})
