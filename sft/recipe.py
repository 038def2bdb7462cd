"""What a merged config asks for, in words that no backend owns: how long, how large, how saved."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Batch:
    """How a global batch is made: sequences a process and step, accumulated steps, processes."""

    global_batch_size: int
    per_device: int
    accumulation: int
    world_size: int


@dataclass(frozen=True)
class States:
    """Bytes a parameter that training keeps, and where.

    `optimizer` counts the master copy of the weights, if there is one, and is None where it is not
    known. `zero_stage` says what is sharded over the processes: the optimizer (1), gradients too
    (2), weights too (3), of which `max_live_parameters` are gathered at once, at most.
    """

    weights: float
    gradients: float
    optimizer: float | None
    zero_stage: int = 0
    optimizer_on_cpu: bool = False
    weights_on_cpu: bool = False
    max_live_parameters: float = 0


@dataclass(frozen=True)
class Recipe:
    """How long a run is, how its batch is made, what is saved, and what decides its memory.

    `global_batch_size` is None where `accumulation` decides it; keys are named as the config does.

    `warmup` is steps, or a share of all steps below 1; 0 where the schedule has none. A `max_steps`
    of None leaves it to `num_epochs`. `save_steps` is None where checkpoints are not counted in
    steps, `saves_by_time` where training itself decides when, by the faults of the site;
    `save_total_limit` where all are kept. `layout` is what training leaves: safetensors,
    zero3, fsdp or lora; `saved_weight` the bytes of a parameter in its safetensors.
    """

    per_device: int
    per_device_key: str
    accumulation: int
    global_batch_size: int | None
    num_epochs: float
    max_steps: int | None
    warmup: float
    warmup_key: str
    cutoff_len: int
    max_samples: int | None
    packing: bool
    drop_last: bool
    save_steps: int | None
    save_each_epoch: bool
    saves_by_time: bool
    save_total_limit: int | None
    save_only_model: bool
    layout: str
    saved_weight: float
    states: States
    recomputes: bool  # gradient checkpointing
    fused_loss: bool  # logits are never held at once
    eager_attention: bool
    flash_attention: str | None  # the words that ask for flash-attn's kernels, `key: value`

    @property
    def saves(self) -> bool:
        """Whether checkpoints are saved before the end."""
        return bool(self.save_steps or self.save_each_epoch or self.saves_by_time)
