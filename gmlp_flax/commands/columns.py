"""The columns of `gmlp reproduce alternatives`: what trains or measures each of them, one after the other.

Each column goes on where it stopped, by itself: runs are sweeps, and each measured figure has a file of its own.
"""

from __future__ import annotations

import itertools
import json
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
from gmlp_flax.io import run_files
from gmlp_flax.paper import alternatives
from gmlp_flax.paper.alternatives import COLUMNS, FINETUNED, MEASURED, TRAINED, Column
from gmlp_flax.processes import signals
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.alternatives import measured
from gmlp_flax.sweeps import points, runner

DEFAULT = "mlm,lengths,costs"
TOPOLOGY, TOKENS_PER_STEP = "v5e:1x1", 8192  # of the column tpu: two sequences, so that attention fits
REPEATS = 5


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

    def configs(self, name: str) -> dict[str, Any]:
        """The configs of a column's runs by row, with the flags whose keys they have. Raises ConfigError."""
        given = overrides.named_overrides(self.flags)
        return {
            row: overrides.overridden(config, overrides.applying(config, given))
            for row, config in COLUMNS[name].configs(self.scale, self.rows).items()
        }

    def folder(self, name: str) -> str:
        """Of a column: masked LM is trained in the folder itself, where other tables look for it as well."""
        return self.runs if name == "mlm" else os.path.join(self.runs, name)


def parsed(words: Sequence[str]) -> dict[str, str]:
    """NAME,NAME=DATA,... as column -> its data, empty for none, in the order of COLUMNS.

    Raises:
        ConfigError: there is no such column.
    """
    cut = [word.partition("=") for text in words for word in text.split(",")]
    pairs = {name: data for name, _, data in cut}
    return {name: pairs[name] for name in alternatives.checked(tuple(pairs), tuple(COLUMNS), "--columns")}


def check(plan: Plan, needs_data: bool = True) -> None:
    """Ends what could not run, before anything is trained. A plan that is only listed needs no data.

    Raises:
        ConfigError: a column lacks its data, its config file or this scale; a flag is wrong; data are not there.
    """
    unknown = overrides.named_overrides(plan.flags)
    for name in plan.columns:
        column = COLUMNS[name]
        given = plan.data.get(name)
        if needs_data and column.needs_data and not given and plan.scale != "paper":
            raise ConfigError(f"--columns: {name} needs its data: give {name}=PATH in its place")
        if given and ":" not in given and given != "embedded" and not os.path.exists(given):
            raise ConfigError(f"--columns={name}={given}: there is no such file or folder")
        if column.kind == TRAINED:
            for config in plan.configs(name).values():
                config_lib.validate(config)
                unknown = {key: value for key, value in unknown.items() if key not in config_lib.keys(config)}
        elif column.kind == FINETUNED:
            config = config_lib.open_config(column.of("", plan.scale))
            config.update_from_flattened_dict(column.settings(plan.scale))
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
            failed = sum(code != 0 for code in (_run(words) for words in _commands(plan, name)))
            if failed:
                missing.append(f"{name}: some runs failed")
            if name == "lengths":
                _score_lengths(plan)
        except (RunError, DataError) as error:
            missing.append(f"{name}: {error}")
    return missing


def listing(plan: Plan) -> str:
    """Every column: what it is, how much of it is there, how long all rows take, and its commands."""
    lines = [f"{len(plan.rows)} rows at scale {plan.scale}, in {plan.runs}"]
    minutes = {name: _minutes(plan, COLUMNS[name]) for name in plan.columns}
    for name in plan.columns:
        column = COLUMNS[name]
        there, every = _progress(plan, name)
        time = f", about {max(1, round(minutes[name]))} minutes on two cores" if plan.scale == "cpu" else ""
        lines.append(f"{name}: {column.title}: {there} of {every} there{time}")
        if settings := column.settings(plan.scale):
            lines.append(f"    beside its config: {_worded(settings)}")
        for settings, rows in _own_settings(plan, name).items():
            lines.append(f"    {settings} for {', '.join(rows)}")
        commands = list(_commands(plan, name)) if column.kind != FINETUNED else list(_finetuning(plan, name, None))
        # A plan is printed, and kept in the file that stands last.
        shown = [
            f"{shlex.join(words[:-1])} > {words[-1]}" if words[0] == "plan" else shlex.join(words) for words in commands
        ]
        lines += [f"    gmlp {words}" for words in shown[:2]]
        lines += [f"    ... {len(shown)} commands in all"] if len(shown) > 2 else []
    if plan.scale == "cpu":
        hours = sum(minutes.values()) / 60
        lines.append(f"in all about {max(1, round(hours))} hours, estimated, if nothing is there")
    return "\n".join(lines)


def _minutes(plan: Plan, column: Column) -> float:
    """What a column of the plan takes at scale cpu, on two cores."""
    seeds = plan.finetune_seeds if column.kind == FINETUNED and plan.finetune_seeds else column.seeds
    return column.minutes * len(plan.rows) / len(alternatives.ROWS) * len(seeds) / len(column.seeds)


def _worded(settings: Mapping[str, Any]) -> str:
    words = {key: ",".join(value) if isinstance(value, tuple) else value for key, value in settings.items()}
    return ", ".join(f"{key}={value}" for key, value in words.items())


def _own_settings(plan: Plan, name: str) -> dict[str, list[str]]:
    """What single rows of a column have beside the others, and these rows."""
    column, found = COLUMNS[name], {}
    for row in plan.rows:
        own = column.searched.get(row) if plan.scale == "cpu" else None
        if own and (not column.rows or row in column.rows):
            found.setdefault(_worded(own), []).append(row)
    return found


def gmlp(*words: str, **options: Any) -> subprocess.Popen:
    """A subcommand in a process that dies with this one."""
    return subprocess.Popen(runner.tied_command([sys.executable, "-m", "gmlp_flax", *words]), **options)


def run(*words: str) -> int:
    """Runs a subcommand; returns its exit code. If a signal asks to stop, it lets its runs save first."""
    process = gmlp(*words)

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


def _run(words: Sequence[str]) -> int:
    """Runs a command of `_commands`. Exit code 1 says that some runs of a sweep failed; others end the column.

    Raises:
        RunError: it could not run at all.
    """
    if words[0] == "plan":
        return _plan(words)
    code = run(*words)
    if code not in (0, 1):
        raise RunError(f"gmlp {words[0]} ended with exit code {code}: what it wrote stands above")
    return code


def _plan(words: Sequence[str]) -> int:
    """Runs `gmlp plan` and keeps the JSON that it prints in the file named last."""
    *command, path = words
    process = gmlp(*command, stdout=subprocess.PIPE)
    printed, _ = process.communicate()
    if process.returncode:
        raise RunError("gmlp plan failed: what it wrote stands above")
    run_folder.write_json(path, json.loads(printed) | {"tokens": TOKENS_PER_STEP})
    return 0


def _commands(plan: Plan, name: str) -> Iterator[list[str]]:
    """What trains or measures what a column lacks; none for `lengths`, which this process measures."""
    column = COLUMNS[name]
    if column.kind == TRAINED:
        rows = "" if tuple(plan.rows) == alternatives.ROWS else f",rows={'+'.join(plan.rows)}"
        data = [f"--config.data.train={plan.data[name]}"] if plan.data.get(name) else []
        one = next(iter(column.configs(plan.scale, plan.rows).values()))
        given = overrides.applying(one, overrides.named_overrides(plan.flags))
        flags = [f"--config.{key}={value}" for key, value in given.items()]
        sweep = f"--sweep=alternatives:{name},scale={plan.scale}{rows}"
        yield ["sweep", sweep, f"--out={plan.folder(name)}", f"--jobs={plan.jobs}", "--", *data, *flags]
    elif column.kind == FINETUNED:
        yield from _finetuning(plan, name, _first_runs(plan))
    elif name == "costs":
        scale = "gpu" if plan.scale == "gpu" else "small"
        for row, tokens in itertools.product(plan.rows, plan.lengths):
            path = measured.path(plan.runs, name, row, tokens)
            if not run_files.exists(path):
                which = f"--rows={row}", f"--lengths={tokens}", f"--scale={scale}"
                yield ["benchmark", "mixers", *which, f"--repeats={REPEATS}", f"--json={path}"]
    elif name == "tpu":
        for row, tokens in itertools.product(plan.rows, alternatives.TPU_LENGTHS):
            path = measured.path(plan.runs, name, row, tokens)
            if not run_files.exists(path):
                sizes = f"--config.model.length={tokens}", f"--config.batch_size={TOKENS_PER_STEP // tokens}"
                yield ["plan", f"--config=c4_ablation:{row}", *sizes, f"--topology={TOPOLOGY}", "--json", path]


def _finetuning(plan: Plan, name: str, first: Mapping[str, str] | None) -> Iterator[list[str]]:
    """A sweep per row and start: from the row's first pretrained run, and from random parameters."""
    column = COLUMNS[name]
    seeds = ",".join(map(str, plan.finetune_seeds or column.seeds_at(plan.scale)))
    for row, start in itertools.product(plan.rows if first is None else first, ("", "-random")):
        settings = (f"--config.{key}={value}" for key, value in column.settings(plan.scale, row).items())
        yield [
            "sweep",
            f"--config={column.of(row, plan.scale)}",
            f"--seeds={seeds}",
            f"--jobs={plan.jobs}",
            f"--out={os.path.join(plan.runs, run_finder.FINETUNED, f'{name}-{row}{start}')}",
            f"--config.init_from={'RUN' if first is None else first[row]}",
            f"--config.init_parameters={not start}",
            *([f"--config.data.train={plan.data[name]}"] if plan.data.get(name) else []),
            *settings,
            *plan.finetune_flags,
        ]


def _first_runs(plan: Plan) -> dict[str, str]:
    """Row -> the folder of its first finished run of masked LM.

    Raises:
        RunError: there is none.
    """
    found = run_finder.find(plan.folder("mlm"), plan.configs("mlm"))
    first = {run.row: run.path for run in reversed(found) if run.finished}
    if not first:
        raise RunError(f"{plan.folder('mlm')} holds no finished run of mlm: make that column first")
    return {row: first[row] for row in plan.rows if row in first}


def _score_lengths(plan: Plan) -> None:
    """Scores the first run of each row at other lengths, unless that was done. Raises RunError if there is no run."""
    from gmlp_flax.analysis import lengths

    for row, workdir in _first_runs(plan).items():
        path = measured.path(plan.runs, "lengths", row)
        if not run_files.exists(path):
            run_folder.write_json(path, lengths.score(workdir, alternatives.OTHER_LENGTHS))


def _progress(plan: Plan, name: str) -> tuple[int, int]:
    """How many runs or figures of a column are there, of how many."""
    column = COLUMNS[name]
    if column.kind == MEASURED:
        by_length = {"costs": plan.lengths, "tpu": alternatives.TPU_LENGTHS, "lengths": (0,)}[name]
        places = [measured.path(plan.runs, name, row, tokens) for row in plan.rows for tokens in by_length]
        return sum(map(run_files.exists, places)), len(places)
    if column.kind == FINETUNED:
        seeds = len(plan.finetune_seeds or column.seeds_at(plan.scale))
        starts = [f"{name}-{row}{start}" for row in plan.rows for start in ("", "-random")]
        folders = [os.path.join(plan.runs, run_finder.FINETUNED, each) for each in starts]
        return sum(min(seeds, _finished(os.path.join(folder, "*"))) for folder in folders), seeds * len(folders)
    found = [os.path.join(plan.folder(name), points.name(point)) for point in column.points(plan.scale, plan.rows)]
    return sum(map(_finished, found)), len(found)


def _finished(pattern: str) -> int:
    """How many of the run folders that match a pattern are finished."""
    return len(run_files.matching(os.path.join(pattern, RESULT_FILE)))
