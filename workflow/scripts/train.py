from pathlib import Path

from sft.batch import derive_batch
from sft.launch import kept_checkpoints, write_script
from sft.plot import draw_losses
from sft.receipt import Clock, write_receipt
from sft.step import step_log
from sft.train import train

with step_log(snakemake.log[0], f"train {snakemake.wildcards.experiment}"):
    clock = Clock()
    config, launch = Path(snakemake.input.config), Path(snakemake.input.launch)
    experiment, site = snakemake.params.experiment, snakemake.params.site
    write_script(experiment, site, snakemake.params.request, config)  # as the profile says by now
    world_size = derive_batch(experiment, site).world_size
    made = train(site, config.parent, world_size, kept_checkpoints(experiment))
    draw_losses(Path(snakemake.output.loss), made["losses"], snakemake.wildcards.experiment)
    inputs = {"config": config, "launch": launch}
    write_receipt(Path(snakemake.output.receipt), clock, made, inputs)
