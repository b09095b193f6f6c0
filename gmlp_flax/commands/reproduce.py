"""Reproduces one of the paper's tables or figures: trains what is missing and writes a report.

    gmlp reproduce table1
    gmlp reproduce table3 --data=books/data --jobs=2
    gmlp reproduce table4 --data=books/data --finetune=sst2=SST-2/ --finetune=mnli=MNLI/
    gmlp reproduce table4 --from=runs/table4        # the runs in a folder, even unfinished ones
    gmlp reproduce table3 --data=books/data --scale=gpu -- --config.steps=1000
    gmlp reproduce alternatives --data=books/data --columns=mlm,costs,sst2=SST-2/,cifar10=cifar10/
    gmlp reproduce recall --rows=bert_causal,sgu_causal,amlp_causal
    gmlp reproduce alternatives --data=books/data --rows=sgu,my_package.fourier:FourierBlock

`gmlp list tables` lists the values of NAME. For figure3, --data is a folder of class folders.
figure10 needs --finetune=mnli.

The report is written to OUT/NAME. The folder has table.md, the tables and the numbers of charts as
CSV, the figures as PNG, SVG and PDF in the widths of a paper's column and page, and index.html,
which needs no network. The report says what was scaled down, whether each ordering of the paper
holds for every pair of seeds, and how its ranks correlate with the paper's over tokens.

The runs are those of `gmlp sweep --sweep=paper:NAME,scale=SCALE`. They are in the folder of --runs,
by default runs/reproduce/NAME-SCALE. If the command is killed, repeat it to resume. --from trains
nothing. It reads a folder of runs, or the runs that match a glob pattern in quotes. --scale=paper
needs C4, or ImageNet for images. `gmlp plan` says what its runs would need.

--finetune=TASK=DATA finetunes the first seed of each pretrained model with the configs
finetune_glue and finetune_squad, in RUNS/finetuned/TASK-MODEL, with five seeds as the paper does.
At paper scale you may omit DATA. If a folder has runs with several rates or batch sizes, those with
the best median count.

alternatives is not in the paper. It compares the token mixers of all papers under the same
conditions. --columns chooses what is trained or measured, and names the data of each column. --data
names the data of mlm (masked LM), from whose runs the finetuned columns start. Each column resumes
where it stopped, and the report has the finished ones. Flags after -- change the runs of mlm,
cifar10, listops, bytes and pixels.

--submit=FILE.csv --name=ROW --from=RUNS adds a row with the mlm runs of your own mixer to a file.
--with=FILE.csv shows the rows of this file in the report, marked as submitted.

--slices also scores each finished language model of a table on the tokens that repeat a bigram of
their window and on all others, as `gmlp evaluate --slices` does. The report then has a table of
these slices, and later reports of the same runs have it too.

--rows=my_package.my_module:MyBlock adds your own block to alternatives, table3 or recall. It
replaces the Transformer's block, with as many parameters (--match). At --scale=cpu its learning
rate is searched first, with another seed and with scores on a part of the training data.

recall is not in the paper either. It trains every mixer on multi-query associative recall at
several widths and lengths, and needs no data. --rows, --lengths and --widths choose what is
trained, and flags after -- change all runs.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

from absl import flags

from gmlp_flax import config as config_lib
from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError, RunError, did_you_mean
from gmlp_flax.paper import alternatives, custom_rows, recall, recipes
from gmlp_flax.paper.alternatives import COLUMNS, COSTS
from gmlp_flax.paper.tables import ALTERNATIVES, FINETUNING_SEEDS, TABLES
from gmlp_flax.reports import (
    columns,
    language_models,
    learned_weights,
    sizes,
)
from gmlp_flax.reports import recall as recall_report
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.alternatives import submissions, submitting
from gmlp_flax.reports.alternatives.report import of_folder
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.web import page


def plan_of(name: str) -> columns.Plan:
    """The plan that the command line asks for, of a table or figure.

    Raises:
        ConfigError: the table does not exist, or the flags do not fit it.
    """
    if name not in TABLES:
        known = (*TABLES, recall.NAME)
        raise ConfigError(f"there is no table or figure {name!r}; {did_you_mean(name, known)}")
    values = flags.FLAGS
    _refuse_flags(name, values)
    rows = TABLES[name].rows
    seeds: Sequence[int] = cli.numbers("finetune_seeds")
    if name == ALTERNATIVES:
        data = columns.parse(values.columns)
        for column in alternatives.LANGUAGE:
            if column in data and values.data:
                data[column] = values.data
    else:
        data = _data_of_table(name, values)
        seeds = seeds or FINETUNING_SEEDS
    if TABLES[name].takes_classes:
        rows = alternatives.checked_rows(values.rows, rows, values.match)
    finetune_changes = config_lib.named_overrides(values.finetune_flag)
    if len(finetune_changes) < len(values.finetune_flag):
        raise ConfigError(
            f"--finetune_flag={values.finetune_flag[0]}: expected --config.KEY=VALUE, each key once"
        )
    folder = values.runs or os.path.join("runs", "reproduce", f"{name}-{values.scale}")
    return columns.Plan(
        name,
        data,
        rows,
        values.scale,
        values["from"].value or folder,
        values.jobs,
        config_lib.named_overrides(_words_of_runs()),
        finetune_changes,
        seeds,
        cli.numbers("lengths", alternatives.COST_LENGTHS),
        values.together,
    )


def _refuse_flags(name: str, values: flags.FlagValues) -> None:
    """Raises ConfigError if a table does not take a flag that is set, or if --from excludes it."""
    unknown = ["columns", "lengths", "widths", "submit", "name", "with"]
    if name == ALTERNATIVES:
        unknown = ["finetune", "widths"]
    if not TABLES[name].takes_classes:
        unknown += ["rows", "match"]
    if not TABLES[name].trained:
        unknown.append("data")
    if not TABLES[name].recall_reference:
        unknown.append("slices")
    for flag in unknown:
        if values[flag].present:
            raise ConfigError(f"--{flag} is not for {name}: see gmlp reproduce --help")
    source = values["from"].value
    for flag in ("columns", "data", "finetune"):
        if source and values[flag].present:
            raise ConfigError(
                f"--{flag} and --from={source} exclude each other: --from trains nothing"
            )


def _data_of_table(name: str, values: flags.FlagValues) -> dict[str, str]:
    """The name of a table of the paper, if it is trained, and its finetuning tasks -> their data.
    Raises ConfigError for a task that the table does not have."""
    table = TABLES[name]
    data = {}
    if table.trained:
        data[name] = values.data or ""
    for word in values.finetune:
        task, _, path = word.partition("=")
        if task not in table.tasks:
            raise ConfigError(f"--finetune={task}: {name} takes {', '.join(table.tasks) or 'none'}")
        data[task] = path
    return data


def _words_of_runs() -> list[str]:
    """The words of the command line from -- on, which change the runs."""
    if "--" not in sys.argv:
        return []
    return sys.argv[sys.argv.index("--") :]


def _own_words(argv: list[str]) -> list[str]:
    """The words of the command line before --."""
    return argv[: argv.index("--")] if "--" in argv else argv


def recall_plan() -> recall_report.Plan:
    """The plan that the command line asks for, of recall.

    Raises:
        ConfigError: recall does not take a flag that is set, or not this scale or row.
    """
    values = flags.FLAGS
    flags_of_tables = (
        "columns",
        "data",
        "finetune",
        "finetune_flag",
        "finetune_seeds",
        "slices",
        "submit",
        "name",
        "with",
    )
    for flag in flags_of_tables:
        if values[flag].present:
            raise ConfigError(f"--{flag} is not for {recall.NAME}: see gmlp reproduce --help")
    if values.scale not in recall.LENGTHS:
        known = " or ".join(recall.LENGTHS)
        raise ConfigError(f"--scale={values.scale}: {recall.NAME} takes {known}")
    folder = values.runs or os.path.join("runs", "reproduce", f"{recall.NAME}-{values.scale}")
    known_rows = tuple(recall.ROWS)
    lengths = _of_scale("lengths", recall.LENGTHS[values.scale])
    widths = _of_scale("widths", recall.WIDTHS[values.scale])
    return recall_report.Plan(
        alternatives.checked_rows(values.rows, known_rows, values.match),
        values.scale,
        values["from"].value or folder,
        values.jobs,
        config_lib.named_overrides(_words_of_runs()),
        values.together,
        lengths,
        widths,
    )


def _of_scale(flag: str, known: Sequence[int]) -> Sequence[int]:
    """The numbers of a flag of recall; empty if it is not set.

    Raises:
        ConfigError: one of them is not among those of the scale.
    """
    if not flags.FLAGS[flag].present:
        return ()
    numbers = cli.numbers(flag, known)
    for number in numbers:
        if number not in known:
            expected = ", ".join(map(str, known))
            raise ConfigError(f"--{flag}={number}: {recall.NAME} at this scale has {expected}")
    return numbers


def _reproduce_recall() -> tuple[Report, list[str]]:
    """Trains the missing runs of recall, unless --from is set. Returns the report, and what went
    wrong."""
    plan = recall_plan()
    missing = []
    if not flags.FLAGS["from"].value and not recall_report.make(plan):
        missing.append("some runs failed")
    with cli.waiting("reading the runs"), _naming(missing):
        report = recall_report.report(plan)
    return report, missing


@contextlib.contextmanager
def _naming(missing: Sequence[str]) -> Iterator[None]:
    """Where there is nothing to report on, says what went wrong before, if anything did."""
    try:
        yield
    except run_finder.NoRuns:
        if not missing:
            raise
        raise RunError(
            f"no run has a result, so there is no report: {'; '.join(missing)}; fix what the lines "
            "above name, and give the same command again"
        ) from None


def report_on(plan: columns.Plan, submitted: Sequence[submissions.Submission] = ()) -> Report:
    """The report on the runs in the plan's folder, with the rows that others submitted. Raises
    RunError if it cannot be made."""
    table = plan.paper_table
    if flags.FLAGS.slices:
        columns.measure_slices(plan)
    if plan.table == ALTERNATIVES:
        classes = [row for row in plan.rows if custom_rows.is_custom(row)]
        return of_folder(plan.runs, plan.scale, plan.changes, submitted, classes)
    if not table.trained:
        return sizes.counts(table)
    rows = table.configs(plan.scale, plan.changes)
    runs = run_finder.find(plan.runs, rows)
    tuned = run_finder.find_finetuned(plan.runs, rows)
    if plan.table in learned_weights.FIGURES:
        return learned_weights.report(plan.table, table, runs, plan.scale, tuned)
    return language_models.perplexities(table, runs, plan.scale, tuned)


def _reproduce(name: str) -> tuple[Report, list[str]]:
    """Does the same for a table or figure of `TABLES`."""
    plan = plan_of(name)
    path = flags.FLAGS["with"].value
    submitted = submissions.read(path) if path else []  # before anything is trained
    missing: list[str] = []
    if plan.data and not flags.FLAGS["from"].value:
        columns.check(plan)
        missing = columns.make(plan)
    with cli.waiting("reading the runs" if plan.data else "counting"), _naming(missing):
        report = report_on(plan, submitted)
    return report, missing


def submit(name: str) -> None:
    """Adds the row of --name, whose runs are in --from, to the file of --submit.

    Raises:
        UserError: a flag is missing, or the runs or the file are refused.
    """
    values = flags.FLAGS
    if name != ALTERNATIVES:
        raise ConfigError(f"--submit is not for {name}: see gmlp reproduce --help")
    _refuse_flags(name, values)
    source = values["from"].value
    if not source or not values.name:
        raise ConfigError(
            f"--submit={values.submit} needs --from=RUNS, the folder of your runs, and --name=ROW, "
            "the name of your row"
        )
    changes = config_lib.named_overrides(_words_of_runs())
    with cli.waiting("reading the runs"):
        row = submitting.submission(values.name, source, values.scale, changes)
        submissions.append(values.submit, row)
    print(f"{values.submit} has the row {row.row}: median perplexity {row.median:.4g}")


def main(argv: list[str]) -> None:
    """Trains the missing runs, unless --from is set, and writes the report. With --submit it writes
    a row of the comparison instead."""
    name = argv[1]
    if flags.FLAGS.submit:
        submit(name)
        return
    report, missing = _reproduce_recall() if name == recall.NAME else _reproduce(name)
    with cli.waiting("drawing"):
        path = page.write(report, os.path.join(flags.FLAGS.out, name))
    print(report.markdown())
    print("\n".join(report.sentences()))
    print(f"\nthe report: {path}")
    if missing:
        raise RunError(f"{'; '.join(missing)}; the report is made of the others")


def _define_flags_of_runs() -> None:
    """Defines the flags that say what is trained, with which data, and where."""
    flags.DEFINE_enum("scale", "cpu", list(recipes.SCALES), "The size of models and runs.")
    flags.DEFINE_string(
        "data", None, "As in config.data.train; empty at paper scale: C4 or ImageNet."
    )
    flags.DEFINE_multi_string("finetune", [], "TASK=DATA: finetune on a task.")
    flags.DEFINE_multi_string("finetune_flag", [], "--config.KEY=VALUE for the finetuning.")
    flags.DEFINE_list(
        "finetune_seeds",
        [],
        f"Seeds of the finetuning; empty: {FINETUNING_SEEDS}; alternatives: each column's own.",
    )
    flags.DEFINE_string("from", None, "Report on these runs and train nothing.")
    flags.DEFINE_string("runs", None, "Folder of the runs that are trained.")
    flags.DEFINE_string("out", "reports", "Folder of the reports.")
    flags.DEFINE_integer("jobs", 1, "The number of runs trained at a time.", lower_bound=1)
    flags.DEFINE_integer(
        "together",
        1,
        "The most runs that one compiled program trains, if they differ only in seed and learning "
        "rate: for small models on an accelerator.",
        lower_bound=1,
    )


def _define_flags_of_rows() -> None:
    """Defines the flags that choose what is compared, and what the report shows."""
    flags.DEFINE_list(
        "columns",
        ["mlm", "costs"],
        f"alternatives: COLUMN[=DATA],...; columns: {', '.join((*COLUMNS, COSTS))}.",
    )
    flags.DEFINE_list(
        "rows",
        [],
        "alternatives, recall and table3: the mixers, separated by commas; "
        "my_package.my_module:MyBlock adds your own block; empty: all of ours.",
    )
    flags.DEFINE_enum(
        "match",
        custom_rows.MATCHES[0],
        custom_rows.MATCHES,
        "What is adjusted so that your own block has as many parameters as the Transformer: the "
        "width of its MLPs (or its layers, if it has no d_ffn), its layers, or nothing.",
    )
    flags.DEFINE_string(
        "submit", None, "alternatives: add your row, from the runs in --from, to this CSV file."
    )
    flags.DEFINE_string("name", None, "With --submit: the name of your row.")
    flags.DEFINE_string("with", None, "alternatives: also show the rows of this CSV file.")
    flags.DEFINE_bool(
        "slices",
        False,
        "table3 and alternatives: score finished runs on the tokens that repeat a bigram, and the "
        "others.",
    )
    lengths = list(map(str, alternatives.COST_LENGTHS))
    flags.DEFINE_list(
        "lengths",
        lengths,
        "alternatives: tokens at which costs are measured. recall: lengths n; by default all of the "
        "scale.",
    )
    flags.DEFINE_list("widths", [], "recall: widths d; empty: all of the scale.")


def run() -> None:
    """The command line."""
    _define_flags_of_runs()
    _define_flags_of_rows()
    cli.run(main, "NAME", words=_own_words)
