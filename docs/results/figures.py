"""Draws the figures of docs/results from the measured CSV files of docs/results/data, for light and
for dark pages.

python -m docs.results.figures
"""

import dataclasses
import functools
import io
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from docs import generate
from docs.results import longer, matrices, recall
from gmlp_flax.analysis import drawing
from gmlp_flax.analysis.looks import FAMILIES, GREY, on_dark
from gmlp_flax.models import parameters
from gmlp_flax.paper.alternatives import COLUMNS
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.paper.recall import PAIRS, ROWS
from gmlp_flax.reports.report import family, looks
from gmlp_flax.reports.runs import bare_task
from gmlp_flax.reports.scaling import power_law
from gmlp_flax.reports.table import Spread

FOLDER = Path(__file__).parent / "figures"


class Ink(NamedTuple):
    """The colours of words, of axes and of grids."""

    words: str
    axes: str
    grid: str


INK = {
    "light": Ink("#1f2328", "#59636e", "#d0d5da"),
    "dark": Ink("#e6edf3", "#a9b3bd", "#454e58"),
}
DPI = 72
STYLE: dict[Any, Any] = {
    **drawing.STYLE,
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.labelsize": 12,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "lines.linewidth": 2,
    "lines.markersize": 7,
    "axes.linewidth": 1,
    "grid.linewidth": 0.8,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
}
LABEL_GAP = 12.2  # pixels from one name of a mark to the next
FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
# What rows are called where there is no room for what they are.
SHORT = {
    "sgu": "gMLP",
    "amlp_36": "aMLP",
    "depthwise": "gMLP, depthwise",
    "additive": "additive gate",
    "linear": "linear gate",
    "multiplicative": "multiplicative gate",
    "bert": "attention, learned",
    "bert_rel": "attention, relative",
    "bert_t5": "attention, T5's buckets",
    "bert_rel_only": "distances alone",
    "modern": "attention of today",
    "mixer": "Mixer",
    "resmlp": "ResMLP",
    "feed_forward": "feed-forward stack",
    "fnet": "FNet",
    "hybrid": "FNet, attention last",
    "lightweight": "lightweight convolution",
    "dynamic": "dynamic convolution",
    "growing": "convolution, growing",
    "long_conv": "long convolution",
    "random": "Synthesizer, random",
    "fixed_random": "Synthesizer, fixed",
    "factorized": "Synthesizer, factorized",
    "dense": "Synthesizer, dense",
    "factorized_dense": "factorized + dense",
    "random_vanilla": "random + attention",
    "external": "external attention",
    "bigs": "BiGS",
    "delta": "gated delta rule",
    "hydra": "Hydra",
}


@dataclasses.dataclass(frozen=True)
class Mark:
    """A point of "which mixer": a row, where it stands, and what is said of it under the
    pointer."""

    row: str
    x: float
    y: float
    low: float
    high: float
    tip: str


def seen(colour: str, mode: str) -> str:
    """A colour of a family, light enough for a dark page."""
    return colour if mode == "light" else on_dark(colour)


def size(column: str, row: str) -> float:
    """Millions of parameters of a row's encoder."""
    [config] = COLUMNS[column].configs("cpu", (row,)).values()
    return parameters.count(bare_task(config).shapes()["encoder"]) / 1e6


def scores_of(column: str) -> dict[str, Spread]:
    """Row -> its score in a column of the alternatives."""
    if column == longer.COLUMN:
        return longer.spreads()
    return generate.scores()[column]


def marks(column: str, tokens: int) -> list[Mark]:
    """The rows of a column of the alternatives, over the milliseconds of 1,000 tokens at a length;
    those alone whose step was measured there."""
    scores = scores_of(column)
    costs = generate.costs()
    points = []
    for row, score in scores.items():
        step = costs.get(row, {}).get(tokens)
        if step is None or step.per_thousand is None:
            continue
        milliseconds = step.per_thousand.centre
        points.append(
            Mark(
                row=row,
                x=milliseconds,
                y=score.centre,
                low=min(score.values),
                high=max(score.values),
                tip=_tip(row, column, tokens, score, milliseconds),
            )
        )
    return points


def _tip(row: str, column: str, tokens: int, score: Spread, milliseconds: float) -> str:
    """What a mark says where it is pointed at."""
    centre = f"{score.centre:.1f}"
    value = f"perplexity {centre}" if COLUMNS[column].lower else f"{centre} %"
    if len(score.values) > 1:
        low = min(score.values)
        high = max(score.values)
        value += f" ({low:.1f} to {high:.1f})"
    else:
        value += ", one seed"
    name = SHORT.get(row, row)
    millions = size(column, row)
    config = COLUMNS[column].of(row, "cpu")
    return (
        f"{name} ({row}): {value}; "
        f"{milliseconds:,.0f} ms per 1,000 tokens at n = {tokens:,}; "
        f"{millions:.3f} M parameters in the encoder. "
        f"gmlp train --config={config}"
    )


# Name -> title, column, tokens.
PANELS = {
    "which-mixer-longer": ("Text after 18 M tokens", longer.COLUMN, 128),
    "which-mixer-128": ("Text, 128 tokens", "mlm", 128),
    "which-mixer-1024": ("Text; time at 1,024 tokens", "mlm", 1024),
    "which-mixer-8192": ("Text; time at 8,192 tokens", "mlm", 8192),
    "which-mixer-images": ("CIFAR-10, 300 steps", "cifar10", 128),
    "which-mixer-trees": ("ListOps, trees of 4 to 29 symbols", "listops", 128),
}
PERPLEXITIES = {longer.COLUMN: (14, 560), "mlm": (30, 560)}  # from the lowest to the highest
NAMES = {
    longer.COLUMN: "held-out perplexity",
    "mlm": "held-out perplexity",
    "cifar10": "held-out top-1 (%)",
    "listops": "held-out accuracy (%)",
}


# What trivial models are called in a figure.
TRIVIAL = {
    "token frequencies alone": "frequencies alone",
    "the shown token alone, without context": "no context",
}


def floors(column: str) -> list[tuple[str, float]]:
    """What trivial models score."""
    if column == longer.COLUMN:
        column = "mlm"
    scores = []
    for line in generate.read("alternatives-heldout", column=column):
        name = TRIVIAL.get(line["trivial_model"], "most frequent class")
        score = float(line["score"])
        scores.append((name, score))
    return scores


def scatter(axis: Axes, column: str, tokens: int, mode: str) -> None:
    """A panel of "which mixer"."""
    points = marks(column, tokens)
    look_of = looks([mark.row for mark in points])
    for mark in points:
        family_colour = FAMILIES.get(family(mark.row), GREY)
        colour = seen(family_colour, mode)
        axis.vlines(mark.x, mark.low, mark.high, color=colour, linewidth=1.5, alpha=0.7)
        marker = look_of[mark.row].marker
        [drawn_mark] = axis.plot([mark.x], [mark.y], marker, color=colour, linestyle="none")
        drawn_mark.set(gid=f"tip:{mark.tip}", markeredgewidth=0)
    is_perplexity = COLUMNS[column].lower
    yscale = "log" if is_perplexity else "linear"
    axis.set(xscale="log", yscale=yscale, ylabel=NAMES[column])
    axis.set_xlabel(f"ms per 1,000 tokens, n = {tokens:,}")
    low, high = axis.get_xlim()
    axis.set_xlim(low / 1.1, high * 1.1)
    if is_perplexity:
        axis.set_ylim(*PERPLEXITIES[column])
    scores = floors(column)
    for _, score in scores:
        dashed_line(axis, score, mode)
    drawing.plain_axis(axis.xaxis, True)
    drawing.plain_axis(axis.yaxis, is_perplexity)
    settle(axis)
    label(axis, points, dict(scores), mode)


def dashed_line(axis: Axes, y: float, mode: str) -> None:
    """A line from the left to the right, for what needs no training."""
    axis.axhline(y, color=INK[mode].axes, linewidth=1.2, dashes=(4, 3))


def note(
    axis: Axes,
    words: str,
    point: tuple[float, float],
    offset: tuple[float, float],
    **style: Any,
) -> None:
    """Words at an offset in points from a point of the data."""
    written = axis.annotate(words, point, offset, textcoords="offset points")
    written.set(**style)


def settle(axis: Axes) -> None:
    """Fixes the positions of everything."""
    figure: Any = axis.figure
    figure.draw_without_rendering()


def label(axis: Axes, points: Sequence[Mark], lines: Mapping[str, float], mode: str) -> None:
    """The names of all marks at the right, in the order of their scores, each with its mark again
    and a thin line to where it stands; and the names of dashed lines.

    Args:
        axis: whose limits are set.
        points: the marks.
        lines: name -> score of each dashed line.
        mode: "light" or "dark".
    """
    look_of = looks([mark.row for mark in points])
    by_row = {mark.row: mark for mark in points}
    scores = {mark.row: mark.y for mark in points}
    heights = stacked(axis, {**scores, **lines}, LABEL_GAP)
    for name, height in heights.items():
        mark = by_row.get(name)
        if mark is None:
            _label_line(axis, name, lines[name], height, INK[mode].axes)
        else:
            look = look_of[name]
            colour = seen(look.colour, mode)
            _label_mark(axis, mark, look.marker, height, colour)
            _name_outside(axis, name, height, INK[mode].words)


def _label_line(axis: Axes, name: str, score: float, height: float, colour: str) -> None:
    """The name of a dashed line at the right."""
    _, right = axis.get_xlim()
    _leader(axis, (right, score), height, colour)
    _name_outside(axis, name, height, colour)


def _label_mark(axis: Axes, mark: Mark, marker: str, height: float, colour: str) -> None:
    """A mark again at the right."""
    _leader(axis, (mark.x, mark.y), height, colour)
    [again] = axis.plot([1.05], [height], marker, color=colour, markersize=6, **outside(axis))
    again.set_markeredgewidth(0)


def _leader(
    axis: Axes, start: tuple[float, float], height: float, colour: str, bend: float = 1.01
) -> None:
    """A thin line from a point of the data to a height at the right, level after its bend."""
    pixels = axis.transData.transform(start)
    x, y = axis.transAxes.inverted().transform(pixels)
    xs = [x, bend, bend + 0.02]
    ys = [y, height, height]
    axis.plot(xs, ys, color=colour, linewidth=0.6, alpha=0.45, zorder=1, **outside(axis))


def _name_outside(axis: Axes, name: str, height: float, colour: str) -> None:
    """A name at a height at the right."""
    words = SHORT.get(name, name)
    text = axis.annotate(words, (1.05, height), (7, -4), "axes fraction", "offset points")
    text.set(fontsize=10.5, color=colour, annotation_clip=False)


def outside(axis: Axes) -> dict[str, Any]:
    """Draws in shares of the axes, also beyond them."""
    return {"transform": axis.transAxes, "clip_on": False}


def curves(name: str, **only: str) -> dict[str, dict[int, float]]:
    """Row -> tokens -> mean perplexity over the seeds that have every evaluation, of runs whose
    columns are these."""
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in generate.read(name, **only):
        is_complete = name != "table3-longer" or line["seed"] != "0"
        if is_complete:
            tokens = int(line["tokens"])
            perplexity = float(line["perplexity"])
            by_tokens = values[line["row"]]
            by_tokens[tokens].append(perplexity)
    means = {}
    for row, by_tokens in values.items():
        means[row] = {tokens: statistics.mean(seeds) for tokens, seeds in by_tokens.items()}
    return means


RUNS = {
    "2 layers, 0.40 M parameters": ("table3-longer", {}),
    "4 layers, 3.16 M": ("table3-gpu", {"steps": "1800"}),
}


def stacked(axis: Axes, ends: Mapping[str, float], gap: float) -> dict[str, float]:
    """Row -> height of its label, as a share of the axes: in the order of the values `ends`, as near
    to them as there is room, `gap` pixels apart.

    Raises:
        ValueError: the axes are too low for all labels.
    """
    top = axis.get_window_extent().height
    bottom = axis.bbox.y0
    pixels: dict[str, float] = {}
    for row, value in ends.items():
        _, pixels[row] = axis.transData.transform((1, value))
    rows = sorted(pixels, key=lambda row: pixels[row])
    heights: list[float] = []
    for row in rows:
        height = pixels[row] - bottom
        if heights:
            height = max(height, heights[-1] + gap)
        heights.append(height)
    limit = top
    if heights[-1] > top:  # down again, as far as the frame
        for index in reversed(range(len(heights))):
            heights[index] = min(heights[index], limit)
            limit = heights[index] - gap
    if heights[0] < 0:
        raise ValueError(f"{len(rows)} labels do not fit: give this figure more height")
    shares = {}
    for row, height in zip(rows, heights, strict=True):
        shares[row] = height / top
    return shares


class End(NamedTuple):
    """The value and the colour of the end of a line."""

    value: float
    colour: str


def end_labels(axis: Axes, ends: Mapping[str, End], gap: float) -> None:
    """Names at the right, one below the other, in the order of the ends and as near to them as
    there is room.

    Args:
        axis: whose lines end at its right.
        ends: row -> the end of its line.
        gap: pixels from one name to the next.
    """
    values = {row: end.value for row, end in ends.items()}
    heights = stacked(axis, values, gap)
    _, last_x = axis.get_xlim()
    for row, height in heights.items():
        end = ends[row]
        _leader(axis, (last_x, end.value), height, end.colour, bend=1.07)
        words = SHORT.get(row, row)
        text = axis.annotate(words, (1.09, height), (3, -4), "axes fraction", "offset points")
        text.set(fontsize=11, color=end.colour, annotation_clip=False)


def ratio(axis: Axes, name: str, only: Mapping[str, str], mode: str) -> None:
    """Perplexity of each row of Table 3 relative to the best row's, over tokens."""
    by_row = curves(name, **only)
    tokens = common_tokens(by_row)
    millions = [count / 1e6 for count in tokens]
    best = {}
    for count in tokens:
        best[count] = min(perplexities[count] for perplexities in by_row.values())
    ends = {}
    for row, look in looks(sorted(by_row)).items():
        perplexities = by_row[row]
        ratios = [perplexities[count] / best[count] for count in tokens]
        colour = seen(look.colour, mode)
        axis.plot(millions, ratios, color=colour, dashes=look.dashes or (1, 0))
        ends[row] = End(ratios[-1], colour)
    axis.set(
        yscale="log",
        xlabel="M tokens",
        ylabel="perplexity / the best row's",
        xlim=(0, millions[-1]),
        ylim=(0.98, 2.4),
    )
    axis.set_yticks([1, 1.2, 1.5, 2], ["1", "1.2", "1.5", "2"])
    axis.minorticks_off()
    settle(axis)
    end_labels(axis, ends, 13)


def common_tokens(by_row: Mapping[str, Mapping[int, float]]) -> list[int]:
    """The numbers of tokens after which every row was evaluated."""
    evaluated = [set(by_tokens) for by_tokens in by_row.values()]
    return sorted(set.intersection(*evaluated))


def plateaus(axis: Axes, mode: str) -> None:
    """Perplexity of the alternatives over tokens, medians of finished seeds, with what no context
    gives."""
    rows = {name: row.median_curve() for name, row in longer.rows().items() if row.last}
    ends = {}
    for name, look in looks(sorted(rows)).items():
        curve = rows[name]
        colour = seen(look.colour, mode)
        millions = [count / 1e6 for count in curve]
        perplexities = list(curve.values())
        axis.plot(millions, perplexities, color=colour, dashes=look.dashes or (1, 0))
        ends[name] = End(curve[longer.TOKENS], colour)
    for words, score in floors(longer.COLUMN):
        if words == "no context":
            dashed_line(axis, score, mode)
            note(axis, words, (10, score), (0, 3), fontsize=10, color=INK[mode].axes)
    axis.set(
        xscale="log",
        yscale="log",
        xlabel="M tokens",
        ylabel="held-out perplexity",
        xlim=(1.8, 18.5),
        ylim=(15, 340),
    )
    axis.set_xticks([2, 4, 8, 16], ["2", "4", "8", "16"])
    axis.set_yticks([20, 50, 100, 200], ["20", "50", "100", "200"])
    axis.minorticks_off()
    settle(axis)
    end_labels(axis, ends, 13)


def recalled(axis: Axes, length: int, mode: str) -> None:
    """Accuracy of recall over the width, at one length: medians of three seeds, with a mark for each
    seed, and what a guess among the values shown gives."""
    ends = {}
    for row, cells in recall.cells().items():
        chosen = [cell for cell in cells if cell.length == length]
        if not chosen or row not in recall.WHAT:
            continue
        model = ROWS[row].model
        colour = colour_of(model, mode)
        widths = [cell.width for cell in chosen]
        medians = [cell.median for cell in chosen]
        axis.plot(widths, medians, color=colour)
        for cell in chosen:
            axis.plot(
                [cell.width] * len(cell.accuracies),
                cell.accuracies,
                color=colour,
                linestyle="none",
                marker="o",
                markersize=5,
            )
        ends[model] = End(medians[-1], colour)
    mark_guess(axis, 100 / PAIRS[length], 42, mode)
    axis.set(xscale="log", xlabel="width d", ylabel="accuracy (%)", xlim=(15, 68), ylim=(0, 104))
    axis.set_xticks([16, 32, 64], ["16", "32", "64"])
    axis.minorticks_off()
    settle(axis)
    end_labels(axis, ends, 13)


def colour_of(row: str, mode: str) -> str:
    """The colour of a row that is drawn without others."""
    [look] = looks([row]).values()
    return seen(look.colour, mode)


def mark_guess(axis: Axes, accuracy: float, x: float, mode: str) -> None:
    """A dashed line at what a guess gives, with its name below it at x."""
    dashed_line(axis, accuracy, mode)
    note(axis, "a guess", (x, accuracy), (0, -14), fontsize=10, color=INK[mode].axes)


def recalled_over_steps(axis: Axes, mode: str) -> None:
    """Accuracy of recall over the steps of training at d = 32, a line for each seed."""
    steps: dict[tuple[str, str], list[int]] = defaultdict(list)
    accuracies: dict[tuple[str, str], list[float]] = defaultdict(list)
    for line in generate.read("recall-steps"):
        run = (line["row"], line["seed"])
        step = int(line["step"])
        accuracy = float(line["accuracy (%)"])
        steps[run].append(step)
        accuracies[run].append(accuracy)
    ends = {}
    for run, accuracies_of_run in accuracies.items():
        row, _ = run
        model = ROWS[row].model
        colour = colour_of(model, mode)
        axis.plot(steps[run], accuracies_of_run, color=colour)
        ends[model] = End(accuracies_of_run[-1], colour)
    mark_guess(axis, 25, 4600, mode)
    axis.set(xlabel="steps", ylabel="accuracy (%)", xlim=(0, 6100), ylim=(0, 104))
    axis.set_xticks([0, 2000, 4000, 6000], ["0", "2,000", "4,000", "6,000"])
    settle(axis)
    end_labels(axis, ends, 13)


def ranks(axis: Axes, name: str, only: Mapping[str, str], mode: str) -> None:
    """The rank of each row of Table 3 over tokens, and in the paper."""
    by_row = {}
    in_paper = {}
    for row, by_tokens in curves(name, **only).items():
        perplexity = PUBLISHED[row].perplexity
        if perplexity:
            by_row[row] = by_tokens
            in_paper[row] = perplexity
    tokens = common_tokens(by_row)
    measured_ranks = ranks_over_tokens(by_row, tokens)
    published_ranks = ranked(in_paper)
    millions = [count / 1e6 for count in tokens]
    end = millions[-1]
    right = 1.12 * end  # where the paper's ranks stand
    for row, look in looks(sorted(by_row)).items():
        colour = seen(look.colour, mode)
        measured = measured_ranks[row]
        published = published_ranks[row]
        axis.plot(millions, measured, color=colour, dashes=look.dashes or (1, 0))
        to_paper = [measured[-1], published]
        axis.plot([end, right], to_paper, color=colour, linewidth=1, dashes=(1.5, 1.5))
        axis.plot([right], [published], look.marker, color=colour, clip_on=False)
        words = SHORT.get(row, row)
        point = (right, published)
        note(axis, words, point, (9, -4), fontsize=11, color=colour, annotation_clip=False)
    yticks = range(1, len(by_row) + 1)
    axis.set(xlabel="M tokens", ylabel="rank by perplexity", xlim=(0, right), yticks=yticks)
    ticks = [tick for tick in axis.get_xticks() if 0 <= tick <= end]
    tick_labels = [f"{tick:g}" for tick in ticks]
    axis.set_xticks([*ticks, right])
    axis.set_xticklabels([*tick_labels, "paper"])
    axis.invert_yaxis()


def ranks_over_tokens(
    by_row: Mapping[str, Mapping[int, float]], tokens: Sequence[int]
) -> dict[str, list[int]]:
    """Row -> its rank after each of the numbers of tokens."""
    ranks_of_rows: dict[str, list[int]] = defaultdict(list)
    for count in tokens:
        perplexities = {row: by_tokens[count] for row, by_tokens in by_row.items()}
        for row, rank in ranked(perplexities).items():
            ranks_of_rows[row].append(rank)
    return ranks_of_rows


def ranked(perplexities: Mapping[str, float]) -> dict[str, int]:
    """Row -> its rank, 1 for the lowest perplexity."""
    order = sorted(perplexities, key=lambda row: perplexities[row])
    return {row: rank for rank, row in enumerate(order, start=1)}


class Depth(NamedTuple):
    """A model of some depth.

    Attributes:
        millions: of parameters.
        perplexity: ours, over seeds.
        published: the paper's.
    """

    millions: float
    perplexity: Spread
    published: float | None


def depths() -> dict[str, list[Depth]]:
    """Family -> its depths."""
    perplexities = perplexities_by_depth()

    def layers(row: str) -> int:
        _, _, number = row.rpartition("_")
        return int(number)

    by_family: dict[str, list[Depth]] = defaultdict(list)
    for row in sorted(perplexities, key=layers):
        [config] = COLUMNS["mlm"].configs("cpu", (row,)).values()
        shapes = bare_task(config).shapes()
        model = Depth(
            millions=parameters.count(shapes) / 1e6,
            perplexity=Spread.mean(perplexities[row]),
            published=PUBLISHED[row].perplexity,
        )
        by_family[family(row)].append(model)
    return by_family


def perplexities_by_depth() -> dict[str, list[float]]:
    """Row of Table 4, or aMLP's of Table 3 -> the perplexity of each seed."""
    perplexities: dict[str, list[float]] = defaultdict(list)
    for line in generate.read("settings-more", experiment="depth"):
        perplexity = float(line["perplexity"])
        perplexities[line["row"]].append(perplexity)
    middle = generate.MIDDLE_DEPTHS
    for line in generate.read("table3"):
        row = line["row"]
        if row in (*middle, "amlp_36"):
            row_of_depth = middle.get(row, row)
            perplexity = float(line["perplexity"])
            perplexities[row_of_depth].append(perplexity)
    return perplexities


def depth(axis: Axes, mode: str) -> None:
    """Perplexity over parameters, at three depths."""
    for name, models in depths().items():
        colour = seen(FAMILIES[name], mode)
        millions = [model.millions for model in models]
        means = [model.perplexity.centre for model in models]
        lowest = [min(model.perplexity.values) for model in models]
        highest = [max(model.perplexity.values) for model in models]
        axis.vlines(millions, lowest, highest, color=colour)
        axis.plot(millions, means, "o-", color=colour)
        end = (millions[-1], means[-1])
        note(axis, name, end, (8, -4), fontsize=11, color=colour, annotation_clip=False)
        exponent = PAPERS.get(name)
        if exponent is not None:
            middle = models[1]
            law = []  # the paper's slope, through the middle depth
            for count in millions:
                relative_size = count / middle.millions
                law.append(middle.perplexity.centre * relative_size**exponent)
            axis.plot(millions, law, color=colour, linewidth=1.2, dashes=(4, 3))
    axis.set(xscale="log", yscale="log", xlabel="M parameters", ylabel="held-out perplexity")
    axis.set_xticks([0.5, 0.7, 1.0], ["0.5", "0.7", "1"])
    axis.set_yticks([45, 50, 60], ["45", "50", "60"])
    axis.minorticks_off()
    words = "bars: lowest to highest seed\ndashed: the paper's slope"
    legend_text = axis.annotate(words, (0.03, 0.03), xycoords="axes fraction")
    legend_text.set(fontsize=10.5, color=INK[mode].axes)


def papers_law(rows: Sequence[str]) -> float:
    """The exponent of perplexity over parameters through what the paper prints."""
    millions = []
    perplexities = []
    for row in rows:
        model = PUBLISHED[row]
        assert model.params_m is not None
        assert model.perplexity is not None
        millions.append(model.params_m)
        perplexities.append(model.perplexity)
    return power_law(millions, perplexities).exponent


PAPERS = {
    "gMLP": papers_law(("gmlp_18", "gmlp_36", "gmlp_72", "gmlp_144")),
    "Transformer": papers_law(
        ("transformer_6", "transformer_12", "transformer_24", "transformer_48")
    ),
}


class Chance(NamedTuple):
    """The percentage of the variance of smooth fields that offsets explain: the mean, and the
    middle 95 %."""

    mean: float
    low: float
    high: float


IMAGE_NOISE = Chance(28.0, 15.0, 47.0)
TEXT_NOISE = Chance(5.7, 3.7, 8.1)


def shares(axis: Axes, name: str, chance: Chance, labels: Mapping[str, str], mode: str) -> None:
    """The share of W's variance that offsets explain: a group of bars for each layer, next to
    smooth noise's."""
    second = INK[mode].axes
    lines = generate.read(name)
    layers = range(1, len(lines) + 1)
    count = len(labels)
    width = 0.8 / count
    axis.axhspan(chance.low, chance.high, color=second, alpha=0.18, linewidth=0)
    dashed_line(axis, chance.mean, mode)
    colour = seen(FAMILIES["gMLP"], mode)
    for index, (column, words) in enumerate(labels.items()):
        from_middle = (index - (count - 1) / 2) * width
        x = [layer + from_middle for layer in layers]
        percents = [float(line[column].rstrip(" %")) for line in lines]
        opacity = (index + 1) / count
        axis.bar(x, percents, 0.92 * width, color=colour, alpha=opacity, label=words)
    axis.set(
        xlabel="layer",
        ylabel="% of W's variance",
        xticks=layers,
        ylim=(0, 116),
        yticks=range(0, 101, 20),
    )
    axis.legend(
        loc="upper left",
        ncols=count,
        fontsize=11,
        handlelength=1,
        columnspacing=1,
        borderaxespad=0,
    )
    coordinates = ("axes fraction", "data")
    text = axis.annotate("smooth noise", (1, chance.mean), (4, -4), coordinates, "offset points")
    text.set(fontsize=10.5, color=second, annotation_clip=False)


def correlated(axis: Axes, mode: str) -> None:
    """Figure 7, as far as it was run: accuracy over perplexity."""
    for name in ("gMLP", "aMLP", "Transformer"):
        perplexities = []
        accuracies = []
        for line in generate.read("figure7", model=name):
            perplexity = float(line["perplexity"])
            accuracy = float(line["SST-2 accuracy"])
            perplexities.append(perplexity)
            accuracies.append(accuracy)
        colour = seen(FAMILIES[name], mode)
        axis.plot(perplexities, accuracies, "o-", color=colour)
        first = (perplexities[0], accuracies[0])
        note(axis, name, first, (0, -16), fontsize=11, color=colour, ha="center")
    axis.set(
        xscale="log",
        xlabel="held-out perplexity (better to the right)",
        ylabel="SST-2 accuracy (%)",
    )
    axis.set_xticks([50, 70, 100, 200], ["50", "70", "100", "200"])
    axis.minorticks_off()
    axis.invert_xaxis()
    axis.set_ylim(54, 72)


def legend(axis: Axes, mode: str) -> None:
    """The colours of the families."""
    axis.set_axis_off()
    for index, (name, colour) in enumerate(FAMILIES.items()):
        row, column = divmod(index, 3)
        x = 0.36 * column - 0.1
        y = 1 - 0.25 * row
        shown_colour = seen(colour, mode)
        axis.plot([x], [y], "o", color=shown_colour, clip_on=False)
        note(axis, name, (x, y), (8, -4), fontsize=11, annotation_clip=False)
    axis.set(xlim=(0, 1), ylim=(0, 1))


Draw = Callable[..., None]


class Plot(NamedTuple):
    """A figure of one pair of axes.

    Attributes:
        title: above the axes.
        beside: inches for words at the right of the axes.
        draw: what draws them: (axes, mode="light" or "dark").
    """

    title: str
    beside: float
    draw: Draw


def plots() -> dict[str, Plot]:
    """File name -> figure."""
    figures: dict[str, Plot] = {}
    for name, (title, column, tokens) in PANELS.items():
        draw_scatter = functools.partial(scatter, column=column, tokens=tokens)
        figures[name] = Plot(title, 2.05, draw_scatter)
    for title, (name, only) in RUNS.items():
        draw_ratio = functools.partial(ratio, name=name, only=only)
        draw_ranks = functools.partial(ranks, name=name, only=only)
        figures[f"{name}-ratio"] = Plot(title, 2.1, draw_ratio)
        figures[f"{name}-ranks"] = Plot(title, 1.85, draw_ranks)
    images = {"step 195": "step 195", "step 1300": "step 1,300"}
    text = {"1.8": "1.8 M tokens", "3.7": "3.7", "7.4": "7.4", "18.4": "18.4"}
    recall_64 = functools.partial(recalled, length=64)
    image_shares = functools.partial(
        shares, name="image-filters", chance=IMAGE_NOISE, labels=images
    )
    text_shares = functools.partial(shares, name="shift-invariance", chance=TEXT_NOISE, labels=text)
    return figures | {
        "which-mixer-colours": Plot("", 0.0, legend),
        "which-mixer-plateaus": Plot("Text, to 18 M tokens", 2.3, plateaus),
        "recall-steps": Plot("Recall of 4 pairs, d = 32", 2.1, recalled_over_steps),
        "recall-64": Plot("The same over the width", 2.1, recall_64),
        "depth": Plot("Three depths, three seeds each", 1.1, depth),
        "figure7": Plot("Earlier runs, before the search", 0.0, correlated),
        "image-shares": Plot("Images: offsets explain", 1.2, image_shares),
        "text-shares": Plot("Text: offsets explain", 1.2, text_shares),
    }


def svg(figure: Figure) -> str:
    """A figure without date, background and words as curves; a point with a tip as a group that has
    it."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = re.sub(r"^.*?(?=<svg)", "", file.getvalue(), flags=re.S)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)

    def with_font(style: re.Match) -> str:
        family_suffix = style[1] or ""
        size = style[2] or ""
        return f"font{family_suffix}: {size}{FONT}"

    text = re.sub(r"font(-family)?: ([\d.]+px )?[^;\"]*sans-serif[^;\"]*", with_font, text)
    group = r'<g class="tip" tabindex="0" aria-label="\1">'
    text = re.sub(r'<g id="tip:([^"]*)">', group, text)
    return f"{text}\n"


def drawn(names: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """(file name, SVG) of each figure."""
    draw: dict[str, Callable[[str], Figure]] = {}
    for name, plot in plots().items():
        draw[name] = functools.partial(plotted, plot, height_of(name))
    for name, (width, height, draw_sheet) in matrices.FIGURES.items():
        draw[name] = functools.partial(sheet, (width, height), draw_sheet)
    for name in names or draw:
        for mode in INK:
            style = style_of(name, mode)
            with matplotlib.rc_context(style):
                figure = draw[name](mode)
                yield f"{name}-{mode}.svg", svg(figure)


def height_of(name: str) -> float:
    """The inches of a figure of one pair of axes."""
    if name in PANELS:
        return 5.1  # there is room for the names of all marks
    if name == "which-mixer-plateaus":
        return 6.4  # for the names of 27 lines
    if name == "which-mixer-colours":
        return 1.6
    return 4.2


def style_of(name: str, mode: str) -> dict[Any, Any]:
    """What matplotlib's settings are for a figure on a light or a dark page."""
    ink = INK[mode]
    return STYLE | {
        "text.color": ink.words,
        "axes.labelcolor": ink.words,
        "axes.titlecolor": ink.words,
        "xtick.color": ink.axes,
        "ytick.color": ink.axes,
        "axes.edgecolor": ink.axes,
        "grid.color": ink.grid,
        "svg.hashsalt": f"{name}-{mode}",  # names in two figures of a page differ
    }


def plotted(plot: Plot, height: float, mode: str) -> Figure:
    """A figure of one pair of axes, with so many inches at their right for words."""
    left = 0.72
    inner = 3.5 if plot.beside else 4.45
    right = plot.beside or 0.13
    width = left + inner + right
    figure = Figure(figsize=(width, height))
    axis = figure.add_axes((left / width, 0.14, inner / width, 0.76))
    axis.set_title(plot.title)
    plot.draw(axis, mode=mode)
    return figure


def sheet(size: tuple[float, float], draw: Callable[[Figure, str], None], mode: str) -> Figure:
    """A figure of many axes."""
    figure = Figure(figsize=size)
    draw(figure, mode)
    return figure


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, content in drawn():
        (FOLDER / file_name).write_text(content)
