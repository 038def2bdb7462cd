from pathlib import Path

from sft.fetch import fetch_model
from sft.network import enter_network
from sft.receipt import Clock, write_receipt
from sft.step import step_log

with step_log(snakemake.log[0], f"fetch_model {snakemake.wildcards.model}"):
    enter_network(snakemake.params.site)
    clock = Clock()
    made = fetch_model(snakemake.params.model)
    write_receipt(Path(snakemake.output.receipt), clock, made, inputs={})
