"""How fast a finished run was trained, as its own steps tell."""

from pathlib import Path
from statistics import median
from typing import Any

from sft.backends import BACKENDS
from sft.experiment import Experiment
from sft.mfu import peak_tflops, utilisation
from sft.progress import read_events
from sft.site import Site
from sft.sizes import Size


def read_throughput(
    experiment: Experiment,
    site: Site,
    size: Size | None,
    tokens: int,
    batch: int,
    checkpoints: Path,
) -> dict[str, Any]:
    """`{"step_s", "tokens_per_s", "mfu", "device"}` of a finished run; what is not known is None.

    `tokens` are those of an epoch, `batch` the sequences of a step. Seconds are the median of all
    logged steps, without saves. An adapter trains less than a whole model: its `mfu` is not told.
    """
    events = read_events(checkpoints)
    logs = [each for each in events if each["event"] == "log"]
    begin = next((each for each in reversed(events) if each["event"] == "begin"), {})
    seconds = [each["step_s"] for each in logs if each.get("step_s")]
    device, world_size = begin.get("device"), begin.get("world_size")
    speed = {"step_s": None, "tokens_per_s": None, "mfu": None, "device": device}
    if not seconds:
        return speed
    speed["step_s"] = median(seconds)
    epochs = logs[-1].get("epoch")
    if not epochs:
        return speed
    per_step = tokens * epochs / logs[-1]["step"]
    speed["tokens_per_s"] = per_step / speed["step_s"]
    peak = (device and peak_tflops(device)) or site.gpu_tflops
    adapter = BACKENDS[experiment.backend].read_recipe(experiment.config).layout == "lora"
    if peak and size and world_size and not adapter:
        length = per_step / batch
        speed["mfu"] = utilisation(speed["tokens_per_s"], size, length, world_size, peak)
    return speed
