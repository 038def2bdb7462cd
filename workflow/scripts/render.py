from pathlib import Path

from sft.receipt import read_receipt
from sft.render import render
from sft.step import step_log

with step_log(snakemake.log[0], f"render {snakemake.wildcards.experiment}"):
    render(
        snakemake.params.experiment,
        snakemake.params.site,
        snakemake.params.request,
        model=read_receipt(Path(snakemake.input.model)),
        tokens=read_receipt(Path(snakemake.input.tokens)),
        config=Path(snakemake.output.config),
        launch=Path(snakemake.output.launch),
        output=Path(snakemake.log[0]),
    )
