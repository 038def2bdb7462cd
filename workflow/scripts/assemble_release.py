from pathlib import Path

from sft.provenance import gather_provenance
from sft.receipt import Clock, read_receipts, write_receipt
from sft.release import assemble_release
from sft.served import check_served
from sft.step import step_log

with step_log(snakemake.log[0], f"assemble_release {snakemake.wildcards.experiment}"):
    clock = Clock()
    inputs = {name: Path(path) for name, path in snakemake.input.items() if name != "datasets"}
    model, tokens, checked, trained, weights = read_receipts(
        inputs[name] for name in ("model", "tokens", "checked", "trained", "weights")
    )
    provenance = gather_provenance(
        snakemake.params.experiment,
        snakemake.params.site,
        model=model,
        datasets=read_receipts(map(Path, snakemake.input.datasets)),
        tokens=tokens,
        checked=checked,
        trained=trained,
    )
    release = Path(snakemake.output.receipt).resolve().with_name("release")
    files = assemble_release(
        Path(weights["weights"]),
        Path(model["path"]),
        release,
        provenance,
        prove=lambda folder: check_served(Path(tokens["folder"]) / "tokenizer", [folder]),
    )
    made = {"folder": str(release), "files": files}
    write_receipt(Path(snakemake.output.receipt), clock, made, inputs)
