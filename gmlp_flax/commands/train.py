"""Trains a model, or goes on where a run was interrupted.

    gmlp train --config=quickstart_text --workdir=runs/text --config.steps=1000

The same command again goes on where the run was interrupted; --restart, given once, begins anew,
and deletes nothing. On several hosts the same command runs on each.

Exit code 0: finished, or stopped by a signal and saved (with --stopped_code: that code). 2: a
mistake in the flags, the config or the data, told in one line. Any other: a restart may help, for
example after a lost host or a step that hangs.
"""

import shlex
import sys

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.commands import cli


def main(_argv: list[str], config: ConfigDict) -> None:
    """Trains, draws the run's loss curve, and says what can be done with the run."""
    cli.require("config")
    workdir = cli.require("workdir")
    # Imported here so that --help_config and mistakes in flags answer at once.
    with cli.among_processes():
        from gmlp_flax.planning import plan
        from gmlp_flax.processes import distributed, output, stopping
        from gmlp_flax.training import loop

        figures: list[str] = []
        try:
            with stopping.terminable():
                result = loop.train(
                    plan.settle_mesh(config, workdir),
                    workdir,
                    restart=flags.FLAGS.restart,
                    other_data=flags.FLAGS.other_data,
                )
                if result is not None and distributed.is_first():
                    figures = draw_loss(workdir)
        except stopping.Terminated as signal:
            print(f"{signal}: no step was running; give the same command again", file=sys.stderr)
            output.end_at_once(flags.FLAGS.stopped_code)
        if result is not None and distributed.is_first():
            print(*figures, *what_next(config, workdir), sep="\n")
    # only now: an error in the block above would end one process of several at once
    if result is None:
        raise SystemExit(flags.FLAGS.stopped_code)


def draw_loss(workdir: str) -> list[str]:
    """Draws a run's loss curve; returns the paths of the figures. A figure that cannot be drawn is
    a line on standard error: the run is finished all the same."""
    from gmlp_flax.analysis import figure_files
    from gmlp_flax.reports import curves

    try:
        with cli.waiting("drawing the loss"):
            return figure_files.save({"loss": curves.of_run(workdir)}, workdir)
    except cli.USER_ERRORS as error:
        print(error, file=sys.stderr)
        return []


def what_next(config: ConfigDict, workdir: str) -> list[str]:
    """Commands that use a finished run, one per line."""
    from gmlp_flax import tasks
    from gmlp_flax.models import blocks

    block, task, path = (
        blocks.find(config.model.block),
        tasks.find(config.task),
        shlex.quote(workdir),
    )
    modules = {name.partition(":")[0] for name in (config.model.block, config.task) if ":" in name}
    # commands on a run import nothing of others
    path += "".join(f" --trust={module}" for module in sorted(modules))
    advice, reads_text = {}, task.prepare is not tasks.Task.prepare and not task.predicts_files
    if reads_text or task.predicts_files:
        advice[f"gmlp predict --workdir={path} {'< TEXT' if reads_text else 'IMAGE ...'}"] = (
            "use the model"
        )
    if block.spatial_matrix is not blocks.Block.spatial_matrix:
        advice[f"gmlp draw filters {path}"] = "draw what its spatial projections learned"
    elif reads_text and block.attention_scores is not blocks.Block.attention_scores:
        advice[f"gmlp draw attention {path} --text=SENTENCE"] = "draw what its attention looks at"
    advice[f"gmlp evaluate --workdir={path} --checkpoint=best"] = "score its best checkpoint"
    width = max(map(len, advice))
    return [f"  {command:<{width}}  {what}" for command, what in advice.items()]


def run() -> None:
    """The command line."""
    flags.DEFINE_string(
        "workdir", None, "The run folder: config, metrics, result, checkpoints, figures."
    )
    flags.DEFINE_bool(
        "restart",
        False,
        "Begin anew: what is in the run folder is put aside in its folder before-1.",
    )
    flags.DEFINE_bool(
        "other_data", False, "Go on though the data are others than those of the steps before."
    )
    stopped_code = "The exit code after a signal; a launcher that starts failed runs again needs a special one."
    flags.DEFINE_integer("stopped_code", 0, stopped_code, lower_bound=0, upper_bound=125)
    cli.define_multihost_flags()
    cli.run(main, config=cli.given_config)
