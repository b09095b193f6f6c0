"""Scores a checkpoint on held-out data.

    gmlp evaluate --workdir=runs/text --checkpoint=best
    gmlp evaluate --workdir=DIR [--checkpoint=latest|best|STEP] [--config.KEY=VALUE ...] [--predictions=FOLDER]

Prints one JSON object: `step`, `checkpoint` (its folder) and `eval`, the metrics over the run's held-out data. For the
latest checkpoint of a finished run these are the run's own final metrics, to the last bit.

Keys of the run's config may be changed for the evaluation: --config.data.heldout=tfds:imagenet2012 scores other data
of the same classes, --config.eval.real_labels=FILE adds ReaL accuracy, --config.eval.batch_size=N fits other devices.

--predictions=FOLDER also writes a finetuned model's predictions, as GLUE's and SQuAD's official scorers read them. If
the run keeps a running mean of its parameters, they are the predictions of the mean.
"""

from __future__ import annotations

import json
import os
import sys

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.commands import cli


def main(_argv: list[str], config: ConfigDict | None) -> None:
    """Prints the metrics of a checkpoint."""
    workdir = cli.required("workdir", "evaluate --workdir=DIR [--checkpoint=latest|best|STEP]")
    if config is not None:
        from gmlp_flax import config as config_lib

        config_lib.validate(config)
    with cli.among_processes():
        _evaluate(workdir, config)


def _evaluate(workdir: str, config: ConfigDict | None) -> None:
    from gmlp_flax.checkpoints.names import CHECKPOINTS
    from gmlp_flax.io import files
    from gmlp_flax.processes import distributed
    from gmlp_flax.training import evaluation, loading

    trained = loading.load(workdir, flags.FLAGS.checkpoint, config)
    size = trained.config.eval.batch_size or trained.config.batch_size
    trained.partition.check_batch(size, 1, "config.eval.batch_size")
    evaluator = evaluation.Evaluator(trained.task, trained.partition)
    metrics, outputs = evaluator(trained.params, trained.ema)
    if not distributed.is_first():
        return
    if flags.FLAGS.predictions:
        _write(trained.task.prediction_files(outputs), flags.FLAGS.predictions)
    checkpoint = os.path.join(files.absolute(workdir), CHECKPOINTS, str(trained.step))
    print(json.dumps({"step": trained.step, "checkpoint": checkpoint, "eval": metrics}))


def _write(files: dict[str, bytes], target: str) -> None:
    from gmlp_flax.checkpoints import run_folder

    if not files:
        cli.fail("--predictions is for tasks that write predictions: this run has none to write")
    run_folder.write_files(target, files, replace=True)
    print(f"wrote {', '.join(files)} to {target}", file=sys.stderr)


def run() -> None:
    """The command line."""
    flags.DEFINE_string("predictions", "", "A folder to write the predictions to, as official scorers read them.")
    cli.define_run_flags(checkpoint="latest")
    cli.define_multihost_flags()
    cli.run(main, config=cli.config_of_run)
