"""Reports of the mixing that models learned: spatial matrices W, Figures 3, 4 and 9, and tiny
attention, Figure 10."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gmlp_flax.analysis import attention, filters, shift_invariance
from gmlp_flax.analysis.charts import Chart
from gmlp_flax.errors import RunError
from gmlp_flax.paper.tables import PaperTable
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.runs import Run, setting, task_of, unfinished
from gmlp_flax.reports.table import Table
from gmlp_flax.training import pretrained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A pair as in MNLI: the second sentence contradicts the first.
PAIR = ("A man is playing a guitar in the street.", "Nobody is making music outside.")


class Drawn(NamedTuple):
    """The measurements of a run's weights.

    Attributes:
        columns: the names of the table's columns.
        rows: the table's rows: a whole number, then others.
        note: explains the numbers.
        figures: the figures by name.
    """

    columns: Sequence[str]
    rows: Iterable[tuple[int, Iterable[float]]]
    note: str
    figures: Mapping[str, Chart | Figure]


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
        run = _first_finetuned(run.row, task, tuned)
    measure = FIGURES[name]
    drawn = measure(run.path)
    rows = []
    for number, values in drawn.rows:
        floats = [float(value) for value in values]
        rows.append((number, *floats))
    return Report(
        table.title,
        Table(drawn.columns, rows),
        setting=setting(table, runs, scale),
        notes=(*unfinished(runs[:1]), drawn.note, f"The run: {run.path}"),
        figures=drawn.figures,
    )


def _first_finetuned(
    row: str,
    task: str,
    tuned: Mapping[str, Sequence[Run]],
) -> Run:
    """The first finished run of a row that was finetuned on a task; raises RunError if there is
    none."""
    for run in tuned.get(row, ()):
        is_finetuned = run.finished and run.config.init_parameters
        if is_finetuned and task_of(run.config) == task:
            return run
    raise RunError(
        f"{row} was not finetuned on {task}, which is drawn: give --finetune={task}=DATA"
    )


def image_filters(path: str) -> Drawn:
    """Figure 3: rows of W of an image classifier, layer by layer, and how close W came to depending
    only on the offset between two patches, at every checkpoint that the run kept."""
    measured = shift_invariance.shift_invariance(path)
    weights = measured.weights
    grid = measured.shape
    shares = measured.newest
    by_chance = shift_invariance.chance(tuple(grid))
    beyond_chance = []
    for layer, share in enumerate(shares, start=1):
        if share > by_chance.high:
            beyond_chance.append(f"{layer}")
    layers_beyond = ", ".join(beyond_chance) or "none"
    equal = np.ones_like(weights[:1])
    [[itself, neighbours, rest, distance]] = locality(equal, grid)
    note = (
        "Shares of the energy (squared sum) of W's rows, means over patches: on the patch itself, "
        "on its up to eight neighbours, on the rest. Distance: the root of the mean squared "
        "distance in patches, weighted by energy. A row of equal weights would have "
        f"{itself:.3f}, {neighbours:.3f}, {rest:.3f} and {distance:.2f}. "
        "Offsets: the share of W's variance that offsets between patches explain, 1 if W depends "
        f"on nothing else, {by_chance.words()}; "
        f"layers beyond both: {layers_beyond}."
    )
    localities = locality(weights, grid)
    rows = np.column_stack([localities, shares])
    return Drawn(
        columns=("layer", "itself", "neighbours", "beyond", "distance (patches)", "offsets"),
        rows=enumerate(rows, start=1),
        note=note,
        figures={
            "filters": filters.draw_patch_filters(weights, grid),
            "offsets_share": shift_invariance.shares_chart(measured),
        },
    )


def text_filters(path: str) -> Drawn:
    """Figure 4: the row of W that mixes into the middle token, layer by layer."""
    model = pretrained.load(path, "latest")
    weights = filters.matrices(model)
    note = (
        "Shares of the energy (squared sum) of the middle token's row of W: on tokens before it, "
        "on itself, on tokens after it. The paper sees layers that look forward, backward and both "
        "ways. Distance: the root of the mean squared distance to the token, weighted by energy."
    )
    return Drawn(
        columns=("layer", "before", "itself", "after", "distance (tokens)"),
        rows=enumerate(spread(weights), start=1),
        note=note,
        figures={"filters": filters.draw_text_filters(weights)},
    )


def shift_invariant_matrices(path: str) -> Drawn:
    """Figure 9: matrices learned without the Toeplitz constraint, and how close they come to it, at
    every checkpoint that the run kept."""
    measured = shift_invariance.shift_invariance(path)
    count = len(measured.weights)
    layers = [f"layer {layer}" for layer in range(1, count + 1)]
    by_chance = shift_invariance.chance(tuple(measured.shape))
    note = (
        "Share of the variance of each W's weights that offsets explain: 1 for a Toeplitz matrix, "
        f"{by_chance.words()}."
    )
    return Drawn(
        columns=("step", *layers),
        rows=measured.shares.items(),
        note=note,
        figures=shift_invariance.figures(measured),
    )


def attention_in_a_pair(path: str) -> Drawn:
    """Figure 10: how much each token of a pair attends to each other token."""
    model = pretrained.load(path, "latest")
    measured = attention.of_text(model, *PAIR)
    text = measured.text
    count = len(text.labels)
    segments = text.segments[:count]
    shares = across(measured.weights, segments)
    equal = np.full((1, count, count), 1 / count)
    [[even, *_]] = across(equal, segments)
    pair = " / ".join(PAIR)
    note = (
        f"The pair: {pair} "
        "Across: the share of its weight that a token gives to the other sentence, a mean over "
        "tokens. Within and across add up to less than 1 if weight lies on padding. "
        f"Equal weights on the {count} tokens would give {even:.3f}. "
        "The image shows the largest weight in the layers of the first half, as in the paper, "
        "which sees sentences align there."
    )
    return Drawn(
        columns=("layer", "across", "within", "largest weight across"),
        rows=zip(measured.numbers, shares, strict=True),
        note=note,
        figures=attention.figures(measured),
    )


FIGURES: dict[str, Callable[[str], Drawn]] = {
    "figure3": image_filters,
    "figure4": text_filters,
    "figure9": shift_invariant_matrices,
    "figure10": attention_in_a_pair,
}


# Numbers.


def spread(weights: np.ndarray) -> np.ndarray:
    """Which tokens the middle token's row of each W mixes.

    Args:
        weights: [layers, n, n], rows are outputs.

    Returns:
        [layers, 4]: the shares of energy before the token, on it and after it, and the distance in
        tokens.
    """
    n = weights.shape[-1]
    middle = n // 2
    offsets = np.arange(n) - middle
    before = offsets < 0
    itself = offsets == 0
    after = offsets > 0
    rows = weights[:, middle]
    return _shares(rows, (before, itself, after), offsets**2)


def locality(weights: np.ndarray, grid: Sequence[int]) -> np.ndarray:
    """How close to its own patch each row's weights are, on average.

    Args:
        weights: [layers, patches, patches], rows are outputs; patches row by row of the grid.
        grid: (rows, columns) of patches.

    Returns:
        [layers, 4]: shares of energy on the patch itself, on its neighbours and beyond; the
        distance in patches.
    """
    rows, columns = np.indices(grid)
    row = rows.ravel()
    column = columns.ravel()
    down = np.subtract.outer(row, row)
    right = np.subtract.outer(column, column)
    chebyshev = np.maximum(abs(down), abs(right))
    itself = chebyshev == 0
    neighbour = chebyshev == 1
    beyond = chebyshev > 1
    squared_distances = down**2 + right**2
    return _shares(weights, (itself, neighbour, beyond), squared_distances)


def _shares(
    weights: np.ndarray,
    parts: Sequence[np.ndarray],
    squares: np.ndarray,
) -> np.ndarray:
    """How the energy of rows of weights is shared.

    Args:
        weights: [layers, n], or [layers, rows, n]; the result is a mean over rows.
        parts: which weights are in each part, [n] or [rows, n].
        squares: squared distances, [n] or [rows, n].

    Returns:
        [layers, parts + 1]: the share of each part, and the root of the mean squared distance.
    """
    layers = len(weights)
    energy = np.square(weights.astype(np.float64))
    energy /= energy.sum(-1, keepdims=True)
    means = []
    for factor in (*parts, squares):
        sums = np.sum(energy * factor, axis=-1)
        by_layer = sums.reshape(layers, -1)
        means.append(by_layer.mean(-1))
    *shares, mean_square = means
    distance = np.sqrt(mean_square)
    return np.stack([*shares, distance], axis=-1)


def across(maps: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """How attention is shared between two sentences.

    Args:
        maps: weights [layers, n, n]; rows attend to columns.
        segments: the sentence of each token, [n].

    Returns:
        [layers, 3]: the mean weight that a token gives to the other sentence, the mean weight that
        it gives to its own, and the largest weight between the two.
    """
    is_other = np.not_equal.outer(segments, segments)
    to_other = np.where(is_other, maps, 0)
    to_own = np.where(is_other, 0, maps)
    mean_other = _mean_of_token(to_other)
    mean_own = _mean_of_token(to_own)
    largest_other = to_other.max((-1, -2))
    columns = [mean_other, mean_own, largest_other]
    return np.stack(columns, axis=-1)


def _mean_of_token(maps: np.ndarray) -> np.ndarray:
    """[layers]: the weight that a token gives, a mean over the rows of maps [layers, n, n]."""
    weights_of_rows = maps.sum(axis=-1)
    return weights_of_rows.mean(axis=-1)
