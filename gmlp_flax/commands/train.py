"""Trains a model, or resumes a run that was interrupted.

    gmlp train --config=quickstart_text --workdir=runs/text --config.steps=1000
    gmlp train --config=own_images --dry_run --preview=sheet.png --config.data.train=photos/
    gmlp train --config=quickstart_text --member=0:1e-3:runs/a --member=1:2e-3:runs/b

Repeat the same command to resume an interrupted run. Pass --restart once to start over; nothing is
deleted. On several hosts, run the same command on each. --dry_run prints what was read of the data,
and ends without training. --member, several times, trains runs that differ in their seed and their
learning rate in one compiled program, which an accelerator takes little longer for than for one of
them; `gmlp sweep --together` does so for the points of a sweep.

Exit code 0 means that the run has finished, or that a signal stopped it and it has saved (with
--stopped_code: that code). 2 means an error in the flags, the config or the data, which one line
describes. After any other code a restart may help, for example after a lost host or a step that
hangs.
"""

import shlex
import sys
from typing import Any, NamedTuple

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.checkpoints import CONFIG_FILE
from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError, RunError, UserError
from gmlp_flax.io import files
from gmlp_flax.io.logs import heartbeat


def main(_argv: list[str], config: ConfigDict) -> None:
    """Trains, draws the run's loss curve, and says what can be done with the run."""
    cli.require("config")
    if flags.FLAGS.dry_run:
        dry_run(config)
        return
    if flags.FLAGS.preview:
        raise ConfigError("--preview is drawn by --dry_run: give both")
    if flags.FLAGS.member:
        train_members(config)
        return
    workdir = cli.require("workdir")
    # Imported here so that --help_config and errors in flags answer at once.
    with cli.among_processes():
        with heartbeat("loading", at_once=False):
            from gmlp_flax import config as config_lib
            from gmlp_flax.planning import meshes
            from gmlp_flax.processes import distributed, output, stopping
            from gmlp_flax.training import loop

        figures: list[str] = []
        options = loop.TrainOptions(
            restart=flags.FLAGS.restart,
            other_data=flags.FLAGS.other_data,
            explicit_keys=config_lib.named_overrides(sys.argv),
            choose_mesh=meshes.choose_here,
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


def train_members(config: ConfigDict) -> None:
    """Trains the runs of --member together, and draws their loss curves."""
    if flags.FLAGS.workdir:
        raise ConfigError("--workdir and --member exclude each other: each --member has its folder")
    members = [member_of(word) for word in flags.FLAGS.member]
    with cli.among_processes():
        from gmlp_flax import config as config_lib
        from gmlp_flax.config.schema import MEMBER_KEYS
        from gmlp_flax.planning import meshes
        from gmlp_flax.processes import output, stopping
        from gmlp_flax.training import loop, together

        runs = []
        for member in members:
            values = (member.seed, member.rate)
            changes: dict[str, Any] = dict(zip(MEMBER_KEYS, values, strict=True))
            member_config = config_lib.overridden(config, changes)
            runs.append(together.Run(member_config, member.workdir))
        options = loop.TrainOptions(
            restart=flags.FLAGS.restart,
            other_data=flags.FLAGS.other_data,
            explicit_keys={*config_lib.named_overrides(sys.argv), *MEMBER_KEYS},
            choose_mesh=meshes.choose_here,
        )
        problems = []
        try:
            with stopping.terminable():
                outcomes = together.train_together(runs, options)
                for run, outcome in zip(runs, outcomes, strict=True):
                    if outcome.problem:
                        problems.append(f"{run.workdir}: {outcome.problem}")
                    elif outcome.result is not None:
                        print(*draw_loss(run.workdir), sep="\n")
        except stopping.Terminated as signal:
            print(f"{signal}: no step was running; give the same command again", file=sys.stderr)
            output.end_at_once(flags.FLAGS.stopped_code)
        if problems:
            raise RunError("; ".join(problems))
    if not all(outcome.result for outcome in outcomes):
        raise SystemExit(flags.FLAGS.stopped_code)


class Member(NamedTuple):
    """What a --member names: the seed and the learning rate of a run, and its folder."""

    seed: int
    rate: float
    workdir: str


def member_of(word: str) -> Member:
    """What SEED:RATE:FOLDER names. Raises ConfigError: it has another form."""
    seed, _, rest = word.partition(":")
    rate, _, workdir = rest.partition(":")
    try:
        member = Member(int(seed), float(rate), workdir)
    except ValueError:
        member = None
    if member is None or not member.workdir:
        raise ConfigError(f"--member={word}: expected SEED:RATE:FOLDER, as in 0:1e-3:runs/a")
    return member


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
    flags.DEFINE_multi_string(
        "member",
        [],
        "Instead of --workdir: SEED:RATE:FOLDER, a run that is trained together with others.",
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
