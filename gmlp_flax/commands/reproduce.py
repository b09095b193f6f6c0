"""Makes one of the paper's tables or figures again: trains what is missing and writes a report.

    gmlp reproduce table1
    gmlp reproduce table3 --data=books/data --jobs=2
    gmlp reproduce table4 --data=books/data --finetune=sst2=SST-2/ --finetune=mnli=MNLI/
    gmlp reproduce table4 --from=runs/table4        # whatever is there, also half-finished
    gmlp reproduce figure4 --from=runs/table3       # from the first run of the gMLP there
    gmlp reproduce NAME [--scale=cpu|gpu|paper] [--data=DATA] [--finetune=TASK=DATA ...] [--from=RUNS] [--runs=DIR]
        [--out=reports] [--jobs=1] [-- --config.KEY=VALUE ...]
    gmlp reproduce alternatives --data=books/data --columns=mlm,costs,sst2=SST-2/,cifar10=cifar10/
    gmlp reproduce alternatives [--columns=COLUMN[=DATA],...] [--rows=ROW,...] [--lengths=N,...] ...

NAME is a table or figure of gmlp_flax/paper/tables.py:
{names}
figure3 takes a folder of class folders as --data; figure10 needs --finetune=mnli.

The report goes to OUT/NAME: table.md and its tables as CSV; figures as PNG, SVG and PDF as wide as a paper's column
or page; the numbers of each chart as CSV; and index.html, whose charts and table answer to the mouse. It opens from
disk without a network, if plotly.min.js lies beside it. The report says what was scaled down, whether each ordering
of the paper holds for every pair of seeds, and how its ranks correlate with the paper's over tokens.

The runs are those of `gmlp sweep --sweep=paper:NAME,scale=SCALE`, in --runs (runs/reproduce/NAME-SCALE): the same
command goes on where a killed one stopped. --from trains nothing and reads a folder of runs, or the runs that a glob
pattern in quotes names. --scale=paper needs C4, or ImageNet for images; `gmlp plan` says what its runs would take.

--finetune=TASK=DATA finetunes the first seed of each pretrained model by the configs finetune_glue and finetune_squad,
in RUNS/finetuned/TASK-MODEL, with five seeds as the paper does. DATA is what config.data.train takes; at paper scale it
may be left out. --finetune_flag=--config.KEY=VALUE changes these runs, --finetune_seeds=0,1,2 their seeds. Where
RUNS/finetuned/TASK-MODEL has runs of several rates or batches, the best median counts.

alternatives is not the paper's: it compares the token mixers of all papers in one frame. --columns chooses what is
trained or measured ({columns}), with its data behind it; --data is that of mlm, masked LM, from which the finetuned
columns start. Each column goes on where it stopped, and the report has those that are there. --rows chooses mixers,
--lengths those at which costs are measured.
Flags after -- change the runs of mlm, cifar10, listops, bytes and pixels.
"""

import itertools
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

from absl import flags

from gmlp_flax import config as config_lib
from gmlp_flax.commands import cli
from gmlp_flax.config import overrides
from gmlp_flax.errors import RunError, did_you_mean
from gmlp_flax.paper import alternatives, recipes
from gmlp_flax.paper.alternatives import COLUMNS
from gmlp_flax.paper.tables import FINETUNING_SEEDS, TABLES, PaperTable
from gmlp_flax.reports import columns, language_models, learned_weights, page, sizes
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.alternatives import NAME as ALTERNATIVES
from gmlp_flax.reports.alternatives import of_folder
from gmlp_flax.reports.report import Report
from gmlp_flax.sweeps import definition, training
from gmlp_flax.sweeps.definition import Sweep

SEEDS = ",".join(map(str, FINETUNING_SEEDS))


def names() -> str:
    """One line per table: its name, its title, and what is not trained or can be finetuned."""
    lines = []
    for name, table in TABLES.items():
        tasks = f"; finetuned on {', '.join(table.tasks)}" if table.tasks else ""
        about = f"    {name:<14}{table.title}{tasks if table.trained else '; counted, nothing is trained'}"
        lines.append(textwrap.fill(about, 118, subsequent_indent=16 * " "))
    return "\n".join(lines)


def _filled(line: str) -> str:
    """A long line of the help in several, indented as it is."""
    indent = line[: len(line) - len(line.lstrip())]
    return line if len(line) <= 118 else textwrap.fill(line, 118, subsequent_indent=indent)


def arguments(argv: list[str]) -> SimpleNamespace:
    """The command line, checked: a mistake ends it with one line before anything is trained."""
    args = SimpleNamespace(**{flag.name: flag.value for flag in flags.FLAGS.flags_by_module_dict()[__name__]})
    args.pattern, args.name = vars(args)["from"], (argv[1:] or [None])[0]
    args.flags = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
    if args.name and args.name not in TABLES:
        cli.fail(f"there is no table or figure {args.name!r}; {did_you_mean(args.name, TABLES)}")
    if args.pattern == "":
        cli.fail("--from= is empty: give a folder of runs, or leave it out")
    if not args.name:
        cli.fail(f"NAME is missing: expected one of {', '.join(TABLES)}")
    for flag in args.finetune_flag:
        if not re.match(r"--?config\.[^=]+=", flag):
            cli.fail(f"--finetune_flag={flag}: expected --finetune_flag=--config.KEY=VALUE")
    args.runs = args.runs or os.path.join("runs", "reproduce", f"{args.name}-{args.scale}")
    if args.name == ALTERNATIVES:
        args.plan = column_plan(args)
    else:
        check_table(args, TABLES[args.name])
    return args


def given_flags(args: SimpleNamespace, *names: str) -> list[str]:
    """Those of the flags that the command line has, as it writes them."""
    return [f"--{flag}" for flag in names if vars(args)[flag]]


def check_table(args: SimpleNamespace, table: PaperTable) -> None:
    """Checks, and fills in, what the command line asks of a table of the paper."""
    if given := given_flags(args, "columns", "rows", "lengths"):
        cli.fail(f"{given[0]} is for alternatives: {args.name} has no columns of its own")
    if args.scale != "paper" and not args.data and not args.pattern and table.trained:
        cli.fail(f"--data is missing: {args.name} trains at scale {args.scale} on data that you give")
    args.finetune = dict(task.partition("=")[::2] for task in args.finetune)
    args.finetune_seeds = cli.numbers("finetune_seeds") or FINETUNING_SEEDS
    check_finetuning(args, table.tasks)
    columns.check_path(f"--data={args.data}", args.data)


def column_plan(args: SimpleNamespace) -> columns.Plan:
    """What the command line asks of the alternatives; ends with one line if that cannot be."""
    if args.finetune:
        cli.fail("--finetune is not for alternatives: --columns chooses what is trained, also from random parameters")
    if args.pattern and (given := given_flags(args, "columns", "data")):
        everything = "trains nothing, and the report has every column that is there"
        cli.fail(f"--from={args.pattern} {everything}: leave out {given[0]}")
    data = columns.parse(args.columns or [columns.DEFAULT])
    plan = columns.Plan(
        tuple(data),
        alternatives.checked(args.rows or alternatives.ROWS, alternatives.ROWS, "--rows"),
        data | {"mlm": args.data or data.get("mlm", "")},
        args.scale,
        args.pattern or args.runs,
        args.jobs,
        overrides.named_overrides(args.flags),
        overrides.named_overrides(args.finetune_flag),
        cli.numbers("finetune_seeds"),
        cli.numbers("lengths") or alternatives.COST_LENGTHS,
    )
    if not args.pattern:
        columns.check(plan)
    return plan


def check_finetuning(args: SimpleNamespace, known: Sequence[str]) -> None:
    """Ends with one line, before hours of pretraining, if the finetuning after it could not run."""
    for task, data in args.finetune.items():
        if task not in known:
            cli.fail(f"--finetune={task}: {args.name} takes {', '.join(known) or 'none'}")
        if args.pattern:
            cli.fail(f"--finetune={task} and --from={args.pattern} exclude each other: --from trains nothing")
        if args.scale != "paper" and not data:
            cli.fail(f"--finetune={task}: give its data, --finetune={task}=PATH")
        columns.check_path(f"--finetune={task}={data}", data)
        config = config_lib.open_config(recipes.finetuning(task, args.scale))
        overrides.overridden(config, overrides.named_overrides(args.finetune_flag))


def finetuning(args: SimpleNamespace, runs: Sequence[run_finder.Run]) -> Iterator[Sweep]:
    """The sweeps that finetune the first finished run of each row on every task."""
    first = sorted(columns.first_finished(runs).items())
    for (task, given), (row, run) in itertools.product(args.finetune.items(), first):
        data = given or ("" if task.startswith("squad") else f"tfds:glue/{task}")  # SQuAD's config names its own
        changes = columns.data_change(data) | overrides.named_overrides(args.finetune_flag)
        folder = columns.tuned_folder(args.runs, task, row, pretrained=True)
        yield columns.finetuning(recipes.finetuning(task, args.scale), folder, run, True, args.finetune_seeds, changes)


def report_on(args: SimpleNamespace) -> tuple[Report, bool]:
    """Trains what is missing, unless --from names runs; the report, and whether some runs failed."""
    table, changes = TABLES[args.name], overrides.named_overrides(args.flags)
    rows = {row: overrides.overridden(config, changes) for row, config in table.configs(args.scale).items()}
    complete = True
    if not args.pattern:
        changed = columns.data_change(args.data) | changes
        sweep = definition.define(f"paper:{args.name}", table.points(args.scale), changed, args.runs)
        complete = training.train(sweep, args.jobs)
    pattern = args.pattern or args.runs
    runs = run_finder.find(pattern, rows)
    for sweep in finetuning(args, runs):
        complete &= training.train(sweep, args.jobs)
    tuned = run_finder.find_finetuned(pattern, rows)
    if args.name in learned_weights.FIGURES:
        return learned_weights.report(args.name, table, runs, args.scale, tuned), not complete
    return language_models.perplexities(table, runs, args.scale, tuned), not complete


def main(argv: list[str]) -> None:
    """Trains, collects the runs, writes the report."""
    args = arguments(argv)
    missing, failed = [], False
    if args.name == ALTERNATIVES:
        missing = [] if args.pattern else columns.make(args.plan)
        report = of_folder(args.plan.runs, args.scale, args.flags)
    elif TABLES[args.name].trained:
        report, failed = report_on(args)
    else:
        report = sizes.counts(TABLES[args.name])
    path = page.write(report, os.path.join(args.out, args.name))
    print(report.markdown())
    print("\n".join(report.sentences()))
    print(f"\nthe report: {path}")
    if missing:
        raise RunError("; ".join(missing))
    if failed:
        raise RunError("some runs failed: the table is made of the others")


def before_dashes(argv: list[str]) -> list[str]:
    """The words of a command line up to --."""
    return argv[: argv.index("--")] if "--" in argv else argv


def run() -> None:
    """The command line."""
    flags.DEFINE_enum("scale", "cpu", list(recipes.SCALES), "The size of models and runs.")
    flags.DEFINE_string("data", None, "As config.data.train takes it; at paper scale C4 or ImageNet unless given.")
    flags.DEFINE_multi_string("finetune", [], "TASK=DATA: finetune on a task; one flag for each.")
    flags.DEFINE_multi_string("finetune_flag", [], "--config.KEY=VALUE for the finetuning; one flag for each.")
    seeds = f"Seeds of the finetuning; empty: {SEEDS}, of alternatives each column's own."
    flags.DEFINE_list("finetune_seeds", [], seeds)
    flags.DEFINE_string("from", None, "Report on these runs and train nothing.")
    flags.DEFINE_string("runs", None, "Folder of the runs that are trained.")
    flags.DEFINE_string("out", "reports", "Folder of the reports.")
    flags.DEFINE_integer("jobs", 1, "Runs at a time.", lower_bound=1)
    which = f"Of alternatives: COLUMN[=DATA],...: which, and their data; empty: {columns.DEFAULT}."
    flags.DEFINE_multi_string("columns", [], which)
    flags.DEFINE_list("rows", [], "Of alternatives: which mixers, with commas between them; empty: all.")
    flags.DEFINE_list("lengths", [], "Of alternatives: tokens at which costs are measured; empty: 128 to 16384.")
    described = (__doc__ or "").replace("{names}", names()).replace("{columns}", ", ".join(COLUMNS))
    about = "\n".join(_filled(line) for line in described.splitlines())
    cli.run(main, "[NAME]", words=before_dashes, about=about)
