"""Scores a checkpoint on held-out data.

    gmlp evaluate --workdir=runs/text --checkpoint=best

Prints one JSON object: `step`, `checkpoint` (where it is) and `eval`, the metrics over the run's
held-out data. --workdir takes what gmlp_flax.load takes, such as an exported folder or a file of
timm's. Keys of the run's config may be changed: --config.data.heldout=tfds:imagenet2012 scores
other data of the same classes, --config.eval.real_labels=FILE adds ReaL accuracy.
--predictions=FOLDER also writes a finetuned model's predictions, of the running mean of its
parameters if it keeps one, as GLUE's and SQuAD's official scorers read them.
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
        "predictions", "", "A folder to write the predictions to, as official scorers read them."
    )
    cli.define_run_flags(checkpoint="latest")
    cli.define_multihost_flags()
    cli.run(main, config=cli.config_of_run)
