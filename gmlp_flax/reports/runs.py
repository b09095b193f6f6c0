"""Finds the runs of a table's rows in a folder, finished or not."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.checkpoints import CONFIG_FILE, METRICS_FILE, RESULT_FILE
from gmlp_flax.checkpoints.metrics_file import MetricsFile, baselines_of
from gmlp_flax.config import schema
from gmlp_flax.errors import RunError
from gmlp_flax.io import files
from gmlp_flax.models import parameters
from gmlp_flax.paper.tables import PaperTable
from gmlp_flax.tasks.vocabulary import TEXT_OPTIONS, TOKENIZER_FILE
from gmlp_flax.training import loading

STEPS = "steps"  # also tells rows apart, if the rows of a table differ in it
RATE = "optimizer.learning_rate"
OWN = (RATE, "optimizer.lr_multipliers")  # chosen for each row
FINETUNED = "finetuned"  # the folder, beside a table's runs, of the runs finetuned from them
# Keys that may differ between the runs of one table: they say how a run was run.
FREE = (
    "seed",
    "model.",
    "mesh.",
    "log.",
    "checkpoint.",
    "eval.every",
    "profile.",
    "data.cache",
    "data.workers",
)
# Of FREE, the keys in which finetuned runs must agree: they say how a model reads sentences.
_READ = ("length", "dropout", "attention_dropout", "mask_padding", "hide_padding", "pool", "pooler")
READING = tuple(f"model.{key}" for key in _READ)
# Keys that a smaller scale shrinks; the report says by how much.
SHAPES = ("layers", "d_model", "d_ffn", "vocab_size", "image_size")
SCALED = (STEPS, "batch_size", *(f"model.{key}" for key in SHAPES), "data.train")


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
        return files.exists(os.path.join(self.path, RESULT_FILE))

    @functools.cached_property
    def per_step(self) -> int:
        """Tokens, or whatever the task counts, per step."""
        return self.config.batch_size * bare_task(self.config).units_per_example

    @functools.cached_property
    def param_count(self) -> int:
        """Parameters of the model."""
        return parameters.count(bare_task(self.config).shapes())

    @property
    def last_step(self) -> int:
        """How far the run has come."""
        return max((line["step"] for line in self.lines), default=0)

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """The held-out metric over training: (tokens or whatever the task counts, value)."""
        lines = (line for line in self.lines if metric in line.get("eval", ()))
        return [(line["step"] * self.per_step, line["eval"][metric]) for line in lines]


class NoRuns(RunError):
    """There is no run of any row."""


def baselines(runs: Sequence[Run], metric: str) -> dict[str, float]:
    """What trivial models score on the held-out data of runs: name -> value, as the last run says
    that knows it."""
    models = [model for run in runs for line in run.lines for model in baselines_of(line)]
    return {model["name"]: model["eval"][metric] for model in models if metric in model["eval"]}


def bare_task(config: ConfigDict) -> Any:
    """The task of a config, without its data."""
    return tasks.find(config.task).without_data(config)


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
    runs: dict[tuple, Run] = {}
    for run in _runs(pattern, rows, ("task", *_architecture(rows), "model.length")):
        _refuse_twin(runs, (run.row, run.config.seed), run, f"the row {run.row}")
    in_order = sorted(runs.values(), key=lambda run: (list(rows).index(run.row), run.config.seed))
    if not in_order:
        empty = f"{pattern} holds no run of {', '.join(rows)}, or only runs of other sizes"
        raise NoRuns(f"{empty}: give a folder of run folders")
    keys, first_of_row = _compared(in_order, (*OWN, *_steps_key(rows))), {}
    for run in in_order:
        _compare(in_order[0], run, keys)
        _compare(first_of_row.setdefault(run.row, run), run, OWN)
    _check_tokenizers(in_order)
    return in_order


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
    same: dict[tuple, Run] = {}
    alike: dict[tuple, Run] = {}
    not_taken_over = {
        key for row in rows.values() for key in schema.of_task(row.task) if key not in TEXT_OPTIONS
    }
    model = [key for key in _architecture(rows) if key not in not_taken_over]
    for run in _runs(os.path.join(pattern, FINETUNED, "*"), rows, model, _pretrained):
        config = run.config
        if config.init_from:
            task = task_of(config), config.batch_size
            key = (
                run.row,
                *task,
                config[RATE],
                config.init_from,
                config.init_parameters,
                config.seed,
            )
            _refuse_twin(same, key, run, f"{task[0]} from {config.init_from}")
            first = alike.setdefault(task, run)
            both = config_lib.keys(first.config).keys() & config_lib.keys(config).keys()
            free = *OWN, "init_from", "init_parameters"
            _compare(
                first, run, [*_compared([run], free), *(key for key in READING if key in both)]
            )
            tuned[run.row].append(run)
    return tuned


def task_of(config: ConfigDict) -> str:
    """The task of a finetuned run: a name in `tables.TUNED`, or another task of GLUE."""
    return config.glue.task if config.task.startswith("text_") else f"squad_{config.squad.version}"


def setting(table: PaperTable, runs: Sequence[Run], scale: str) -> str:
    """What was scaled down from the paper's config of the first run, in words."""
    row, here = runs[0].row, runs[0].config
    paper = table.config(row, "paper")
    changes = [
        f"{key} {here.get(key)} (paper: {paper.get(key)})"
        for key in SCALED
        if here.get(key) != paper.get(key)
    ]
    if not changes:
        return f"Scale {scale}: the paper's setting."
    return f"Scale {scale}. Scaled down for {row}: {'; '.join(changes)}."


def unfinished(runs: Sequence[Run]) -> list[str]:
    """A note on the runs that are not finished, if there are any."""
    left = [run for run in runs if not run.finished]
    named = [
        f"{run.row} seed {run.config.seed} (step {run.last_step} of {run.config.steps})"
        for run in left
    ]
    return [f"Not finished: {', '.join(named)}."] if named else []


def _runs(
    pattern: str,
    rows: Mapping[str, ConfigDict],
    identity: Sequence[str],
    pretrained: Callable[[ConfigDict], Mapping[str, Any]] = lambda config: config,
) -> Iterator[Run]:
    """The runs whose configs agree with a row in the keys of `identity`, and whose `pretrained`
    configs agree with it in the number of steps, if rows differ in it."""
    steps = _steps_key(rows)
    names: dict[tuple, str] = {}
    for name, config in rows.items():
        first = names.setdefault(tuple(config.get(key) for key in (*identity, *steps)), name)
        if first != name:
            advice = "leave out the --config flag that makes them equal"
            raise RunError(f"the rows {first} and {name} have the same model and {STEPS}: {advice}")
    for folder in files.glob(pattern):
        for path in (folder, *(os.path.join(folder, name) for name in files.listdir(folder))):
            if files.exists(os.path.join(path, CONFIG_FILE)):
                config = config_lib.load(os.path.join(path, CONFIG_FILE))
                trained_for = [pretrained(config)[key] for key in steps]
                row = names.get((*(config.get(key) for key in identity), *trained_for))
                if row and not config.data.search:  # whose score chose a setting
                    yield Run(row, path, config, MetricsFile.read(os.path.join(path, METRICS_FILE)))


def _steps_key(rows: Mapping[str, ConfigDict]) -> tuple[str, ...]:
    return (STEPS,) if len({config[STEPS] for config in rows.values()}) > 1 else ()


def _pretrained(config: ConfigDict) -> Mapping[str, Any]:
    """The config of the run from which a finetuned run started; {STEPS: None}, which matches no
    row, if it is gone."""
    path = os.path.join(loading.source_folder(config.init_from)[0], CONFIG_FILE)
    return config_lib.load(path) if config.init_from and files.exists(path) else {STEPS: None}


def _refuse_twin(known: dict[tuple, Run], key: tuple, run: Run, name: str) -> None:
    if key in known:
        raise RunError(
            f"{known[key].path} and {run.path} are both {name} with seed {run.config.seed}: leave one out"
        )
    known[key] = run


def _architecture(rows: Mapping[str, ConfigDict]) -> list[str]:
    """The keys that make a model a row of a table: two models that agree in them are the same
    row."""
    options = itertools.chain(*(config_lib.keys(row).items() for row in rows.values()))
    return list(dict.fromkeys(name for name, option in options if option.architecture))


def _compared(runs: Sequence[Run], free: Sequence[str]) -> list[str]:
    """The keys in which runs of one table must agree."""
    keys = dict.fromkeys(name for run in runs for name in config_lib.keys(run.config))
    return [name for name in keys if name not in free and not name.startswith(FREE)]


def _check_tokenizers(runs: Sequence[Run]) -> None:
    """Refuses runs of different tokenizers: perplexities per token of one do not compare with those
    of another."""
    paths = [path for run in runs if files.exists(path := os.path.join(run.path, TOKENIZER_FILE))]
    for path in paths[1:]:
        if files.read_small(path) != files.read_small(paths[0]):
            raise RunError(
                f"runs of different tokenizers: {paths[0]} and {path} differ: give runs of one tokenizer"
            )


def _compare(one: Run, other: Run, keys: Sequence[str]) -> None:
    for key in keys:
        if one.config.get(key) != other.config.get(key):
            raise RunError(
                f"runs that do not compare: {key} is {one.config.get(key)!r} in {one.path} and "
                f"{other.config.get(key)!r} in {other.path}: give runs that differ in model, seed and rates alone"
            )
