"""The loss of a run over its steps, in training and held out."""

import os

from gmlp_flax import config as config_lib
from gmlp_flax.analysis import drawing
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.checkpoints.names import CONFIG_FILE, METRICS_FILE
from gmlp_flax.io import files

SOFTENING = ("optimizer.label_smoothing", "augment.mixup", "augment.cutmix")


def chart(workdir: str) -> drawing.Chart:
    """The losses in metrics.jsonl."""
    lines = MetricsFile.read(os.path.join(workdir, METRICS_FILE))
    training = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    heldout = [(line["step"], line["eval"]["loss"]) for line in lines if "loss" in line.get("eval", ())]
    looks = drawing.Look(drawing.GREY, "."), drawing.Look(drawing.FAMILIES["gMLP"])
    path = os.path.join(workdir, CONFIG_FILE)
    config = config_lib.load(path) if files.exists(path) else {}
    softened = ", of softened targets" if any(config.get(key) for key in SOFTENING) else ""
    names = f"training{softened}", "held out"
    series = [
        drawing.Series(name, look, [step for step, _ in points], [loss for _, loss in points])
        for name, look, points in zip(names, looks, (training, heldout), strict=True)
        if points
    ]
    title = f"held-out loss {heldout[-1][1]:.3g} after {heldout[-1][0]:,} steps" if heldout else "training loss"
    return drawing.Chart([drawing.Panel(title, drawing.Scale("step"), drawing.Scale("loss (nats)"), series)])
