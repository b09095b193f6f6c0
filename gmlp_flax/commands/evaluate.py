"""Scores a checkpoint on held-out data.

    gmlp evaluate --workdir=runs/text --checkpoint=best

Prints one JSON object: `step`, `checkpoint` (its folder) and `eval`, the metrics over the run's
held-out data. Keys of the run's config may be changed: --config.data.heldout=tfds:imagenet2012
scores other data of the same classes, --config.eval.real_labels=FILE adds ReaL accuracy.
--predictions=FOLDER also writes a finetuned model's predictions, of the running mean of its
parameters if it keeps one, as GLUE's and SQuAD's official scorers read them.
"""

import json
import os
import sys

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.commands import cli
from gmlp_flax.errors import RunError


def main(_argv: list[str], config: ConfigDict | None) -> None:
    """Prints the metrics of a checkpoint."""
    from gmlp_flax.training import loading

    workdir = loading.locate(cli.require("workdir"))
    if config is not None:
        from gmlp_flax import config as config_lib

        config_lib.validate(config)
    with cli.among_processes():
        from gmlp_flax.checkpoints import CHECKPOINTS, run_folder
        from gmlp_flax.processes import distributed
        from gmlp_flax.training import evaluation, record

        with cli.waiting(f"loading {workdir}"):
            trained = loading.load(workdir, flags.FLAGS.checkpoint, config)
        size = trained.config.eval.batch_size or trained.config.batch_size
        trained.partition.check_batch(size, 1, "config.eval.batch_size")
        record.check_heldout(workdir, trained.task, sys.argv)
        with cli.waiting("reading the held-out data, compiling and scoring"):
            metrics, outputs = evaluation.Evaluator(trained.task, trained.partition)(
                trained.params, trained.ema
            )
        if not distributed.is_first():
            return
        if target := flags.FLAGS.predictions:
            if not (predictions := trained.task.prediction_files(outputs)):
                raise RunError(
                    "--predictions is for tasks that write predictions: this run has none to write"
                )
            run_folder.write_files(target, predictions)
            print(f"wrote {', '.join(predictions)} to {target}", file=sys.stderr)
        folder = () if loading.is_exported(workdir) else (CHECKPOINTS, str(trained.step))
        checkpoint = os.path.join(workdir, *folder)
        print(json.dumps({"step": trained.step, "checkpoint": checkpoint, "eval": metrics}))


def run() -> None:
    """The command line."""
    flags.DEFINE_string(
        "predictions", "", "A folder to write the predictions to, as official scorers read them."
    )
    cli.define_run_flags(checkpoint="latest")
    cli.define_multihost_flags()
    cli.run(main, config=cli.config_of_run)
