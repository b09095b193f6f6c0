"""Makes the columns of `gmlp reproduce alternatives`: trains or measures what is missing, one column after the other.

Each column goes on where it stopped: runs are sweeps, and each measured figure has a file of its own.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gmlp_flax import config as config_lib
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.io import files as io_files
from gmlp_flax.paper import alternatives
from gmlp_flax.paper.alternatives import COLUMNS, FINETUNED, TRAINED
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.alternatives import cost_path
from gmlp_flax.sweeps import definition, points, training
from gmlp_flax.sweeps.definition import Sweep
from gmlp_flax.tasks.sides import EMBEDDED

REPEATS = 5


class Plan(NamedTuple):
    """What a command line asks for.

    Attributes:
        data: name in COLUMNS -> config.data.train, empty for none.
        rows: names in alternatives.ROWS.
        scale: cpu, gpu or paper.
        runs: the folder of everything.
        jobs: runs at a time.
        changes: keys, with values as text, of the runs of the trained columns which have such a key.
        finetune_changes, finetune_seeds: the same of the finetuned columns, and their seeds; empty for a column's own.
        lengths: numbers of tokens of the column `costs`.
    """

    data: Mapping[str, str]
    rows: Sequence[str]
    scale: str
    runs: str
    jobs: int = 1
    changes: Mapping[str, str] = alternatives.NOTHING
    finetune_changes: Mapping[str, str] = alternatives.NOTHING
    finetune_seeds: Sequence[int] = ()
    lengths: Sequence[int] = alternatives.COST_LENGTHS


def parse(words: Sequence[str]) -> dict[str, str]:
    """NAME or NAME=DATA, ... as column -> its data, empty for none, in the order of COLUMNS. Raises ConfigError."""
    parts = [word.partition("=") for word in words]
    data = {name: path for name, _, path in parts}
    return {name: data[name] for name in alternatives.checked(tuple(data), tuple(COLUMNS), "--columns")}


def check_path(flag: str, data: str | None) -> None:
    """Raises ConfigError if a flag names data on this machine that are not there."""
    if data and ":" not in data and data != EMBEDDED and not os.path.exists(data):
        raise ConfigError(f"{flag}={data}: there is no such file or folder")


def check(plan: Plan) -> None:
    """Ends what could not run, before anything is trained.

    Raises:
        ConfigError: a column lacks its data, its config file or this scale; a flag is wrong; data are not there.
        RunError: a folder of a run that is to be trained holds a run of another config.
    """
    known: set[str] = set()
    for name, data in plan.data.items():
        column = COLUMNS[name]
        if column.config and not data and plan.scale != "paper":
            raise ConfigError(f"--columns: {name} needs its data: give {name}=PATH in its place")
        check_path(f"--columns={name}", data)
        if column.kind == TRAINED:
            known = known.union(*(config_lib.keys(trial.config) for trial in _training(plan, name).trials))
        elif column.kind == FINETUNED:
            [config] = column.configs(plan.scale, plan.rows[:1]).values()
            config_lib.overridden(config, plan.finetune_changes)
    for key, value in plan.changes.items():
        if key not in known:
            config_lib.check_name(key, f"--config.{key}={value}")
            raise ConfigError(f"--config.{key}={value}: no run of {', '.join(plan.data)} has such a key")


def make(plan: Plan) -> list[str]:
    """Trains and measures what is missing, column by column.

    Returns:
        What went wrong, a line per column that lacks something; the other columns are made all the same.
    """
    missing = []
    for name in plan.data:
        print(f"{name}: {COLUMNS[name].title}", file=sys.stderr, flush=True)
        try:
            if COLUMNS[name].config:
                sweeps = [_training(plan, name)] if COLUMNS[name].kind == TRAINED else _finetuning(plan, name)
                complete = [training.train(sweep, plan.jobs) for sweep in sweeps]
                missing += [] if all(complete) else [f"{name}: some runs failed"]
            else:
                _measure(plan)
        except (ConfigError, RunError, DataError) as error:
            missing.append(f"{name}: {error}")
    return missing


def _training(plan: Plan, name: str) -> Sweep:
    """What trains a column: masked LM in the folder itself, where other tables look for it as well."""
    column = COLUMNS[name]
    first = next(iter(column.configs(plan.scale, plan.rows).values()))
    changes = data_change(plan.data[name]) | config_lib.applying(first, plan.changes)
    folder = plan.runs if name == "mlm" else os.path.join(plan.runs, name)
    return definition.define(name, column.points(plan.scale, plan.rows), changes, folder)


def _finetuning(plan: Plan, name: str) -> Iterator[Sweep]:
    """What finetunes a column, also from random parameters.

    Raises:
        RunError: there is no finished run of masked LM to start from.
    """
    column, pretrained = COLUMNS[name], COLUMNS["mlm"].configs(plan.scale, plan.rows, plan.changes)
    runs = run_finder.find(plan.runs, pretrained)
    if not any(run.finished for run in runs):
        raise RunError(f"{plan.runs} holds no finished run of mlm: make that column first")
    changes = {**data_change(plan.data[name]), **column.settings(plan.scale), **plan.finetune_changes}
    seeds = plan.finetune_seeds or column.seeds_at(plan.scale)
    yield from finetuning(runs, plan.runs, name, column.of("", plan.scale), seeds, changes, (True, False))


def _measure(plan: Plan) -> None:
    """Measures the costs that are not there, each in a process that gives its memory back."""
    for row, tokens in itertools.product(plan.rows, plan.lengths):
        path = cost_path(plan.runs, row, tokens)
        if not io_files.exists(path):
            words = ["mixers", f"--rows={row}", f"--lengths={tokens}", f"--repeats={REPEATS}", f"--json={path}"]
            words.append(f"--scale={'gpu' if plan.scale == 'gpu' else 'small'}")
            command = [sys.executable, "-m", "gmlp_flax", "benchmark", *words]
            if code := subprocess.run(command).returncode:
                raise RunError(f"gmlp benchmark ended with exit code {code}: what it wrote stands above")


def finetuning(
    runs: Sequence[run_finder.Run],
    folder: str,
    task: str,
    config: str,
    seeds: Sequence[int],
    changes: Mapping[str, Any],
    starts: Sequence[bool] = (True,),
) -> Iterator[Sweep]:
    """The sweeps that finetune the first finished run of each row.

    Args:
        runs: of the rows.
        folder: in which `runs.find_finetuned` finds what is finetuned.
        task: the name of the task, or of the column.
        config: of the task.
        seeds: of each row.
        changes: keys of the config that change.
        starts: whether to start from the run's parameters, or from random ones.
    """
    first = {run.row: run.path for run in reversed(runs) if run.finished}
    for row, start in itertools.product(sorted(first), starts):
        out = os.path.join(folder, run_finder.FINETUNED, f"{task}-{row}{'' if start else '-random'}")
        started = {"init_from": first[row], "init_parameters": start, **changes}
        yield definition.define(config, points.product({"seed": seeds}), started, out)


def data_change(data: str | None) -> dict[str, Any]:
    """The key that chooses data, if some are given."""
    return {"data.train": data} if data else {}
