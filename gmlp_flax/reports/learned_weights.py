"""Reports of what models learned to mix: spatial matrices W, Figures 3, 4 and 9, and tiny attention, Figure 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gmlp_flax.analysis import attention, filters, shift_invariance
from gmlp_flax.analysis.charts import Chart
from gmlp_flax.errors import RunError
from gmlp_flax.paper.tables import PaperTable
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.runs import Run, setting, task_of, unfinished
from gmlp_flax.reports.table import Table
from gmlp_flax.training import loading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A pair as in MNLI: the second sentence contradicts the first.
PAIR = ("A man is playing a guitar in the street.", "Nobody is making music outside.")


def image_filters(table: PaperTable, runs: Sequence[Run], scale: str, _tuned: Mapping[str, Sequence[Run]]) -> Report:
    """Figure 3: rows of W of an image classifier, layer by layer, from the newest checkpoint of the first run, and how
    close W came to depending on the offset between two patches alone, at every checkpoint that it kept.

    Raises:
        RunError: the run has no checkpoint.
    """
    measured = shift_invariance.of_run(runs[0].path)
    weights, grid = measured.weights, measured.shape
    rows = zip(locality(weights, grid), list(measured.shares.values())[-1], strict=True)
    lines = [(layer, *map(float, near), float(share)) for layer, (near, share) in enumerate(rows, start=1)]
    even = locality(np.ones((1, *weights.shape[1:])), grid)[0]
    notes = (
        "Shares of the energy (squared sum) of W's rows, means over patches: on the patch itself, on its up to eight "
        "neighbours, on the rest. Distance: the root of the mean squared distance in patches, weighted by energy. A "
        f"row of equal weights would have {even[0]:.3f}, {even[1]:.3f}, {even[2]:.3f} and {even[3]:.2f}. Offsets: the "
        "share of W's variance that offsets between patches explain, "
        f"{shift_invariance.noise_share(grid):.3f} for noise, 1 if W depends on nothing else.",
    )
    columns = ("layer", "itself", "neighbours", "beyond", "distance (patches)", "offsets")
    figures = {
        "filters": filters.draw_images(weights, grid),
        "offsets_share": shift_invariance.shares_chart(measured),
    }
    return _report(table, runs, scale, Table(columns, lines), notes, figures)


def text_filters(table: PaperTable, runs: Sequence[Run], scale: str, _tuned: Mapping[str, Sequence[Run]]) -> Report:
    """Figure 4: the row of W that mixes into the middle token, layer by layer, from the newest checkpoint of the first
    run.

    Raises:
        RunError: the run has no checkpoint.
    """
    weights = filters.matrices(loading.load(runs[0].path))
    lines = [(layer, *map(float, row)) for layer, row in enumerate(spread(weights), start=1)]
    notes = (
        "Shares of the energy (squared sum) of the middle token's row of W: on tokens before it, on itself, on tokens "
        "after it. The paper sees layers that look forward, backward and both ways. Distance: the root of the mean "
        "squared distance to the token, weighted by energy.",
    )
    columns = ("layer", "before", "itself", "after", "distance (tokens)")
    return _report(table, runs, scale, Table(columns, lines), notes, {"filters": filters.draw_text(weights)})


def shift_invariance_report(
    table: PaperTable, runs: Sequence[Run], scale: str, _tuned: Mapping[str, Sequence[Run]]
) -> Report:
    """Figure 9: matrices learned without the Toeplitz constraint, and how close they come to it, at every checkpoint
    that the first run kept.

    Raises:
        RunError: the run has no checkpoint.
    """
    measured = shift_invariance.of_run(runs[0].path)
    columns = ("step", *(f"layer {layer + 1}" for layer in range(len(measured.weights))))
    lines = [(step, *map(float, share)) for step, share in measured.shares.items()]
    notes = (
        "Share of the variance of each W's weights that offsets explain: 1 for a Toeplitz matrix, "
        f"{shift_invariance.noise_share(measured.shape):.3f} for noise.",
    )
    figures = {
        "matrices": shift_invariance.draw_matrices(measured.weights),
        "toeplitz_share": shift_invariance.shares_chart(measured),
    }
    return _report(table, runs, scale, Table(columns, lines), notes, figures)


def _report(
    table: PaperTable,
    runs: Sequence[Run],
    scale: str,
    numbers: Table,
    notes: Sequence[str],
    figures: Mapping[str, Chart | Figure],
) -> Report:
    """A report of the first run."""
    sentences = (*unfinished(runs[:1]), *notes, f"The run: {runs[0].path}")
    return Report(table.title, numbers, setting=setting(table, runs, scale), notes=sentences, figures=figures)


def spread(weights: np.ndarray) -> np.ndarray:
    """Where the middle token's row of each W looks.

    Args:
        weights: [layers, n, n], rows are outputs.

    Returns:
        [layers, 4]: the shares of energy before the token, on it and after it, and the distance in tokens.
    """
    middle = weights.shape[-1] // 2
    energy = np.square(weights[:, middle].astype(np.float64))
    energy /= energy.sum(-1, keepdims=True)
    offsets = np.arange(weights.shape[-1]) - middle
    sides = [energy[:, side].sum(-1) for side in (offsets < 0, offsets == 0, offsets > 0)]
    return np.stack([*sides, np.sqrt(energy @ np.square(offsets))], axis=-1)


def locality(weights: np.ndarray, grid: Sequence[int]) -> np.ndarray:
    """How close to its own patch each row looks, on average.

    Args:
        weights: [layers, patches, patches], rows are outputs; patches row by row of the grid.
        grid: (rows, columns) of patches.

    Returns:
        [layers, 4]: shares of energy on the patch itself, on its neighbours and beyond; the distance in patches.
    """
    energy = np.square(weights.astype(np.float64))
    energy /= energy.sum(-1, keepdims=True)
    positions = np.stack(np.divmod(np.arange(grid[0] * grid[1]), grid[1]), axis=-1)
    steps = np.abs(positions[:, None] - positions)
    away = steps.max(-1)  # a king's moves
    shares = [np.where(ring, energy, 0).sum(-1).mean(-1) for ring in (away == 0, away == 1, away > 1)]
    return np.stack([*shares, np.sqrt((energy * np.square(steps).sum(-1)).sum(-1).mean(-1))], axis=-1)


def attention_in_a_pair(
    table: PaperTable, runs: Sequence[Run], scale: str, tuned: Mapping[str, Sequence[Run]]
) -> Report:
    """Figure 10: how much each token of a pair looks at each other token, in the first finetuned run.

    Raises:
        RunError: there is no finetuned run.
    """
    (row,), (task,) = table.rows, table.tasks
    pretrained = (run for run in tuned.get(row, ()) if run.finished and run.config.init_parameters)
    runs_of_task = [run for run in pretrained if task_of(run.config) == task]
    if not runs_of_task:
        raise RunError(f"{row} was not finetuned on {task}, which is drawn: give --finetune={task}=DATA")
    path = runs_of_task[0].path
    trained = loading.load(path)
    sentences = attention.encode(trained, *PAIR)
    count = len(sentences.labels)
    maps = attention.maps(trained, sentences)[:, :count, :count]
    segments = sentences.segments[:count]
    numbers, depth = attention.layer_numbers(trained)
    lines = [(number, *map(float, shares)) for number, shares in zip(numbers, across(maps, segments), strict=True)]
    even = float(across(np.full((1, count, count), 1 / count), segments)[0, 0])
    notes = (
        *unfinished(runs[:1]),
        f"Finetuned: {path}. The pair: {' / '.join(PAIR)}",
        "Across: the share of its weight that a token gives to the other sentence, a mean over tokens. Within and "
        f"across add up to less than 1 if weight lies on padding. Equal weights on the {count} tokens would give "
        f"{even:.3f}. The image shows the largest weight in the layers of the first half, as in the paper, which sees "
        "sentences align there.",
    )
    half = attention.first_half(numbers, depth)
    figures = {
        "attention": attention.draw_largest(maps[:half], sentences, numbers[:half]),
        "layers": attention.draw_layers(maps, numbers),
    }
    columns = ("layer", "across", "within", "largest weight across")
    return Report(table.title, Table(columns, lines), setting=setting(table, runs, scale), notes=notes, figures=figures)


def across(maps: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """How attention is shared between two sentences.

    Args:
        maps: weights [layers, n, n], rows look at columns.
        segments: the sentence of each token, [n].

    Returns:
        [layers, 3]: the mean weight that a token gives to the other sentence, the mean weight that it gives to its own,
        and the largest weight between the two.
    """
    other = segments[:, None] != segments[None]
    shares = [np.where(pairs, maps, 0).sum(-1).mean(-1) for pairs in (other, ~other)]
    return np.stack([*shares, np.where(other, maps, 0).max((-1, -2))], axis=-1)
