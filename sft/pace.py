"""How long a run takes, and how the wall limit cuts it."""

import math
from dataclasses import dataclass

from sft.mfu import flops_per_token
from sft.recipe import Batch, Recipe
from sft.site import Site
from sft.sizes import Size
from sft.steps import Steps

START_MINUTES = 10.0  # a guess: imports, weights, the first batch, the checkpoint at the end
SAVE_S = 120.0  # a guess


@dataclass(frozen=True)
class Pace:
    """Seconds of an optimizer step, and where the number is from; `guessed` if a formula."""

    step_s: float
    origin: str
    guessed: bool


def pace_of_rate(
    tokens_per_second: float, tokens_per_step: float, batch: Batch, origin: str
) -> Pace:
    """The pace that a number of tokens a second and GPU gives."""
    return Pace(tokens_per_step / (tokens_per_second * batch.world_size), origin, guessed=False)


def guess_pace(
    size: Size, recipe: Recipe, batch: Batch, num_nodes: int, tokens_per_step: float, site: Site
) -> Pace:
    """A pace from the peak of the site's GPUs, which it must know; wrong by a factor of 2 at times.

    Computing takes `flops_per_token` at `mfu` of the peak. Under ZeRO-3 on several nodes, weights
    come twice and gradients go once over the network in each accumulated step, 3 × 2 bytes a
    parameter (ZeRO, arXiv 1910.02054, section 7), counted after the computing. The measured 5 s a
    step of 9.7B parameters on 16 A100, 600 tokens a sequence, are the latter: 4.6 s at 100 Gbit/s a
    GPU.
    """
    length = tokens_per_step / batch.global_batch_size
    flops = flops_per_token(size, length)
    computing = flops * tokens_per_step / (batch.world_size * site.gpu_tflops * 1e12 * site.mfu)
    sending = 0.0
    if num_nodes > 1 and site.gpu_network_gbit and recipe.states.zero_stage >= 3:
        sent_bytes = 3 * recipe.states.weights * size.parameters
        sending = batch.accumulation * sent_bytes / (site.gpu_network_gbit / 8 * 1e9)
    origin = f"a guess: {site.mfu:.0%} of {site.gpu_tflops:g} TFLOP/s a GPU"
    if sending:
        origin += f", and {sending / (computing + sending):.0%} of the time for the network"
    return Pace(computing + sending, origin, guessed=True)


@dataclass(frozen=True)
class Slots:
    """How jobs of a limited wall time carry a run; hours.

    `usable_hours` of a job train. `jobs` is None where the run never ends: a job is over before it
    trains. `save_hours` lie between two checkpoints, None where none is saved before the end;
    `saves` is how many of them fall into a job, the one at its end not counted.
    """

    hours: float
    usable_hours: float
    save_hours: float | None
    saves: int
    jobs: int | None


def hours_between_saves(
    steps: Steps, pace: Pace, recipe: Recipe, num_nodes: int, site: Site
) -> float | None:
    """Hours between two checkpoints; None where none is saved before the end.

    Where no `save_steps` says it, training takes √(2 × seconds of a save × mean time between faults
    of the job) (Young, Communications of the ACM 17(9), 1974), SAVE_S until it has measured them.
    """
    if steps.save_every:
        return steps.save_every * pace.step_s / 3600
    if not recipe.saves_by_time:
        return None
    return math.sqrt(2 * SAVE_S / 3600 * site.node_mtbf_hours / num_nodes)


def cut_into_slots(
    steps: Steps, pace: Pace, slot_minutes: float, save_hours: float | None
) -> Slots:
    """The jobs of a run whose every job lasts `slot_minutes` at most, START_MINUTES of them lost.

    Before its end a job saves a checkpoint, from which the next goes on.
    """
    hours = steps.total * pace.step_s / 3600
    usable = max(0.0, slot_minutes - START_MINUTES) / 60
    saves = int(usable / save_hours) if save_hours else 0
    jobs = math.ceil(hours / usable) if usable else None
    return Slots(hours, usable, save_hours, saves, jobs)
