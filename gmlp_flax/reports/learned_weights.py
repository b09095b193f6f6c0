"""Reports of what models learned to mix: spatial matrices W, Figures 3, 4 and 9, and tiny
attention, Figure 10."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from gmlp_flax.analysis import attention, filters
from gmlp_flax.analysis.drawing import Chart
from gmlp_flax.errors import RunError
from gmlp_flax.paper.tables import PaperTable
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.runs import Run, setting, task_of, unfinished
from gmlp_flax.reports.table import Table
from gmlp_flax.training import loading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The columns of a table, its rows of numbers, a note on them, and figures by name.
Drawn = tuple[
    Sequence[str], Iterable[tuple[int, Iterable[float]]], str, dict[str, "Chart | Figure"]
]

# A pair as in MNLI: the second sentence contradicts the first.
PAIR = ("A man is playing a guitar in the street.", "Nobody is making music outside.")


def report(
    name: str,
    table: PaperTable,
    runs: Sequence[Run],
    scale: str,
    tuned: Mapping[str, Sequence[Run]],
) -> Report:
    """The report of a figure of FIGURES, drawn from the newest checkpoint of the first run, or of
    the first run that was finetuned on the table's task. Other arguments: see
    `language_models.perplexities`.

    Raises:
        RunError: the run has no checkpoint, or there is no finetuned run.
    """
    run = runs[0]
    for task in table.tasks:
        of_row = (
            run for run in tuned.get(run.row, ()) if run.finished and run.config.init_parameters
        )
        finetuned = [run for run in of_row if task_of(run.config) == task]
        if not finetuned:
            raise RunError(
                f"{run.row} was not finetuned on {task}, which is drawn: give --finetune={task}=DATA"
            )
        run = finetuned[0]
    columns, rows, note, figures = FIGURES[name](run.path)
    numbers = Table(columns, [(number, *map(float, values)) for number, values in rows])
    notes = (*unfinished(runs[:1]), note, f"The run: {run.path}")
    return Report(
        table.title, numbers, setting=setting(table, runs, scale), notes=notes, figures=figures
    )


def image_filters(path: str) -> Drawn:
    """Figure 3: rows of W of an image classifier, layer by layer, and how close W came to depending
    on the offset between two patches alone, at every checkpoint that the run kept."""
    measured = filters.shift_invariance(path)
    weights, grid = measured.weights, measured.shape
    shares = list(measured.shares.values())[-1]
    rows = enumerate(np.concatenate([locality(weights, grid), shares[:, None]], axis=1), start=1)
    even = locality(np.ones((1, *weights.shape[1:])), grid)[0]
    by_chance = filters.chance(tuple(grid))
    beyond = (
        ", ".join(
            str(layer) for layer, share in enumerate(shares, start=1) if share > by_chance.high
        )
        or "none"
    )
    note = (
        "Shares of the energy (squared sum) of W's rows, means over patches: on the patch itself, on its up to eight "
        "neighbours, on the rest. Distance: the root of the mean squared distance in patches, weighted by energy. A "
        f"row of equal weights would have {even[0]:.3f}, {even[1]:.3f}, {even[2]:.3f} and {even[3]:.2f}. Offsets: the "
        "share of W's variance that offsets between patches explain, "
        f"1 if W depends on nothing else, {by_chance.words()}; layers beyond both: {beyond}."
    )
    columns = ("layer", "itself", "neighbours", "beyond", "distance (patches)", "offsets")
    drawn = {
        "filters": filters.draw_images(weights, grid),
        "offsets_share": filters.shares_chart(measured),
    }
    return columns, rows, note, drawn


def text_filters(path: str) -> Drawn:
    """Figure 4: the row of W that mixes into the middle token, layer by layer."""
    weights = filters.matrices(loading.load(path))
    note = (
        "Shares of the energy (squared sum) of the middle token's row of W: on tokens before it, on itself, on tokens "
        "after it. The paper sees layers that look forward, backward and both ways. Distance: the root of the mean "
        "squared distance to the token, weighted by energy."
    )
    columns = ("layer", "before", "itself", "after", "distance (tokens)")
    return (
        columns,
        enumerate(spread(weights), start=1),
        note,
        {"filters": filters.draw_text(weights)},
    )


def shift_invariant_matrices(path: str) -> Drawn:
    """Figure 9: matrices learned without the Toeplitz constraint, and how close they come to it, at
    every checkpoint that the run kept."""
    measured = filters.shift_invariance(path)
    columns = ("step", *(f"layer {layer + 1}" for layer in range(len(measured.weights))))
    note = (
        "Share of the variance of each W's weights that offsets explain: 1 for a Toeplitz matrix, "
        f"{filters.chance(tuple(measured.shape)).words()}."
    )
    return columns, measured.shares.items(), note, filters.shift_figures(measured)


def attention_in_a_pair(path: str) -> Drawn:
    """Figure 10: how much each token of a pair looks at each other token."""
    found = attention.of_text(loading.load(path), *PAIR)
    count = len(found.text.labels)
    segments = found.text.segments[:count]
    even = float(across(np.full((1, count, count), 1 / count), segments)[0, 0])
    note = (
        f"The pair: {' / '.join(PAIR)} Across: the share of its weight that a token gives to the other sentence, a "
        "mean over tokens. Within and across add up to less than 1 if weight lies on padding. Equal weights on the "
        f"{count} tokens would give {even:.3f}. The image shows the largest weight in the layers of the first half, as "
        "in the paper, which sees sentences align there."
    )
    columns = ("layer", "across", "within", "largest weight across")
    rows = zip(found.numbers, across(found.weights, segments), strict=True)
    return columns, rows, note, {**attention.figures(found)}


FIGURES: dict[str, Callable[[str], Drawn]] = {
    "figure3": image_filters,
    "figure4": text_filters,
    "figure9": shift_invariant_matrices,
    "figure10": attention_in_a_pair,
}


def spread(weights: np.ndarray) -> np.ndarray:
    """Where the middle token's row of each W looks.

    Args:
        weights: [layers, n, n], rows are outputs.

    Returns:
        [layers, 4]: the shares of energy before the token, on it and after it, and the distance in
        tokens.
    """
    middle = weights.shape[-1] // 2
    offsets = np.arange(weights.shape[-1]) - middle
    sides = (offsets < 0, offsets == 0, offsets > 0)
    return _shares(weights[:, middle], sides, np.square(offsets))


def locality(weights: np.ndarray, grid: Sequence[int]) -> np.ndarray:
    """How close to its own patch each row looks, on average.

    Args:
        weights: [layers, patches, patches], rows are outputs; patches row by row of the grid.
        grid: (rows, columns) of patches.

    Returns:
        [layers, 4]: shares of energy on the patch itself, on its neighbours and beyond; the
        distance in patches.
    """
    positions = np.stack(np.divmod(np.arange(grid[0] * grid[1]), grid[1]), axis=-1)
    steps = np.abs(positions[:, None] - positions)
    away = steps.max(-1)  # a king's moves
    return _shares(weights, (away == 0, away == 1, away > 1), np.square(steps).sum(-1))


def _shares(weights: np.ndarray, parts: Sequence[np.ndarray], squares: np.ndarray) -> np.ndarray:
    """The shares of the energy of rows of weights in some parts of them, and the root of the mean
    squared distance, which are means over rows if there are several: [layers, parts + 1]."""
    energy = np.square(weights.astype(np.float64))
    energy /= energy.sum(-1, keepdims=True)
    sums = [(energy * part).sum(-1) for part in (*parts, squares)]
    *shares, square = [of_rows.reshape(len(weights), -1).mean(-1) for of_rows in sums]
    return np.stack([*shares, np.sqrt(square)], axis=-1)


def across(maps: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """How attention is shared between two sentences.

    Args:
        maps: weights [layers, n, n], rows look at columns.
        segments: the sentence of each token, [n].

    Returns:
        [layers, 3]: the mean weight that a token gives to the other sentence, the mean weight that
        it gives to its own, and the largest weight between the two.
    """
    other = segments[:, None] != segments[None]
    shares = [np.where(pairs, maps, 0).sum(-1).mean(-1) for pairs in (other, ~other)]
    return np.stack([*shares, np.where(other, maps, 0).max((-1, -2))], axis=-1)
