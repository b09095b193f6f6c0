"""Scores a checkpoint: python -m gmlp_flax.evaluate --workdir=DIR [--checkpoint=latest|best|STEP]

Prints one JSON object: `step`, `checkpoint` (its folder) and `eval`, the metrics over the run's held-out data. For
the latest checkpoint of a finished run these are the run's own final metrics, to the last bit.
"""

from __future__ import annotations

import json
import os

from absl import flags

from gmlp_flax import cli


def main(_argv: list[str]) -> None:
    """Prints the metrics of a checkpoint."""
    workdir = cli.required("workdir", "evaluate --workdir=DIR [--checkpoint=latest|best|STEP]")
    from gmlp_flax.training import evaluation, folder, partition

    trained = folder.load(workdir, flags.FLAGS.checkpoint)
    partition.check_batch(trained.task.evaluation_batch_size(), 1, "the run's evaluation batch size")
    metrics = evaluation.Evaluator(trained.task, trained.mesh)(trained.params, trained.ema)
    checkpoint = os.path.join(os.path.abspath(workdir), folder.CHECKPOINTS, str(trained.step))
    print(json.dumps({"step": trained.step, "checkpoint": checkpoint, "eval": metrics}))


if __name__ == "__main__":
    cli.define_run_flags(checkpoint="latest")
    cli.run(main)
