"""Pictures for people: loss curves."""

from collections.abc import Sequence
from pathlib import Path


def draw_losses(path: Path, losses: Sequence[Sequence[float]], title: str = "") -> None:
    """Write a PNG of the loss by step; `losses` are (step, loss) pairs."""
    # Not at the top: a process that waits for hours for a training would hold 40 MB for it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="step", ylabel="loss", title=title)
    axes.plot([step for step, _ in losses], [loss for _, loss in losses])
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
