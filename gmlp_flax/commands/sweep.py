"""Trains a config at the points of a grid or of a sweep file, with several seeds, and prints the
results.

    gmlp sweep --config=quickstart_image --out=runs/digits_sweep \\
        --grid=optimizer.learning_rate=1e-3,2e-3 --grid=batch_size=32,64
    gmlp sweep --config=quickstart_text --out=runs/rates --sweep.lr=1e-3,5e-3 --sweep.seed=0,1,2
    gmlp sweep --sweep=FILE[:ARGUMENT] --out=DIR [--config.KEY=VALUE ...] ...
    any of them with --print, --status, --status --json or --on=ENGINE

The points are all combinations of the values of --grid, one flag for each key. Keys that change
together share a flag: --grid=batch_size:steps=16:1000,32:500. Each point and seed is one run of
`gmlp train` in DIR/KEY=VALUE,...,seed=SEED. --choose=best first trains every point with the first
seed and config.data.search=True, which scores a part of the training data. Then it trains the best
point with every seed, so the reported data did not influence the choice. --choose=none trains every
point with every seed. The table has a row for each point, with the median, mean, lowest and highest
over its seeds. DIR/report shows it as a page, with the held-out metric over the steps, and
DIR/sweep.json has all metrics.

--sweep.KEY=VALUE,... is --grid=KEY=VALUE,... with --choose=none. `lr` is short for
optimizer.learning_rate, and --sweep.seed replaces --seeds. A sweep file has a function
get_sweep(arg) that returns points (gmlp_flax.sweeps.points), all of which are trained.

--on=ENGINE starts a job for each unfinished run on a cluster (slurm) or a cloud, with the flags of
`gmlp launch`. When all have ended, the same command without --on prints the table.

Repeat the command to finish a sweep that was killed: finished runs are kept, interrupted ones
resume. If a run fails under --choose=best, and after Ctrl-C or SIGTERM, the active runs save and
stop. Otherwise the others continue, the failed runs are listed at the end, and the exit code is 1.
"""

import json
import re
import shlex
import sys

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.checkpoints import RESULT_FILE
from gmlp_flax.commands import cli, launch
from gmlp_flax.config import named_overrides, open_config, schema
from gmlp_flax.errors import ConfigError
from gmlp_flax.io import files
from gmlp_flax.reports import curves
from gmlp_flax.reports.web import page
from gmlp_flax.sweeps import definition, points, states, training
from gmlp_flax.sweeps.definition import SEARCH, Sweep, Trial
from gmlp_flax.sweeps.points import Point, Points


def _with_grids(argv: list[str]) -> list[str]:
    """--sweep.KEY=VALUE,... stands for --grid=KEY=VALUE,... and --choose=none."""
    short_names = schema.short_names()
    words = []
    for word in argv:
        match = re.match(r"--?sweep\.([^=]+)", word)
        if not match:
            words.append(word)
            continue
        keys = ":".join(short_names.get(key, key) for key in match[1].split(":"))
        words.append(f"--grid={keys}{word[match.end() :]}")
        words.insert(1, "--choose=none")  # first, so that --choose=... further on counts
    return words


def _config(values: flags.FlagValues) -> ConfigDict | None:
    """The config of --config or, with a sweep file, of its first point."""
    if not values.sweep:
        return cli.given_config(values)
    if values.config:
        raise ConfigError(
            f"--config={values.config} and --sweep={values.sweep} exclude each other: leave one out"
        )
    values.set_default("choose", "none")
    return open_config(definition.from_file(values.sweep)[0][points.CONFIG])


def plan_sweep(config: ConfigDict | None) -> Sweep:
    """The sweep that the command line asks for, checked.

    Raises:
        ConfigError, RunError: it cannot be run.
    """
    values = flags.FLAGS
    if config is None:
        raise ConfigError("--config is missing: give --config=NAME[:ARGUMENT], or --sweep=FILE")
    out = cli.require("out")
    if values.sweep and values.choose != "none":
        raise ConfigError("--choose=best goes with --grid: all points of a sweep file are trained")
    parts = [points.parse(values.grid)]
    if values.sweep:
        parts.insert(0, definition.from_file(values.sweep))
    bare = points.product(*parts)
    overrides = {name: config[name] for name in named_overrides(sys.argv)}
    seeds = _seeds(bare, overrides)
    choosing = values.choose == "best" and len(bare) > 1
    engine_flags = [name for name in launch.OWN_FLAGS if values[name].present]
    if engine_flags and not values.on:
        raise ConfigError(
            f"--{engine_flags[0]} is for an engine: give --on=ENGINE with it; --print shows the "
            "commands"
        )
    if values.together > 1 and (values.print or values.on):
        raise ConfigError("--together trains here; --print and --on have a command for each run")
    if choosing and (values.print or values.on):
        raise ConfigError(
            "--print and --on cannot choose the best point: give --choose=none, for all seeds"
        )
    trained = []
    if choosing:
        for point in bare:
            trained.append(point | seeds[0] | {SEARCH: True})
    for point in bare:
        for seed in seeds:
            trained.append(point | seed)
    return definition.define(
        values.sweep or values.config, tuple(trained), overrides, out, choosing, values.trust
    )


def _seeds(bare: Points, overrides: Point) -> Points:
    """The seeds of each point; one empty point if the sweep or the points' configs set the seed."""
    values = flags.FLAGS
    is_set = "seed" in overrides or any("seed" in point for point in bare)
    has_flag = values["seeds"].present
    if is_set and (has_flag or values.choose == "best"):
        raise ConfigError(
            "--seeds sets the key seed: give it there alone, or --choose=none without --seeds"
        )
    if is_set or (values.sweep and not has_flag):
        return ({},)
    cli.require("seeds")
    return tuple({"seed": seed} for seed in dict.fromkeys(cli.numbers("seeds")))


def command(sweep: Sweep, trial: Trial) -> list[str]:
    """Training's words for a trial."""
    return [trial.flags[0], f"--workdir={files.join(sweep.out, trial.name)}", *trial.flags[1:]]


def launch_unfinished(sweep: Sweep) -> None:
    """Starts a job for each run without a result, on the engine that --on names; or says that there
    is none."""
    runs = []
    for number, trial in enumerate(sweep.trials):
        workdir = files.join(sweep.out, trial.name)
        if not files.exists(files.join(workdir, RESULT_FILE)):
            runs.append(launch.Run(trial.config, workdir, command(sweep, trial), f"-{number}"))
    if runs:
        launch.start(runs, sweep.out)
    else:
        print(states.status(sweep))


def main(_argv: list[str], config: ConfigDict | None) -> None:
    """Trains the sweep, or shows its commands or its state."""
    sweep = plan_sweep(config)
    if flags.FLAGS.json and not flags.FLAGS.status:
        raise ConfigError("--json goes with --status; DIR/sweep.json has all results")
    if flags.FLAGS.json:
        print(json.dumps(states.status_object(sweep), indent=2))
    elif flags.FLAGS.status:
        print(states.status(sweep))
    elif flags.FLAGS.print:
        for trial in sweep.trials:
            print(shlex.join(["python", "-m", "gmlp_flax.train", *command(sweep, trial)]))
    elif flags.FLAGS.on:
        launch_unfinished(sweep)
    else:
        continue_on_failure = flags.FLAGS.choose == "none"
        complete = training.train(
            sweep, flags.FLAGS.jobs, continue_on_failure, flags.FLAGS.together
        )
        made = curves.of_sweep(sweep.out)
        if any(count for _, count, *_ in made.table.rows):
            path = page.write(made, files.join(sweep.out, "report"))
            print(made.markdown(), *made.sentences(), f"\nthe report: {path}", sep="\n")
        if not complete:
            raise SystemExit(1)


def run() -> None:
    """The command line."""
    flags.DEFINE_string("out", None, "Folder for the runs and for sweep.json.")
    flags.DEFINE_list(
        "seeds",
        ["0", "1", "2", "3", "4"],
        "Seeds, with commas between them; the first one is used to choose the point.",
    )
    flags.DEFINE_multi_string("grid", [], "KEY=VALUE,VALUE,...: a config key and its values.")
    flags.DEFINE_string(
        "sweep", "", "A sweep file, with an argument after a colon; or --sweep.KEY=VALUE,VALUE,..."
    )
    flags.DEFINE_enum(
        "choose",
        "best",
        ["best", "none"],
        "best: every point with the first seed, then the best point with the others; none: all with "
        "all seeds.",
    )
    flags.DEFINE_integer("jobs", 1, "The number of runs at a time.", lower_bound=1)
    flags.DEFINE_integer(
        "together",
        1,
        "The most points that one compiled program trains, if they differ in seed and learning rate "
        "alone: for small models on an accelerator.",
        lower_bound=1,
    )
    flags.DEFINE_bool("print", False, "Print a command for each run, and train nothing.")
    flags.DEFINE_bool("status", False, "Print how far each run is, and train nothing.")
    flags.DEFINE_bool("json", False, "With --status: print it as JSON.")
    launch.define_flags()
    cli.run(main, config=_config, words=_with_grids)
