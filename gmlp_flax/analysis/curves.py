"""The loss of a run over its steps, in training and held out."""

from __future__ import annotations

import os

from gmlp_flax.analysis.drawing import save, subplots
from gmlp_flax.training.metrics_file import METRICS_FILE, MetricsFile


def draw(workdir: str) -> str:
    """Draws the losses in metrics.jsonl.

    Returns:
        The path of the figure, RUN/figures/loss.png.
    """
    lines = MetricsFile.read(os.path.join(workdir, METRICS_FILE))
    figure, axes = subplots(1, 1, 6.0, 3.5)
    axis = axes[0]
    training = [line for line in lines if "loss" in line]
    axis.plot([line["step"] for line in training], [line["loss"] for line in training], label="training")
    heldout = [line for line in lines if "eval" in line]
    axis.plot([line["step"] for line in heldout], [line["eval"]["loss"] for line in heldout], "o-", label="held out")
    axis.set(xlabel="step", ylabel="loss (nats)", title=os.path.basename(os.path.abspath(workdir)))
    axis.legend()
    return save(figure, workdir, "loss.png")
