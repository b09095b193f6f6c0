"""The columns of `gmlp reproduce alternatives`: which commands train or measure each of them, one after the other.

Each column goes on where it stopped: runs are sweeps, and each measured figure has a file of its own.
"""

import functools
import itertools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from gmlp_flax.tasks.sides import EMBEDDED

DEFAULT = "mlm,lengths,costs"
REPEATS = 5
RUN = "RUN"  # stands in a listing for a run that is not there yet

Action = list[str] | Callable[[], dict[str, Any]] | None


class Plan(NamedTuple):
    """What a command line asks for.

    Attributes:
        columns, rows: names in COLUMNS and in alternatives.ROWS, in their order.
        data: column -> config.data.train.
        scale: cpu, gpu or paper.
        runs: the folder of everything.
        jobs: runs at a time.
        flags: words --config.KEY=VALUE that change the runs of the trained columns which have such a key.
        finetune_flags, finetune_seeds: the same of the finetuned columns, and their seeds; empty for a column's own.
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


def parse(words: Sequence[str]) -> dict[str, str]:
    """NAME,NAME=DATA,... as column -> its data, empty for none, in the order of COLUMNS. Raises ConfigError."""
    parts = [word.partition("=") for text in words for word in text.split(",")]
    pairs = {name: data for name, _, data in parts}
    return {name: pairs[name] for name in alternatives.checked(tuple(pairs), tuple(COLUMNS), "--columns")}


def check_path(flag: str, data: str | None) -> None:
    """Raises ConfigError if a flag names data on this machine that are not there."""
    if data and ":" not in data and data != EMBEDDED and not os.path.exists(data):
        raise ConfigError(f"{flag}: there is no such file or folder")


def check(plan: Plan, needs_data: bool = True) -> None:
    """Ends what could not run, before anything is trained. A plan that is only listed needs no data.

    Raises:
        ConfigError: a column lacks its data, its config file or this scale; a flag is wrong; data are not there.
    """
    changes = overrides.named_overrides(plan.flags)
    known: set[str] = set()
    for name in plan.columns:
        column, data = COLUMNS[name], plan.data.get(name)
        if needs_data and column.config and not data and plan.scale != "paper":
            raise ConfigError(f"--columns: {name} needs its data: give {name}=PATH in its place")
        check_path(f"--columns={name}={data}", data)
        if column.kind == TRAINED:
            for config in column.configs(plan.scale, plan.rows, changes).values():
                config_lib.validate(config)
                known |= config_lib.keys(config).keys()
        elif column.kind == FINETUNED:
            [config] = column.configs(plan.scale, plan.rows[:1]).values()
            overrides.overridden(config, overrides.named_overrides(plan.finetune_flags))
    for key, value in changes.items():
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
            failed = False
            for files, action in steps(plan, name, _first_runs(plan, name)):
                if callable(action):
                    run_folder.write_json(files[0], action())
                elif action:
                    failed |= some_fail(action)
            missing += [f"{name}: some runs failed"] if failed else []
        except (RunError, DataError) as error:
            missing.append(f"{name}: {error}")
    return missing


def some_fail(words: Sequence[str]) -> bool:
    """Runs a subcommand; whether some of its runs failed. Raises RunError: it ended otherwise."""
    if (code := run(*words)) not in (0, 1):
        raise RunError(f"gmlp {words[0]} ended with exit code {code}: what it wrote stands above")
    return code == 1


def run(*words: str) -> int:
    """Runs a subcommand in a process that dies with this one; returns its exit code. If a signal asks to stop, the
    command lets its runs save first."""
    process = subprocess.Popen(runner.tied_command([sys.executable, "-m", "gmlp_flax", *words]))

    def stop(*_: object) -> None:
        signals.end_on_the_next(signal.SIGTERM, signal.SIGHUP)
        process.terminate()
        raise KeyboardInterrupt

    with signals.handle((signal.SIGTERM, signal.SIGHUP), stop):
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()  # Ctrl-C has reached it as well
            raise


def listing(plan: Plan) -> str:
    """Every column: what it is, how much of it is there, and its commands."""
    lines = [f"{len(plan.rows)} rows at scale {plan.scale}, in {plan.runs}"]
    for name in plan.columns:
        every = list(steps(plan, name, dict.fromkeys(plan.rows, RUN)))
        there = [io_files.exists(file) for files, _ in every for file in files]
        lines.append(f"{name}: {COLUMNS[name].title}: {sum(there)} of {len(there)} there")
        words = [shlex.join(["gmlp", *action]) for _, action in every if action and not callable(action)]
        lines += [f"    {command}" for command in words[:2]]
        lines += [f"    ... {len(words)} commands in all"] if len(words) > 2 else []
    return "\n".join(lines)


def steps(plan: Plan, name: str, first: Mapping[str, str]) -> Iterator[tuple[list[str], Action]]:
    """The parts of a column, one after the other: the files that are there when a part is made, and what makes it, a
    command's words or a function that measures; None if that is done. Sweeps know themselves what is done.

    Args:
        plan: of the command line.
        name: of the column.
        first: row -> the run of masked LM that is finetuned or measured.
    """
    column = COLUMNS[name]
    data = [f"--config.data.train={plan.data[name]}"] if plan.data.get(name) else []
    if column.kind == TRAINED:
        chosen = "" if tuple(plan.rows) == alternatives.ROWS else f",rows={'+'.join(plan.rows)}"
        config = next(iter(column.configs(plan.scale, plan.rows).values()))
        changes = overrides.applying(config, overrides.named_overrides(plan.flags))
        folder, sweep = plan.folder(name), f"alternatives:{name},scale={plan.scale}{chosen}"
        runs = [points.name(point) for point in column.points(plan.scale, plan.rows)]
        words = ["sweep", f"--sweep={sweep}", f"--out={folder}", f"--jobs={plan.jobs}", "--", *data, *_flags(changes)]
        yield [os.path.join(folder, run, RESULT_FILE) for run in runs], words
    elif column.kind == FINETUNED:
        seeds = plan.finetune_seeds or column.seeds_at(plan.scale)
        for row, run in first.items():
            more = [*data, *_flags(column.settings(plan.scale, row)), *plan.finetune_flags]
            sweep = finetuning(column.of(row, plan.scale), plan.runs, name, {row: run}, (True, False), seeds, plan.jobs)
            for folder, words in sweep:
                yield [os.path.join(folder, f"seed={seed}", RESULT_FILE) for seed in seeds], [*words, *more]
    else:
        rows, lengths = (first, (0,)) if name == "lengths" else (plan.rows, plan.lengths)
        for row, tokens in itertools.product(rows, lengths):
            file = measured_costs.path(plan.runs, name, row, tokens)
            scale = "gpu" if plan.scale == "gpu" else "small"
            costs = ["benchmark", "mixers", f"--rows={row}", f"--lengths={tokens}", f"--scale={scale}"]
            action = [*costs, f"--repeats={REPEATS}", f"--json={file}"]
            measure = functools.partial(_score_lengths, first[row]) if name == "lengths" else action
            yield [file], None if io_files.exists(file) else measure


def _flags(values: Mapping[str, object]) -> list[str]:
    return [f"--config.{key}={value}" for key, value in values.items()]


def _score_lengths(run: str) -> dict[str, Any]:
    """Scores a run at other lengths than it was trained at."""
    from gmlp_flax.analysis import lengths

    return lengths.score(run, alternatives.OTHER_LENGTHS)


def finetuning(
    config: str, runs: str, task: str, first: Mapping[str, str], starts: Sequence[bool], seeds: Sequence[int], jobs: int
) -> Iterator[tuple[str, list[str]]]:
    """The folder and the words of each sweep that finetunes a row's run, from its parameters or from random ones."""
    for (row, run), pretrained in itertools.product(first.items(), starts):
        folder = os.path.join(runs, run_finder.FINETUNED, f"{task}-{row}{'' if pretrained else '-random'}")
        words = ["sweep", f"--config={config}", f"--out={folder}", f"--seeds={','.join(map(str, seeds))}"]
        start = [f"--config.init_from={run}", f"--config.init_parameters={pretrained}"]
        yield folder, [*words, f"--jobs={jobs}", *start]


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
    configs = COLUMNS["mlm"].configs(plan.scale, plan.rows, overrides.named_overrides(plan.flags))
    first = first_finished(run_finder.find(plan.folder("mlm"), configs))
    if not first:
        raise RunError(f"{plan.folder('mlm')} holds no finished run of mlm: make that column first")
    return {row: first[row] for row in plan.rows if row in first}
