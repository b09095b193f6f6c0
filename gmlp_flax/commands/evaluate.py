"""Scores a checkpoint on held-out data.

    gmlp evaluate --workdir=runs/text --checkpoint=best

Prints one JSON object with `step`, `checkpoint` (its path) and `eval`, the metrics over the run's
held-out data. --workdir accepts whatever gmlp_flax.load accepts, such as an exported folder or a
file from timm. You can change keys of the run's config: --config.data.heldout=tfds:imagenet2012
scores other data with the same classes, and --config.eval.real_labels=FILE adds ReaL accuracy.
--predictions=FOLDER also writes a finetuned model's predictions in the form that GLUE's and SQuAD's
official scorers read. They use the running mean of the parameters if the run keeps one.

--slices scores a language model also on the predicted tokens that repeat a bigram of their window,
which Zoology (2312.04927) calls AR hits, and on all others: recall_perplexity, recall_accuracy,
recall_predictions, and the same with other_. --config.eval.frequent_bigrams=N says which bigrams
are too frequent in the training text to count. --reference=WORKDIR also scores a second model on
the same tokens, and prints the share of the gap between the two that is due to AR hits.
"""

import json
import sys
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError


def main(_argv: list[str], config: ConfigDict | None) -> None:
    """Prints the metrics of a checkpoint."""
    values = flags.FLAGS
    workdir = cli.require("workdir")
    with cli.among_processes():
        from gmlp_flax import config as config_lib
        from gmlp_flax.checkpoints import run_folder
        from gmlp_flax.processes import distributed
        from gmlp_flax.training import scoring

        if values.reference and not values.slices:
            raise ConfigError(f"--reference={values.reference} compares slices: add --slices")
        if values.slices and config is not None:
            scoring.add_slices(config)
        reference_config = None
        if values.reference:  # before anything is scored
            reference_config = _reference_config(values.reference)
        with cli.waiting(f"loading and scoring {workdir}"):
            scores = scoring.evaluate_checkpoint(
                workdir,
                values.checkpoint,
                config=config,
                explicit=config_lib.named_overrides(sys.argv).keys(),
                predictions=bool(values.predictions),
            )
        record = {"step": scores.step, "checkpoint": scores.checkpoint, "eval": scores.metrics}
        if values.reference:
            record |= _compare(values.reference, reference_config, scores.metrics)
        if not distributed.is_first():
            return
        if values.predictions:
            run_folder.write_files(values.predictions, scores.predictions)
            names = ", ".join(scores.predictions)
            print(f"wrote {names} to {values.predictions}", file=sys.stderr)
        print(json.dumps(record))


def _reference_config(reference: str) -> ConfigDict:
    """The config of a second model with the command line's changes, which scores slices.

    Raises:
        UserError: there is no such model, or it is not a language model.
    """
    from gmlp_flax import config as config_lib
    from gmlp_flax.training import pretrained, scoring

    overrides = config_lib.named_overrides(sys.argv)
    config = config_lib.overridden(pretrained.config_of(reference), overrides)
    try:
        scoring.add_slices(config)
    except ConfigError as error:
        raise ConfigError(f"--reference={reference}: {error}") from None
    return config


def _compare(
    reference: str, config: ConfigDict | None, metrics: dict[str, float]
) -> dict[str, Any]:
    """The metrics of a second model, and the share of the gap that is due to AR hits.

    Args:
        reference: the second model, as --workdir.
        config: its config, with slices.
        metrics: of the first model, with slices.
    """
    from gmlp_flax import config as config_lib
    from gmlp_flax.tasks import recall_slices
    from gmlp_flax.training import scoring

    overrides = config_lib.named_overrides(sys.argv)
    with cli.waiting(f"loading and scoring {reference}"):
        scores = scoring.evaluate_checkpoint(
            reference, flags.FLAGS.checkpoint, config=config, explicit=overrides.keys()
        )
    losses = []
    for both in (metrics, scores.metrics):
        chosen = recall_slices.of_running_mean(both)
        losses.append(recall_slices.SliceLosses.of_metrics(chosen))
    return {
        "reference": {"checkpoint": scores.checkpoint, "eval": scores.metrics},
        "share_of_gap": recall_slices.share_of_gap(*losses),
    }


def run() -> None:
    """The command line."""
    flags.DEFINE_string(
        "predictions", "", "Write predictions to this folder, in the form of the official scorers."
    )
    flags.DEFINE_bool(
        "slices",
        False,
        "Also score the tokens that repeat a bigram of their window, and the others.",
    )
    flags.DEFINE_string(
        "reference",
        "",
        "With --slices: a second run, and the share of the gap to it that AR hits explain.",
    )
    cli.define_run_flags(checkpoint="latest")
    cli.define_multihost_flags()
    cli.run(main, config=cli.config_of_run)
