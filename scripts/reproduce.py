"""Makes one of the paper's tables or figures again: trains what is missing and writes a report.

Usage: python scripts/reproduce.py NAME [--scale=cpu|gpu|paper] [--data=CORPUS] [--from=RUNS] [--runs=DIR]
           [--out=reports] [--jobs=1] [--topology=gpu:h100x8] [-- --config.KEY=VALUE ...]

    python scripts/reproduce.py table1
    python scripts/reproduce.py table3 --data=books.jsonl.xz --jobs=2
    python scripts/reproduce.py table4 --from=runs/table4        # whatever is there, also half-finished
    python scripts/reproduce.py figure4 --from=runs/table3       # from the first run of the gMLP there

NAME: table1, table5 (sizes), table2 or figure2 (sizes beside the paper's accuracies): nothing is trained. table3 (gates
and their rivals), table4 or figure5 (depth, with panel (a) of the figure), figure4 (spatial filters), figure9 (spatial
matrices without the Toeplitz constraint). Finetuned accuracies, the other tables and figures are not made yet.

The report goes to OUT/NAME: table.md, table.csv, figures as PNG and SVG, and index.html, which opens from disk without a
network. It says what was scaled down, and of each ordering of the paper whether it holds for every pair of seeds. Runs
are trained by `scripts/sweep.py --sweep=configs/sweeps/NAME.py:SCALE` in --runs (runs/reproduce/NAME-SCALE): the same
command goes on where a killed one stopped. --from trains nothing and reads a folder of runs, or those that a glob
pattern names, in quotes. --scale=paper first prints what its runs would take on --topology; it needs C4.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

import running
from sweep_plan import resolved

from gmlp_flax import cli
from gmlp_flax.analysis import gathering
from gmlp_flax.analysis.reports import REPORTS, Counted, Trained
from gmlp_flax.training import plan
from gmlp_flax.training.errors import RunError


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = cli.fail
    parser.add_argument("name", metavar="NAME", choices=list(REPORTS))
    parser.add_argument("--scale", choices=("cpu", "gpu", "paper"), default="cpu")
    parser.add_argument("--data", help="a corpus, as config.data.train takes it; at paper scale C4 unless given")
    parser.add_argument("--from", dest="pattern", metavar="RUNS", help="report on these runs and train nothing")
    parser.add_argument("--runs", metavar="DIR", help="folder of the runs that are trained")
    parser.add_argument("--out", default="reports", help="folder of the reports")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--topology", default="gpu:h100x8", help="what --scale=paper is planned for")
    words = sys.argv[1:]
    own = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:own])
    args.flags = words[own + 1 :]
    if args.scale != "paper" and not args.data and not args.pattern and isinstance(REPORTS[args.name], Trained):
        cli.fail(f"--data is missing: {args.name} trains at scale {args.scale} on a corpus that you give")
    if args.jobs < 1:
        cli.fail(f"--jobs={args.jobs}: expected a positive number")
    args.runs = args.runs or os.path.join("runs", "reproduce", f"{args.name}-{args.scale}")
    return args


def print_costs(report: Trained, topology: str) -> None:
    """What the runs of a report at paper scale would take, each by itself."""
    print(f"on {topology}, at best, each run:")
    for row, config in report.configs("paper").items():
        found = plan.make(config, topology)
        print(f"  {row:<16}{found.run_days:8.2f} days{found.chip_hours:10,.0f} chip-hours", flush=True)


def train(report: Trained, args: argparse.Namespace) -> int:
    """Trains what is missing; the sweep's exit code."""
    data = [f"--config.data.train={args.data}"] if args.data else []
    sweep = os.path.join(running.ROOT, "configs", "sweeps", f"{report.sweep}.py")
    command = [
        sys.executable, os.path.join(running.ROOT, "scripts", "sweep.py"), f"--sweep={sweep}:{args.scale}",
        f"--out={args.runs}", f"--jobs={args.jobs}", "--", *data, *args.flags,
    ]
    # Through running.py, so that the sweep ends with this process.
    return subprocess.run([sys.executable, running.__file__, str(os.getpid()), *command]).returncode


def main() -> None:
    """Trains, gathers, writes."""
    args = arguments()
    report, code = REPORTS[args.name], 0
    if isinstance(report, Counted):
        made = report.make()
    else:
        if not args.pattern:
            if args.scale == "paper":
                print_costs(report, args.topology)
            code = train(report, args)
            if code not in (0, 1):  # 1: some runs failed, the others can be reported
                raise SystemExit(code)
        changed = dict(re.findall(r"^--?config\.([^=]+)=(.*)$", "\n".join(args.flags), re.MULTILINE))
        rows = {row: resolved(config, changed) for row, config in report.configs(args.scale).items()}
        made = report.make(gathering.find(args.pattern or args.runs, rows), args.scale)
    path = made.write(os.path.join(args.out, args.name))
    print(f"{made.title}\n\n{made.table.markdown()}")
    print("\n".join(made.notes))
    print(f"\nthe report: {path}")
    if code:
        raise RunError("some runs failed: the table is made of the others")


if __name__ == "__main__":
    cli.explained(main)
