from pathlib import Path

from sft.batch import derive_batch
from sft.plot import draw_losses
from sft.receipt import Clock, write_receipt
from sft.step import step_log
from sft.train import train

with step_log(snakemake.log[0], f"train {snakemake.wildcards.experiment}"):
    clock = Clock()
    config, launch = Path(snakemake.input.config), Path(snakemake.input.launch)
    batch = derive_batch(snakemake.params.experiment, snakemake.params.site)
    output = Path(snakemake.log[0]).with_name("trainer.log")
    made = train(snakemake.params.site, config, launch, batch.world_size, output)
    draw_losses(Path(snakemake.output.loss), made["losses"], snakemake.wildcards.experiment)
    inputs = {"config": config, "launch": launch}
    write_receipt(Path(snakemake.output.receipt), clock, made, inputs)
