"""Trains a model, or resumes a run that was interrupted.

    gmlp train --config=quickstart_text --workdir=runs/text --config.steps=1000
    gmlp train --config=own_images --dry_run --preview=sheet.png --config.data.train=photos/

Repeat the same command to resume an interrupted run. Pass --restart once to start over; nothing is
deleted. On several hosts, run the same command on each. --dry_run prints what was read of the data,
and ends without training.

Exit code 0 means that the run has finished, or that a signal stopped it and it has saved (with
--stopped_code: that code). 2 means an error in the flags, the config or the data, which one line
describes. After any other code a restart may help, for example after a lost host or a step that
hangs.
"""

import shlex
import sys

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.checkpoints import CONFIG_FILE
from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError, UserError
from gmlp_flax.io import files


def main(_argv: list[str], config: ConfigDict) -> None:
    """Trains, draws the run's loss curve, and says what can be done with the run."""
    cli.require("config")
    if flags.FLAGS.dry_run:
        dry_run(config)
        return
    if flags.FLAGS.preview:
        raise ConfigError("--preview is drawn by --dry_run: give both")
    workdir = cli.require("workdir")
    # Imported here so that --help_config and errors in flags answer at once.
    with cli.among_processes():
        from gmlp_flax import config as config_lib
        from gmlp_flax.planning import plan
        from gmlp_flax.processes import distributed, output, stopping
        from gmlp_flax.training import loop

        figures: list[str] = []
        options = loop.TrainOptions(
            restart=flags.FLAGS.restart,
            other_data=flags.FLAGS.other_data,
            explicit_keys=config_lib.named_overrides(sys.argv),
            choose_mesh=plan.choose_mesh_here,
        )
        try:
            with stopping.terminable():
                result = loop.train(config, workdir, options)
                if result is not None and distributed.is_first():
                    figures = draw_loss(workdir)
        except stopping.Terminated as signal:
            print(f"{signal}: no step was running; give the same command again", file=sys.stderr)
            output.end_at_once(flags.FLAGS.stopped_code)
        if result is not None and distributed.is_first():
            run_config = config_lib.load(files.join(workdir, CONFIG_FILE))
            print(*figures, *what_next(run_config, workdir), sep="\n")
    # only now: an error in the block above would end one process of several at once
    if result is None:
        raise SystemExit(flags.FLAGS.stopped_code)


def dry_run(config: ConfigDict) -> None:
    """Prints what a run would read, and draws some images if --preview is set."""
    from gmlp_flax import config as config_lib
    from gmlp_flax.analysis import contact_sheet
    from gmlp_flax.api import inspection

    preview = flags.FLAGS.preview
    explicit = config_lib.named_overrides(sys.argv)
    with cli.waiting("reading the data"):
        data = inspection.read(config, flags.FLAGS.workdir or "", explicit)
        found = data.inspect()
    print(found)
    if preview:
        contact_sheet.write(data, preview)
        print(f"wrote {preview}")


def draw_loss(workdir: str) -> list[str]:
    """Draws a run's loss curve; returns the paths of the figures. If a figure cannot be drawn, a
    line on standard error says so: the run is finished all the same."""
    from gmlp_flax.analysis import figure_files
    from gmlp_flax.reports import curves

    try:
        with cli.waiting("drawing the loss"):
            return figure_files.save({"loss": curves.of_run(workdir)}, workdir)
    except UserError as error:
        print(error, file=sys.stderr)
        return []


def what_next(config: ConfigDict, workdir: str) -> list[str]:
    """Commands that use a finished run, one per line."""
    from gmlp_flax import tasks
    from gmlp_flax.models import blocks
    from gmlp_flax.tasks.text import TextTask

    block = blocks.find(config.model.block)
    task = tasks.find(config.task)
    path = shlex.quote(workdir)
    # Commands on a run import nothing of others.
    modules = {name.partition(":")[0] for name in (config.model.block, config.task) if ":" in name}
    for module in sorted(modules):
        path += f" --trust={module}"
    advice = {}
    if task.Predictor is not None:
        advice[f"gmlp predict --workdir={path} {task.Predictor.usage}"] = "use the model"
    if block.has_spatial_matrix(config.model):
        advice[f"gmlp draw filters {path}"] = "draw what its spatial projections learned"
    elif issubclass(task, TextTask) and block.attention_scores is not blocks.Block.attention_scores:
        advice[f"gmlp draw attention {path} --text=SENTENCE"] = "draw what its attention looks at"
    advice[f"gmlp evaluate --workdir={path} --checkpoint=best"] = "score its best checkpoint"
    width = max(len(command) for command in advice)
    return [f"  {command:<{width}}  {what}" for command, what in advice.items()]


def run() -> None:
    """The command line."""
    flags.DEFINE_string(
        "workdir", None, "The run folder: config, metrics, result, checkpoints, figures."
    )
    flags.DEFINE_bool(
        "restart",
        False,
        "Start over: everything in the run folder is moved to its folder before-1.",
    )
    flags.DEFINE_bool(
        "other_data", False, "Continue although the data differ from those of earlier steps."
    )
    flags.DEFINE_bool("dry_run", False, "Print what was read of the data, and train nothing.")
    flags.DEFINE_string(
        "preview",
        "",
        "With --dry_run: write images of five classes to this .png file, as evaluation sees them.",
    )
    flags.DEFINE_integer(
        "stopped_code",
        0,
        "The exit code after a signal; a launcher that restarts failed runs needs a special one.",
        lower_bound=0,
        upper_bound=125,
    )
    cli.define_multihost_flags()
    cli.run(main, config=cli.given_config)
