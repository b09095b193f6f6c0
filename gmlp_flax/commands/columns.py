"""The columns of `gmlp reproduce alternatives`: which commands train or measure each of them, one after the other.

Each column goes on where it stopped: runs are sweeps, and each measured figure has a file of its own.
"""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import run_folder
from gmlp_flax.checkpoints.names import RESULT_FILE
from gmlp_flax.config import overrides
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.io import files as io_files
from gmlp_flax.paper import alternatives
from gmlp_flax.paper.alternatives import COLUMNS, FINETUNED, TRAINED
from gmlp_flax.processes import signals
from gmlp_flax.reports import measured_costs
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.sweeps import points, runner

DEFAULT = "mlm,lengths,costs"
TOPOLOGY, TOKENS_PER_STEP = "v5e:1x1", 8192  # of the column tpu: two sequences, so that attention fits
REPEATS = 5
RUN = "RUN"  # stands in a listing for a run that is not there yet


class Plan(NamedTuple):
    """What a command line asks for.

    Attributes:
        columns: names in COLUMNS, in its order.
        rows: names in alternatives.ROWS.
        data: column -> config.data.train.
        scale: cpu, gpu or paper.
        runs: the folder of everything.
        jobs: runs at a time.
        flags: words --config.KEY=VALUE that change the runs of the trained columns which have such a key.
        finetune_flags: the same of the finetuned columns.
        finetune_seeds: of each finetuned row; empty for the column's own.
        lengths: numbers of tokens of the column `costs`.
    """

    columns: Sequence[str]
    rows: Sequence[str]
    data: Mapping[str, str]
    scale: str
    runs: str
    jobs: int = 1
    flags: Sequence[str] = ()
    finetune_flags: Sequence[str] = ()
    finetune_seeds: Sequence[int] = ()
    lengths: Sequence[int] = alternatives.COST_LENGTHS

    def folder(self, name: str) -> str:
        """Of a trained column: masked LM is trained in the folder itself, where other tables look for it as well."""
        return self.runs if name == "mlm" else os.path.join(self.runs, name)

    def seeds(self, name: str) -> Sequence[int]:
        """Of a finetuned column."""
        return self.finetune_seeds or COLUMNS[name].seeds_at(self.scale)

    def changes(self) -> dict[str, Any]:
        """The keys that the flags change."""
        return overrides.named_overrides(self.flags)


def parse(words: Sequence[str]) -> dict[str, str]:
    """NAME,NAME=DATA,... as column -> its data, empty for none, in the order of COLUMNS. Raises ConfigError."""
    parts = [word.partition("=") for text in words for word in text.split(",")]
    pairs = {name: data for name, _, data in parts}
    return {name: pairs[name] for name in alternatives.checked(tuple(pairs), tuple(COLUMNS), "--columns")}


def check(plan: Plan, needs_data: bool = True) -> None:
    """Ends what could not run, before anything is trained. A plan that is only listed needs no data.

    Raises:
        ConfigError: a column lacks its data, its config file or this scale; a flag is wrong; data are not there.
    """
    unknown = plan.changes()
    for name in plan.columns:
        column, data = COLUMNS[name], plan.data.get(name)
        if needs_data and column.config and not data and plan.scale != "paper":
            raise ConfigError(f"--columns: {name} needs its data: give {name}=PATH in its place")
        if data and ":" not in data and data != "embedded" and not os.path.exists(data):
            raise ConfigError(f"--columns={name}={data}: there is no such file or folder")
        if column.kind == TRAINED:
            for config in column.configs(plan.scale, plan.rows, plan.changes()).values():
                config_lib.validate(config)
                unknown = {key: value for key, value in unknown.items() if key not in config_lib.keys(config)}
        elif column.kind == FINETUNED:
            [config] = column.configs(plan.scale, plan.rows[:1]).values()
            overrides.overridden(config, overrides.named_overrides(plan.finetune_flags))
    for key, value in unknown.items():
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
            if name in MEASURES:
                MEASURES[name](plan)
            elif sum(not _succeeds(words) for words in commands(plan, name, _first_runs(plan, name))):
                missing.append(f"{name}: some runs failed")
        except (RunError, DataError) as error:
            missing.append(f"{name}: {error}")
    return missing


def _succeeds(words: Sequence[str]) -> bool:
    """Runs a command; False if some runs of a sweep failed. Raises RunError: it could not run at all."""
    code = run(*words)
    if code not in (0, 1):
        raise RunError(f"gmlp {words[0]} ended with exit code {code}: what it wrote stands above")
    return code == 0


def run(*words: str) -> int:
    """Runs a subcommand in a process that dies with this one; returns its exit code. If a signal asks to stop, the
    command lets its runs save first."""
    process = subprocess.Popen(runner.tied_command([sys.executable, "-m", "gmlp_flax", *words]))

    def stop(*_: object) -> None:
        signals.end_on_the_next(signal.SIGTERM, signal.SIGHUP)
        process.terminate()
        raise KeyboardInterrupt

    with signals.handled((signal.SIGTERM, signal.SIGHUP), stop):
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # Ctrl-C has reached it as well
            raise


def listing(plan: Plan) -> str:
    """Every column: what it is, how much of it is there, how long all rows take, and its commands."""
    lines = [f"{len(plan.rows)} rows at scale {plan.scale}, in {plan.runs}"]
    total = 0.0
    for name in plan.columns:
        column, files = COLUMNS[name], results(plan, name)
        share = len(plan.seeds(name)) / len(column.seeds) if column.kind == FINETUNED else 1
        minutes = column.minutes * len(plan.rows) / len(alternatives.ROWS) * share
        total += minutes
        time = f", about {max(1, round(minutes))} minutes on two cores" if plan.scale == "cpu" else ""
        there = sum(map(io_files.exists, files))
        lines.append(f"{name}: {column.title}: {there} of {len(files)} there{time}")
        words = [shlex.join(["gmlp", *command]) for command in commands(plan, name, dict.fromkeys(plan.rows, RUN))]
        lines += [f"    {command}" for command in words[:2]]
        lines += [f"    ... {len(words)} commands in all"] if len(words) > 2 else []
    if plan.scale == "cpu":
        lines.append(f"in all about {max(1, round(total / 60))} hours, estimated, if nothing is there")
    return "\n".join(lines)


def results(plan: Plan, name: str) -> list[str]:
    """The files that are there when a column is made: of each run its result, or the measurements."""
    column = COLUMNS[name]
    if column.kind == TRAINED:
        runs = [os.path.join(plan.folder(name), points.name(one)) for one in column.points(plan.scale, plan.rows)]
    elif column.kind == FINETUNED:
        starts = itertools.product(plan.rows, (True, False), plan.seeds(name))
        runs = [os.path.join(finetuned(plan.runs, name, row, start), f"seed={seed}") for row, start, seed in starts]
    else:
        return [file for _, _, file in _measurements(plan, name)]
    return [os.path.join(run, RESULT_FILE) for run in runs]


def commands(plan: Plan, name: str, first: Mapping[str, str]) -> Iterator[list[str]]:
    """What trains or measures what a column lacks; none for what this process measures.

    Args:
        plan: of the command line.
        name: of the column.
        first: row -> the run from which it is finetuned.
    """
    column = COLUMNS[name]
    data = [f"--config.data.train={plan.data[name]}"] if plan.data.get(name) else []
    if column.kind == TRAINED:
        rows = "" if tuple(plan.rows) == alternatives.ROWS else f",rows={'+'.join(plan.rows)}"
        one = next(iter(column.configs(plan.scale, plan.rows).values()))
        flags = [f"--config.{key}={value}" for key, value in overrides.applying(one, plan.changes()).items()]
        sweep = f"--sweep=alternatives:{name},scale={plan.scale}{rows}"
        yield ["sweep", sweep, f"--out={plan.folder(name)}", f"--jobs={plan.jobs}", "--", *data, *flags]
    elif column.kind == FINETUNED:
        for (row, init_from), pretrained in itertools.product(first.items(), (True, False)):
            settings = [f"--config.{key}={value}" for key, value in column.settings(plan.scale, row).items()]
            sweep = [f"--config={column.of(row, plan.scale)}", f"--out={finetuned(plan.runs, name, row, pretrained)}"]
            sweep += [f"--seeds={','.join(map(str, plan.seeds(name)))}", f"--jobs={plan.jobs}"]
            yield ["sweep", *sweep, *starting(init_from, pretrained), *data, *settings, *plan.finetune_flags]
    elif name == "costs":
        scale = f"--scale={'gpu' if plan.scale == 'gpu' else 'small'}"
        for row, tokens, file in _measurements(plan, name, missing=True):
            which = [f"--rows={row}", f"--lengths={tokens}", scale]
            yield ["benchmark", "mixers", *which, f"--repeats={REPEATS}", f"--json={file}"]


def finetuned(runs: str, task: str, row: str, pretrained: bool) -> str:
    """The folder of the runs of a task that start from a row's pretrained parameters, or from random ones."""
    return os.path.join(runs, run_finder.FINETUNED, f"{task}-{row}{'' if pretrained else '-random'}")


def starting(run: str, pretrained: bool) -> list[str]:
    """The words of a command that begins with the model of a run, and with its parameters if `pretrained`."""
    return [f"--config.init_from={run}", f"--config.init_parameters={pretrained}"]


def first_finished(runs: Sequence[run_finder.Run]) -> dict[str, str]:
    """Row -> the folder of its first finished run."""
    return {run.row: run.path for run in reversed(runs) if run.finished}


def _first_runs(plan: Plan, name: str) -> dict[str, str]:
    """The run of masked LM from which each row of a finetuned column, or of `lengths`, starts; none for other columns.

    Raises:
        RunError: there is none.
    """
    if COLUMNS[name].kind != FINETUNED and name != "lengths":
        return {}
    configs = COLUMNS["mlm"].configs(plan.scale, plan.rows, plan.changes())
    first = first_finished(run_finder.find(plan.folder("mlm"), configs))
    if not first:
        raise RunError(f"{plan.folder('mlm')} holds no finished run of mlm: make that column first")
    return {row: first[row] for row in plan.rows if row in first}


def _measurements(plan: Plan, name: str, missing: bool = False) -> list[tuple[str, int, str]]:
    """The (row, tokens, file) of a measured column, or those that are not there."""
    by_length = {"costs": plan.lengths, "tpu": alternatives.TPU_LENGTHS, "lengths": (0,)}[name]
    files = [(row, n, measured_costs.path(plan.runs, name, row, n)) for row in plan.rows for n in by_length]
    return [(row, n, file) for row, n, file in files if not (missing and io_files.exists(file))]


def _score_lengths(plan: Plan) -> None:
    """Scores the first run of each row at other lengths. Raises RunError: there is no run."""
    from gmlp_flax.analysis import lengths

    first = _first_runs(plan, "lengths")
    for row, _, file in _measurements(plan, "lengths", missing=True):
        if row in first:
            run_folder.write_json(file, lengths.score(first[row], alternatives.OTHER_LENGTHS))


def _plan_steps(plan: Plan) -> None:
    """Compiles the paper's shapes for a TPU chip that is not here. Raises RunError as `gmlp plan`."""
    from gmlp_flax.planning import plan as planner

    for row, tokens, file in _measurements(plan, "tpu", missing=True):
        config = config_lib.open_config(f"c4_ablation:{row}")
        config.model.length, config.batch_size = tokens, TOKENS_PER_STEP // tokens
        run_folder.write_json(file, planner.make(config, TOPOLOGY).json() | {"tokens": TOKENS_PER_STEP})


MEASURES = {"lengths": _score_lengths, "tpu": _plan_steps}  # columns that this process makes
