"""The model card of a release: what it is, what made it, how its loss fell, how to load it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from sft.errors import SftError
from sft.files import write_text
from sft.plot import draw_losses

LOSS_ROWS = 20
HUB = "https://huggingface.co"
LICENSE_KEYS = ("license", "license_name", "license_link")

HOW_TO = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{model}")
model = AutoModelForCausalLM.from_pretrained("{model}", dtype="auto", device_map="auto")
messages = [{{"role": "user", "content": "Hello!"}}]
inputs = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
)
output = model.generate(**inputs.to(model.device), max_new_tokens=512)
print(tokenizer.decode(output[0][inputs["input_ids"].shape[1] :], skip_special_tokens=True))
```"""


def write_card(
    folder: Path, made: Mapping[str, Any], weights: str, license: Mapping[str, str]
) -> None:
    """Write README.md and, where losses are known, loss.png into a release.

    `made` is a Provenance as plain values without local paths, `weights` describes the weights.
    Raises SftError where the hub would refuse the front matter.
    """
    losses = made["training"]["losses"]
    if losses:
        draw_losses(folder / "loss.png", losses)
    front = _front_matter(made, license)
    write_text(folder / "README.md", f"---\n{front}\n---\n\n{_body(made, weights, losses)}")


def read_license(model: Path) -> dict[str, str]:
    """What a model's own card says about its license; empty where it says nothing."""
    readme = model / "README.md"
    if not readme.exists():
        return {}
    data = ModelCard.load(readme, ignore_metadata_errors=True).data.to_dict()
    return {key: data[key] for key in LICENSE_KEYS if key in data}


def _hub_id(entry: Mapping[str, Any]) -> str | None:
    """The hub id in a source `hub:<id>`; None for a local one."""
    kind, _, name = entry["source"].partition(":")
    return name if kind == "hub" else None


def _front_matter(made: Mapping[str, Any], license: Mapping[str, str]) -> str:
    base = _hub_id(made["base_model"])
    datasets = [name for each in made["datasets"] if (name := _hub_id(each))]
    for name in [base, *datasets]:
        try:
            if name:
                validate_repo_id(name)
        except HFValidationError as error:
            raise SftError(f"model card: {name!r} is no hub id: {error}") from error
    data = ModelCardData(
        base_model=base,
        datasets=datasets or None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["sft", made["experiment"]["backend"]],
        **license,
    )
    return data.to_yaml()


def _body(made: Mapping[str, Any], weights: str, losses: list) -> str:
    experiment, training, git = made["experiment"], made["training"], made["git"]
    model = experiment.get("hub_id") or experiment["name"]
    commit = git["commit"] or "not recorded"
    changed = " with uncommitted changes" if git["dirty"] else ""
    versions = {**made["versions"], "git commit": commit + changed}
    parts = [
        f"# {model}",
        f"{_link(made['base_model'], '')} after supervised fine-tuning; {weights}.",
        "## Data",
        _table(
            ("dataset", "source", "revision", "rows", "tokens"),
            (_dataset_row(each) for each in made["datasets"]),
        ),
        _accepted(made["accepted"]),
        "## Training",
        f"{training['global_step']} steps with {experiment['backend']} (world size "
        f"{training['world_size']}, nodes {training['num_nodes']}), {training['started']} to "
        f"{training['finished']}, chat template `{experiment['template']}`.",
        _table(("key", "value"), made["config"].items()),
        "## Loss",
        "![Loss by step](loss.png)" if losses else "Not recorded.",
        _table(("step", "loss"), ((step, f"{loss:.4f}") for step, loss in _sample(losses))),
        "## Use",
        HOW_TO.format(model=model),
        "## Software",
        _table(("package", "version"), versions.items()),
        "All that made this model is in `provenance.json`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _accepted(faults: Iterable[Mapping[str, Any]]) -> str:
    """The faults of the data that were known and accepted."""
    rows = [
        (each["source"], each["fault"], f"{each['count']} of {each['of']}", each["by"])
        for each in faults
    ]
    table = _table(("dataset", "fault", "rows", "by"), rows)
    return f"Known faults of the data, accepted by the config:\n\n{table}" if table else ""


def _dataset_row(dataset: Mapping[str, Any]) -> tuple:
    rows, tokens = dataset.get("rows"), dataset.get("tokens")
    return dataset["name"], _link(dataset, "datasets/"), _pin(dataset), rows, tokens


def _link(entry: Mapping[str, Any], kind: str) -> str:
    hub = _hub_id(entry)
    return f"[{hub}]({HUB}/{kind}{hub})" if hub else f"{entry['name']} (local)"


def _pin(entry: Mapping[str, Any]) -> str:
    return entry.get("revision") or f"sha256 {entry['sha256'][:16]}"


def _table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table; nothing where there are no rows."""
    lines = ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    if not lines:
        return ""
    names = list(header)
    return "\n".join(["| " + " | ".join(names) + " |", "|---" * len(names) + "|", *lines])


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _sample(losses: list) -> list:
    """At most LOSS_ROWS points, evenly spaced, with the first and the last."""
    last = len(losses) - 1
    if last < LOSS_ROWS:
        return losses
    return [losses[round(index * last / (LOSS_ROWS - 1))] for index in range(LOSS_ROWS)]
