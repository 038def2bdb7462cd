from pathlib import Path

from sft.hub import upload_to_folder
from sft.network import enter_network
from sft.receipt import Clock, read_receipt, write_receipt
from sft.step import step_log

with step_log(snakemake.log[0], f"upload {snakemake.wildcards.experiment}"):
    enter_network(snakemake.params.site)
    clock = Clock()
    receipt = Path(snakemake.input.release)
    release = read_receipt(receipt)
    target = Path(snakemake.params.folder).resolve() / snakemake.params.hub_id
    made = upload_to_folder(Path(release["folder"]), release["files"], target)
    write_receipt(Path(snakemake.output.receipt), clock, made, {"release": receipt})
