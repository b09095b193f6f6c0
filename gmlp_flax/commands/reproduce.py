"""Makes one of the paper's tables or figures again: trains what is missing and writes a report.

    gmlp reproduce table1
    gmlp reproduce table3 --data=books/data --jobs=2
    gmlp reproduce table4 --data=books/data --finetune=sst2=SST-2/ --finetune=mnli=MNLI/
    gmlp reproduce table4 --from=runs/table4        # whatever is there, also half-finished
    gmlp reproduce figure4 --from=runs/table3       # from the first run of the gMLP there
    gmlp reproduce table3 --data=books/data --scale=gpu -- --config.steps=1000
    gmlp reproduce alternatives --data=books/data --columns=mlm,costs,sst2=SST-2/,cifar10=cifar10/

NAME is a table or figure that `gmlp list tables` names. figure3 takes a folder of class folders as --data; figure10
needs --finetune=mnli.

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
trained or measured, with its data behind it; --data is that of mlm, masked LM, from which the finetuned
columns start. Each column goes on where it stopped, and the report has those that are there. --rows chooses mixers,
--lengths those at which costs are measured.
Flags after -- change the runs of mlm, cifar10, listops, bytes and pixels.
"""

import os
import sys
from types import SimpleNamespace

from absl import flags

from gmlp_flax import config as config_lib
from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError, RunError, did_you_mean
from gmlp_flax.paper import alternatives, recipes
from gmlp_flax.paper.alternatives import COLUMNS
from gmlp_flax.paper.tables import FINETUNING_SEEDS, TABLES, PaperTable
from gmlp_flax.reports import columns, language_models, learned_weights, page, sizes
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.alternatives import NAME as ALTERNATIVES
from gmlp_flax.reports.alternatives import of_folder
from gmlp_flax.reports.report import Report
from gmlp_flax.sweeps import definition, training


def arguments(argv: list[str]) -> SimpleNamespace:
    """The command line, checked before anything is trained. Raises ConfigError."""
    args = SimpleNamespace(**{flag.name: flag.value for flag in flags.FLAGS.flags_by_module_dict()[__name__]})
    args.name, args.pattern = argv[1], vars(args)["from"]
    args.changes = config_lib.named_overrides(sys.argv[sys.argv.index("--") :] if "--" in sys.argv else [])
    args.finetune_changes = config_lib.named_overrides(args.finetune_flag)
    if args.name not in TABLES:
        raise ConfigError(f"there is no table or figure {args.name!r}; {did_you_mean(args.name, TABLES)}")
    if len(args.finetune_changes) < len(args.finetune_flag):
        raise ConfigError(f"--finetune_flag={args.finetune_flag[0]}: expected --config.KEY=VALUE, each key once")
    args.runs = args.pattern or args.runs or os.path.join("runs", "reproduce", f"{args.name}-{args.scale}")
    args.finetune = dict(task.partition("=")[::2] for task in args.finetune)
    args.finetune_seeds = cli.numbers("finetune_seeds")
    if args.name == ALTERNATIVES:
        args.plan = column_plan(args)
    else:
        check_table(args, TABLES[args.name])
    return args


def check_table(args: SimpleNamespace, table: PaperTable) -> None:
    """Raises ConfigError if what the command line asks of a table of the paper cannot be."""
    if any(flags.FLAGS[name].present for name in ("columns", "rows", "lengths")):
        raise ConfigError(f"--columns, --rows and --lengths are for {ALTERNATIVES}: {args.name} has no such columns")
    if args.scale != "paper" and not args.data and not args.pattern and table.trained:
        raise ConfigError(f"--data is missing: {args.name} trains at scale {args.scale} on data that you give")
    columns.check_path("--data", args.data)
    for task, data in args.finetune.items():
        if task not in table.tasks:
            raise ConfigError(f"--finetune={task}: {args.name} takes {', '.join(table.tasks) or 'none'}")
        if args.pattern:
            raise ConfigError(f"--finetune={task} and --from={args.pattern} exclude each other: --from trains nothing")
        if args.scale != "paper" and not data:
            raise ConfigError(f"--finetune={task}: give its data, --finetune={task}=PATH")
        columns.check_path(f"--finetune={task}", data)
        config = config_lib.open_config(recipes.FINETUNED[task] + recipes.SCALES[args.scale])
        config_lib.overridden(config, args.finetune_changes)


def column_plan(args: SimpleNamespace) -> columns.Plan:
    """What the command line asks of the alternatives. Raises ConfigError: that cannot be."""
    if args.finetune:
        raise ConfigError("--finetune is not for alternatives: --columns chooses what is trained or finetuned")
    if args.pattern and (args.data or flags.FLAGS["columns"].present):
        raise ConfigError(f"--from={args.pattern} trains nothing: leave out --columns and --data")
    data = columns.parse(args.columns)
    plan = columns.Plan(
        {name: args.data or path if name == "mlm" else path for name, path in data.items()},
        alternatives.checked(args.rows or alternatives.ROWS, alternatives.ROWS, "--rows"),
        args.scale,
        args.runs,
        args.jobs,
        args.changes,
        args.finetune_changes,
        args.finetune_seeds,
        cli.numbers("lengths"),
    )
    if not args.pattern:
        columns.check(plan)
    return plan


def report_on(args: SimpleNamespace) -> tuple[Report, list[str]]:
    """Trains what is missing, unless --from names runs; the report, and what went wrong."""
    table = TABLES[args.name]
    rows = {row: config_lib.overridden(config, args.changes) for row, config in table.configs(args.scale).items()}
    complete = True
    if not args.pattern:
        changed = columns.data_change(args.data) | args.changes
        sweep = definition.define(f"paper:{args.name}", table.points(args.scale), changed, args.runs)
        complete = training.train(sweep, args.jobs)
    runs = run_finder.find(args.runs, rows)
    for task, given in args.finetune.items():
        data = given or ("" if task.startswith("squad") else f"tfds:glue/{task}")  # SQuAD's config names its own
        changes = columns.data_change(data) | args.finetune_changes
        config, seeds = recipes.FINETUNED[task] + recipes.SCALES[args.scale], args.finetune_seeds or FINETUNING_SEEDS
        for sweep in columns.finetuning(runs, args.runs, task, config, seeds, changes):
            complete &= training.train(sweep, args.jobs)
    missing = [] if complete else ["some runs failed: the table is made of the others"]
    tuned = run_finder.find_finetuned(args.runs, rows)
    if args.name in learned_weights.FIGURES:
        return learned_weights.report(args.name, table, runs, args.scale, tuned), missing
    return language_models.perplexities(table, runs, args.scale, tuned), missing


def main(argv: list[str]) -> None:
    """Trains, collects the runs, writes the report."""
    args = arguments(argv)
    missing: list[str] = []
    trains = not args.pattern and (args.name == ALTERNATIVES or TABLES[args.name].trained)
    with cli.waiting("" if trains else "reading the runs" if args.pattern else "counting"):
        if args.name == ALTERNATIVES:
            missing = [] if args.pattern else columns.make(args.plan)
            report = of_folder(args.runs, args.scale, args.changes)
        elif TABLES[args.name].trained:
            report, missing = report_on(args)
        else:
            report = sizes.counts(TABLES[args.name])
    with cli.waiting("drawing"):
        path = page.write(report, os.path.join(args.out, args.name))
    print(report.markdown())
    print("\n".join(report.sentences()))
    print(f"\nthe report: {path}")
    if missing:
        raise RunError("; ".join(missing))


def run() -> None:
    """The command line."""
    flags.DEFINE_enum("scale", "cpu", list(recipes.SCALES), "The size of models and runs.")
    flags.DEFINE_string("data", None, "As config.data.train takes it; at paper scale C4 or ImageNet unless given.")
    flags.DEFINE_multi_string("finetune", [], "TASK=DATA: finetune on a task; one flag for each.")
    flags.DEFINE_multi_string("finetune_flag", [], "--config.KEY=VALUE for the finetuning; one flag for each.")
    seeds = f"Seeds of the finetuning; empty: {FINETUNING_SEEDS}, of alternatives each column's own."
    flags.DEFINE_list("finetune_seeds", [], seeds)
    flags.DEFINE_string("from", None, "Report on these runs and train nothing.")
    flags.DEFINE_string("runs", None, "Folder of the runs that are trained.")
    flags.DEFINE_string("out", "reports", "Folder of the reports.")
    flags.DEFINE_integer("jobs", 1, "Runs at a time.", lower_bound=1)
    flags.DEFINE_list("columns", ["mlm", "costs"], f"Of alternatives: COLUMN[=DATA],... of {', '.join(COLUMNS)}.")
    flags.DEFINE_list("rows", [], "Of alternatives: which mixers, with commas between them; empty: all.")
    lengths = list(map(str, alternatives.COST_LENGTHS))
    flags.DEFINE_list("lengths", lengths, "Of alternatives: tokens at which costs are measured.")
    cli.run(main, "NAME", words=lambda argv: argv[: argv.index("--")] if "--" in argv else argv)
