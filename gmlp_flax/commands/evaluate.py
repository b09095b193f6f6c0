"""Scores a checkpoint on held-out data.

    gmlp evaluate --workdir=runs/text --checkpoint=best

Prints one JSON object with `step`, `checkpoint` (its path) and `eval`, the metrics over the run's
held-out data. --workdir accepts whatever gmlp_flax.load accepts, such as an exported folder or a
file from timm. You can change keys of the run's config: --config.data.heldout=tfds:imagenet2012
scores other data with the same classes, and --config.eval.real_labels=FILE adds ReaL accuracy.
--predictions=FOLDER also writes a finetuned model's predictions in the form that GLUE's and SQuAD's
official scorers read. They use the running mean of the parameters if the run keeps one.
"""

import json
import sys

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.commands import cli


def main(_argv: list[str], config: ConfigDict | None) -> None:
    """Prints the metrics of a checkpoint."""
    values = flags.FLAGS
    workdir = cli.require("workdir")
    with cli.among_processes():
        from gmlp_flax import config as config_lib
        from gmlp_flax.api import runs
        from gmlp_flax.checkpoints import run_folder
        from gmlp_flax.processes import distributed

        with cli.waiting(f"loading and scoring {workdir}"):
            scores = runs.evaluate_checkpoint(
                workdir,
                values.checkpoint,
                config=config,
                explicit=config_lib.named_overrides(sys.argv).keys(),
                predictions=bool(values.predictions),
            )
        if not distributed.is_first():
            return
        if values.predictions:
            run_folder.write_files(values.predictions, scores.predictions)
            names = ", ".join(scores.predictions)
            print(f"wrote {names} to {values.predictions}", file=sys.stderr)
        record = {"step": scores.step, "checkpoint": scores.checkpoint, "eval": scores.metrics}
        print(json.dumps(record))


def run() -> None:
    """The command line."""
    flags.DEFINE_string(
        "predictions", "", "Write predictions to this folder, in the form of the official scorers."
    )
    cli.define_run_flags(checkpoint="latest")
    cli.define_multihost_flags()
    cli.run(main, config=cli.config_of_run)
