"""Makes one of the paper's tables or figures again: trains what is missing and writes a report.

Usage: python scripts/reproduce.py NAME [--scale=cpu|gpu|paper] [--data=DATA] [--finetune=TASK=DATA ...] [--from=RUNS]
           [--runs=DIR] [--out=reports] [--jobs=1] [--topology=gpu:h100x8] [-- --config.KEY=VALUE ...]

    python scripts/reproduce.py table1
    python scripts/reproduce.py table3 --data=books.jsonl.xz --jobs=2
    python scripts/reproduce.py table4 --data=books.jsonl.xz --finetune=sst2=SST-2/ --finetune=mnli=MNLI/
    python scripts/reproduce.py table4 --from=runs/table4        # whatever is there, also half-finished
    python scripts/reproduce.py figure4 --from=runs/table3       # from the first run of the gMLP there

NAME:
    table1, table5, table2, figure2   sizes, counted; nothing is trained
    table3                            gates and their rivals
    table4, figure5                   depth
    table6                            the full setting; all of it needs --finetune=sst2, mnli, squad_v1.1 and squad_v2.0
    appendix_b                        deeper and thinner Transformers (Table 10)
    figure3                           spatial filters of a gMLP for images; --data is a folder of class folders
    figure4                           spatial filters of a gMLP for text
    figure7                           accuracies over perplexity: several depths, and one, two and four times the data
    figure8                           depth again, with aMLPs
    figure9                           spatial matrices without the Toeplitz constraint
    figure10                          tiny attention in a pair of sentences; needs --finetune=mnli

The report goes to OUT/NAME: table.md, table.csv, figures as PNG and SVG, and index.html, which opens from disk without
a network. It says what was scaled down, and of each ordering of the paper whether it holds for every pair of seeds.
Runs are trained by `scripts/sweep.py --sweep=configs/sweeps/NAME.py:SCALE` in --runs (runs/reproduce/NAME-SCALE): the
same command goes on where a killed one stopped. --from trains nothing and reads a folder of runs, or those that a glob
pattern names, in quotes. --scale=paper first prints what its runs would take on --topology; it needs C4.

--finetune=TASK=DATA finetunes the first seed of each pretrained model as configs/finetune_glue.py and finetune_squad.py
say, with as many seeds as the paper (five) or, at gpu, three, at cpu, two, in RUNS/finetuned/TASK-MODEL; DATA is what
they take, and may be left out at paper scale. --finetune_flag=--config.KEY=VALUE changes these runs,
--finetune_seeds=0,1,2 their seeds. Where RUNS/finetuned/TASK-MODEL has runs of several rates or batches, the best
median counts.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Sequence

import running
from absl import logging
from sweep_plan import resolved

from gmlp_flax import cli, recipes, sweep
from gmlp_flax.analysis import gathering
from gmlp_flax.analysis.language import from_root
from gmlp_flax.analysis.report import Report
from gmlp_flax.analysis.reports import REPORTS, Counted, Trained
from gmlp_flax.tasks.base import EMBEDDED
from gmlp_flax.training import plan
from gmlp_flax.training.errors import RunError

SEEDS = {"cpu": "0,1", "gpu": "0,1,2", "paper": "0,1,2,3,4"}  # of finetuning


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = cli.fail
    parser.add_argument("name", metavar="NAME", choices=list(REPORTS))
    parser.add_argument("--scale", choices=list(SEEDS), default="cpu")
    parser.add_argument("--data", help="as config.data.train takes it; at paper scale C4 or ImageNet unless given")
    parser.add_argument("--finetune", metavar="TASK[=DATA]", action="append", default=[])
    parser.add_argument("--finetune_flag", metavar="FLAG", action="append", default=[])
    parser.add_argument("--finetune_seeds", metavar="SEEDS", help=f"unless given, by scale: {SEEDS}")
    parser.add_argument("--from", dest="pattern", metavar="RUNS", help="report on these runs and train nothing")
    parser.add_argument("--runs", metavar="DIR", help="folder of the runs that are trained")
    parser.add_argument("--out", default="reports", help="folder of the reports")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--topology", default="gpu:h100x8", help="what --scale=paper is planned for")
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:own])
    args.flags = words[own + 1 :]
    trained = isinstance(REPORTS[args.name], Trained)
    if args.scale != "paper" and not args.data and not args.pattern and trained:
        cli.fail(f"--data is missing: {args.name} trains at scale {args.scale} on data that you give")
    args.finetune = dict(each.partition("=")[::2] for each in args.finetune)
    check_finetuning(args, REPORTS[args.name].tasks if trained else ())
    check_path(f"--data={args.data}", args.data)
    if args.jobs < 1:
        cli.fail(f"--jobs={args.jobs}: expected a positive number")
    args.runs = args.runs or os.path.join("runs", "reproduce", f"{args.name}-{args.scale}")
    return args


def check_path(flag: str, data: str | None) -> None:
    """Ends with one line where a flag names data on this machine that are not there."""
    if data and ":" not in data and data != EMBEDDED and not os.path.exists(data):
        cli.fail(f"{flag}: there is no such file or folder")


def check_finetuning(args: argparse.Namespace, known: Sequence[str]) -> None:
    """Ends with one line, before hours of pretraining, where what comes after them cannot run."""
    for task, data in args.finetune.items():
        if task not in known:
            cli.fail(f"--finetune={task}: {args.name} takes {', '.join(known) or 'none'}")
        if args.pattern:
            cli.fail(f"--finetune={task} and --from={args.pattern} exclude each other: --from trains nothing")
        if args.scale != "paper" and not data:
            cli.fail(f"--finetune={task}: give its data, --finetune={task}=PATH")
        check_path(f"--finetune={task}={data}", data)
        resolved(from_root(recipes.finetuning(task, args.scale)), overrides(args.finetune_flag))
    if args.finetune_seeds and not re.fullmatch(r"\d+(,\d+)*", args.finetune_seeds):
        cli.fail(f"--finetune_seeds={args.finetune_seeds}: expected numbers, as in --finetune_seeds=0,1,2")
    if strange := [flag for flag in args.finetune_flag if not overrides([flag])]:
        cli.fail(f"--finetune_flag={strange[0]}: expected --finetune_flag=--config.KEY=VALUE")


def overrides(flags: Sequence[str]) -> dict[str, str]:
    """What --config.KEY=VALUE flags set, their keys checked."""
    found = dict(re.findall(r"^--?config\.([^=]+)=(.*)$", "\n".join(flags), re.MULTILINE))
    return sweep.chained([found])[0] if found else {}


def print_costs(report: Trained, topology: str) -> None:
    """What the runs of a report at paper scale would take, each by itself."""
    print(f"on {topology}, at best, each run:")
    for row, config in report.configs("paper").items():
        found = plan.make(config, topology)
        print(f"  {row:<16}{found.run_days:8.2f} days{found.chip_hours:10,.0f} chip-hours", flush=True)


def run_sweep(*arguments: str) -> int:
    """scripts/sweep.py through running.py, so that it ends with this process; its exit code."""
    script = os.path.join(running.ROOT, "scripts", "sweep.py")
    own = [sys.executable, running.__file__, str(os.getpid()), sys.executable, script]
    return subprocess.run([*own, *arguments]).returncode


def train(report: Trained, args: argparse.Namespace) -> int:
    """Trains what is missing; the sweep's exit code."""
    data = [f"--config.data.train={args.data}"] if args.data else []
    file = os.path.join(running.ROOT, "configs", "sweeps", f"{report.sweep}.py")
    own = f"--sweep={file}:{args.scale}", f"--out={args.runs}", f"--jobs={args.jobs}"
    return run_sweep(*own, "--", *data, *args.flags)


def finetune(runs: Sequence[gathering.Run], args: argparse.Namespace) -> int:
    """Finetunes the first finished run of each row on every task; the worst exit code of the sweeps."""
    seeds = args.finetune_seeds or SEEDS[args.scale]
    first = {run.row: run for run in reversed(runs) if run.finished}
    codes = [0]
    for (task, data), row in itertools.product(args.finetune.items(), sorted(first)):
        data = data or ("" if task.startswith("squad") else f"tfds:glue/{task}")  # SQuAD's config names its own
        codes.append(run_sweep(
            f"--config={os.path.join(running.ROOT, recipes.finetuning(task, args.scale))}", f"--seeds={seeds}",
            f"--out={os.path.join(args.runs, gathering.FINETUNED, f'{task}-{row}')}", f"--jobs={args.jobs}",
            f"--config.init_from={first[row].path}", *([f"--config.data.train={data}"] if data else []),
            *args.finetune_flag,
        ))
        stop_unless_reportable(codes[-1])
    return max(codes)


def stop_unless_reportable(code: int) -> None:
    """Ends with a sweep's exit code, but for 1: some of its runs failed, and the others can be reported."""
    if code not in (0, 1):
        raise SystemExit(code)


def report_on(report: Trained, args: argparse.Namespace) -> tuple[Report, int]:
    """Trains what is missing, unless --from names runs; the report, and 1 where some runs failed."""
    rows = {row: resolved(config, overrides(args.flags)) for row, config in report.configs(args.scale).items()}
    codes = [0]
    if not args.pattern:
        if args.scale == "paper":
            print_costs(report, args.topology)
        codes.append(train(report, args))
        stop_unless_reportable(codes[-1])
    pattern = args.pattern or args.runs
    runs = gathering.find(pattern, rows)
    if args.finetune:
        codes.append(finetune(runs, args))
    return report.make(runs, args.scale, gathering.find_finetuned(pattern, rows)), max(codes)


def main() -> None:
    """Trains, gathers, writes."""
    logging.set_verbosity(logging.ERROR)  # Orbax warns that a finished run is opened for reading alone.
    args = arguments()
    report = REPORTS[args.name]
    made, code = (report.make(), 0) if isinstance(report, Counted) else report_on(report, args)
    path = made.write(os.path.join(args.out, args.name))
    print(f"{made.title}\n\n{made.table.markdown()}")
    print("\n".join(made.notes))
    print(f"\nthe report: {path}")
    if code:
        raise RunError("some runs failed: the table is made of the others")


if __name__ == "__main__":
    cli.explained(main)
