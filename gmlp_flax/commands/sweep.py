"""Trains a config at the points of a grid or of a sweep file, with several seeds, and prints how they end.

    gmlp sweep --config=quickstart_image --out=runs/digits_sweep \\
        --grid=optimizer.learning_rate=1e-3,2e-3 --grid=batch_size=32,64
    gmlp sweep --config=FILE:ARGUMENT --out=DIR [--config.KEY=VALUE ...]
        [--grid=KEY=VALUE,VALUE,... [--grid=...]] [--seeds=0,1,2,3,4] [--choose=best|none] [--jobs=1]
    gmlp sweep --config=FILE:ARGUMENT --out=DIR --sweep.KEY=VALUE,VALUE,... [--sweep.seed=0,1,2] ...
    gmlp sweep --sweep=FILE[:ARGUMENT] --out=DIR [--config.KEY=VALUE ...] ...
    any of them with --print, --status, --on=ENGINE, or --index=I [--of=N]

The points are all combinations of the values given with --grid, one flag for each key. Keys that change together share
a flag: --grid=batch_size:steps=16:1000,32:500. Each point and seed is one run of `gmlp train` in
DIR/KEY=VALUE,...,seed=SEED. With --choose=best every point is trained with the first seed alone, and the other seeds at
the point whose held-out metric is then the best, the metric being the task's own. (The paper reports medians of five
runs and does not say how it chose rates and batch sizes.) --choose=none trains every point with every seed. The table
has a row for each point: median, mean, lowest and highest over its seeds, including the one that chose the point. All
metrics of all runs are written to DIR/sweep.json.

--sweep.KEY=VALUE,... is --grid=KEY=VALUE,... with --choose=none; `lr` is short for optimizer.learning_rate, and with
--sweep.seed there is no --seeds. A sweep file has get_sweep(arg) that returns points (gmlp_flax.sweeps.points). Each
point names its config file under "config" and may set its seed; all points are trained.

--print shows a command for each run and trains nothing; --status shows how far the runs in DIR are. --index=I trains
one run, the one with the number I, counted from 0; with --of=N the runs I, I+N, I+2N, ... So the tasks of an array
share a sweep (SLURM: --index=$SLURM_ARRAY_TASK_ID); the command without --index then prints the table and writes
sweep.json.

--on=ENGINE starts a job for each run that is not finished on a cluster or a cloud, as `gmlp launch` does and with its
flags; all points are trained with all seeds, and --status shows how far they are.

A run that is finished in DIR is not run again and an interrupted run goes on, so the same command ends what a killed
one began. If a run fails under --choose=best, or Ctrl-C or SIGTERM asks to stop, the running ones save and stop as
well. Otherwise the others go on, and the failed runs are listed at the end; the exit code is then 1.
"""

from __future__ import annotations

import concurrent.futures
import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence

from absl import flags
from ml_collections import ConfigDict

from gmlp_flax.checkpoints import run_folder
from gmlp_flax.checkpoints.names import RESULT_FILE
from gmlp_flax.commands import cli, launch
from gmlp_flax.config.overrides import named_overrides
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.io import files
from gmlp_flax.sweeps import definition, points, tables
from gmlp_flax.sweeps.definition import Sweep, Trial
from gmlp_flax.sweeps.points import Point, Points
from gmlp_flax.sweeps.runner import Metrics, RunFailed, TrainingPool

SHORT = {"lr": "optimizer.learning_rate"}  # names that --sweep.NAME=... takes beside the keys


def _with_grids(argv: list[str]) -> list[str]:
    """--sweep.KEY=VALUE,... stands for --grid=KEY=VALUE,... and --choose=none. A word -- may precede the overrides."""
    given = [word for word in argv if word != "--"]
    words = [re.sub(r"^--?sweep\.([^=]+)", _grid, word) for word in given]
    # First, so that --choose=... further on counts.
    return [*words[:1], *(["--choose=none"] if words != given else []), *words[1:]]


def _grid(flag: re.Match[str]) -> str:
    return f"--grid={':'.join(SHORT.get(key, key) for key in flag[1].split(':'))}"


def _config(values: flags.FlagValues) -> str:
    """The config of --config or, with a sweep file, of its first point."""
    if not values.sweep:
        return cli.given_config(values)
    if values.config:
        raise ConfigError(
            f"--config={values.config} and --sweep={values.sweep} exclude each other: a sweep file's points name their "
            "configs"
        )
    values.set_default("choose", "none")
    return definition.from_file(values.sweep)[0][points.CONFIG]


def planned(config: ConfigDict | None) -> Sweep:
    """The sweep that the command line asks for, checked.

    Raises:
        ConfigError, RunError: it cannot be run.
    """
    values = flags.FLAGS
    if config is None:
        raise ConfigError("--config is missing: give --config=NAME[:ARGUMENT], or --sweep=FILE")
    if not values.out:
        raise ConfigError("--out is missing: give --out=DIR, a folder for the runs")
    if values.sweep and values.choose != "none":
        raise ConfigError("--choose=best goes with --grid: all points of a sweep file are trained")
    bare = points.product(*([definition.from_file(values.sweep)] if values.sweep else []), points.parse(values.grid))
    overrides = {name: config[name] for name in named_overrides(sys.argv)}
    if twice := [key for point in bare for key in point if key in overrides]:
        raise ConfigError(f"--config.{twice[0]} and the sweep set the same key: give one")
    seeds = _seeds(bare, overrides)
    choosing = values.choose == "best" and len(bare) > 1
    if not values.on and (given := launch.engine_flags_given()):
        raise ConfigError(f"--{given[0]} is for an engine: give --on=ENGINE with it; --print shows the runs' commands")
    if values.on and values.index is not None:
        raise ConfigError("--on starts all runs, and --index one: give one of them")
    if choosing and (values.print or values.on or values.index is not None):
        every = "give --choose=none, for all seeds of all"
        raise ConfigError(f"--print, --on and --index cannot choose the best point: {every}")
    every = tuple(point | seed for point in bare for seed in seeds)
    source = values.sweep or values.config
    sweep = definition.define(source, every, overrides, values.out, choosing, values.trust)
    return sweep._replace(trials=_share(sweep.trials, values.index, values.of))


def _seeds(bare: Points, overrides: Point) -> Points:
    """The seeds of each point; one empty point if the sweep or the points' configs set the seed."""
    values, own = flags.FLAGS, any("seed" in point for point in bare)
    given = values["seeds"].present
    if own and given:
        raise ConfigError("--seeds and the sweep set the same key, seed: give one")
    if values.choose == "none" and (own or (values.sweep and not given)):
        return ({},)
    if not values.seeds or not all(seed.isdecimal() for seed in values.seeds):
        raise ConfigError(f"--seeds={','.join(values.seeds)}: expected numbers, as in --seeds=0,1,2")
    if own or "seed" in overrides:
        raise ConfigError("the key seed is set by --seeds: give it there alone")
    return tuple({"seed": seed} for seed in dict.fromkeys(map(int, values.seeds)))


def _share(trials: tuple[Trial, ...], index: int | None, of: int | None) -> tuple[Trial, ...]:
    """The trials that --index and --of name."""
    if index is None:
        if of is not None:
            raise ConfigError(f"--of={of} goes with --index: give --index=I, from 0 to {of - 1}")
        return trials
    count = of or len(trials)
    if not 0 <= index < count:
        why = f"with --of={of}" if of else f"for a sweep of {count} runs"
        raise ConfigError(f"--index={index} is out of range: expected 0 to {count - 1} {why}")
    return trials[index::count]


class Runner:
    """Trains trials; keeps their metrics as `found[name]`.

    Args:
        sweep: the sweep.
        pool: trains them.
        goes_on: whether trials that fail are kept in `failed`; else the first one raises its RunError.
    """

    def __init__(self, sweep: Sweep, pool: TrainingPool, goes_on: bool):
        self._sweep, self._pool, self._goes_on = sweep, pool, goes_on
        self.found: dict[str, Metrics] = {}
        self.failed: dict[str, RunError] = {}

    def __call__(self, trials: Iterable[Trial]) -> None:
        """Trains some trials; prints the metric of each on standard error as it ends."""
        names = {self._pool.submit(trial.name, trial.flags): trial.name for trial in trials}
        for run in concurrent.futures.as_completed(names):
            name = names[run]
            try:
                self._show(name, run.result())
                self.found[name] = run.result()
            except RunError as error:
                if not self._goes_on:
                    raise
                self._note_failure(name, error)

    def best(self) -> Trial:
        """The best of the trials so far."""
        sweep, better = self._sweep, {"min": min, "max": max}[self._sweep.mode]
        ended = (trial for trial in sweep.trials if trial.name in self.found)
        return better(ended, key=lambda trial: self.found[trial.name][sweep.metric])

    def _show(self, name: str, metrics: Metrics) -> None:
        metric = self._sweep.metric
        value = metrics.get(metric, math.nan)
        if not math.isfinite(value):
            raise RunError(f"the run {name} ended with {metric} {value}: it cannot be compared; leave its point out")
        print(f"{name}: {metric} {value:.5g}", file=sys.stderr, flush=True)

    def _note_failure(self, name: str, error: RunError) -> None:
        new = _told(error) not in map(_told, self.failed.values())
        self.failed[name] = error
        reason = f" ({_told(error)})" if new and _told(error) else ""
        print(f"{name}: failed{reason}, the others go on", file=sys.stderr, flush=True)

    def failures(self) -> list[str]:
        """A line for each failed trial; those that told the same reason share one."""
        alike: dict[str, list[str]] = {}
        for name, error in self.failed.items():
            alike.setdefault(_told(error) or name, []).append(name)
        return [self._failure(names) for names in alike.values()]

    def _failure(self, names: Sequence[str]) -> str:
        error, log = self.failed[names[0]], os.path.join(files.absolute(self._sweep.out), f"{names[0]}.log")
        if len(names) > 1:
            return f"{len(names)} runs failed ({_told(error)}): the output of the first is in {log}"
        return str(error) if log in str(error) else f"{error} (its output is in {log})"


def _told(error: RunError) -> str:
    """The reason that a training process told; empty if it told none."""
    return error.reason if isinstance(error, RunFailed) else ""


def train(sweep: Sweep) -> None:
    """Trains, prints the table, writes sweep.json; ends with exit code 1 if trials failed and the others went on.

    Raises:
        RunError: a trial failed and the others do not go on.
    """
    chosen, values = None, flags.FLAGS
    with TrainingPool(sweep.out, values.jobs) as pool:
        runner = Runner(sweep, pool, goes_on=values.choose == "none")
        if sweep.choosing:
            seed = sweep.trials[0].config.seed
            runner(trial for trial in sweep.trials if trial.config.seed == seed)
            best = runner.best().seedless
            chosen = [row["point"] for row in tables.rows(sweep, runner.found)].index(best)
            runner(trial for trial in sweep.trials if trial.seedless == best and trial.config.seed != seed)
        else:
            runner(sweep.trials)
    table = tables.rows(sweep, runner.found)
    if runner.found:
        print(tables.text(sweep, table, chosen))
    if values.index is None:
        run_folder.write_json(
            os.path.join(sweep.out, "sweep.json"),
            {
                "config": sweep.source,
                "overrides": sweep.overrides,
                "metric": sweep.metric,
                "mode": sweep.mode,
                "chosen": chosen,
                "points": table,
                **({"failed": list(runner.failed)} if runner.failed else {}),
            },
        )
    if runner.failed:
        count = f"{len(runner.failed)} of {len(sweep.trials)} runs failed; the same command tries them again:"
        print(count, *runner.failures(), sep="\n", file=sys.stderr)
        raise SystemExit(1)


def command(sweep: Sweep, trial: Trial) -> list[str]:
    """Training's words for a trial."""
    return [trial.flags[0], f"--workdir={files.join(sweep.out, trial.name)}", *trial.flags[1:]]


def launch_unfinished(sweep: Sweep) -> None:
    """Starts a job for each run without a result, on the engine that --on names; or says that there is none."""
    folders = {trial.name: files.join(sweep.out, trial.name) for trial in sweep.trials}
    runs = [
        launch.Run(trial.config, folders[trial.name], command(sweep, trial), f"-{number}")
        for number, trial in enumerate(sweep.trials)
        if not files.exists(files.join(folders[trial.name], RESULT_FILE))
    ]
    if runs:
        launch.start(runs, sweep.out)
    else:
        print(tables.status(sweep))


def main(_argv: list[str], config: ConfigDict | None) -> None:
    """Trains the sweep, or shows its commands or its state."""
    sweep = planned(config)
    if flags.FLAGS.status:
        print(tables.status(sweep))
    elif flags.FLAGS.print:
        for trial in sweep.trials:
            print(shlex.join(["python", "-m", "gmlp_flax.train", *command(sweep, trial)]))
    elif flags.FLAGS.on:
        launch_unfinished(sweep)
    else:
        train(sweep)


def run() -> None:
    """The command line."""
    flags.DEFINE_string("out", None, "Folder for the runs and for sweep.json.")
    flags.DEFINE_list("seeds", ["0", "1", "2", "3", "4"], "Seeds, with commas between them; the first one chooses.")
    flags.DEFINE_multi_string("grid", [], "KEY=VALUE,VALUE,...: a config key and its values; one flag for each key.")
    flags.DEFINE_string("sweep", "", "A sweep file, with an argument after a colon; or --sweep.KEY=VALUE,VALUE,...")
    what = "best: every point with the first seed, then the best point with the others; none: all with all seeds."
    flags.DEFINE_enum("choose", "best", ["best", "none"], what)
    flags.DEFINE_integer("jobs", 1, "Runs at a time.", lower_bound=1)
    flags.DEFINE_integer("index", None, "Train this run alone, counted from 0; with --of=N, each N-th from it.")
    flags.DEFINE_integer("of", None, "The number of tasks that share the runs; with --index.", lower_bound=1)
    flags.DEFINE_bool("print", False, "Print a command for each run, and train nothing.")
    flags.DEFINE_bool("status", False, "Print how far each run is, and train nothing.")
    launch.define_flags()
    cli.run(main, config=_config, words=_with_grids)
