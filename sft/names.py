"""Learning rates that names spell: a model is known by its name long after its config is lost."""

import math
import re
from pathlib import Path

from sft.experiment import Experiment

# A learning rate in a name: lr1e-5, lr1e5 (the habit; no rate has a positive exponent), lr2.5e-5,
# lr2p5e5, lr0.00001. No other number is taken for one (lr83, lr0.5), nor is the end of another
# word or of min_lr.
_NAMED_RATE = re.compile(
    r"(?<![a-z0-9])(?<!min[-_.])lr[-_]?"
    r"(?:(?P<digits>\d+(?:[.p]\d+)?)e-?0?(?P<exponent>[1-9])(?!\d)|(?P<decimal>0[.p]00\d+))",
    re.IGNORECASE,
)


def named_rates(name: str) -> dict[str, float]:
    """The learning rates that a name spells, by their spelling."""
    rates = {}
    for match in _NAMED_RATE.finditer(name):
        text = match["decimal"] or f"{match['digits']}e-{match['exponent']}"
        rates[match[0]] = float(text.lower().replace("p", "."))
    return rates


def name_faults(experiment: Experiment) -> list[str]:
    """One line for each name of the experiment that spells another learning rate than is trained.

    What the names of its model and mix spell is theirs. Of several rates one has to be right.
    """
    trained = experiment.config["learning_rate"]
    model, mix = experiment.model, experiment.mix
    foreign = (model.name, Path(model.hub or model.folder).name, mix.name)
    longest_first = "|".join(map(re.escape, sorted(foreign, key=len, reverse=True)))
    names = {"name": experiment.name, "hub_id": experiment.hub_id.partition("/")[2]}
    if names["hub_id"] == names["name"]:
        del names["hub_id"]
    lines = []
    for key, name in names.items():
        own = re.sub(rf"(?<![a-zA-Z0-9])({longest_first})(?![a-zA-Z0-9])", "/", name)
        rates = named_rates(own)
        if rates and not any(math.isclose(rate, trained) for rate in rates.values()):
            spelled = " and ".join(f"{text} = {rate:g}" for text, rate in rates.items())
            lines.append(
                f"{experiment.where}, {key}: {name!r} says {spelled}, but the learning_rate is "
                f"{trained:g}; rename it, or set the learning_rate"
            )
    return lines
