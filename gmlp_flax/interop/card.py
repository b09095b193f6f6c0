"""README.md of an exported folder: the card that the Hugging Face hub shows, with its block of metadata."""

import os
from collections.abc import Iterable
from typing import Any

import yaml

from gmlp_flax.checkpoints.metrics_file import MetricsFile, baselines_of
from gmlp_flax.checkpoints.names import METRICS_FILE
from gmlp_flax.config.optimizers import keeps_mean
from gmlp_flax.models import parameters
from gmlp_flax.training.loading import Trained

TEXT = """---
{metadata}---
# {block}, {task}

{count:,} parameters{trained}.
{scores}
`FOLDER` is the path of this folder, or `hf-hub:OWNER/NAME`. `gmlp predict --workdir=FOLDER` predicts, `gmlp train
--config.init_from=FOLDER` starts from it, and in Python:

    import gmlp_flax as gf
    model = gf.load("FOLDER")
    model.predict(INPUTS)

Without gmlp_flax:

    import safetensors.numpy, ml_dtypes
    weights = safetensors.numpy.load_file("model.safetensors")
{openers}
`model.safetensors` has every parameter by its path, {dtype}. The first axis under `encoder/` is the layer, and a dense
layer is `x @ kernel + bias`. `config.json` has every setting.
"""


def make(model: Trained, dtype: str, openers: Iterable[str] = (), license: str = "") -> str:
    """The card of a model: what it is, what it scores beside trivial models, how it is loaded.

    Args:
        model: the scores are those of its checkpoint in its run's metrics.jsonl, if there is one.
        dtype: of the weights in the file.
        openers: how files of other formats are opened, a line of Python each.
        license: as the hub names licences; empty: the card names none.
    """
    task, config, scores = model.task, model.config, _scores(model)
    data = os.path.basename(config.data.train.rstrip("/"))  # a path is nobody's business
    metadata = {"license": license, "library_name": "gmlp_flax", "pipeline_tag": task.hub_task}
    metadata |= {"tags": ["jax", "flax", config.model.block], "metrics": list(scores.get("this model", ()))}
    table = "".join(f"| {name} | {task.format_metrics(values)} |\n" for name, values in scores.items())
    return TEXT.format(
        metadata=yaml.safe_dump({key: value for key, value in metadata.items() if value}, sort_keys=False),
        block=config.model.block,
        task=config.task,
        count=parameters.count(model.params),
        trained=f", trained for {model.step:,} steps" * bool(model.step) + f" on `{data}`" * bool(data),
        scores=f"\n| | on held-out data |\n|---|---|\n{table}" if table else "",
        openers="".join(f"    {line}\n" for line in openers),
        dtype=dtype,
    )


def _scores(model: Trained) -> dict[str, dict[str, Any]]:
    """The metrics of a model and those of trivial models, by name; nothing if the run does not have the model's."""
    lines = MetricsFile.read(os.path.join(model.task.folder, METRICS_FILE)) if model.task.folder else []
    found = [line["eval"] for line in lines if line["step"] == model.step and "eval" in line]
    if not found:
        return {}
    mean = "ema_" if keeps_mean(model.config.optimizer) else ""
    own = {name: found[-1][mean + name] for name in model.task.eval_metrics if mean + name in found[-1]}
    baselines = next(filter(None, map(baselines_of, reversed(lines))), [])
    return {"this model": own} | {baseline["name"]: baseline["eval"] for baseline in baselines}
