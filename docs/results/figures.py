"""Draws the figures of docs/results from the measured CSV files of docs/results/data, for light and
for dark pages.

python -m docs.results.figures
"""

import dataclasses
import io
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
# words, axes, grid
INK = {"light": ("#1f2328", "#59636e", "#d0d5da"), "dark": ("#e6edf3", "#a9b3bd", "#454e58")}
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
        value += f" ({min(score.values):.1f} to {max(score.values):.1f})"
    else:
        value += ", one seed"
    return (
        f"{SHORT.get(row, row)} ({row}): {value}; "
        f"{milliseconds:,.0f} ms per 1,000 tokens at n = {tokens:,}; "
        f"{size(column, row):.3f} M parameters in the encoder. "
        f"gmlp train --config={COLUMNS[column].of(row, 'cpu')}"
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


def floors(column: str) -> list[tuple[str, float]]:
    """What trivial models score."""
    short = {
        "token frequencies alone": "frequencies alone",
        "the shown token alone, without context": "no context",
    }
    return [
        (short.get(line["trivial_model"], "most frequent class"), float(line["score"]))
        for line in generate.read("alternatives-heldout")
        if line["column"] == ("mlm" if column == longer.COLUMN else column)
    ]


def scatter(axis: Axes, column: str, tokens: int, mode: str) -> None:
    """A panel of "which mixer"."""
    _, second, _ = INK[mode]
    found = marks(column, tokens)
    look_of = looks([mark.row for mark in found])
    for mark in found:
        colour = seen(FAMILIES.get(family(mark.row), GREY), mode)
        axis.vlines(mark.x, mark.low, mark.high, color=colour, linewidth=1.5, alpha=0.7)
        [drawn] = axis.plot(
            [mark.x], [mark.y], look_of[mark.row].marker, color=colour, linestyle="none"
        )
        drawn.set(gid=f"tip:{mark.tip}", markeredgewidth=0)
    axis.set(
        xscale="log", yscale="log" if COLUMNS[column].lower else "linear", ylabel=NAMES[column]
    )
    axis.set_xlabel(f"ms per 1,000 tokens, n = {tokens:,}")
    low, high = axis.get_xlim()
    axis.set_xlim(low / 1.1, high * 1.1)
    if COLUMNS[column].lower:
        axis.set_ylim(*PERPLEXITIES[column])
    for _, score in floors(column):
        axis.axhline(score, color=second, linewidth=1.2, dashes=(4, 3))
    for one, log in ((axis.xaxis, True), (axis.yaxis, COLUMNS[column].lower)):
        drawing.plain_axis(one, log)
    settle(axis)
    label(axis, found, dict(floors(column)), mode)


def settle(axis: Axes) -> None:
    """Gives everything its place."""
    figure: Any = axis.figure
    figure.draw_without_rendering()


def label(axis: Axes, found: Sequence[Mark], lines: Mapping[str, float], mode: str) -> None:
    """The names of all marks at the right, in the order of their scores, each with its mark again
    and a thin line to where it stands; and the names of dashed lines.

    Args:
        axis: whose limits are set.
        found: the marks.
        lines: name -> score of each dashed line.
        mode: "light" or "dark".
    """
    ink, second, _ = INK[mode]
    look_of = looks([mark.row for mark in found])
    scores = {mark.row: mark.y for mark in found}
    heights = stacked(axis, {**scores, **lines}, LABEL_GAP)
    by_row = {mark.row: mark for mark in found}
    outside: dict[str, Any] = {"transform": axis.transAxes, "clip_on": False}
    for name, height in heights.items():
        mark = by_row.get(name)
        if mark is None:
            start = (axis.get_xlim()[1], lines[name])
            colour = second
        else:
            start = (mark.x, mark.y)
            colour = seen(look_of[name].colour, mode)
        x, y = axis.transAxes.inverted().transform(axis.transData.transform(start))
        leader = ([x, 1.01, 1.03], [y, height, height])
        axis.plot(*leader, color=colour, linewidth=0.6, alpha=0.45, zorder=1, **outside)
        if mark is not None:
            marker = look_of[name].marker
            [again] = axis.plot([1.05], [height], marker, color=colour, markersize=6, **outside)
            again.set_markeredgewidth(0)
        words = SHORT.get(name, name)
        place = ("axes fraction", "offset points")
        text = axis.annotate(words, (1.05, height), (7, -4), *place, annotation_clip=False)
        text.set(fontsize=10.5, color=second if mark is None else ink)


def curves(name: str, **only: str) -> dict[str, dict[int, float]]:
    """Row -> tokens -> mean perplexity over the seeds that have every evaluation, of runs whose
    columns are these."""
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in generate.read(name):
        is_chosen = all(line[key] == value for key, value in only.items())
        is_complete = name != "table3-longer" or line["seed"] != "0"
        if is_chosen and is_complete:
            tokens = int(line["tokens"])
            values[line["row"]][tokens].append(float(line["perplexity"]))
    means: dict[str, dict[int, float]] = {}
    for row, by_tokens in values.items():
        means[row] = {tokens: statistics.mean(seeds) for tokens, seeds in by_tokens.items()}
    return means


RUNS = {
    "2 layers, 0.40 M parameters": ("table3-longer", {}),
    "4 layers, 3.16 M": ("table3-gpu", {"steps": "1800"}),
}


def stacked(axis: Axes, ends: Mapping[str, float], gap: float) -> dict[str, float]:
    """Row -> height of its label, as a share of the axes: in the order of the values `ends`, as near
    to them as there is room, `gap` pixels apart."""
    height = axis.get_window_extent().height
    rows = sorted(ends, key=lambda row: axis.transData.transform((1, ends[row]))[1])
    pixels: list[float] = []
    for row in rows:
        y = axis.transData.transform((1, ends[row]))[1] - axis.bbox.y0
        if pixels:
            y = max(y, pixels[-1] + gap)
        pixels.append(y)
    limit = height
    if pixels[-1] > height:  # down again, as far as the frame
        for index in reversed(range(len(pixels))):
            pixels[index] = min(pixels[index], limit)
            limit = pixels[index] - gap
    return {row: y / height for row, y in zip(rows, pixels, strict=True)}


def end_labels(axis: Axes, ends: Mapping[str, tuple[float, str]], gap: float) -> None:
    """Names at the right, one below the other, in the order of the ends and as near to them as
    there is room.

    Args:
        axis: whose lines end at its right.
        ends: row -> value and colour of the end of its line.
        gap: pixels from one name to the next.
    """
    values = {row: value for row, (value, _) in ends.items()}
    for row, y in stacked(axis, values, gap).items():
        _, colour = ends[row]
        words = SHORT.get(row, row)
        text = axis.annotate(words, (1, y), (8, -4), "axes fraction", "offset points")
        text.set(fontsize=11, color=colour, annotation_clip=False)


def ratio(axis: Axes, name: str, only: Mapping[str, str], mode: str) -> None:
    """Perplexity of each row of Table 3 beside the best row's, over tokens."""
    found = curves(name, **only)
    tokens = sorted(set.intersection(*(set(by) for by in found.values())))
    best = {count: min(by[count] for by in found.values()) for count in tokens}
    ends = {}
    for row, look in looks(sorted(found)).items():
        ratios = [found[row][count] / best[count] for count in tokens]
        colour = seen(look.colour, mode)
        axis.plot(
            [count / 1e6 for count in tokens], ratios, color=colour, dashes=look.dashes or (1, 0)
        )
        ends[row] = (ratios[-1], colour)
    axis.set(
        yscale="log",
        xlabel="M tokens",
        ylabel="perplexity / the best row's",
        xlim=(0, tokens[-1] / 1e6),
        ylim=(0.98, 2.4),
    )
    axis.set_yticks([1, 1.2, 1.5, 2], ["1", "1.2", "1.5", "2"])
    axis.minorticks_off()
    settle(axis)
    end_labels(axis, ends, 13)


def plateaus(axis: Axes, mode: str) -> None:
    """Perplexity of the alternatives over tokens, medians of finished seeds, with what no context
    gives."""
    _, second, _ = INK[mode]
    rows = {name: row.median_curve() for name, row in longer.rows().items() if row.last}
    ends = {}
    for name, look in looks(sorted(rows)).items():
        curve = rows[name]
        colour = seen(look.colour, mode)
        tokens = [count / 1e6 for count in curve]
        axis.plot(tokens, list(curve.values()), color=colour, dashes=look.dashes or (1, 0))
        ends[name] = (curve[longer.TOKENS], colour)
    for words, score in floors(longer.COLUMN):
        if words == "no context":
            axis.axhline(score, color=second, linewidth=1.2, dashes=(4, 3))
            axis.annotate(words, (10, score), (0, 3), textcoords="offset points").set(
                fontsize=10, color=second
            )
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
    _, second, _ = INK[mode]
    ends = {}
    for row, cells in recall.cells().items():
        chosen = [cell for cell in cells if cell.length == length]
        if not chosen or row not in recall.WHAT:
            continue
        [look] = looks([ROWS[row].model]).values()
        colour = seen(look.colour, mode)
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
        ends[ROWS[row].model] = (medians[-1], colour)
    guess = 100 / PAIRS[length]
    axis.axhline(guess, color=second, linewidth=1.2, dashes=(4, 3))
    axis.annotate("a guess", (42, guess), (0, -14), textcoords="offset points").set(
        fontsize=10, color=second
    )
    axis.set(xscale="log", xlabel="width d", ylabel="accuracy (%)", xlim=(15, 68), ylim=(0, 104))
    axis.set_xticks([16, 32, 64], ["16", "32", "64"])
    axis.minorticks_off()
    settle(axis)
    end_labels(axis, ends, 13)


def recalled_over_steps(axis: Axes, mode: str) -> None:
    """Accuracy of recall over the steps of training at d = 32, a line for each seed."""
    _, second, _ = INK[mode]
    lines: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for line in generate.read("recall-steps"):
        point = (int(line["step"]), float(line["accuracy (%)"]))
        lines[line["row"], line["seed"]].append(point)
    ends = {}
    for (row, _), points in lines.items():
        model = ROWS[row].model
        [look] = looks([model]).values()
        colour = seen(look.colour, mode)
        steps, accuracies = zip(*points, strict=True)
        axis.plot(steps, accuracies, color=colour)
        ends[model] = (accuracies[-1], colour)
    axis.axhline(25, color=second, linewidth=1.2, dashes=(4, 3))
    axis.annotate("a guess", (4600, 25), (0, -14), textcoords="offset points").set(
        fontsize=10, color=second
    )
    axis.set(xlabel="steps", ylabel="accuracy (%)", xlim=(0, 6100), ylim=(0, 104))
    axis.set_xticks([0, 2000, 4000, 6000], ["0", "2,000", "4,000", "6,000"])
    settle(axis)
    end_labels(axis, ends, 13)


def ranks(axis: Axes, name: str, only: Mapping[str, str], mode: str) -> None:
    """The place of each row of Table 3 over tokens, and in the paper."""
    perplexities = {}
    for row, by_tokens in curves(name, **only).items():
        if PUBLISHED[row].perplexity:
            perplexities[row] = by_tokens
    common = set.intersection(*map(set, perplexities.values()))
    tokens = sorted(common)
    orders = []  # of the rows, at each number of tokens
    for count in tokens:
        at_count = {row: by_tokens[count] for row, by_tokens in perplexities.items()}
        orders.append(sorted(at_count, key=at_count.__getitem__))
    in_paper = sorted(perplexities, key=lambda row: PUBLISHED[row].perplexity or 0)
    millions = [count / 1e6 for count in tokens]
    end = millions[-1]
    right = 1.12 * end  # where the paper's ranks stand
    for row, look in looks(sorted(perplexities)).items():
        places = [order.index(row) + 1 for order in orders]
        place = in_paper.index(row) + 1
        colour = seen(look.colour, mode)
        axis.plot(millions, places, color=colour, dashes=look.dashes or (1, 0))
        to_paper = ([end, right], [places[-1], place])
        axis.plot(*to_paper, color=colour, linewidth=1, dashes=(1.5, 1.5))
        axis.plot([right], [place], look.marker, color=colour, clip_on=False)
        words = SHORT.get(row, row)
        text = axis.annotate(words, (right, place), (9, -4), textcoords="offset points")
        text.set(fontsize=11, color=colour, annotation_clip=False)
    ranks_from_1 = range(1, len(perplexities) + 1)
    axis.set(xlabel="M tokens", ylabel="rank by perplexity", xlim=(0, right), yticks=ranks_from_1)
    ticks = [tick for tick in axis.get_xticks() if 0 <= tick <= end]
    axis.set_xticks([*ticks, right])
    axis.set_xticklabels([*(f"{tick:g}" for tick in ticks), "paper"])
    axis.invert_yaxis()


def depths() -> dict[str, list[tuple[float, Spread, float | None]]]:
    """Family -> (M parameters, our perplexity over seeds, the paper's) of each depth."""
    last: dict[str, list[float]] = defaultdict(list)
    middle = generate.MIDDLE_DEPTHS
    for line in generate.read("settings-more"):
        if line["experiment"] == "depth":
            last[line["row"]].append(float(line["perplexity"]))
    for line in generate.read("table3"):
        row = line["row"]
        if row in (*middle, "amlp_36"):
            of_depth = middle.get(row, row)
            last[of_depth].append(float(line["perplexity"]))

    def layers(row: str) -> int:
        _, _, number = row.rpartition("_")
        return int(number)

    points: dict[str, list[tuple[float, Spread, float | None]]] = defaultdict(list)
    for row in sorted(last, key=layers):
        [config] = COLUMNS["mlm"].configs("cpu", (row,)).values()
        millions = parameters.count(bare_task(config).shapes()) / 1e6
        point = (millions, Spread.mean(last[row]), PUBLISHED[row].perplexity)
        points[family(row)].append(point)
    return points


def depth(axis: Axes, mode: str) -> None:
    """Perplexity over parameters, at three depths."""
    _, second, _ = INK[mode]
    for name, points in depths().items():
        colour = seen(FAMILIES[name], mode)
        x = [point[0] for point in points]
        y = [point[1].centre for point in points]
        axis.vlines(
            x, [min(p[1].values) for p in points], [max(p[1].values) for p in points], color=colour
        )
        axis.plot(x, y, "o-", color=colour)
        axis.annotate(name, (x[-1], y[-1]), (8, -4), textcoords="offset points").set(
            fontsize=11, color=colour, annotation_clip=False
        )
        law = PAPERS.get(name)
        if law is not None:
            axis.plot(
                x,
                [y[1] * (at / x[1]) ** law for at in x],
                color=colour,
                linewidth=1.2,
                dashes=(4, 3),
            )
    axis.set(xscale="log", yscale="log", xlabel="M parameters", ylabel="held-out perplexity")
    axis.set_xticks([0.5, 0.7, 1.0], ["0.5", "0.7", "1"])
    axis.set_yticks([45, 50, 60], ["45", "50", "60"])
    axis.minorticks_off()
    axis.annotate(
        "bars: lowest to highest seed\ndashed: the paper's slope",
        (0.03, 0.03),
        xycoords="axes fraction",
    ).set(fontsize=10.5, color=second)


def papers_law(rows: Sequence[str]) -> float:
    """The exponent of perplexity over parameters through what the paper prints."""
    points = [(PUBLISHED[row].params_m, PUBLISHED[row].perplexity) for row in rows]
    return power_law(*zip(*points, strict=True)).exponent


PAPERS = {
    "gMLP": papers_law(("gmlp_18", "gmlp_36", "gmlp_72", "gmlp_144")),
    "Transformer": papers_law(
        ("transformer_6", "transformer_12", "transformer_24", "transformer_48")
    ),
}


def shares(
    axis: Axes, name: str, chance: tuple[float, float, float], labels: Mapping[str, str], mode: str
) -> None:
    """The share of W's variance that offsets explain: a group of bars for each layer, beside smooth
    noise's."""
    _, second, _ = INK[mode]
    lines = generate.read(name)
    width = 0.8 / len(labels)
    axis.axhspan(*chance[1:], color=second, alpha=0.18, linewidth=0)
    axis.axhline(chance[0], color=second, linewidth=1.2, dashes=(4, 3))
    for index, (column, words) in enumerate(labels.items()):
        shade = seen(FAMILIES["gMLP"], mode)
        at = [
            number + (index - (len(labels) - 1) / 2) * width for number in range(1, len(lines) + 1)
        ]
        values = [float(line[column].rstrip(" %")) for line in lines]
        axis.bar(
            at, values, 0.92 * width, color=shade, alpha=(index + 1) / len(labels), label=words
        )
    axis.set(
        xlabel="layer",
        ylabel="% of W's variance",
        xticks=range(1, len(lines) + 1),
        ylim=(0, 116),
        yticks=range(0, 101, 20),
    )
    axis.legend(
        loc="upper left",
        ncols=len(labels),
        fontsize=11,
        handlelength=1,
        columnspacing=1,
        borderaxespad=0,
    )
    axis.annotate(
        "smooth noise", (1, chance[0]), (4, -4), ("axes fraction", "data"), "offset points"
    ).set(fontsize=10.5, color=second, annotation_clip=False)


def correlated(axis: Axes, mode: str) -> None:
    """Figure 7, as far as it was run: accuracy over perplexity."""
    for name in ("gMLP", "aMLP", "Transformer"):
        points = [line for line in generate.read("figure7") if line["model"] == name]
        x, y = ([float(line[key]) for line in points] for key in ("perplexity", "SST-2 accuracy"))
        colour = seen(FAMILIES[name], mode)
        axis.plot(x, y, "o-", color=colour)
        axis.annotate(name, (x[0], y[0]), (0, -16), textcoords="offset points").set(
            fontsize=11, color=colour, ha="center"
        )
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
        axis.plot([x], [y], "o", color=seen(colour, mode), clip_on=False)
        axis.annotate(name, (x, y), (8, -4), textcoords="offset points").set(
            fontsize=11, annotation_clip=False
        )
    axis.set(xlim=(0, 1), ylim=(0, 1))


Draw = Callable[[Axes, str], None]
# smooth fields: the mean, and the middle 95 %
IMAGE_NOISE = (28.0, 15.0, 47.0)
TEXT_NOISE = (5.7, 3.7, 8.1)


def plots() -> dict[str, tuple[str, float, Draw]]:
    """File name -> title, width of what stands beside the axes in inches, and what draws them."""
    made: dict[str, tuple[str, float, Draw]] = {
        name: (title, 2.05, lambda axis, mode, column=column, n=n: scatter(axis, column, n, mode))
        for name, (title, column, n) in PANELS.items()
    }
    for words, (name, only) in RUNS.items():
        draw_ratio = lambda axis, mode, name=name, only=only: ratio(axis, name, only, mode)  # noqa: E731
        draw_ranks = lambda axis, mode, name=name, only=only: ranks(axis, name, only, mode)  # noqa: E731
        made[f"{name}-ratio"] = (words, 1.85, draw_ratio)
        made[f"{name}-ranks"] = (words, 1.85, draw_ranks)
    images = {"step 195": "step 195", "step 1300": "step 1,300"}
    text = {"1.8": "1.8 M tokens", "3.7": "3.7", "7.4": "7.4", "18.4": "18.4"}
    return made | {
        "which-mixer-colours": ("", 0.0, legend),
        "which-mixer-plateaus": ("Text, to 18 M tokens", 2.05, plateaus),
        "recall-steps": ("Recall of 4 pairs, d = 32", 1.85, recalled_over_steps),
        "recall-64": (
            "The same over the width",
            1.85,
            lambda axis, mode: recalled(axis, 64, mode),
        ),
        "depth": ("Three depths, three seeds each", 1.1, depth),
        "figure7": ("Earlier runs, before the search", 0.0, correlated),
        "image-shares": (
            "Images: offsets explain",
            1.2,
            lambda axis, mode: shares(axis, "image-filters", IMAGE_NOISE, images, mode),
        ),
        "text-shares": (
            "Text: offsets explain",
            1.2,
            lambda axis, mode: shares(axis, "shift-invariance", TEXT_NOISE, text, mode),
        ),
    }


def svg(figure: Figure) -> str:
    """A figure without date, background and words as curves; a point with a tip as a group that has
    it."""
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = re.sub(r"^.*?(?=<svg)", "", file.getvalue(), flags=re.S)
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.S)
    text = re.sub(
        r"font(-family)?: ([\d.]+px )?[^;\"]*sans-serif[^;\"]*",
        lambda m: f"font{m[1] or ''}: {m[2] or ''}{FONT}",
        text,
    )
    return (
        re.sub(r'<g id="tip:([^"]*)">', r'<g class="tip" tabindex="0" aria-label="\1">', text)
        + "\n"
    )


def drawn(names: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """(file name, SVG) of each figure."""
    made: dict[str, Callable[[str], Figure]] = {
        name: lambda mode, plot=plot, height=height_of(name): plotted(*plot, height, mode)
        for name, plot in plots().items()
    }
    for name, (width, height, draw) in matrices.FIGURES.items():
        made[name] = lambda mode, size=(width, height), draw=draw: sheet(size, draw, mode)
    for name in names or made:
        for mode, (ink, second, grid) in INK.items():
            inks: dict[Any, Any] = dict.fromkeys(
                ("text.color", "axes.labelcolor", "axes.titlecolor"), ink
            )
            inks |= {
                "xtick.color": second,
                "ytick.color": second,
                "axes.edgecolor": second,
                "grid.color": grid,
            }
            inks["svg.hashsalt"] = f"{name}-{mode}"  # names in two figures of a page differ
            with matplotlib.rc_context(STYLE | inks):
                yield f"{name}-{mode}.svg", svg(made[name](mode))


def height_of(name: str) -> float:
    """The inches of a figure of one pair of axes."""
    if name in PANELS:
        return 5.1  # there is room for the names of all marks
    if name == "which-mixer-colours":
        return 1.6
    return 4.2


def plotted(title: str, beside: float, draw: Draw, height: float, mode: str) -> Figure:
    """A figure of one pair of axes, with so many inches beside them for words."""
    inner = 3.5 if beside else 4.45
    width = 0.72 + inner + (beside or 0.13)
    figure = Figure(figsize=(width, height))
    axis = figure.add_axes((0.72 / width, 0.14, inner / width, 0.76))
    axis.set_title(title)
    draw(axis, mode)
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
