from pathlib import Path

from sft.checkpoint import detect_layout
from sft.receipt import Clock, read_receipt, write_receipt
from sft.step import log, step_log

with step_log(snakemake.log[0], f"detect_layout {snakemake.wildcards.experiment}"):
    clock = Clock()
    trained = Path(snakemake.input.receipt)
    weights = Path(read_receipt(trained)["weights"])
    layout, explanation = detect_layout(weights)
    log.info("%s: %s", layout.value, explanation)
    made = {"layout": layout.value, "weights": str(weights), "explanation": explanation}
    write_receipt(Path(snakemake.output.receipt), clock, made, {"trained": trained})
