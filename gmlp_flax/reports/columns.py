"""Trains, finetunes and measures what a report of `gmlp reproduce` needs and does not have yet, one
column after the other.

Each column resumes where it stopped: runs are sweeps, and each measurement has its own file.
"""

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.config import validation
from gmlp_flax.errors import ConfigError, RunError, UserError
from gmlp_flax.io import files as io_files
from gmlp_flax.paper import alternatives, custom_rows, matching
from gmlp_flax.paper.alternatives import COLUMNS, COSTS, Column
from gmlp_flax.paper.tables import ALTERNATIVES, TABLES, TUNED, PaperTable
from gmlp_flax.processes import stopping
from gmlp_flax.reports import recall_slices
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.alternatives.scores import best_rate, folder_of, search_folder, searched
from gmlp_flax.reports.costs import cost_path
from gmlp_flax.sweeps import definition, states, training
from gmlp_flax.sweeps import points as points_lib
from gmlp_flax.sweeps.definition import Sweep
from gmlp_flax.sweeps.points import Point
from gmlp_flax.sweeps.progress import Progress, Work
from gmlp_flax.tasks.data.config import EMBEDDED

REPEATS = 5  # of each measured step


class Plan(NamedTuple):
    """What a command line asks for.

    Attributes:
        table: name in TABLES.
        data: what is made -> config.data.train, empty for the config's own: the table and tasks in
            TUNED; for the alternatives, names in COLUMNS, and COSTS.
        rows: the rows of the table that are made; some may be classes of the user's own.
        scale: cpu, gpu or paper.
        runs: the folder of everything.
        jobs: runs at a time.
        changes: keys, with values as text, for the runs that are not finetuned; runs of the
            alternatives take those that they have.
        finetune_changes: such keys for the finetuned columns.
        finetune_seeds: the seeds of the finetuned columns; empty for each column's own.
        lengths: numbers of tokens of COSTS.
        together: how many runs one program trains at most.
    """

    table: str
    data: Mapping[str, str]
    rows: Sequence[str]
    scale: str
    runs: str
    jobs: int = 1
    changes: Mapping[str, str] = alternatives.NOTHING
    finetune_changes: Mapping[str, str] = alternatives.NOTHING
    finetune_seeds: Sequence[int] = ()
    lengths: Sequence[int] = alternatives.COST_LENGTHS
    together: int = 1

    @property
    def paper_table(self) -> PaperTable:
        """The table, with the rows that are made."""
        table = TABLES[self.table]
        if table.takes_classes:
            return table.of_rows(self.rows)
        return table

    def column_of(self, name: str) -> Column:
        """The column that is trained under a name; a table's own runs are masked LM."""
        if name == self.table:
            return COLUMNS["mlm"]
        return COLUMNS[name]

    def searches(self, name: str) -> list[str]:
        """The rows whose rate is searched before they are trained under a name."""
        if alternatives.RATE in self.changes:
            return []
        if name != self.table and name not in COLUMNS:
            return []
        column = self.column_of(name)
        rows = []
        for row in column.configs(self.scale, self.rows):
            if column.rates_of(row, self.scale):
                rows.append(row)
        return rows

    @property
    def columns(self) -> Mapping[str, Column]:
        """Columns by name; for a table of the paper, the tasks for finetuning."""
        if self.table == ALTERNATIVES:
            return COLUMNS
        return TUNED

    def is_finetuned(self, name: str) -> bool:
        """Whether the runs of this name start from other runs."""
        if name not in self.columns:
            return False
        column = self.columns[name]
        return bool(column.starts)

    def flag(self, name: str) -> str:
        """The flag that takes the data of this name."""
        if name == self.table:
            return "--data"
        if self.table == ALTERNATIVES:
            return f"--columns={name}"
        return f"--finetune={name}"


def parse(words: Sequence[str]) -> dict[str, str]:
    """NAME or NAME=DATA, ... as column -> its data, empty for none, in the order of COLUMNS. Raises
    ConfigError."""
    data = {}
    for word in words:
        name, _, path = word.partition("=")
        data[name] = path
    known = (*COLUMNS, COSTS)
    names = alternatives.checked(tuple(data), known, "--columns")
    in_order = {}
    for name in names:
        in_order[name] = data[name]
    return in_order


def check(plan: Plan) -> None:
    """Refuses what could not run, before anything is trained.

    Raises:
        ConfigError: a column has no data, config file or such scale; a flag is wrong; data are not
            there; a block returns NaN.
        RunError: a folder of a run that is to be trained holds a run of another config.
    """
    known: set[str] = set()
    for name in plan.data:
        if name == COSTS:
            alternatives.check_cost_lengths(plan.lengths)
            continue
        _check_data(plan, name)
        if plan.is_finetuned(name):
            _check_finetuning(plan, name)
        else:
            known |= _trained_keys(plan, name)
    for key, value in plan.changes.items():
        if key not in known:
            flag = f"--config.{key}={value}"
            config_lib.check_name(key, flag)
            names = ", ".join(plan.data)
            raise ConfigError(f"{flag}: no run of {names} has such a key")


def _check_finetuning(plan: Plan, name: str) -> None:
    """Raises ConfigError if a finetuned column has no such scale, a change does not fit it, or a
    block does not take the padding of its texts."""
    column = plan.columns[name]
    configs = column.configs(plan.scale, plan.rows[:1])
    [config] = configs.values()
    config_lib.overridden(config, plan.finetune_changes)
    if not any(custom_rows.is_custom(row) for row in plan.rows):
        return
    for pretraining in _pretraining_configs(plan).values():
        spec = matching.encoder_spec(pretraining)
        validation.require_callable(pretraining.model.block, spec, padded=True)


def _trained_keys(plan: Plan, name: str) -> set[str]:
    """The keys of the configs of a column that is trained; raises what `check` does."""
    sweep = _training(plan, name)
    names: set[str] = set()
    for trial in sweep.trials:
        config = trial.config
        validation.require_finite(config.model.block, matching.encoder_spec(config))
        keys = config_lib.keys(config)
        names.update(keys)
    return names


def _check_data(plan: Plan, name: str) -> None:
    """Raises ConfigError if the runs of this name need data and have none, or the data are
    missing."""
    data = plan.data[name]
    scale = plan.scale
    flag = plan.flag(name)
    if not data:
        if scale != "paper":
            raise ConfigError(f"{flag} is without its data: at scale {scale} give {flag}=PATH")
        return
    is_path = ":" not in data and data != EMBEDDED
    if is_path and not os.path.exists(data):
        raise ConfigError(f"{flag}={data}: there is no such file or folder")


def make(plan: Plan) -> list[str]:
    """Trains and measures what is missing, column by column.

    Returns:
        What went wrong, a line for each column that is not complete; the other columns are made
        regardless.
    """
    missing = []
    progress = Progress(_planned(plan))
    count = len(plan.data)
    for number, name in enumerate(plan.data, start=1):
        place = f" (part {number} of {count})" if count > 1 else ""
        print(f"{name}{place}", file=sys.stderr, flush=True)
        try:
            complete = _make(plan, name, progress)
        except UserError as error:
            missing.append(f"{name}: {error}")
            continue
        finally:
            progress.end_part(name)
        if not complete:
            missing.append(f"{name}: some runs failed")
    return missing


def _planned(plan: Plan) -> dict[str, list[Work]]:
    """Name in the plan -> the work of each of its sweeps; none if they cannot be defined, which is
    an error when they are to be trained."""
    planned = {}
    for name in plan.data:
        try:
            planned[name] = _work(plan, name)
        except UserError:
            planned[name] = []
    return planned


def _work(plan: Plan, name: str) -> list[Work]:
    """The work of each sweep of a column, before anything is trained."""
    if name == COSTS:
        return []
    if plan.is_finetuned(name):
        return _finetuning_work(plan, name)
    sweeps = [_training(plan, name)]
    searched_rows = plan.searches(name)
    if searched_rows:
        sweeps.insert(0, _search(plan, name, searched_rows))
    return [states.work_of(sweep) for sweep in sweeps]


def _finetuning_work(plan: Plan, name: str) -> list[Work]:
    """The work of each sweep of a finetuned column, if all runs that it starts from will finish."""
    column = plan.columns[name]
    settings = column.settings(plan.scale)
    changes = {**settings, **plan.finetune_changes}
    path = column.of("", plan.scale)
    config_as_it_is = config_lib.open_config(path)
    config = config_lib.overridden(config_as_it_is, changes)
    seeds = plan.finetune_seeds or column.seeds_at(plan.scale)
    work = Work.of(len(seeds), config.steps)
    rows = _rows_to_finetune(plan)
    sweeps = len(rows) * len(column.starts)
    return [work] * sweeps


def _rows_to_finetune(plan: Plan) -> set[str]:
    """The rows that have a finished run, or are trained before."""
    rows: set[str] = set()
    if plan.table == ALTERNATIVES and "mlm" in plan.data:
        configs = _pretraining_configs(plan)
        rows.update(configs)
    if plan.table in plan.data:
        trained = plan.paper_table.trained
        rows.update(trained[plan.scale])
    with contextlib.suppress(RunError):  # no run has finished
        rows.update(_pretrained_runs(plan))
    return rows


def _make(plan: Plan, name: str, progress: Progress) -> bool:
    """Makes one column; returns whether all of its runs have a result."""
    if name == COSTS:
        _measure(plan)
        return True
    complete = True
    if plan.is_finetuned(name):
        sweeps = list(_finetuning(plan, name))
        works = [states.work_of(sweep) for sweep in sweeps]
        progress.begin_part(name, works)
        for sweep in sweeps:
            complete &= _train(plan, sweep, progress)
        return complete
    progress.begin_part(name, _work(plan, name))
    rates: Mapping[str, float] = {}
    searched_rows = plan.searches(name)
    if searched_rows:
        search = _search(plan, name, searched_rows)
        complete = _train(plan, search, progress)
        rates = _searched_rates(plan, name, searched_rows)
    sweep = _training(plan, name, rates)
    complete &= _train(plan, sweep, progress)
    return complete


def _search_folder(plan: Plan, name: str) -> str:
    """The folder of the runs that choose rates: a table's own runs are in the folder itself."""
    column = "mlm" if name == plan.table else name
    return search_folder(plan.runs, column)


def _search(plan: Plan, name: str, rows: Sequence[str]) -> Sweep:
    """The sweep that tries the rates of some rows."""
    column = plan.column_of(name)
    points: list[Point] = []
    for row in rows:
        points += column.search_points(plan.scale, row)
    changes = _column_changes(plan, name)
    folder = _search_folder(plan, name)
    return definition.define(name, tuple(points), changes, folder)


def _train(plan: Plan, sweep: Sweep, progress: Progress) -> bool:
    """Trains a sweep; returns whether no run failed."""
    return training.train(sweep, plan.jobs, together=plan.together, progress=progress)


def _searched_rates(plan: Plan, name: str, rows: Sequence[str]) -> dict[str, float]:
    """Row -> the best of the rates whose runs have a result: one that is too high may diverge.

    Raises:
        RunError: a row has no such run.
    """
    column = plan.column_of(name)
    folder = _search_folder(plan, name)
    rates = {}
    for row in rows:
        scores = searched(folder, column, plan.scale, row)
        if not scores:
            raise RunError(
                f"the best rate of {row} is not known, as no run of its search in {folder} has a "
                "result"
            )
        rates[row] = best_rate(scores, column)
    return rates


def _training(plan: Plan, name: str, rates: Mapping[str, float] = alternatives.NOTHING) -> Sweep:
    """The sweep that trains a table of the paper, or a column. `rates` are those that a search
    chose."""
    if name == plan.table:
        points = plan.paper_table.points(plan.scale, rates)
        data = _data_change(plan, name)
        changes = {**data, **plan.changes}
        return definition.define(f"paper:{name}", points, changes, plan.runs)
    column = COLUMNS[name]
    points = column.points(plan.scale, plan.rows, rates)
    changes = _column_changes(plan, name)
    folder = folder_of(plan.runs, name)
    return definition.define(name, points, changes, folder)


def _column_changes(plan: Plan, name: str) -> dict[str, Any]:
    """The data of a column that is trained, and those of the plan's changes that its configs have."""
    column = plan.column_of(name)
    configs = column.configs(plan.scale, plan.rows)
    first, *_ = configs.values()
    data = _data_change(plan, name)
    applying = config_lib.applying(first, plan.changes)
    return {**data, **applying}


def _finetuning(plan: Plan, name: str) -> Iterator[Sweep]:
    """The sweeps that finetune the first finished run of each row, in folders where
    `runs.find_finetuned` looks.

    Raises:
        RunError: there is no finished run to start from.
    """
    column = plan.columns[name]
    pretrained = _pretrained_runs(plan)
    seeds = plan.finetune_seeds or column.seeds_at(plan.scale)
    points = tuple({"seed": seed} for seed in seeds)
    config = column.of("", plan.scale)
    data = _data_change(plan, name)
    settings = column.settings(plan.scale)
    common_changes = {**data, **settings, **plan.finetune_changes}
    rows = sorted(pretrained)
    for row, start in itertools.product(rows, column.starts):
        row_folder = points_lib.folder_name(row)
        out = f"{name}-{row_folder}"
        if not start:
            out += "-random"
        folder = os.path.join(plan.runs, run_finder.FINETUNED, out)
        starting = {"init_from": pretrained[row], "init_parameters": start}
        changes = starting | common_changes
        trusted = custom_rows.modules([row])
        yield definition.define(config, points, changes, folder, trusted=trusted)


def _pretrained_runs(plan: Plan) -> dict[str, str]:
    """Row -> its first finished run; raises RunError if no row has one."""
    rows = _pretraining_configs(plan)
    runs = run_finder.find(plan.runs, rows)
    first: dict[str, str] = {}
    for run in runs:
        if run.finished:
            first.setdefault(run.row, run.path)
    if not first:
        names = ", ".join(rows)
        raise RunError(
            f"{plan.runs} holds no finished run of {names} to start from: train them first"
        )
    return first


def _pretraining_configs(plan: Plan) -> dict[str, ConfigDict]:
    """The config with which each row is pretrained, or trained as masked LM."""
    if plan.table == ALTERNATIVES:
        masked_lm = COLUMNS["mlm"]
        return masked_lm.configs(plan.scale, plan.rows, plan.changes)
    return plan.paper_table.configs(plan.scale, plan.changes)


def measure_slices(plan: Plan) -> None:
    """Scores the finished runs of language models on AR hits, see `recall_slices`, unless their
    folders have these scores.

    Raises:
        UserError: there are no runs, or a run or its data cannot be read.
    """
    configs = _pretraining_configs(plan)
    runs = run_finder.find(plan.runs, configs)
    finished = [run for run in runs if run.finished]
    count = len(finished)
    for number, run in enumerate(finished, start=1):
        line = f"slices of {run.path} ({number} of {count})"
        print(line, file=sys.stderr, flush=True)
        config = configs[run.row]
        most = config.eval.frequent_bigrams
        recall_slices.measure(run, most)


def _data_change(plan: Plan, name: str) -> dict[str, str]:
    """The key that chooses data, if a path is given. Without one, GLUE's tasks, at scale paper, read
    TFDS's data."""
    data = plan.data[name]
    if not data and plan.is_finetuned(name):
        column = plan.columns[name]
        if column.config.startswith("finetune_glue:"):
            data = f"tfds:glue/{column.task}"
    if not data:
        return {}
    return {"data.train": data}


def _measure(plan: Plan) -> None:
    """Measures the missing costs, each in a separate process, which frees its memory; raises
    RunError if one fails."""
    scale = "gpu" if plan.scale == "gpu" else "small"
    for row, tokens in itertools.product(plan.rows, plan.lengths):
        path = cost_path(plan.runs, row, tokens)
        if io_files.exists(path):
            continue
        command = [
            sys.executable,
            "-m",
            "gmlp_flax",
            "benchmark",
            "mixers",
            f"--rows={_quoted(row)}",
            f"--lengths={tokens}",
            f"--repeats={REPEATS}",
            f"--json={path}",
            f"--scale={scale}",
        ]
        with stopping.terminable():  # a signal ends the process too
            process = subprocess.run(command)
        code = process.returncode
        if code:
            raise RunError(f"gmlp benchmark ended with exit code {code}: its output is above")


def _quoted(row: str) -> str:
    """A row as one entry of --rows, whose entries have commas between them."""
    if "," in row:
        return f'"{row}"'
    return row
