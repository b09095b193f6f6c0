"""Trains a config at the points of a grid or the points of a sweep file, with several seeds, and prints how they end.

Usage: python scripts/sweep.py --config=FILE:ARGUMENT --out=DIR [--config.KEY=VALUE ...]
           [--grid=KEY=VALUE,VALUE,... [--grid=...]] [--seeds=0,1,2,3,4] [--choose=best|none] [--jobs=1]
       python scripts/sweep.py --config=FILE:ARGUMENT --out=DIR --sweep.KEY=VALUE,VALUE,... [--sweep.seed=0,1,2] ...
       python scripts/sweep.py --sweep=FILE[:ARGUMENT] --out=DIR [--config.KEY=VALUE ...] ...
       any of them with --print, --status, or --index=I [--of=N]

    python scripts/sweep.py --config=configs/quickstart_image.py --out=runs/digits_sweep \\
        --grid=optimizer.learning_rate=1e-3,2e-3 --grid=batch_size=32,64

The points are all combinations of the values given with --grid, one flag a key. Keys that change together share a flag:
--grid=batch_size:steps=16:1000,32:500. Each point and seed is one run of `python -m gmlp_flax.train` in
DIR/KEY=VALUE,...,seed=SEED. With --choose=best every point is trained with the first seed alone, and the other seeds at
the point whose held-out metric is then the best, the metric being the task's own. (The paper reports medians of five
runs and does not say how it chose rates and batch sizes.) --choose=none trains every point with every seed. The table
has a row a point: median, mean, lowest and highest over its seeds, which count the one that chose. All metrics of all
runs are written to DIR/sweep.json.

--sweep.KEY=VALUE,... is --grid=KEY=VALUE,... with --choose=none; `lr` is short for optimizer.learning_rate, and with
--sweep.seed there is no --seeds. A sweep file has get_sweep(arg) that returns points (gmlp_flax.sweep), each with the
name "config" for its config file and, if it likes, with its seed: all are trained, as configs/sweeps/table3.py.

--print shows a command for each run and trains nothing, --status how far the runs in DIR are. --index=I trains the
one run with the number I, counted from 0; with --of=N the runs I, I+N, I+2N, ... So the tasks of an array share a sweep
(SLURM: --index=$SLURM_ARRAY_TASK_ID); the command without --index then prints all and writes sweep.json.

A run that is finished in DIR is not run again and one that was interrupted goes on, so the same command ends what a
killed one began. Where one fails under --choose=best, or Ctrl-C or SIGTERM asks to stop, those under way save and stop
as well. Else the others go on, and the failed ones are listed at the end; the exit code is then 1.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import statistics
import sys
from collections.abc import Iterable
from typing import Any

from absl import flags
from running import Metrics, Runs, results
from sweep_plan import Plan, Run, parse_flags, planned

from gmlp_flax import cli, sweep
from gmlp_flax.training.errors import RunError

SUMMARY = {"median": statistics.median, "mean": statistics.mean, "lowest": min, "highest": max}


class Runner:
    """Trains runs and keeps what they end with, as `found[name of the run]`.

    Args:
        plan: of the sweep.
        runs: trains them.
        goes_on: whether runs that fail are kept in `failed`, a line each; else the first one raises its RunError.
    """

    def __init__(self, plan: Plan, runs: Runs, goes_on: bool):
        self.plan, self._runs, self.found, self.failed = plan, runs, {}, {}
        self._goes_on = goes_on

    def __call__(self, chosen: Iterable[Run]) -> None:
        """Trains runs; says on standard error what each ends with."""
        under_way = {run.name: self._runs.submit(run.name, run.flags) for run in chosen}
        self.found |= results(under_way, self._tell, self._note if self._goes_on else None)

    def best(self) -> Run:
        """The best of the runs."""
        plan, better = self.plan, {"min": min, "max": max}[self.plan.mode]
        ended = (run for run in plan.runs if run.name in self.found)
        return better(ended, key=lambda run: self.found[run.name][plan.metric])

    def _tell(self, name: str, metrics: Metrics) -> None:
        metric = self.plan.metric
        value = metrics.get(metric, math.nan)
        if not math.isfinite(value):
            raise RunError(f"the run {name} ended with {metric} {value}: it cannot be compared; leave its point out")
        print(f"{name}: {metric} {value:.5g}", file=sys.stderr, flush=True)

    def _note(self, name: str, error: RunError) -> None:
        log = os.path.join(os.path.abspath(self.plan.out), f"{name}.log")
        self.failed[name] = str(error) if log in str(error) else f"{error} (its output is in {log})"
        print(f"{name}: failed, the others go on", file=sys.stderr, flush=True)


def rows(plan: Plan, found: dict[str, Metrics]) -> list[dict[str, Any]]:
    """A row a point: its runs, and each metric's median, mean, lowest and highest over its seeds."""
    by_point: dict[str, list[Run]] = {}
    for run in plan.runs:
        by_point.setdefault(str(run.alike), []).append(run)
    table = []
    for alike in by_point.values():
        ended = [run for run in alike if run.name in found]
        columns = {key: [found[run.name].get(key) for run in ended] for key in (found[ended[0].name] if ended else ())}
        table.append({
            "point": alike[0].alike,
            "runs": [{"seed": run.config.seed, "workdir": run.name, "eval": found[run.name]} for run in ended],
            "summary": {
                key: {what: of(values) for what, of in SUMMARY.items()}
                for key, values in columns.items() if all(isinstance(value, int | float) for value in values)
            },
        })
    return table


def show(plan: Plan, table: list[dict[str, Any]], chosen: int | None) -> None:
    """Prints a row a point, and which was chosen, by what."""
    names = [sweep.name(row["point"]) or "the config as it is" for row in table]
    width = max(map(len, names), default=0)
    print(f"{'':<{width}} seeds" + "".join(f"{what:>11}" for what in SUMMARY) + f"  {plan.metric} of each seed")
    for label, row in zip(names, table, strict=True):
        of = row["summary"].get(plan.metric)
        summary = "".join(f"{of[what]:>11.5g}" if of else f"{'-':>11}" for what in SUMMARY)
        each = " ".join(f"{run['eval'][plan.metric]:.5g}" for run in row["runs"])
        print(f"{label:<{width}} {len(row['runs']):>5}{summary}  {each}".rstrip())
    if chosen is not None:
        print(
            f"chosen: {names[chosen]}, for its held-out {plan.metric} with seed {plan.runs[0].config.seed} "
            "(--choose=best; the paper does not say how it chose)"
        )


def train(plan: Plan) -> None:
    """Trains, prints, writes; exit code 1 where runs failed and the others went on.

    Raises:
        RunError: a run failed and none goes on.
    """
    chosen, values = None, flags.FLAGS
    with Runs(plan.out, values.jobs) as runs:
        runner = Runner(plan, runs, goes_on=values.choose == "none")
        if plan.choosing:
            seed = plan.runs[0].config.seed
            runner(run for run in plan.runs if run.config.seed == seed)
            best = runner.best().alike
            chosen = [row["point"] for row in rows(plan, runner.found)].index(best)
            runner(run for run in plan.runs if run.alike == best and run.config.seed != seed)
        else:
            runner(plan.runs)
    table = rows(plan, runner.found)
    show(plan, table, chosen)
    if values.index is None:
        with open(os.path.join(plan.out, "sweep.json"), "w") as file:
            json.dump({
                "config": plan.config, "overrides": plan.overrides, "metric": plan.metric, "mode": plan.mode,
                "chosen": chosen, "points": table, **({"failed": list(runner.failed)} if runner.failed else {}),
            }, file, indent=2)
    if runner.failed:
        count = f"{len(runner.failed)} of {len(plan.runs)} runs failed; the same command tries them again:"
        print(count, *runner.failed.values(), sep="\n", file=sys.stderr)
        raise SystemExit(1)


def command(plan: Plan, run: Run) -> str:
    """What trains a run by hand, for a shell."""
    workdir = f"--workdir={os.path.join(plan.out, run.name)}"
    return shlex.join(["python", "-m", "gmlp_flax.train", run.flags[0], workdir, *run.flags[1:]])


def main(_argv: list[str]) -> None:
    """Trains, or shows what would be or was."""
    plan = planned()
    if flags.FLAGS.status:
        import sweep_status  # Brings JAX; mistakes in flags answer at once.

        print(sweep_status.table(plan))
    elif flags.FLAGS.print:
        print("\n".join(command(plan, run) for run in plan.runs))
    else:
        train(plan)


if __name__ == "__main__":
    cli.define_config_flag()
    flags.DEFINE_string("out", None, "Folder for the runs and for sweep.json.")
    flags.DEFINE_list("seeds", ["0", "1", "2", "3", "4"], "Seeds, with commas between them; the first one chooses.")
    flags.DEFINE_multi_string("grid", [], "KEY=VALUE,VALUE,...: a config key and its values; give it once a key.")
    flags.DEFINE_string("sweep", "", "A sweep file, with an argument after a colon; or --sweep.KEY=VALUE,VALUE,...")
    flags.DEFINE_enum("choose", "best", ["best", "none"], "All seeds at the point that is best with one, or at all.")
    flags.DEFINE_integer("jobs", 1, "Runs at a time.", lower_bound=1)
    flags.DEFINE_integer("index", None, "Train this run alone, counted from 0; with --of=N, each N-th from it.")
    flags.DEFINE_integer("of", None, "How many share the runs; with --index.", lower_bound=1)
    flags.DEFINE_bool("print", False, "Print a command for each run, and train nothing.")
    flags.DEFINE_bool("status", False, "Print how far each run is, and train nothing.")
    cli.run(main, parser=parse_flags)
