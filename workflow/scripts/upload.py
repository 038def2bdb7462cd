from pathlib import Path

from sft.network import enter_network
from sft.receipt import Clock, read_receipt, write_receipt
from sft.step import step_log
from sft.upload import upload_release

with step_log(snakemake.log[0], f"upload {snakemake.wildcards.experiment}"):
    receipt = Path(snakemake.input.release)
    release = read_receipt(receipt)
    enter_network(snakemake.params.site, sum(each["size"] for each in release["files"]))
    clock = Clock()
    folder, files = Path(release["folder"]), release["files"]
    made = upload_release(folder, files, snakemake.params.experiment, snakemake.params.folder)
    write_receipt(Path(snakemake.output.receipt), clock, made, {"release": receipt})
