"""Finds the finished and half-finished runs of an experiment's rows in a folder."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.training import folder, report
from gmlp_flax.training.errors import RunError

# What makes a model the row of a table; two that agree in these are one.
MODEL = tuple(f"model.{key}" for key in (
    "block", "layers", "d_model", "d_ffn", "gate", "spatial", "d_attn", "positions", "heads", "d_spatial", "vocab_size",
))
IDENTITY = ("task", *MODEL, "model.length")
LASTS = "steps"  # tells a table's rows apart as well where they differ in it
FINETUNED = "finetuned"  # folder, beside the runs of a table, of what they were finetuned to
# What may differ between the runs of one table: how they were run, and what was chosen for a row.
FREE = ("seed", "model.", "mesh.", "log.", "checkpoint.", "eval.every", "profile.", "data.cache", "data.workers")
CHOSEN = "optimizer.learning_rate"
# What finetuned runs have in common of the keys of FREE: how a model reads sentences.
READING = tuple(f"model.{key}" for key in ("length", "dropout", "attention_dropout", "mask_padding", "pool", "pooler"))


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a row.

    Attributes:
        row: its name in the table.
        path: the run folder.
        config: its own.
        lines: those of metrics.jsonl.
    """

    row: str
    path: str
    config: ConfigDict
    lines: Sequence[Mapping]

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return os.path.exists(os.path.join(self.path, report.RESULT_FILE))

    def curve(self, metric: str) -> list[tuple[int, float]]:
        """The held-out metric over what was trained on: (tokens, or images where the model has no length; value)."""
        options = self.config
        unit = options.batch_size * (1 if options.task == "image_classification" else options.model.length)
        return [(line["step"] * unit, line["eval"][metric]) for line in self.lines if metric in line.get("eval", ())]


def find(pattern: str, rows: Mapping[str, ConfigDict]) -> list[Run]:
    """The runs in a folder whose models are rows of a table.

    Args:
        pattern: a folder of run folders, or a glob pattern of such or of run folders.
        rows: each row's config.

    Raises:
        RunError: two rows are one; there is no run, two are the same row and seed, or their configs differ in more than
            a table compares.
    """
    runs: dict[tuple[str, int], Run] = {}
    for run in _runs(pattern, rows, IDENTITY):
        _refuse_twin(runs, (run.row, run.config.seed), run, f"the row {run.row}")
    found = sorted(runs.values(), key=lambda run: (list(rows).index(run.row), run.config.seed))
    if not found:
        raise RunError(f"{pattern} holds no run of {', '.join(rows)}: give a folder of their run folders")
    _check_alike(found, _apart(rows))
    return found


def find_finetuned(pattern: str, rows: Mapping[str, ConfigDict]) -> dict[str, list[Run]]:
    """The finetuned runs of a table's rows, which keep all of a row's model but its length.

    Those that began with random parameters (config.init_parameters) are none.

    Args:
        pattern: of the table's runs; theirs are in PATTERN/finetuned/ANY/, as scripts/reproduce.py puts them.
        rows: each row's config, that it was pretrained with. Where rows are one model trained for different steps, the
            run of config.init_from has to be there to tell them apart.

    Raises:
        RunError: two rows are one; two runs are the same, or a task's runs with one batch differ in more than row, seed
            and rate.
    """
    found: dict[str, list[Run]] = {row: [] for row in rows}
    same: dict[tuple, Run] = {}
    alike: dict[tuple, Run] = {}
    keys = [key for key, _ in config_lib.keys() if key not in (CHOSEN, "init_from") and not key.startswith(FREE)]
    for run in _runs(os.path.join(pattern, FINETUNED, "*"), rows, MODEL, _pretrained):
        config = run.config
        if config.init_from and config.init_parameters:
            task = task_of(config), config.batch_size
            key = run.row, *task, config[CHOSEN], config.init_from, config.seed
            _refuse_twin(same, key, run, f"{task[0]} from {config.init_from}")
            _compare(alike.setdefault(task, run), run, [*keys, *READING])
            found[run.row].append(run)
    return found


def task_of(config: ConfigDict) -> str:
    """What a finetuned run learned: a name of `recipes.FINETUNED`, or another task of GLUE."""
    return config.glue.task if config.task == "text_classification" else f"squad_{config.squad.version}"


def _runs(
    pattern: str, rows: Mapping[str, ConfigDict], identity: Sequence[str],
    pretrained: Callable[[ConfigDict], Mapping[str, object]] = lambda config: config,
) -> Iterator[Run]:
    """The runs that agree with a row in some keys; and `pretrained`, of their configs, in what tells the rows apart."""
    apart = _apart(rows)
    names: dict[tuple, str] = {}
    for name, config in rows.items():
        first = names.setdefault(tuple(config[key] for key in (*identity, *apart)), name)
        if first != name:
            raise RunError(f"the rows {first} and {name} are one: do not set what makes their {LASTS} or models equal")
    for path in _run_folders(pattern):
        config = config_lib.load(os.path.join(path, folder.CONFIG_FILE))
        lasted = [pretrained(config)[key] for key in apart]
        if row := names.get((*(config[key] for key in identity), *lasted)):
            yield Run(row, path, config, report.MetricsFile.read(os.path.join(path, report.METRICS_FILE)))


def _apart(rows: Mapping[str, ConfigDict]) -> tuple[str, ...]:
    return (LASTS,) if len({config[LASTS] for config in rows.values()}) > 1 else ()


def _pretrained(config: ConfigDict) -> Mapping[str, object]:
    """The config of the run that a finetuned one started from; where that is gone, {LASTS: None}, as no row has it."""
    path = os.path.join(config.init_from, folder.CONFIG_FILE)
    return config_lib.load(path) if os.path.exists(path) else {LASTS: None}


def _run_folders(pattern: str) -> Iterator[str]:
    for path in sorted(glob.glob(os.path.expanduser(pattern))):
        inside = sorted(entry.path for entry in os.scandir(path)) if os.path.isdir(path) else []
        yield from (each for each in (path, *inside) if os.path.isfile(os.path.join(each, folder.CONFIG_FILE)))


def _refuse_twin(known: dict[tuple, Run], key: tuple, run: Run, what: str) -> None:
    if key in known:
        raise RunError(f"{known[key].path} and {run.path} are both {what} with seed {run.config.seed}: leave one out")
    known[key] = run


def _check_alike(runs: Sequence[Run], apart: Sequence[str]) -> None:
    """Refuses runs that were not trained alike, but for what tells their rows apart."""
    first_of_row: dict[str, Run] = {}
    keys = [key for key, _ in config_lib.keys() if key not in (CHOSEN, *apart) and not key.startswith(FREE)]
    for run in runs:
        _compare(runs[0], run, keys)
        _compare(first_of_row.setdefault(run.row, run), run, [CHOSEN])


def _compare(one: Run, other: Run, keys: Sequence[str]) -> None:
    for key in keys:
        if one.config[key] != other.config[key]:
            raise RunError(
                f"runs of different configs: {key} is {one.config[key]!r} in {one.path} and {other.config[key]!r} in "
                f"{other.path}: give runs that differ in model, seed and a row's rate alone"
            )
