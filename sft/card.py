"""The model card of a release: what it is, what made it, how its loss fell, how to load it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from yaml import YAMLError

from sft.files import write_text
from sft.metadata import check_metadata, known_license
from sft.plot import draw_losses
from sft.step import log

LOSS_ROWS = 20
HUB = "https://huggingface.co"
# Keys of a rendered config that say where things lie and when they are told: they train nothing.
NO_HYPER_PARAMETERS = {
    *("model_name_or_path", "base_model", "tokenizer_config", "output_dir", "do_train"),
    *("dataset", "datasets", "dataset_dir", "tokenized_path", "skip_prepare_dataset"),
    *("overwrite_cache", "preprocessing_num_workers", "dataset_num_proc", "val_set_size"),
    *("dataloader_num_workers", "dataloader_persistent_workers", "ddp_timeout", "plugins"),
    *("run_name", "report_to", "plot_loss", "logging_steps", "save_strategy", "save_steps"),
    *("use_wandb", "wandb_project", "wandb_name", "wandb_mode", "tokenizer_save_jinja_files"),
    *("auto_resume_from_checkpoints", "template", "stage"),
}

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


def write_card(folder: Path, made: Mapping[str, Any], weights: str, base: Path) -> None:
    """Write README.md and, where losses are known, loss.png into a release.

    `made` is a Provenance as plain values without local paths, `weights` describes the weights,
    `base` is the folder of the base model. Raises SftError where the hub would refuse the front
    matter.
    """
    losses = made["training"]["losses"]
    if losses:
        draw_losses(folder / "loss.png", losses)
    front = check_metadata(front_matter(made, read_metadata(base)))
    write_text(folder / "README.md", f"---\n{front}\n---\n\n{_body(made, weights, losses)}")


def read_metadata(model: Path) -> dict[str, Any]:
    """The front matter of a model's own card; empty where it has none that can be read."""
    readme = model / "README.md"
    if not readme.exists():
        return {}
    try:
        return ModelCard.load(readme, ignore_metadata_errors=True).data.to_dict()
    except (ValueError, TypeError, YAMLError) as error:
        log.warning("%s: not a model card, so no license is taken from it: %s", readme, error)
        return {}


def front_matter(made: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """What the hub reads of the card; `base` is the front matter of the base model's."""
    hub = _hub_id(made["base_model"])
    datasets = [name for each in made["datasets"] if (name := _hub_id(each))]
    return {
        **({"base_model": hub} if hub else {}),
        **({"datasets": datasets} if datasets else {}),
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["sft", made["experiment"]["backend"]],
        **known_license(base, hub),
    }


def _hub_id(entry: Mapping[str, Any]) -> str | None:
    """The hub id in a source `hub:<id>`; None for a local one."""
    kind, _, name = entry["source"].partition(":")
    return name if kind == "hub" else None


def _body(made: Mapping[str, Any], weights: str, losses: list) -> str:
    experiment = made["experiment"]
    model = experiment.get("hub_id") or experiment["name"]
    kept = (each for each in made["config"].items() if each[0] not in NO_HYPER_PARAMETERS)
    parts = [
        f"# {model}",
        f"{_link(made['base_model'], '')} after supervised fine-tuning; {weights}."
        f"{_merged(made['weights'])}",
        "## Data",
        _table(
            ("dataset", "source", "revision", "rows", "tokens"),
            (_dataset_row(each) for each in made["datasets"]),
        ),
        _accepted(made["accepted"]),
        "## Training",
        _training(experiment, made["training"]),
        _table(("hyper-parameter", "value"), kept),
        "## Loss",
        "![Loss by step](loss.png)" if losses else "Not recorded.",
        _table(("step", "loss"), ((step, f"{loss:.4f}") for step, loss in _sample(losses))),
        "## Use",
        _served(made["served"], experiment["template"]),
        HOW_TO.format(model=model),
        "## Software",
        _table(("package", "version"), made["versions"].items()),
        _commits(made),
        "All that made this model is in `provenance.json`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _merged(weights: Mapping[str, Any]) -> str:
    """What became of an adapter, where one was trained."""
    if not weights["merged"]:
        return ""
    left = (
        f"{weights['kept']:.0%} of what it adds is left after rounding" if weights["kept"] else ""
    )
    merged = f" An adapter was trained and merged into {weights['merged']} matrices"
    return f"{merged}; {left}." if left else f"{merged}."


def _training(experiment: Mapping[str, Any], training: Mapping[str, Any]) -> str:
    sentences = [
        f"{training['global_step']} steps of {training['global_batch_size']} sequences with "
        f"{experiment['backend']} (world size {training['world_size']}, nodes "
        f"{training['num_nodes']}), {training['started']} to {training['finished']}, chat template "
        f"`{experiment['template']}`."
    ]
    speed = training["throughput"]
    if speed["tokens_per_s"]:
        device = f" on {speed['device']}" if speed["device"] else ""
        share = f", {speed['mfu']:.0%} of the GPUs' peak" if speed["mfu"] else ""
        sentences.append(f"{speed['tokens_per_s']:,.0f} tokens a second{device}{share}.")
    return " ".join(sentences)


def _served(served: Mapping[str, Any], template: str) -> str:
    return (
        f"The tokenizer carries the chat template `{template}`: it renders "
        f"{served['conversations']} fixed conversations byte for byte as they were trained, and "
        "generation stops at the end of an answer."
    )


def _commits(made: Mapping[str, Any]) -> str:
    """The code that trained and the code that released, once where they are the same."""
    trained = [_commit(each["code"]) for each in made["attempts"] if each["code"]]
    released = _commit(made["git"])
    if set(trained) <= {released}:
        return f"Git commit {released}."
    return f"Git commit {', '.join(dict.fromkeys(trained))}; released by {released}."


def _commit(state: Mapping[str, Any]) -> str:
    changed = " with uncommitted changes" if state["dirty"] else ""
    return f"{state['commit']}{changed}" if state["commit"] else "not recorded"


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
