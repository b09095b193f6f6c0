"""Finds the runs of a table's rows in a folder, finished or not."""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints import CONFIG_FILE, METRICS_FILE, RESULT_FILE
from gmlp_flax.checkpoints.metrics_file import MetricsFile, newest_baselines
from gmlp_flax.config import schema
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE
from gmlp_flax.errors import RunError, UserError
from gmlp_flax.io import files
from gmlp_flax.models import parameters
from gmlp_flax.options import ALL_RUNS, FINETUNED_RUNS, RUNS_OF_A_ROW
from gmlp_flax.paper.tables import PaperTable
from gmlp_flax.tasks.text import TEXT_OPTIONS
from gmlp_flax.training import pretrained

STEPS = "steps"  # also tells rows apart, if the rows of a table differ in it
RATE = "optimizer.learning_rate"
FINETUNED = "finetuned"  # the folder, beside a table's runs, of the runs finetuned from them


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a row.

    Attributes:
        row: its name in the table.
        path: the run folder.
        config: the run's config.
        lines: the lines of its metrics.jsonl.
    """

    row: str
    path: str
    config: ConfigDict
    lines: Sequence[Mapping[str, Any]]

    @property
    def finished(self) -> bool:
        """Whether the run came to its last step and wrote its result."""
        path = os.path.join(self.path, RESULT_FILE)
        return files.exists(path)

    @functools.cached_property
    def per_step(self) -> int:
        """Tokens, or whatever the task counts, per step."""
        task = bare_task(self.config)
        return self.config.batch_size * task.units_per_example

    @functools.cached_property
    def param_count(self) -> int:
        """Parameters of the model."""
        task = bare_task(self.config)
        shapes = task.shapes()
        return parameters.count(shapes)

    @property
    def last_step(self) -> int:
        """How far the run has come."""
        return max((line["step"] for line in self.lines), default=0)

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """The held-out metric over training: (tokens or whatever the task counts, value)."""
        points = []
        for line in self.lines:
            evaluation = line.get("eval", {})
            if metric in evaluation:
                count = line["step"] * self.per_step
                value = evaluation[metric]
                points.append((count, value))
        return points

    def last_score(self, metric: str) -> float | None:
        """The held-out metric of the last evaluation that has it; None if none has."""
        curve = self.curve(metric)
        if not curve:
            return None
        _, value = curve[-1]
        return value


class NoRuns(RunError):
    """There is no run of any row."""


def baselines(runs: Sequence[Run], metric: str) -> dict[str, float]:
    """The scores of trivial models on the held-out data of runs: name -> value, from the last run
    that has it."""
    values = {}
    for run in runs:
        for baseline in newest_baselines(run.lines):
            name = baseline["name"]
            scores = baseline["eval"]
            if metric in scores:
                values[name] = scores[metric]
    return values


def bare_task(config: ConfigDict) -> Any:
    """The task of a config, without its data."""
    task = tasks.find(config.task)
    return task(config)


def find(pattern: str, rows: Mapping[str, ConfigDict]) -> list[Run]:
    """The runs in a folder whose models are rows of a table.

    Args:
        pattern: a folder of run folders, or a glob pattern that matches run folders or folders of
            them.
        rows: each row's config.

    Raises:
        NoRuns: there is no run.
        RunError: two rows are the same; two runs have the same row and seed; their tokenizers
            differ, or their configs in more than a table compares.
    """
    identity = ("task", *_architecture(rows), "model.length")
    order = list(rows)
    known: dict[tuple, Run] = {}
    for run in _runs(pattern, rows, identity):
        place = order.index(run.row)
        key = (place, run.config.seed)
        _refuse_twin(known, key, run, f"the row {run.row}")
    in_order = sorted(known)
    runs = [known[key] for key in in_order]
    if not runs:
        names = ", ".join(rows)
        raise NoRuns(
            f"{pattern} holds no run of {names}, or only runs of other sizes: "
            "give a folder of run folders"
        )
    steps_key = _steps_key(rows)
    keys = _compared(runs, steps_key)
    first_of_row: dict[str, Run] = {}
    for run in runs:
        _compare(runs[0], run, keys)
        first = first_of_row.setdefault(run.row, run)
        keys_of_row = _keys(run.config, RUNS_OF_A_ROW)
        _compare(first, run, keys_of_row)
    _check_tokenizers(runs)
    return runs


def find_finetuned(pattern: str, rows: Mapping[str, ConfigDict]) -> dict[str, list[Run]]:
    """The finetuned runs of each row. They keep all of the row's model except its length.

    Runs that started from random parameters (config.init_parameters) are among them.

    Args:
        pattern: of the table's runs; the finetuned runs are in PATTERN/finetuned/ANY/, where `gmlp
            reproduce` puts them.
        rows: the config with which each row was pretrained. If several rows are one model trained
            for different numbers of steps, the run of config.init_from must still be there to tell
            them apart.

    Raises:
        RunError: two rows are the same; two runs are the same; or the runs of a task with one batch
            size differ in more than row, seed and rate.
    """
    tuned: dict[str, list[Run]] = {row: [] for row in rows}
    known: dict[tuple, Run] = {}
    first_of_task: dict[tuple, Run] = {}
    folders = os.path.join(pattern, FINETUNED, "*")
    identity = _inherited_architecture(rows)
    for run in _runs(folders, rows, identity, _pretrained):
        config = run.config
        if not config.init_from:
            continue
        task = task_of(config)
        key = (
            run.row,
            task,
            config.batch_size,
            config[RATE],
            config.init_from,
            config.init_parameters,
            config.seed,
        )
        _refuse_twin(known, key, run, f"{task} from {config.init_from}")
        group = (task, config.batch_size)
        first = first_of_task.setdefault(group, run)
        keys = _compared([run], ("init_from", "init_parameters"))
        shared = config_lib.keys(first.config)
        for name in _keys(config, FINETUNED_RUNS):
            if name in shared:
                keys.append(name)
        _compare(first, run, keys)
        tuned[run.row].append(run)
    return tuned


def task_of(config: ConfigDict) -> str:
    """The task of a finetuned run: a name in `tables.TUNED`, or another task of GLUE."""
    if config.task.startswith("text_"):
        return config.glue.task
    return f"squad_{config.squad.version}"


def setting(
    table: PaperTable,
    runs: Sequence[Run],
    scale: str,
) -> str:
    """What was scaled down from the paper's config of the first run, in words."""
    first = runs[0]
    row = first.row
    config = first.config
    paper = table.config(row, "paper")
    changes = []
    options = config_lib.keys(config)
    for key, option in options.items():
        value = config[key]
        papers_value = paper.get(key)
        if option.scaled and value != papers_value:
            changes.append(f"{key} {value} (paper: {papers_value})")
    if not changes:
        return f"Scale {scale}: the paper's setting."
    all_changes = "; ".join(changes)
    return f"Scale {scale}. Scaled down for {row}: {all_changes}."


def unfinished(runs: Sequence[Run]) -> list[str]:
    """A note on the runs that are not finished, if there are any."""
    names = []
    for run in runs:
        if not run.finished:
            config = run.config
            progress = f"step {run.last_step} of {config.steps}"
            names.append(f"{run.row} seed {config.seed} ({progress})")
    if not names:
        return []
    return [f"Not finished: {', '.join(names)}."]


def every_run(pattern: str) -> Iterator[Run]:
    """The runs in a folder or of a glob pattern, as in `find`, of no row in particular."""
    for path in _run_folders(pattern):
        config = _read_config(path)
        lines = _read_lines(path)
        yield Run("", path, config, lines)


def _read_config(path: str) -> ConfigDict:
    """The config in a run folder."""
    config_path = os.path.join(path, CONFIG_FILE)
    return config_lib.load(config_path)


def _read_lines(path: str) -> list[dict[str, Any]]:
    """The lines of the metrics.jsonl in a run folder."""
    metrics_path = os.path.join(path, METRICS_FILE)
    return MetricsFile.read(metrics_path)


# Which run belongs to which row.


def _runs(
    pattern: str,
    rows: Mapping[str, ConfigDict],
    identity: Sequence[str],
    pretrained: Callable[[ConfigDict], Mapping[str, Any]] = lambda config: config,
) -> Iterator[Run]:
    """The runs whose configs agree with a row in the keys of `identity`, and whose `pretrained`
    configs agree with it in the number of steps, if rows differ in it."""
    steps = _steps_key(rows)
    names = _row_names(rows, (*identity, *steps))
    for path in _run_folders(pattern):
        config = _read_config(path)
        values = [config.get(key) for key in identity]
        if steps:
            start = pretrained(config)
            values.append(start[STEPS])
        row = names.get(tuple(values))
        if row and not config.data.search:  # such a run only chose a setting
            lines = _read_lines(path)
            yield Run(row, path, config, lines)


def _row_names(rows: Mapping[str, ConfigDict], keys: Sequence[str]) -> dict[tuple, str]:
    """The values of the keys that identify a row -> its name; raises RunError if two rows have the
    same values."""
    names: dict[tuple, str] = {}
    for name, config in rows.items():
        values = tuple(config.get(key) for key in keys)
        first = names.setdefault(values, name)
        if first != name:
            raise RunError(
                f"the rows {first} and {name} have the same model and {STEPS}: "
                "leave out the --config flag that makes them equal"
            )
    return names


def _run_folders(pattern: str) -> Iterator[str]:
    """The run folders that a glob pattern matches, and those in the folders that it matches."""
    for folder in files.glob(pattern):
        paths = [folder]
        for name in files.listdir(folder):
            path = os.path.join(folder, name)
            paths.append(path)
        for path in paths:
            config_path = os.path.join(path, CONFIG_FILE)
            if files.exists(config_path):
                yield path


def _steps_key(rows: Mapping[str, ConfigDict]) -> tuple[str, ...]:
    """The key that tells rows apart besides their models: STEPS if they differ in it."""
    numbers = {config[STEPS] for config in rows.values()}
    if len(numbers) > 1:
        return (STEPS,)
    return ()


def _pretrained(config: ConfigDict) -> Mapping[str, Any]:
    """The config of the model from which a finetuned run started; {STEPS: None}, which matches no
    row, if it is gone."""
    if not config.init_from:
        return {STEPS: None}
    try:
        source = pretrained.find(config.init_from)
    except UserError:
        return {STEPS: None}
    if "task" not in source.described:
        return {STEPS: None}
    config_path = source.path(CONFIG_FILE)
    return config_lib.load(config_path)


def _architecture(rows: Mapping[str, ConfigDict]) -> list[str]:
    """The keys that make a model a row of a table: two models that agree in them are the same
    row."""
    names: dict[str, None] = {}  # in order
    for config in rows.values():
        options = config_lib.keys(config)
        for name, option in options.items():
            if option.architecture:
                names[name] = None
    return list(names)


def _inherited_architecture(rows: Mapping[str, ConfigDict]) -> list[str]:
    """The keys of `_architecture` that a finetuned run inherits from its row."""
    task_keys: set[str] = set()
    for config in rows.values():
        options = schema.of_task(config.task)
        task_keys.update(options)
    keys = []
    for key in _architecture(rows):
        if key in TEXT_OPTIONS or key not in task_keys:
            keys.append(key)
    return keys


# Which runs compare.


def _refuse_twin(
    known: dict[tuple, Run],
    key: tuple,
    run: Run,
    name: str,
) -> None:
    """Adds a run to the known ones; raises RunError if one of them has the same key."""
    if key in known:
        first = known[key]
        seed = run.config.seed
        raise RunError(
            f"{first.path} and {run.path} are both {name} with seed {seed}: leave one out"
        )
    known[key] = run


def _compared(runs: Sequence[Run], free: Sequence[str]) -> list[str]:
    """The keys in which runs of one table must agree: not those of their models, which are its
    rows."""
    names: dict[str, None] = {}  # in order
    for run in runs:
        for name in _keys(run.config, ALL_RUNS):
            is_of_model = name.startswith("model.")
            is_free = name in free
            if not is_of_model and not is_free:
                names[name] = None
    return list(names)


def _keys(config: ConfigDict, compared: str) -> list[str]:
    """The keys of a config whose `Option.compared` has this value."""
    options = config_lib.keys(config)
    return [name for name, option in options.items() if option.compared == compared]


def _compare(
    first: Run,
    second: Run,
    keys: Sequence[str],
) -> None:
    """Raises RunError if two runs differ in one of the keys."""
    for key in keys:
        first_value = first.config.get(key)
        second_value = second.config.get(key)
        if first_value != second_value:
            raise RunError(
                f"runs that do not compare: {key} is {first_value!r} in {first.path} and "
                f"{second_value!r} in {second.path}: give runs that differ in model, seed and "
                "rates alone"
            )


def _check_tokenizers(runs: Sequence[Run]) -> None:
    """Raises RunError for runs of different tokenizers, whose perplexities per token do not
    compare."""
    first = ""
    for run in runs:
        path = os.path.join(run.path, TOKENIZER_FILE)
        if not files.exists(path):
            continue
        first = first or path
        if files.read_small(path) != files.read_small(first):
            raise RunError(
                f"runs of different tokenizers: {first} and {path} differ: "
                "give runs of one tokenizer"
            )
