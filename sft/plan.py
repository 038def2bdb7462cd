"""What will come of an experiment before it is submitted, and what does not fit its site."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sft.backends import BACKENDS
from sft.batch import derive_batch
from sft.experiment import Experiment
from sft.facts import Facts, Taking, count_examples
from sft.limits import most_minutes, state_faults, warmup_faults, world_size_faults
from sft.memory import GIB, Memory, estimate_memory, host_bytes
from sft.pace import (
    START_MINUTES,
    Pace,
    Slots,
    cut_into_slots,
    guess_pace,
    hours_between_saves,
    pace_of_rate,
)
from sft.recipe import Batch, Recipe
from sft.request import Request
from sft.site import Site
from sft.sizes import Size
from sft.steps import Steps, count_batches, count_steps

GB = 1e9
UNSEEN_SHARE = 0.2  # of a source's rows; what leaves out more of them is worth a word
LONG_HOURS = 3.0  # of work that a fault loses; more is worth a word


@dataclass(frozen=True)
class Disk:
    """GB that a run takes: a checkpoint, how many lie there at once, what the end leaves.

    `kept` counts the one that is being written; a release links the root's weights where they are
    safetensors, and then takes nothing.
    """

    checkpoint: float
    kept: int
    root: float
    release: float

    @property
    def total(self) -> float:
        """All of it together, at the worst moment."""
        return self.checkpoint * self.kept + self.root + self.release


@dataclass(frozen=True)
class Plan:
    """An experiment at a site with all that is known of it; what is not known is None.

    `refused` are facts, for which no GPU starts; `doubts` rest on estimates, or may be meant so.
    """

    experiment: Experiment
    batch: Batch
    recipe: Recipe
    taking: Taking
    size: Size | None = None
    steps: Steps | None = None
    pace: Pace | None = None
    wall_minutes: float | None = None
    slots: Slots | None = None
    memory: Memory | None = None
    disk: Disk | None = None
    refused: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def hours(self) -> float | None:
        """Hours of training, without what restarts lose."""
        return self.steps.total * self.pace.step_s / 3600 if self.pace else None

    @property
    def tokens(self) -> float | None:
        """The tokens of all steps."""
        mean = mean_tokens(self.taking, self.recipe)
        return mean * self.taking.total * self.steps.passes if mean and self.steps else None

    @property
    def host_gib(self) -> float:
        """GiB of CPU memory that offloaded states take on a node."""
        nodes = self.experiment.num_nodes
        return host_bytes(self.size.parameters, self.recipe.states, nodes) / GIB if self.size else 0


def make_plan(experiment: Experiment, site: Site, request: Request, facts: Facts) -> Plan:
    """The plan of an experiment within the site's limits; `request` is what `train` asks for."""
    plan = Plan(
        experiment=experiment,
        batch=derive_batch(experiment, site),
        recipe=BACKENDS[experiment.backend].read_recipe(experiment.config),
        taking=facts.taking(experiment),
        size=facts.size(experiment.model),
        wall_minutes=_wall_minutes(site, request),
    )
    if plan.taking.total and count_batches(plan.taking.total, plan.batch, plan.recipe):
        plan = replace(plan, steps=count_steps(plan.taking.total, plan.batch, plan.recipe))
        plan = replace(plan, pace=_find_pace(plan, site, facts))
    if plan.pace and plan.wall_minutes:
        save_hours = hours_between_saves(
            plan.steps, plan.pace, plan.recipe, experiment.num_nodes, site
        )
        slots = cut_into_slots(plan.steps, plan.pace, plan.wall_minutes, save_hours)
        plan = replace(plan, slots=slots)
    if plan.size:
        plan = replace(plan, disk=estimate_disk(plan.size, plan.recipe, plan.steps))
    if plan.size and site.gpu_memory_gb:
        plan = replace(plan, memory=estimate_memory(plan.size, plan.recipe, plan.batch))
    refused = tuple(_refusals(plan, site, facts))
    return replace(plan, refused=refused, doubts=tuple(_doubts(plan, site, bool(refused))))


def _wall_minutes(site: Site, request: Request) -> float | None:
    """How long a job may last; None where nothing ends it."""
    if site.launcher != "slurm":
        return None
    return request.minutes or most_minutes(site, request.qos)


def mean_tokens(taking: Taking, recipe: Recipe) -> float | None:
    """The tokens of an example of a mix, on average; packed ones are nearly full."""
    if taking.total and taking.tokens is not None:
        return taking.tokens / taking.total
    return recipe.cutoff_len if taking.tokenized and recipe.packing else None


def _find_pace(plan: Plan, site: Site, facts: Facts) -> Pace | None:
    """The pace of finished runs, or else the one that is given, or else a guess."""
    mean = mean_tokens(plan.taking, plan.recipe)
    if not mean:
        return None
    per_step = mean * plan.batch.global_batch_size
    if rate := facts.measured_rate(plan.experiment):
        origin = f"measured in {rate.run} on {rate.world_size} processes"
        return pace_of_rate(rate.tokens_per_second, per_step, plan.batch, origin)
    if given := plan.experiment.config.get("tokens_per_second_per_gpu"):
        origin = f"tokens_per_second_per_gpu of {given:g} in the base config or row"
        return pace_of_rate(given, per_step, plan.batch, origin)
    if not plan.size or not site.gpu_tflops:
        return None
    nodes = plan.experiment.num_nodes
    return guess_pace(plan.size, plan.recipe, plan.batch, nodes, per_step, site)


def estimate_disk(size: Size, recipe: Recipe, steps: Steps | None) -> Disk | None:
    """What a run takes on disk; None for adapters, which are small, and what cannot be told.

    A ZeRO checkpoint holds 12 bytes a parameter in shards, and weights in bf16 beside them where
    they are gathered; without DeepSpeed it holds the weights as trained and two moments of Adam.
    The root of a run that is not gathered holds shards once more. The trainer writes a checkpoint
    before it deletes the oldest one.
    """
    if recipe.layout not in ("safetensors", "zero3"):
        return None
    gigas = size.parameters / GB
    weights = recipe.saved_weight if recipe.layout == "safetensors" else 0.0
    optimizer = 0.0 if recipe.save_only_model else recipe.states.optimizer or 0.0
    return Disk(
        checkpoint=gigas * (weights + optimizer),
        kept=_kept_checkpoints(recipe, steps),
        root=gigas * (weights or optimizer),
        release=0.0 if weights else gigas * recipe.saved_weight,
    )


def _kept_checkpoints(recipe: Recipe, steps: Steps | None) -> int:
    """How many checkpoints lie on disk at once; the trainer saves its last step too."""
    if not recipe.saves:
        return 0
    most = recipe.save_total_limit + 1 if recipe.save_total_limit else None
    if not steps or not steps.save_every:
        return most or 1
    saved = math.ceil(steps.total / steps.save_every)
    return min(saved, most) if most else saved


def step_faults(experiment: Experiment, site: Site, tokens: Mapping[str, Any]) -> list[str]:
    """What makes a run of these tokens worthless; `tokens` is what tokenizing made."""
    examples = count_examples(tokens)
    return _step_faults(experiment, site, examples) if examples else []


def _step_faults(experiment: Experiment, site: Site, examples: int) -> list[str]:
    recipe = BACKENDS[experiment.backend].read_recipe(experiment.config)
    batch = derive_batch(experiment, site)
    if not count_batches(examples, batch, recipe):
        return [
            f"{experiment.where}, dataloader_drop_last: {examples} examples are less than a batch "
            f"of {batch.world_size} processes × {batch.per_device}, which it drops; leave it out"
        ]
    return warmup_faults(experiment, recipe, count_steps(examples, batch, recipe).total)


def _refusals(plan: Plan, site: Site, facts: Facts) -> Iterator[str]:
    if earlier := facts.earlier_world_size(plan.experiment):
        checkpoints = facts.checkpoints(plan.experiment)
        yield from world_size_faults(plan.experiment, site, checkpoints, earlier)
    if plan.size:
        yield from state_faults(plan.experiment, site, plan.size)
    if plan.taking.total and plan.taking.tokenized:
        yield from _step_faults(plan.experiment, site, plan.taking.total)


def _doubts(plan: Plan, site: Site, refused: bool) -> Iterator[str]:
    if plan.taking.total and not plan.taking.tokenized:
        yield from _step_faults(plan.experiment, site, plan.taking.total)
    if plan.memory and not refused:
        yield from _memory_doubts(plan, site)
    if plan.slots:
        yield from _slot_doubts(plan)
    yield from _mix_doubts(plan)
    yield from _worker_doubts(plan.experiment, site)


def _memory_doubts(plan: Plan, site: Site) -> Iterator[str]:
    memory, where = plan.memory, plan.experiment.where
    if memory.total <= site.gpu_memory_gb:
        return
    parts = (
        f"states {memory.states:.0f}, gathered weights {memory.gathered:.0f}, "
        f"activations {memory.activations:.0f}, logits {memory.logits:.0f}"
    )
    remedies = {
        memory.states: "more num_nodes, or a `deepspeed` that offloads",
        memory.activations: "a shorter cutoff_len, gradient checkpointing or a smaller device "
        "batch; more nodes change nothing",
        memory.logits: "enable_liger_kernel: true; more nodes change nothing",
    }
    yield (
        f"{where}, GPU memory: about {memory.total:.0f} GiB on each GPU, {site.name} has "
        f"{site.gpu_memory_gb:g} ({parts}); what helps most: {remedies[max(remedies)]}"
    )


def _slot_doubts(plan: Plan) -> Iterator[str]:
    """Lines where a job never trains, or where a fault would lose hours of work."""
    slots, where = plan.slots, plan.experiment.where
    of_pace = f"{plan.pace.step_s:.3g} s a step, {plan.pace.origin}"
    if slots.jobs is None:
        yield (
            f"{where}, runtime: {plan.wall_minutes:g} minutes are over before the first step "
            f"({START_MINUTES:g} minutes to start, a guess); give the jobs of `train` more"
        )
        return
    lost = min(slots.save_hours or slots.hours, slots.hours, slots.usable_hours)
    if lost > LONG_HOURS and not plan.recipe.saves_by_time:
        every = plan.steps.save_every
        found = f"save_steps: found {every}" if every else "save_strategy: found no"
        yield (
            f"{where}, {found}: no checkpoint for {lost:.3g} h ({of_pace}), and a fault of a node "
            "loses that; leave save_steps out to save as often as the faults of the site ask for"
        )


def _mix_doubts(plan: Plan) -> Iterator[str]:
    mix, taking, where = plan.experiment.mix, plan.taking, plan.experiment.where
    if mix.strategy == "interleave_under" and taking.ending is not None:
        ending = taking.sources[taking.ending].name
        for source in taking.sources:
            unseen = unseen_share(source.rows, source.examples)
            if unseen and unseen > UNSEEN_SHARE:
                yield (
                    f"{where}, mix {mix.name}: {unseen:.0%} of {source.name} is never seen "
                    f"({source.examples} of {source.rows} rows): {ending} ends the mix; give "
                    f"{source.name} a larger probability, or use interleave_over or concat"
                )
    if taking.total and taking.total < plan.batch.global_batch_size:
        yield (
            f"{where}, mix {mix.name}: {taking.total} examples are fewer than the global batch of "
            f"{plan.batch.global_batch_size}: each epoch is one step; use a smaller batch"
        )


def unseen_share(rows: int | None, examples: int | None) -> float | None:
    """The share of a source's rows that a mix leaves out."""
    return max(0.0, 1 - examples / rows) if rows and examples is not None else None


def _worker_doubts(experiment: Experiment, site: Site) -> Iterator[str]:
    cpus, config = site.cpus_per_node, experiment.config
    for key, processes in (
        ("preprocessing_num_workers", 1),
        ("dataloader_num_workers", site.processes_per_node),
    ):
        wanted = (config.get(key) or 0) * processes
        if wanted > cpus:
            yield (
                f"{experiment.where}, {key}: found {config[key]}, which is {wanted} processes on a "
                f"node of {cpus} CPUs at {site.name}; give {max(1, cpus // processes)} or fewer"
            )
