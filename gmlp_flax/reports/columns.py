"""Makes what a report of `gmlp reproduce` lacks: trains, finetunes or measures, one column after
the other.

Each column goes on where it stopped: runs are sweeps, and each measured figure has a file of its
own.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gmlp_flax import config as config_lib
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.io import files as io_files
from gmlp_flax.paper import alternatives
from gmlp_flax.paper.alternatives import COLUMNS, COSTS, Column
from gmlp_flax.paper.tables import ALTERNATIVES, TABLES, TUNED
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.alternatives import cost_path, folder_of
from gmlp_flax.sweeps import definition, training
from gmlp_flax.sweeps.definition import Sweep
from gmlp_flax.tasks.sides import EMBEDDED

REPEATS = 5


class Plan(NamedTuple):
    """What a command line asks for.

    Attributes:
        table: name in TABLES.
        data: what is made -> config.data.train, empty for the config's own: the table and tasks in
            TUNED; of the alternatives, names in COLUMNS, and COSTS.
        rows: of the alternatives, those that are made.
        scale: cpu, gpu or paper.
        runs: the folder of everything.
        jobs: runs at a time.
        changes: keys, with values as text, of the runs that are not finetuned; of the alternatives,
            if they have them.
        finetune_changes, finetune_seeds: the same of the finetuned columns, and their seeds; empty
            for a column's own.
        lengths: numbers of tokens of COSTS.
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

    @property
    def columns(self) -> Mapping[str, Column]:
        """By name; of a table of the paper, its tasks."""
        return COLUMNS if self.table == ALTERNATIVES else TUNED

    def is_finetuned(self, name: str) -> bool:
        """Whether what is made begins from other runs."""
        return name in self.columns and bool(self.columns[name].starts)


def parse(words: Sequence[str]) -> dict[str, str]:
    """NAME or NAME=DATA, ... as column -> its data, empty for none, in the order of COLUMNS. Raises
    ConfigError."""
    data = {name: path for name, _, path in (word.partition("=") for word in words)}
    return {
        name: data[name]
        for name in alternatives.checked(tuple(data), (*COLUMNS, COSTS), "--columns")
    }


def check(plan: Plan) -> None:
    """Ends what could not run, before anything is trained.

    Raises:
        ConfigError: a column lacks its data, its config file or this scale; a flag is wrong; data
            are not there.
        RunError: a folder of a run that is to be trained holds a run of another config.
    """
    known: set[str] = set()
    for name, data in plan.data.items():
        if name == COSTS:
            continue
        flag = (
            f"--{'columns' if plan.table == ALTERNATIVES else 'finetune'}={name}"
            if name != plan.table
            else "--data"
        )
        if not data and plan.scale != "paper":
            raise ConfigError(f"{flag} is without its data: at scale {plan.scale} give {flag}=PATH")
        if data and ":" not in data and data != EMBEDDED and not os.path.exists(data):
            raise ConfigError(f"{flag}={data}: there is no such file or folder")
        if plan.is_finetuned(name):
            [config] = plan.columns[name].configs(plan.scale, plan.rows[:1]).values()
            config_lib.overridden(config, plan.finetune_changes)
        else:
            known = known.union(
                *(config_lib.keys(trial.config) for trial in _training(plan, name).trials)
            )
    for key, value in plan.changes.items():
        if key not in known:
            config_lib.check_name(key, f"--config.{key}={value}")
            raise ConfigError(
                f"--config.{key}={value}: no run of {', '.join(plan.data)} has such a key"
            )


def make(plan: Plan) -> list[str]:
    """Trains and measures what is missing, column by column.

    Returns:
        What went wrong, a line per column that lacks something; the other columns are made all the
        same.
    """
    missing = []
    for number, name in enumerate(plan.data, start=1):
        print(f"{name} ({number} of {len(plan.data)})", file=sys.stderr, flush=True)
        try:
            if name == COSTS:
                _measure(plan)
                continue
            sweeps = _finetuning(plan, name) if plan.is_finetuned(name) else [_training(plan, name)]
            if [sweep for sweep in sweeps if not training.train(sweep, plan.jobs)]:
                missing.append(f"{name}: some runs failed, the report is made of the others")
        except (ConfigError, RunError, DataError) as error:
            missing.append(f"{name}: {error}")
    return missing


def _training(plan: Plan, name: str) -> Sweep:
    """What trains a table of the paper, or a column."""
    changes = _data_change(plan, name)
    if name == plan.table:
        return definition.define(
            f"paper:{name}", TABLES[name].points(plan.scale), {**changes, **plan.changes}, plan.runs
        )
    column = COLUMNS[name]
    first = next(iter(column.configs(plan.scale, plan.rows).values()))
    changes |= config_lib.applying(first, plan.changes)
    return definition.define(
        name, column.points(plan.scale, plan.rows), changes, folder_of(plan.runs, name)
    )


def _finetuning(plan: Plan, name: str) -> Iterator[Sweep]:
    """What finetunes the first finished run of each row, in folders in which `runs.find_finetuned`
    looks.

    Raises:
        RunError: there is no finished run to start from.
    """
    if plan.table == ALTERNATIVES:
        rows = COLUMNS["mlm"].configs(plan.scale, plan.rows, plan.changes)
    else:
        rows = TABLES[plan.table].configs(plan.scale, plan.changes)
    first = {
        run.row: run.path for run in reversed(run_finder.find(plan.runs, rows)) if run.finished
    }
    if not first:
        raise RunError(
            f"{plan.runs} holds no finished run of {', '.join(rows)} to start from: train them first"
        )
    column = plan.columns[name]
    seeds = tuple({"seed": seed} for seed in plan.finetune_seeds or column.seeds_at(plan.scale))
    changes = {**_data_change(plan, name), **column.settings(plan.scale), **plan.finetune_changes}
    for row, start in itertools.product(sorted(first), column.starts):
        out = os.path.join(
            plan.runs, run_finder.FINETUNED, f"{name}-{row}{'' if start else '-random'}"
        )
        started = {"init_from": first[row], "init_parameters": start, **changes}
        yield definition.define(column.of("", plan.scale), seeds, started, out)


def _data_change(plan: Plan, name: str) -> dict[str, str]:
    """The key that chooses data, if some are given; GLUE's tasks at scale paper have TFDS's without
    being given any."""
    is_glue = plan.is_finetuned(name) and plan.columns[name].config.startswith("finetune_glue:")
    data = plan.data[name] or (f"tfds:glue/{plan.columns[name].task}" if is_glue else "")
    return {"data.train": data} if data else {}


def _measure(plan: Plan) -> None:
    """Measures the costs that are not there, each in a process that gives its memory back."""
    for row, tokens in itertools.product(plan.rows, plan.lengths):
        path = cost_path(plan.runs, row, tokens)
        if not io_files.exists(path):
            words = [
                "mixers",
                f"--rows={row}",
                f"--lengths={tokens}",
                f"--repeats={REPEATS}",
                f"--json={path}",
            ]
            words.append(f"--scale={'gpu' if plan.scale == 'gpu' else 'small'}")
            command = [sys.executable, "-m", "gmlp_flax", "benchmark", *words]
            if code := subprocess.run(command).returncode:
                raise RunError(
                    f"gmlp benchmark ended with exit code {code}: what it wrote stands above"
                )
