"""AR hits in the reports of language models: how the finished runs score on tokens that repeat a
bigram, and how much of the gap to a reference these tokens explain.

Each run is scored once, on its held-out data. Its scores are kept in its folder, in `slices.json`.
"""

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gmlp_flax import config as config_lib
from gmlp_flax.errors import RunError, decode_errors
from gmlp_flax.io import files, json_files
from gmlp_flax.reports.runs import Run
from gmlp_flax.reports.table import Cells, Spread, Table
from gmlp_flax.tasks.recall_slices import (
    OTHER,
    RECALL,
    SliceLosses,
    of_running_mean,
    share_of_gap,
)
from gmlp_flax.training import scoring

FILE = "slices.json"
HEADING = "recall slices"
SLICES = {RECALL: "AR hits", OTHER: "other tokens"}  # prefix of metrics -> what the table calls it
SHOWN = tuple(prefix + name for prefix in SLICES for name in ("perplexity", "accuracy"))


class SlicedRun(NamedTuple):
    """What a run scores on AR hits and on all other tokens.

    Attributes:
        path: the file that says so.
        step: of the checkpoint that was scored.
        frequent_bigrams: the setting of config.eval.frequent_bigrams.
        metrics: of the evaluation, of the running mean of the parameters if there is one.
    """

    path: str
    step: int
    frequent_bigrams: int
    metrics: Mapping[str, float]

    @property
    def losses(self) -> SliceLosses:
        """The losses among its metrics."""
        return SliceLosses.of_metrics(self.metrics)

    def percent(self, name: str) -> float:
        """An accuracy in percent."""
        return 100 * self.metrics[name]


def measure(run: Run, frequent_bigrams: int) -> None:
    """Scores the last checkpoint of a run and writes its `slices.json`, unless it has one.

    Args:
        run: finished.
        frequent_bigrams: for config.eval.frequent_bigrams.

    Raises:
        UserError: the run or its data cannot be read, or the data differ from the run's.
    """
    known = read(run)
    if known is not None and known.frequent_bigrams == frequent_bigrams:
        return
    config = config_lib.mutable_copy(run.config)
    scoring.add_slices(config)
    config.eval.frequent_bigrams = frequent_bigrams
    scores = scoring.evaluate_checkpoint(run.path, config=config)
    content = {
        "step": scores.step,
        "frequent_bigrams": frequent_bigrams,
        "eval": scores.metrics,
    }
    path = os.path.join(run.path, FILE)
    json_files.write(path, content)


def read(run: Run) -> SlicedRun | None:
    """The slices of a run's last step; None if it was not scored, or has been trained further.

    Raises:
        DataError, RunError: the file is damaged.
    """
    path = os.path.join(run.path, FILE)
    if not files.exists(path):
        return None
    advice = "remove it, and gmlp reproduce --slices scores the run again"
    with decode_errors(f"{path} is damaged", advice, RunError):
        content = json_files.read(path, dict)
        sliced = SlicedRun(
            path=path,
            step=content["step"],
            frequent_bigrams=content["frequent_bigrams"],
            metrics=of_running_mean(content["eval"]),
        )
        SliceLosses.of_metrics(sliced.metrics)
        for name in SHOWN:
            float(sliced.metrics[name])
    if sliced.step != run.last_step:
        return None
    return sliced


def slices_of(runs: Sequence[Run]) -> list[SlicedRun]:
    """The slices of the finished runs that were scored."""
    sliced = []
    for run in runs:
        scores = read(run) if run.finished else None
        if scores is not None:
            sliced.append(scores)
    return sliced


def tables(rows: Mapping[str, Sequence[Run]], reference: str) -> dict[str, Table]:
    """The table of slices by its heading; {} if no run was scored.

    Args:
        rows: row -> the runs of it that count.
        reference: the row to which the gaps are measured; "" for no gaps.

    Raises:
        RunError: a file is damaged, or the runs were scored in different ways.
    """
    by_row = {}
    everything: list[SlicedRun] = []
    for name, runs in rows.items():
        sliced = slices_of(runs)
        if sliced:
            by_row[name] = sliced
            everything += sliced
    if not everything:
        return {}
    _check_equal_settings(everything)
    models = {}
    for name, sliced in by_row.items():
        cells = _cells(sliced)
        if reference in by_row:
            mean = _mean(sliced)
            mean_of_reference = _mean(by_row[reference])
            share = share_of_gap(mean, mean_of_reference)
            title = f"gap to {reference} from AR hits (%)"
            cells[title] = None if share is None else 100 * share
        models[name] = cells
    return {HEADING: Table.of_models(models)}


def notes(tables: Mapping[str, Table], runs: Sequence[Run]) -> list[str]:
    """What the table of slices shows; none without it."""
    if HEADING not in tables:
        return []
    first, *_ = slices_of(runs)
    most = first.frequent_bigrams
    frequent = "however common"
    if most:
        frequent = f"and that the training text has at most {most:,} times"
    return [
        "AR hits: the predicted tokens that complete a bigram which their window has elsewhere, "
        f"{frequent} (Zoology, 2312.04927; for masked tokens, our definition). A gap is that of "
        "the log-perplexities, means over seeds; it is empty where the row is not behind."
    ]


def _check_equal_settings(sliced: Sequence[SlicedRun]) -> None:
    """Raises RunError if two runs were scored with other frequent bigrams."""
    first = sliced[0]
    for other in sliced:
        if other.frequent_bigrams != first.frequent_bigrams:
            raise RunError(
                f"{first.path} and {other.path} were made with eval.frequent_bigrams "
                f"{first.frequent_bigrams} and {other.frequent_bigrams}: repeat the command with "
                "--slices to score all runs alike"
            )


def _cells(sliced: Sequence[SlicedRun]) -> Cells:
    """A row's cells, means over its runs."""
    shares = []
    for run in sliced:
        losses = run.losses
        share = losses.recall_predictions / losses.predictions
        shares.append(100 * share)
    cells: Cells = {"AR hits (% of tokens)": statistics.mean(shares)}
    for prefix, title in SLICES.items():
        perplexity = f"{prefix}perplexity"
        accuracy = f"{prefix}accuracy"
        perplexities = [run.metrics[perplexity] for run in sliced]
        percents = [run.percent(accuracy) for run in sliced]
        cells[f"perplexity, {title}"] = Spread.mean(perplexities)
        cells[f"accuracy, {title} (%)"] = Spread.mean(percents)
    return cells


def _mean(sliced: Sequence[SlicedRun]) -> SliceLosses:
    """The mean losses of a row's runs, which were scored on the same tokens."""
    losses_of_runs = [run.losses for run in sliced]
    first = losses_of_runs[0]
    loss = statistics.mean(losses.loss for losses in losses_of_runs)
    recall_loss = statistics.mean(losses.recall_loss for losses in losses_of_runs)
    return first._replace(loss=loss, recall_loss=recall_loss)
