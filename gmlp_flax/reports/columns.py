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
from gmlp_flax.config import overrides
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.io import files as io_files
from gmlp_flax.paper import alternatives
from gmlp_flax.paper.alternatives import COLUMNS, FINETUNED, TRAINED
from gmlp_flax.reports import measured_costs
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.sweeps import definition, points, training
from gmlp_flax.sweeps.definition import Sweep
from gmlp_flax.tasks.sides import EMBEDDED

DEFAULT = "mlm,costs"
REPEATS = 5
STARTS = (True, False)  # of finetuning: from a run's parameters, and from random ones


class Plan(NamedTuple):
    """What a command line asks for.

    Attributes:
        columns, rows: names in COLUMNS and in alternatives.ROWS, in their order.
        data: column -> config.data.train.
        scale: cpu, gpu or paper.
        runs: the folder of everything.
        jobs: runs at a time.
        changes: keys, with values as text, of the runs of the trained columns which have such a key.
        finetune_changes, finetune_seeds: the same of the finetuned columns, and their seeds; empty for a column's own.
        lengths: numbers of tokens of the column `costs`.
    """

    columns: Sequence[str]
    rows: Sequence[str]
    data: Mapping[str, str]
    scale: str
    runs: str
    jobs: int = 1
    changes: Mapping[str, str] = alternatives.NOTHING
    finetune_changes: Mapping[str, str] = alternatives.NOTHING
    finetune_seeds: Sequence[int] = ()
    lengths: Sequence[int] = alternatives.COST_LENGTHS

    def folder(self, name: str) -> str:
        """Of a trained column: masked LM is trained in the folder itself, where other tables look for it as well."""
        return self.runs if name == "mlm" else os.path.join(self.runs, name)

    def seeds(self, name: str) -> Sequence[int]:
        """Of a finetuned column."""
        return self.finetune_seeds or COLUMNS[name].seeds_at(self.scale)

    def measurements(self) -> list[tuple[str, int, str]]:
        """The row, the number of tokens and the file of each measurement of the column `costs`."""
        cells = itertools.product(self.rows, self.lengths)
        return [(row, tokens, measured_costs.path(self.runs, row, tokens)) for row, tokens in cells]


def parse(words: Sequence[str]) -> dict[str, str]:
    """NAME,NAME=DATA,... as column -> its data, empty for none, in the order of COLUMNS. Raises ConfigError."""
    parts = [word.partition("=") for text in words for word in text.split(",")]
    pairs = {name: data for name, _, data in parts}
    return {name: pairs[name] for name in alternatives.checked(tuple(pairs), tuple(COLUMNS), "--columns")}


def check_path(flag: str, data: str | None) -> None:
    """Raises ConfigError if a flag names data on this machine that are not there."""
    if data and ":" not in data and data != EMBEDDED and not os.path.exists(data):
        raise ConfigError(f"{flag}: there is no such file or folder")


def check(plan: Plan) -> None:
    """Ends what could not run, before anything is trained.

    Raises:
        ConfigError: a column lacks its data, its config file or this scale; a flag is wrong; data are not there.
        RunError: a folder of a run that is to be trained holds a run of another config.
    """
    known: set[str] = set()
    for name in plan.columns:
        column, data = COLUMNS[name], plan.data.get(name)
        if column.config and not data and plan.scale != "paper":
            raise ConfigError(f"--columns: {name} needs its data: give {name}=PATH in its place")
        check_path(f"--columns={name}={data}", data)
        if column.kind == TRAINED:
            trials = [trial for sweep in _sweeps(plan, name) for trial in sweep.trials]
            known = known.union(*(config_lib.keys(trial.config) for trial in trials))
        elif column.kind == FINETUNED:
            [config] = column.configs(plan.scale, plan.rows[:1]).values()
            overrides.overridden(config, plan.finetune_changes)
    for key, value in plan.changes.items():
        if key not in known:
            config_lib.check_name(key, f"--config.{key}={value}")
            raise ConfigError(f"--config.{key}={value}: no run of {', '.join(plan.columns)} has such a key")


def make(plan: Plan) -> list[str]:
    """Trains and measures what is missing, column by column.

    Returns:
        What went wrong, a line per column that lacks something; the other columns are made all the same.
    """
    missing = []
    for name in plan.columns:
        print(f"{name}: {COLUMNS[name].title}", file=sys.stderr, flush=True)
        try:
            if COLUMNS[name].config:
                complete = [training.train(sweep, plan.jobs) for sweep in _sweeps(plan, name)]
                missing += [] if all(complete) else [f"{name}: some runs failed"]
            else:
                _measure(plan)
        except (ConfigError, RunError, DataError) as error:
            missing.append(f"{name}: {error}")
    return missing


def _sweeps(plan: Plan, name: str) -> Iterator[Sweep]:
    """What trains a column."""
    column, data = COLUMNS[name], data_change(plan.data.get(name))
    if column.kind == TRAINED:
        first = next(iter(column.configs(plan.scale, plan.rows).values()))
        changes = data | overrides.applying(first, plan.changes)
        yield definition.define(name, column.points(plan.scale, plan.rows), changes, plan.folder(name))
    else:
        for (row, run), start in itertools.product(_first_runs(plan).items(), STARTS):
            changes = {**data, **column.settings(plan.scale, row), **plan.finetune_changes}
            folder = tuned_folder(plan.runs, name, row, start)
            yield finetuning(column.of(row, plan.scale), folder, run, start, plan.seeds(name), changes)


def _measure(plan: Plan) -> None:
    """Measures the costs that are not there, each in a process that gives its memory back."""
    for row, tokens, path in plan.measurements():
        if not io_files.exists(path):
            words = ["mixers", f"--rows={row}", f"--lengths={tokens}", f"--repeats={REPEATS}", f"--json={path}"]
            words.append(f"--scale={'gpu' if plan.scale == 'gpu' else 'small'}")
            command = [sys.executable, "-m", "gmlp_flax", "benchmark", *words]
            if code := subprocess.run(command).returncode:
                raise RunError(f"gmlp benchmark ended with exit code {code}: what it wrote stands above")


def tuned_folder(runs: str, task: str, row: str, pretrained: bool) -> str:
    """Where a row's run is finetuned, from its parameters or from random ones."""
    return os.path.join(runs, run_finder.FINETUNED, f"{task}-{row}{'' if pretrained else '-random'}")


def finetuning(
    config: str, folder: str, run: str, pretrained: bool, seeds: Sequence[int], changes: dict[str, Any]
) -> Sweep:
    """The sweep in a folder that finetunes a run, with some changes of the config."""
    start = {"init_from": run, "init_parameters": pretrained}
    return definition.define(config, points.product({"seed": seeds}), start | changes, folder)


def data_change(data: str | None) -> dict[str, Any]:
    """The key that chooses data, if some are given."""
    return {"data.train": data} if data else {}


def first_finished(runs: Sequence[run_finder.Run]) -> dict[str, str]:
    """Row -> the folder of its first finished run."""
    return {run.row: run.path for run in reversed(runs) if run.finished}


def _first_runs(plan: Plan) -> dict[str, str]:
    """The run of masked LM from which each row of a finetuned column starts.

    Raises:
        RunError: there is none.
    """
    configs = COLUMNS["mlm"].configs(plan.scale, plan.rows, plan.changes)
    first = first_finished(run_finder.find(plan.folder("mlm"), configs))
    if not first:
        raise RunError(f"{plan.folder('mlm')} holds no finished run of mlm: make that column first")
    return {row: first[row] for row in plan.rows if row in first}
