"""A plan as a person reads it: a line an experiment, or a page of it."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from sft.backends import BACKENDS
from sft.catalog import Catalog
from sft.config import results_folder, upload_folder
from sft.errors import SHOWN, SftError
from sft.facts import Facts, Source
from sft.files import read_yaml
from sft.limits import request_faults
from sft.mix import NEEDED_COLUMNS, NEEDED_TAGS, Dataset
from sft.plan import Plan, make_plan, mean_tokens, unseen_share
from sft.request import Request, training_request
from sft.site import Site

SHOWN_ROWS = 40
UNKNOWN = "?"
LAYOUTS = {
    "safetensors": "safetensors in the root: no consolidation",
    "zero3": "ZeRO-3 shards, which are put together after training",
    "fsdp": "what its FSDP state dict says; shards are put together after training",
    "lora": "an adapter: it is merged before a release",
}


def plan_table(catalog: Catalog, config: Mapping[str, Any], requests: Mapping[str, Request]) -> str:
    """The experiments of a catalog in a table, and what does not fit, as a dry run shows them.

    `requests` are what the jobs of each rule ask for.
    """
    facts = Facts(catalog, results_folder(config))
    plans, faults = make_plans(catalog, facts, requests, catalog.experiments)
    lines = [f"plan for {catalog.site.name}", list_plans(plans[:SHOWN_ROWS], catalog.site)]
    if len(plans) > SHOWN_ROWS:
        lines.append(f"… and {len(plans) - SHOWN_ROWS} more experiments")
    lines += list_findings(plans, faults, SHOWN)
    lines.append(
        "batch = ranks × device × accumulation; ? is not known yet, ~ is a guess; in full: "
        f"python -m sft plan --profile profiles/{catalog.site.name} [EXPERIMENT…]"
    )
    return "\n".join(lines)


def make_plans(
    catalog: Catalog, facts: Facts, requests: Mapping[str, Request], names: Iterable[str]
) -> tuple[list[Plan], list[str]]:
    """The plans of the named experiments, and the faults that keep jobs from starting at all."""
    experiments = [catalog.experiments[name] for name in names]
    faults = request_faults(catalog.site, requests, experiments)
    request = training_request(requests)
    plans = []
    for experiment in experiments:
        try:
            plans.append(make_plan(experiment, catalog.site, request, facts))
        except SftError as error:  # a receipt that is no receipt
            faults += error.args
    return plans, list(dict.fromkeys(faults))


def list_plans(plans: Iterable[Plan], site: Site) -> str:
    """A table with a line for each plan."""
    return align(_plan_row(plan, site) for plan in plans)


def align(rows: Iterable[Mapping[str, str]]) -> str:
    """A table of texts without lines."""
    return tabulate(list(rows), headers="keys", tablefmt="plain", disable_numparse=True)


def _plan_row(plan: Plan, site: Site) -> dict[str, str]:
    batch, memory, recipe = plan.batch, plan.memory, plan.recipe
    about = "~" if plan.taking.about else ""
    guessed = "~" if plan.pace and plan.pace.guessed else about
    factors = f"{batch.world_size}×{batch.per_device}×{batch.accumulation}"
    return {
        "experiment": plan.experiment.name,
        "lr": f"{plan.experiment.config['learning_rate']:g}",
        "epochs": _epochs(plan),
        "steps": f"{about}{plan.steps.total:,}" if plan.steps else UNKNOWN,
        "tokens": short(plan.tokens),
        "batch": f"{batch.global_batch_size}={factors}",
        "nodes": str(plan.experiment.num_nodes),
        "hours": UNKNOWN if plan.hours is None else f"{guessed}{plain(plan.hours)}",
        "restarts": _restarts(plan),
        "GiB/GPU": f"~{memory.total:.0f}/{site.gpu_memory_gb:g}" if memory else UNKNOWN,
        "leaves": recipe.layout,
        "": "X" * bool(plan.refused) + "!" * len(plan.doubts),
    }


def _epochs(plan: Plan) -> str:
    if not plan.recipe.max_steps:
        return f"{plan.recipe.num_epochs:g}"
    return f"{plan.steps.passes:.2g}" if plan.steps else UNKNOWN


def _restarts(plan: Plan) -> str:
    if not plan.slots:
        return UNKNOWN
    return "endless" if plan.slots.jobs is None else str(plan.slots.jobs - 1)


def plain(number: float) -> str:
    """A number with three digits, or as whole as it is."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def short(number: float | None) -> str:
    """A large number with its unit: 1.23G."""
    if number is None:
        return UNKNOWN
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.3g}{unit}"
    return f"{number:.3g}"


def list_findings(plans: Sequence[Plan], faults: Sequence[str], most: int | None) -> list[str]:
    """What does not fit: facts first, then what an estimate says, `most` lines at most."""
    marked = [f"X {line}" for line in faults]
    marked += [f"X {line}" for line in _group((plan, plan.refused) for plan in plans)]
    marked += [f"! {line}" for line in _group((plan, plan.doubts) for plan in plans)]
    if not marked:
        return ["all that is known so far fits"]
    shown = marked[:most]
    if len(marked) > len(shown):
        shown.append(f"… and {len(marked) - len(shown)} more")
    return ["does not fit (X is refused before a GPU starts, ! may be meant so):", *shown]


def _group(found: Iterable[tuple[Plan, Iterable[str]]]) -> Iterator[str]:
    """The lines, those that differ in nothing but their row as one."""
    places: dict[str, list[str]] = {}
    for plan, lines in found:
        where = plan.experiment.where
        for line in lines:
            places.setdefault(line.removeprefix(where), []).append(where)
    for text, rows in places.items():
        yield f"{rows[0]}{text}" + (f" (and {len(rows) - 1} more rows)" if rows[1:] else "")


def sum_up(plans: Sequence[Plan]) -> str:
    """What the plans ask for together, as far as it is known."""
    hours = [plan.hours * plan.experiment.num_nodes for plan in plans if plan.hours is not None]
    disk = [plan.disk.total for plan in plans if plan.disk]
    return (
        f"together: {plain(sum(hours))} node-hours (known of {len(hours)} of {len(plans)}), "
        f"{short(sum(disk) * 1e9)}B of disk (known of {len(disk)})"
    )


def plan_page(plan: Plan, site: Site, facts: Facts, config: Mapping[str, Any]) -> str:
    """All that is known of one experiment."""
    experiment = plan.experiment
    lines = [f"{experiment.name} ({experiment.where})"]
    for title, texts in (
        ("trains", _training(plan)),
        ("data", _data(plan)),
        ("batch", [_batch(plan, site)]),
        ("steps", _steps(plan)),
        ("time", _time(plan, site)),
        ("saves", _saves(plan)),
        ("memory", _memory(plan, site)),
        ("leaves", [LAYOUTS[plan.recipe.layout], *_disk(plan)]),
        ("publishes", _publishing(plan, config)),
        ("config", list(diff_config(plan, site, facts))),
    ):
        lines += [
            f"  {title if not number else '':<10} {each}" for number, each in enumerate(texts)
        ]
    return "\n".join([*lines, *(f"  {each}" for each in list_findings([plan], [], None))])


def _training(plan: Plan) -> Iterator[str]:
    experiment, model = plan.experiment, plan.experiment.model
    size = f"{plan.size.parameters / 1e9:.3g}B parameters" if plan.size else "size not known yet"
    length = (
        f"{plan.recipe.max_steps} steps"
        if plan.recipe.max_steps
        else f"{plan.recipe.num_epochs:g} epochs"
    )
    yield f"{model.name} ({model.hub or model.folder}, {size})"
    yield (
        f"template {experiment.template}, {length}, learning rate "
        f"{experiment.config['learning_rate']:g}, cutoff {plan.recipe.cutoff_len} tokens"
    )


def _data(plan: Plan) -> Iterator[str]:
    mix, taking = plan.experiment.mix, plan.taking
    shares = f" {', '.join(map(str, mix.probabilities))}" if mix.probabilities else ""
    state = "tokenized" if taking.tokenized else "not tokenized yet: no row is taken for lost"
    yield f"{mix.name}: {mix.strategy}{shares}; {state}"
    about = "~" if taking.about else ""
    rows = [
        _source_row(source, dataset, plan, about)
        for source, dataset in zip(taking.sources, mix.datasets, strict=True)
    ]
    yield from align(rows).splitlines()
    if taking.ending is not None:
        verb = "first" if mix.strategy == "interleave_under" else "last"
        yield f"{taking.sources[taking.ending].name} is used up {verb}, which ends the mix"


def _source_row(source: Source, dataset: Dataset, plan: Plan, about: str) -> dict[str, str]:
    unseen = unseen_share(source.rows, source.examples)
    epochs = None
    if plan.steps and source.rows and source.examples is not None:
        epochs = plan.steps.passes * source.examples / source.rows
    return {
        "source": source.name,
        "tags": describe_tags(dataset),
        "rows": UNKNOWN if source.rows is None else f"{about}{source.rows:,}",
        "taken": UNKNOWN if source.examples is None else f"{about}{source.examples:,}",
        "tokens": short(source.tokens),
        "trained": short(source.trained_tokens),
        "epochs": UNKNOWN if epochs is None else f"{epochs:.3g}",
        "never seen": UNKNOWN if unseen is None else f"{unseen:.0%}",
    }


def describe_tags(dataset: Dataset) -> str:
    """The columns and role tags in force, those that are not written out included."""
    formatting = dataset.options.get("formatting", "alpaca")
    columns = NEEDED_COLUMNS[formatting] | dict(dataset.options.get("columns", {}))
    if formatting == "alpaca":
        return f"alpaca: {columns['prompt']} → {columns['response']}"
    tags = NEEDED_TAGS | dict(dataset.options.get("tags", {}))
    return (
        f"{columns['messages']}: {tags['role_tag']}/{tags['content_tag']}, "
        f"{tags['user_tag']}/{tags['assistant_tag']}"
    )


def _batch(plan: Plan, site: Site) -> str:
    batch = plan.batch
    return (
        f"{batch.global_batch_size} sequences a step = {batch.world_size} processes "
        f"({plan.experiment.num_nodes} nodes × {site.processes_per_node}) × {batch.per_device} a "
        f"process × {batch.accumulation} accumulated"
    )


def _steps(plan: Plan) -> Iterator[str]:
    if not plan.steps:
        yield "not known before the mix is tokenized"
        return
    steps, about = plan.steps, "about " if plan.taking.about else ""
    yield f"{about}{steps.total:,} ({steps.per_epoch:,} an epoch), {steps.warmup:,} of them warm up"
    if plan.tokens:
        yield f"{short(plan.tokens)} tokens in all"


def _time(plan: Plan, site: Site) -> Iterator[str]:
    if plan.wall_minutes:
        yield f"a job ends after {plan.wall_minutes:g} minutes"
    if not plan.pace:
        lacking = {
            "the tokens of the mix": mean_tokens(plan.taking, plan.recipe),
            "the size of the model": plan.size,
            "gpu_tflops of the site, or a finished run to measure": site.gpu_tflops,
        }
        yield f"not known without {', '.join(each for each, known in lacking.items() if not known)}"
        return
    hours, nodes = plan.hours, plan.experiment.num_nodes
    time = f"{plain(hours)} h" if hours >= 1 else f"{hours * 60:.2g} minutes"
    yield f"{time}, {plain(hours * nodes)} node-hours; {plain(plan.pace.step_s)} s a step"
    yield plan.pace.origin
    if plan.slots and plan.slots.jobs:
        yield (
            f"{plan.slots.jobs} jobs, {plan.slots.jobs - 1} restarts; a job trains for "
            f"{plan.slots.usable_hours:.3g} h after its start"
        )


def _saves(plan: Plan) -> Iterator[str]:
    recipe = plan.recipe
    if not recipe.saves:
        yield "nothing before the end"
        return
    kept = recipe.save_total_limit or "all"
    every = "epoch" if recipe.save_each_epoch else f"{recipe.save_steps} steps"
    every = "as often as faults are likely" if recipe.saves_by_time else f"every {every}"
    often = ""
    if plan.slots and plan.slots.save_hours:
        often = f", {plan.slots.save_hours:.3g} h: {plan.slots.saves} in a whole job"
    yield f"{every}{often}; keeps {kept}"


def _memory(plan: Plan, site: Site) -> Iterator[str]:
    memory = plan.memory
    if not memory:
        yield "not known yet" if site.gpu_memory_gb else f"{site.name} trains without a GPU"
        return
    yield f"about {memory.total:.0f} of {site.gpu_memory_gb:g} GiB on each GPU, of which"
    yield f"{memory.states:.1f} states, which more nodes share"
    yield (
        f"{memory.gathered:.1f} gathered weights, {memory.activations:.1f} activations, "
        f"{memory.logits:.1f} logits, {memory.other:.1f} other, on any number of nodes"
    )
    if plan.host_gib:
        yield f"{plan.host_gib:.0f} GiB of CPU memory a node for what is offloaded"


def _disk(plan: Plan) -> Iterator[str]:
    if disk := plan.disk:
        release = plain(disk.release) if disk.release else "linked"
        yield (
            f"{plain(disk.total)} GB of disk: {disk.kept} checkpoints of {plain(disk.checkpoint)} "
            f"at once, root {plain(disk.root)}, release {release}"
        )


def _publishing(plan: Plan, config: Mapping[str, Any]) -> Iterator[str]:
    experiment = plan.experiment
    if config["upload_to"] == "hub":
        yield f"hub: {experiment.hub_id}, {'private' if experiment.private else 'public'}"
    else:
        yield f"folder: {upload_folder(config) / experiment.hub_id}"
    owner = " and takes over a row of another creator" if experiment.take_over else ""
    yield f"registers it{owner}" if experiment.register else "does not register it"
    yield f"folder {results_folder(config) / 'runs' / experiment.name}"


def diff_config(plan: Plan, site: Site, facts: Facts) -> Iterator[str]:
    """What differs between the base config and the train.yaml that will be rendered."""
    experiment = plan.experiment
    backend, made = BACKENDS[experiment.backend], facts.model_made(experiment.model)
    base = read_yaml(Path(experiment.base_config))
    run = facts.results / "runs" / experiment.name
    tokens, checkpoints = facts.tokens_made(experiment), facts.checkpoints(experiment)
    paths = backend.TrainPaths(
        model=Path(made["path"] if made else experiment.model.folder or "<model>"),
        tokens=Path(tokens["tokens"] if tokens else "<tokens>"),
        output=checkpoints or run / "checkpoints" / "<fingerprint>",
        deepspeed=run / "deepspeed.json",
    )
    rendered = backend.render_config(experiment, site, plan.batch, paths)
    yield f"base {os.path.relpath(experiment.base_config)}; in train.yaml (+ added, − left out):"
    for key in [*rendered, *(base.keys() - rendered.keys())]:
        author = "row" if key in experiment.overrides else "workflow"
        if key not in rendered:
            yield f"− {key}: {base[key]} (for the workflow alone)"
        elif key not in base:
            yield f"+ {key}: {rendered[key]} ({author})"
        elif base[key] != rendered[key]:
            yield f"  {key}: {base[key]} → {rendered[key]} ({author})"
