"""The release of an experiment, from the receipts of the stages before."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sft.cleaned import refuse_cleaned
from sft.environment import REPOSITORY
from sft.errors import raise_faults
from sft.experiment import Experiment
from sft.provenance import gather_provenance
from sft.receipt import read_receipt, read_receipts
from sft.release import Provenance, assemble_release
from sft.revision import is_pushed, tree_faults
from sft.served import check_served
from sft.site import Site


def release_experiment(
    experiment: Experiment,
    site: Site,
    receipts: Mapping[str, Path],
    datasets: Iterable[Path],
    release: Path,
) -> dict[str, Any]:
    """Make the folder `release`; `{"folder", "files"}`, with its manifest.

    `receipts` are those of `weights`, `served`, `trained`, `model`, `tokens` and `checked`,
    `datasets` those of the mix. Raises SftError where the release is not whole or not publishable,
    or where the site asks for clean code and this is none.
    """
    made = {name: read_receipt(path) for name, path in receipts.items()}
    refuse_cleaned(Path(made["trained"]["checkpoints"]))
    provenance = gather_provenance(experiment, site, datasets=read_receipts(datasets), **made)
    if site.require_clean_git:
        raise_faults(code_faults(provenance))
    tokens = Path(made["tokens"]["folder"])
    files = assemble_release(
        Path(made["weights"]["weights"]),
        Path(made["model"]["path"]),
        release,
        provenance,
        prove=lambda folder: check_served(tokens / "tokenizer", [folder]),
        known=made["weights"].get("files", ()),
        with_code=experiment.trust_remote_code,
    )
    return {"folder": str(release), "files": files}


def code_faults(provenance: Provenance) -> Iterator[str]:
    """A line for each reason why nobody else can read the code that trained or released a model.

    A job on a node without git knows nothing of its code: of that nothing is asked.
    """
    name = provenance.experiment["name"]
    yield from tree_faults(provenance.git, f"{name}, require_clean_git, the release")
    for number, attempt in enumerate(provenance.attempts, start=1):
        code = attempt["code"]
        if not code or not code["commit"]:
            continue
        where = f"{name}, require_clean_git, attempt {number} to train: {code['commit'][:12]}"
        if code["dirty"]:
            yield f"{where} with changes; train again from a checkout without"
        if not is_pushed(REPOSITORY, code["commit"]):
            yield f"{where} is in no branch of a remote; push it"
