"""The gate between tokens and training: nothing that is known to ruin a model passes it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sft.backends import BACKENDS
from sft.errors import SftError
from sft.experiment import Experiment
from sft.files import hash_file, hash_json, read_json, write_json, write_text
from sft.gate.checks import CHECKS
from sft.gate.inspection import Request, inspect
from sft.gate.preview import Finding, Sample, Summary, preview_page
from sft.gate.tally import Source
from sft.gate.verdict import Judged, judge, refuse
from sft.step import log
from sft.tokens import list_rows
from sft.weights import count_embeddings

# What decides what an inspection finds in the same tokens, and in which form.
INSPECTING = (
    *("comparison", "conversation", "inspection", "rows", "serving", "structure"),
    *("tally", "preview/sample"),
)


def inspect_tokens(
    experiment: Experiment,
    model: Mapping[str, Any],
    datasets: Mapping[str, Mapping[str, Any]],
    tokens: Mapping[str, Any],
    num_workers: int,
) -> dict[str, Any]:
    """What `inspection.inspect` finds in the tokens of an experiment, or found before.

    What was found lies beside the tokens, under a name of the code that looked.
    """
    folder = Path(tokens["folder"])
    found = folder / f"inspected-{_code_hash()[:8]}.json"
    if found.exists():
        log.info("the same tokens were inspected before: %s", found)
    else:
        request = _build_request(experiment, model, datasets, tokens)
        write_json(found, inspect(request, num_workers))
    return read_json(found)


def _code_hash() -> str:
    package = Path(__file__).parent
    return hash_json([hash_file(package / f"{name}.py") for name in INSPECTING])


def _build_request(
    experiment: Experiment,
    model: Mapping[str, Any],
    datasets: Mapping[str, Mapping[str, Any]],
    tokens: Mapping[str, Any],
) -> Request:
    folder = Path(tokens["folder"])
    packed = folder / "tokens" if (folder / "unpacked").exists() else None
    return Request(
        tokens=folder / ("unpacked" if packed else "tokens"),
        rows=folder / "rows.parquet",
        serving=folder / "tokenizer",
        sources=tuple(
            Source(
                name=name,
                files=tuple(files),
                options=options,
                rows_in=tokens["sources"][name]["rows_in"],
                rows_out=tokens["sources"][name]["rows_out"],
            )
            for name, (files, options) in list_rows(experiment, datasets).items()
        ),
        vocabulary=count_embeddings(Path(model["path"])),
        packed=packed,
        num_packs=tokens["examples"] if packed else 0,
        **BACKENDS[experiment.backend].masking(experiment.config),
    )


def check_tokens(
    experiment: Experiment, inspected: Mapping[str, Any], limits: Mapping[str, float], page: Path
) -> dict[str, Any]:
    """What an experiment's config accepted, and what stays within the limits.

    Writes the preview first, so that a person can see what is refused. Raises SftError with every
    finding that nobody accepted.
    """
    judged = judge_findings(experiment, inspected, limits)
    samples = [Sample.from_json(each) for each in inspected["samples"]]
    title = f"{experiment.mix.name}: what will be trained"
    write_text(page, preview_page(title, summaries(inspected, judged), samples))
    log.info("preview: %s", page)
    try:
        refuse(judged, limits)
    except SftError as error:
        faults = "1 fault is" if len(error.args) == 1 else f"{len(error.args)} faults are"
        what = f"{faults} refused, see what would be trained: {page}"
        raise SftError(f"{experiment.mix.name}: {what}", *error.args) from None
    for each in judged:
        log.info("%s: %s: %d of %d, %s", each.source, each.fault, each.count, each.of, each.by)
    return {
        "accepted": [each.record() for each in judged if each.verdict == "accepted"],
        "noted": [each.record() for each in judged if each.verdict == "note"],
        "sources": inspected["sources"],
        "preview": str(page),
    }


def judge_findings(
    experiment: Experiment, inspected: Mapping[str, Any], limits: Mapping[str, float]
) -> list[Judged]:
    """The findings of an inspection, judged by an experiment's config."""
    decided = BACKENDS[experiment.backend].decided_faults(experiment.config)
    return judge(inspected["findings"], limits, experiment.accepted, decided)


def summaries(inspected: Mapping[str, Any], judged: list[Judged]) -> list[Summary]:
    """The sources as the preview shows them."""
    return [
        Summary(
            source=name,
            rows_in=counts["rows_in"],
            rows_out=counts["rows_out"],
            num_examples=counts["examples"],
            num_tokens=counts["tokens"],
            num_trained=counts["trained_tokens"],
            longest=counts["longest"],
            num_truncated=counts["truncated"],
            findings=tuple(
                Finding(
                    each.fault,
                    each.count,
                    each.verdict,
                    CHECKS[each.fault].meaning,
                    CHECKS[each.fault].remedy,
                )
                for each in judged
                if each.source == name
            ),
        )
        for name, counts in inspected["sources"].items()
    ]
