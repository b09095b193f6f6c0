"""Makes a row of the comparison of `gmlp reproduce alternatives` from somebody's own runs."""

import json
import os
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax import config as config_lib
from gmlp_flax.checkpoints import ENVIRONMENT_FILE, run_folder
from gmlp_flax.checkpoints.assets import sha256
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE
from gmlp_flax.errors import RunError
from gmlp_flax.io import files, json_files
from gmlp_flax.models import parameters
from gmlp_flax.options import ALL_RUNS, NO_RUNS
from gmlp_flax.paper.alternatives import COLUMNS
from gmlp_flax.reports import runs as run_finder
from gmlp_flax.reports.alternatives.submissions import Submission, check_name
from gmlp_flax.reports.runs import RATE, Run, bare_task
from gmlp_flax.reports.scaling import METRIC

COLUMN = COLUMNS["mlm"]
LENGTH_OF_HASH = 12
OF_THE_TEXT = ("model.length", "model.vocab_size")  # keys of the model that all rows share


def submission(name: str, pattern: str, scale: str, changes: Mapping[str, Any]) -> Submission:
    """The row of some runs, one for each seed.

    Args:
        name: of the row.
        pattern: a folder of the runs, or a glob pattern that matches them. Other runs of the same
            model there, such as those of a search, count as rates that were tried.
        scale: of the comparison.
        changes: keys that a command line changed in all rows.

    Raises:
        DataError: the row may not have this name.
        RunError: there is no finished run, or the runs differ from each other or from the setting
            of the comparison.
    """
    check_name(name)
    every_run = list(run_finder.every_run(pattern))
    runs = [run for run in every_run if _counts(run)]
    if not runs:
        raise RunError(
            f"{pattern} holds no finished run of masked_lm: train your row first, as the page on "
            "adding a row says"
        )
    first, *others = runs
    configs = COLUMN.configs(scale, changes=changes)
    _check_setting(first, configs)
    for run in others:
        _check_equal(first, run)
    seeds = tuple(run.config.seed for run in runs)
    different_seeds = set(seeds)
    if len(different_seeds) < len(seeds):
        raise RunError(f"{pattern} holds two runs of one seed: leave one out")
    rates = _rates_of(every_run, first)
    perplexities = tuple(_perplexity(run) for run in runs)
    *_, last_point = first.curve(METRIC)
    tokens, _ = last_point
    task = bare_task(first.config)
    shapes = task.shapes()
    environment = _environment(first)
    packages = environment.get("packages", {})
    return Submission(
        row=name,
        scale=scale,
        config=config_hash(first.config),
        setting=setting_hash(first),
        commit=_commit(environment),
        version=packages.get("gmlp_flax") or "unknown",
        parameters=parameters.count(shapes["encoder"]),
        tokens=tokens,
        rate=first.config[RATE],
        rates=rates,
        seeds=seeds,
        perplexities=perplexities,
        median=statistics.median(perplexities),
    )


def _rates_of(runs: Iterable[Run], first: Run) -> tuple[float, ...]:
    """The rates of all runs that have the model of the first one, lowest first."""
    model = first.config.model.to_dict()
    rates = set()
    for run in runs:
        config = run.config
        if config.model.to_dict() == model:
            rates.add(config[RATE])
    return tuple(sorted(rates))


def setting_hash(run: Run) -> str:
    """A hash of what the rows of a comparison have in common: the keys that must agree in all runs
    of a table, without paths; the text, and the tokenizer."""
    values: dict[str, Any] = setting_values(run.config)
    identity = run_folder.read_identity(run.path)
    values["text"] = identity.get("data", {})
    tokenizer = os.path.join(run.path, TOKENIZER_FILE)
    if files.exists(tokenizer):
        content = files.read_small(tokenizer)
        values["tokenizer"] = sha256(content)
    return _hash(values)


def config_hash(config: ConfigDict) -> str:
    """A hash of the keys of a config that change what is learned or how it is scored, without the
    seed and the paths of data."""
    return _hash(_learned_values(config))


def setting_values(config: ConfigDict) -> dict[str, Any]:
    """The keys that must agree in all runs of the comparison, and their values."""
    values = {}
    options = config_lib.keys(config)
    for name, option in options.items():
        is_of_model = name.startswith("model.")
        is_compared = option.compared == ALL_RUNS and not option.may_move
        is_shared = is_compared and not is_of_model
        if is_shared or name in OF_THE_TEXT:
            values[name] = config[name]
    return values


def _learned_values(config: ConfigDict) -> dict[str, Any]:
    values = {}
    options = config_lib.keys(config)
    for name, option in options.items():
        is_learned = option.compared != NO_RUNS
        if is_learned and not option.may_move:
            values[name] = config[name]
    return values


def _hash(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True)
    content = text.encode()
    digest = sha256(content)
    return digest[:LENGTH_OF_HASH]


def _counts(run: Run) -> bool:
    """Whether a run is a finished run of masked LM and not of a search."""
    curve = run.curve(METRIC)
    if not curve or not run.finished:
        return False
    return not run.config.data.search


def _check_setting(run: Run, configs: Mapping[str, ConfigDict]) -> None:
    """Raises RunError if a run was not trained in the setting of the comparison."""
    first, *_ = configs.values()
    ours = setting_values(first)
    theirs = setting_values(run.config)
    for name, value in ours.items():
        their_value = theirs.get(name)
        if their_value != value:
            raise RunError(
                f"{run.path}: {name} is {their_value!r}, and {value!r} in the comparison: "
                f"train with --config.{name}={value}, or give the changed key after --"
            )


def _check_equal(first: Run, run: Run) -> None:
    """Raises RunError if two runs differ in more than the seed, or in their texts."""
    values = _learned_values(first.config)
    others = _learned_values(run.config)
    for name in values | others:
        value = values.get(name)
        other = others.get(name)
        if value != other:
            raise RunError(
                f"{name} is {value!r} in {first.path} and {other!r} in {run.path}: give the runs of "
                "one row, which differ in the seed alone; train runs that choose a rate with "
                "config.data.search=True"
            )
    if setting_hash(first) != setting_hash(run):
        raise RunError(
            f"{first.path} and {run.path} have other texts or tokenizers: give runs of one text"
        )


def _perplexity(run: Run) -> float:
    """The perplexity at the end of a run."""
    *_, last_point = run.curve(METRIC)
    _, value = last_point
    return value


def _environment(run: Run) -> dict[str, Any]:
    """The content of a run's environment.json; {} if there is none."""
    path = os.path.join(run.path, ENVIRONMENT_FILE)
    if not files.exists(path):
        return {}
    return json_files.read(path, dict)


def _commit(environment: Mapping[str, Any]) -> str:
    """The git commit of a run, "-changed" if files were changed; or "unknown"."""
    commit = environment.get("git_commit")
    if not commit:
        return "unknown"
    if environment.get("git_dirty"):
        return f"{commit}-changed"
    return commit
