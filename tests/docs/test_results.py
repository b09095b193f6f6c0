"""The numbers on the pages of docs/results are computed from the measured CSV files."""

import html
import re
import statistics
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

from docs import generate
from docs.results import advice, figures, matrices
from gmlp_flax.analysis import shift_invariance
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.reports import claims, scaling
from gmlp_flax.reports.table import Spread

RESULTS = Path("docs/results")
PAGES = sorted(path.stem for path in RESULTS.glob("*.md"))
TABLE_3 = {"table3": {}, "table3-longer": {}, "table3-gpu": {"steps": "1800"}}


def page(name):
    return (RESULTS / f"{name}.md").read_text()


def words(name):
    """A page without its line breaks."""
    return " ".join(page(name).split())


def lines(name, first):
    """Finds the table of a page whose head begins with these words: row -> its other cells."""
    pattern = rf"^\| {re.escape(first)}.*\n\|[-|]+\n((?:\|.*\n)+)"
    found = re.search(pattern, page(name), re.M)
    assert found, f"{name}: no table {first}"
    table = {}
    for line in found[1].splitlines():
        stripped = line.strip("|")
        cells = [cell.strip() for cell in stripped.split("|")]
        row, *others = cells
        table[row.strip("`")] = others
    return table


def ranged(spread):
    lowest = min(spread.values)
    highest = max(spread.values)
    return f"{spread.centre:.1f} ({lowest:.1f} to {highest:.1f})"


def assert_printed(cell, score, where) -> None:
    """Asserts that a cell has the centre of a score with one digit after the point."""
    assert float(cell) == pytest.approx(score.centre, abs=0.051), where


@pytest.mark.parametrize("name", generate.PAGES)
def test_generated_parts_are_up_to_date(name):
    assert page(name) == generate.results_page(name), "run: python docs/generate.py"


def test_the_table_of_the_alternatives():
    scores = generate.scores()
    table = lines("which-mixer", "row | what mixes tokens")
    assert table.keys() == scores["mlm"].keys()
    mlm = scores["mlm"]
    centres = [mlm[row].centre for row in table]
    assert centres == sorted(centres)
    finetuned = ("sst2", "sst2 from random", "imdb", "imdb from random")
    for row, (_, perplexity, *accuracies, top1) in table.items():
        assert perplexity == ranged(mlm[row]), row
        for column, cell in zip(finetuned, accuracies, strict=True):
            column_scores = scores[column]
            assert_printed(cell, column_scores[row], (row, column))
        if row in scores["cifar10"]:
            score = scores["cifar10"][row]
            assert_printed(top1, score, row)
        else:
            assert top1 == ""


def test_the_table_of_long_inputs():
    scores = generate.scores()
    table = lines("which-mixer", "row | ListOps")
    rows = table.keys() - {"the most frequent class"}
    assert scores["listops"].keys() == rows
    for row, listops_score in scores["listops"].items():
        listops, text, pixels = table[row]
        assert listops == ranged(listops_score), row
        bytes_score = scores["bytes"][row]
        assert_printed(text, bytes_score, row)
        pixels_score = scores["pixels"][row]
        assert_printed(pixels, pixels_score, row)


def rank(first, second):
    """The rank correlation of two columns over the rows that both have. The signs of perplexities
    are changed, so that more is better."""
    scores = generate.scores()
    rows = [row for row in scores[first] if row in scores[second]]
    first_quality = quality(first, rows)
    second_quality = quality(second, rows)
    correlation = claims.spearman(first_quality, second_quality)
    return float(correlation)


def quality(column, rows):
    """The scores of rows in a column, or minus their perplexities: more is better."""
    scores = generate.scores()[column]
    values = [scores[row].centre for row in rows]
    if column == "mlm":
        return [-value for value in values]
    return values


def gains(column):
    """Row -> the points that pretraining adds to its score."""
    scores = generate.scores()
    from_random = scores[f"{column} from random"]
    added = {}
    for row, score in scores[column].items():
        added[row] = score.centre - from_random[row].centre
    return added


def test_rank_correlations_of_the_alternatives():
    text = words("which-mixer")
    images = rank("mlm", "cifar10")
    sst2 = rank("mlm", "sst2")
    imdb = rank("mlm", "imdb")
    from_random = rank("mlm", "sst2 from random")
    assert f"the rank correlation is {images:.2f}" in text
    assert f"(rank correlations {sst2:.2f} and {imdb:.2f})" in text
    assert f"from random parameters ({from_random:.2f})" in text


@pytest.mark.parametrize(("position", "column"), [(0, "sst2"), (1, "imdb")])
def test_gains_of_the_alternatives_by_pretraining(position, column):
    gain = gains(column)
    values = list(gain.values())
    perplexities = generate.scores()["mlm"]
    of_rows = [perplexities[row].centre for row in gain]
    ranks = (
        -rank("mlm", column),
        -rank("mlm", f"{column} from random"),
        float(claims.spearman(of_rows, values)),
    )
    expected = "; ".join(f"{value:.2f}" for value in ranks)
    table = lines("which-mixer", "over the 21 rows")
    [title] = [title for title in table if title.startswith("rank correlation")]
    correlations = table[title]
    assert len(correlations) == 2
    assert correlations[position] == expected
    mean = statistics.mean(values)
    losing = [value for value in values if value < 0]
    numbers = ("no", "one", "two", "three", "four", "five", "six", "seven")
    number = numbers[len(losing)]
    means = table["mean gain from pretraining"]
    assert len(means) == 2
    assert means[position] == f"{mean:.1f} points; {number} rows lose"


def test_listops_is_ranked_most_like_cifar10():
    rows = list(generate.scores()["listops"])
    correlation = rank("listops", "cifar10")
    listops = quality("listops", rows)
    cifar10 = quality("cifar10", rows)
    p = claims.chance(listops, cifar10)
    rank_note = f"over these 11 rows, its rank correlation with CIFAR-10 is {correlation:.2f}"
    p_note = f"(one-sided permutation p = {p:.2f})"
    assert f"{rank_note} {p_note}" in words("which-mixer")
    for name in ("mlm", "pixels", "bytes", "sst2"):
        assert rank("listops", name) < correlation


def test_rank_correlations_with_a_low_perplexity():
    """Rows without one of the two scores are left out. One of the six orders of three rows is as
    good: p = 1 / 6."""

    def scores(**values_of_rows):
        return {row: Spread(value, (value,)) for row, value in values_of_rows.items()}

    columns = {
        "mlm": scores(sgu=50.0, bert=60.0, mixer=70.0, fnet=1.0),
        "sst2": scores(sgu=80.0, bert=70.0, mixer=60.0),
        "imdb from random": scores(sgu=1.0),
    }
    assert list(generate.rank_notes(columns)) == [
        "SST-2 (%): rank correlation with a low perplexity over 3 rows: 1.00;"
        " one-sided permutation p = 0.17."
    ]


def holding(orderings):
    """How many orderings of the paper hold."""
    verdicts = [claim.verdict for claim in orderings.claims]
    return verdicts.count(claims.HOLDS) + verdicts.count(claims.ONE_HOLDS)


def test_the_verdicts_of_table_3():
    """The page's introduction has those of the last measurement, the index those of each."""
    orderings = []
    for name, only in TABLE_3.items():
        orderings.append(generate.orderings(name, **only))
    short, long, wide = (holding(found) for found in orderings)
    small_scale = f"{short} of 28 orderings hold after 1.8 M tokens, {long} of 28 after 18 M"
    assert f"{small_scale}, {wide} of 28 in" in words("README")
    last = orderings[-1]
    assert last.agree == wide
    intro, _, _ = words("table3").partition("## ")
    by_chance = "where 14 would hold by chance"
    assert f"tokens, {last.agree} of the paper's 28 orderings hold, {by_chance}" in intro
    agreement = f"p = {last.agree_p:.2f} for {last.agree} of 28"
    assert f"{agreement}, and {last.rank_p:.2f} for the rank correlation of" in intro
    assert f"of {last.rank:.2f})" in intro


def test_an_agreeing_pair_counts_once():
    assert generate.agreeing([1, 2, 3], [10, 20, 30]) == 3
    assert generate.agreeing([1, 3, 2], [10, 20, 20]) == 2
    curves = {
        "bert_rel": [[(1, 0.0)]],
        "sgu": [[(1, 1.0)]],
        "bert": [[(1, 2.0)]],
    }
    found = generate.of_curves(curves)
    assert found.agree == 3
    assert found.rank == 1
    assert found.rank_p == pytest.approx(1 / 6)
    assert found.agree_p == pytest.approx(1 / 6)


def mean_and_bounds(values: list[float]) -> str:
    """A cell: the mean, the lowest and the highest."""
    mean = statistics.mean(values)
    return f"{mean:.1f} ({min(values):.1f}, {max(values):.1f})"


def last_perplexities(name, only):
    """Row of a file of Table 3 -> the last perplexity of each seed."""
    last_points = defaultdict(dict)  # row -> seed -> (tokens, perplexity)
    for line in generate.read(name):
        if only.items() <= line.items():
            tokens = int(line["tokens"])
            point = (tokens, float(line["perplexity"]))
            points = last_points[line["row"]]
            seed = line["seed"]
            earlier = points.get(seed, point)
            points[seed] = max(point, earlier)
    perplexities = {}
    for row, points in last_points.items():
        perplexities[row] = [perplexity for _, perplexity in points.values()]
    return perplexities


def test_the_table_of_table_3():
    """Means, lowest and highest over the seeds."""
    table = lines("table3", "model | 1.8 M tokens")
    names = {
        "Transformer, relative positions": "bert_rel",
        "Transformer, relative positions alone": "bert_rel_only",
        "Transformer, learned positions": "bert",
        "SGU": "sgu",
        "additive gate": "additive",
        "multiplicative gate": "multiplicative",
        "linear gate": "linear",
        "MLP-Mixer": "mixer",
        "aMLP": "amlp_36",
    }
    assert table.keys() == names.keys()
    short, long, wide = (last_perplexities(name, only) for name, only in TABLE_3.items())
    for title, row in names.items():
        short_cell, long_cell, wide_cell, paper_cell, *_ = table[title]
        assert short_cell == mean_and_bounds(short[row]), title
        assert long_cell == mean_and_bounds(long[row]), title
        first_seed, *_ = wide[row]
        assert wide_cell == f"{first_seed:.2f}", title
        paper = PUBLISHED[row].perplexity
        assert paper_cell == (f"{paper:.2f}" if paper else "not in the table"), title


@pytest.mark.parametrize(
    ("path", "head", "name", "columns"),
    [
        ("choices.md", "optimizer | rate", "optimizers", (0, 1, 2, 3)),
        ("weights.md", "model and file", "export-latency", (0, 1, 2, 3, 4, 5)),
        ("mixers.md", "n | CPU direct", "toeplitz-forms", (0, 1, 2, 3)),
        ("mixers.md", "n | v5e direct", "toeplitz-forms", (0, 4, 5, 6)),
        ("mixers.md", "n | H100 direct", "toeplitz-forms", (0, 7, 8, 9)),
    ],
)
def test_tables_of_other_pages_have_the_lines_of_their_files(path, head, name, columns):
    page_name = path.removesuffix(".md")
    table = lines(f"../{page_name}", head)
    rows = [[title, *cells] for title, cells in table.items()]
    expected = []
    for line in generate.read(name):
        values = list(line.values())
        title, *cells = (values[column] for column in columns)
        if any(cells):
            expected.append([title, *cells])
    assert rows == expected


def test_the_table_of_61_m_tokens():
    """Both seeds of four rows, and the ratio of SGU to positions alone."""
    found = defaultdict(dict)  # row and millions of tokens -> seed -> perplexity
    for line in generate.read("table3-longest"):
        tokens = int(line["tokens"])
        millions = round(tokens / 1e6, 1)
        point = (line["row"], millions)
        seed = line["seed"]
        found[point][seed] = float(line["perplexity"])
    names = {
        "Transformer, relative positions": "bert_rel",
        "additive gate": "additive",
        "SGU": "sgu",
        "Transformer, relative positions alone": "bert_rel_only",
    }
    times = (3.1, 6.1, 12.3, 18.4, 30.7, 43.0, 61.4)
    table = lines("table3", "held-out perplexity after M tokens | 3.1")
    for title, row in names.items():
        for cell, time in zip(table[title], times, strict=False):
            by_seed = found[row, time]
            values = [by_seed[seed] for seed in sorted(by_seed)]
            assert numbers_of(cell) == pytest.approx(values, abs=0.051), (title, time)
    cells = table["SGU / relative positions alone"]
    for cell, time in zip(cells, times, strict=False):
        sgu = found["sgu", time]
        alone = found["bert_rel_only", time]
        ratios = [sgu[seed] / alone[seed] for seed in ("0", "1")]
        numbers = numbers_of(cell)
        assert numbers == pytest.approx(ratios, abs=0.00501), time


def numbers_of(cell):
    """The numbers of a cell, one for each seed."""
    return [float(part) for part in cell.split(", ")]


def test_the_verdicts_of_table_4():
    """The middle depths are rows of Table 3."""
    found = generate.depth_orderings()
    rank = f"{found.rank:.2f}"
    p = f"{found.rank_p:.2f}"
    assert f"is {rank} over six models (one-sided permutation p = {p})" in words("table3")
    assert f"with the paper is {rank}, p = {p} over six models" in words("README")


def test_the_table_of_depths():
    table = lines("table3", "model | M parameters")
    for name, points in figures.depths().items():
        rows = []
        for title, cells in table.items():
            if title.startswith(name):
                rows.append(cells)
        for point, cells in zip(points, rows, strict=True):
            params, spread, paper = point
            size, perplexity, _, printed = cells
            assert size == f"{params:.2f}"
            assert perplexity == mean_and_bounds(spread.values)
            assert printed == (f"{paper:.2f}" if paper else "not tabulated")


@pytest.mark.parametrize(
    ("name", "title", "digits"),
    [
        ("gMLP", "gMLP", 2),
        ("Transformer", "the Transformer", 1),
        ("aMLP", "aMLP", 2),
    ],
)
def test_the_power_law_of_depth(name, title, digits):
    params = []
    perplexities = []
    points = figures.depths()[name]
    for count, spread, _ in points:
        params.append(count)
        perplexities.append(spread.centre)
    law = scaling.power_law(params, perplexities)
    text = words("table3")
    assert f"{law.exponent:.2f} for {title}" in text
    assert law.interval(digits) in text


def test_the_power_laws_of_the_paper():
    assert figures.PAPERS.keys() == {"gMLP", "Transformer"}
    exponents = figures.PAPERS
    assert exponents["gMLP"] == pytest.approx(-0.23, abs=0.005)
    assert exponents["Transformer"] == pytest.approx(-0.20, abs=0.005)


def test_advice_has_ten_sentences_each_with_a_number_and_a_limit():
    sentences = advice.sentences()
    assert len(sentences) == 10
    for sentence in sentences:
        finding, _, limit = sentence.partition(" Limit: ")
        assert re.search(r"\d", finding)
        assert limit


@pytest.mark.parametrize(
    ("shape", "percentages", "tolerance"),
    [
        pytest.param((8, 8), figures.IMAGE_NOISE, 0.5, id="images"),
        pytest.param((128,), figures.TEXT_NOISE, 0.06, id="text"),
    ],
)
def test_smooth_noise_of_the_figures(shape, percentages, tolerance):
    """The bands are those that the report draws."""
    chance = shift_invariance.chance(shape)
    limits = [chance.smooth, chance.low, chance.high]
    shares = np.array(limits)
    assert percentages == pytest.approx(100 * shares, abs=tolerance)


@pytest.mark.parametrize("name", figures.PANELS)
def test_the_points_of_which_mixer(name):
    """Every row whose step was timed has a point, whose tip has the row's score."""
    _, column, tokens = figures.PANELS[name]
    marks = figures.marks(column, tokens)
    tips = [mark.tip for mark in marks]
    scores = figures.scores_of(column)
    costs = generate.costs()
    timed = []
    for row in scores:
        cost = costs.get(row, {}).get(tokens)
        if cost is not None and cost.seconds:
            timed.append(row)
    assert len(tips) == len(timed) > 8
    for row, tip in zip(timed, tips, strict=True):
        assert f"({row}): " in tip
        centre = scores[row].centre
        assert f"{centre:.1f}" in tip


@pytest.mark.parametrize("mode", figures.INK)
@pytest.mark.parametrize("name", figures.PANELS)
def test_files_of_which_mixer_have_its_points(name, mode):
    _, column, tokens = figures.PANELS[name]
    marks = figures.marks(column, tokens)
    tips = [mark.tip for mark in marks]
    path = figures.FOLDER / f"{name}-{mode}.svg"
    text = path.read_text()
    ElementTree.fromstring(text)
    escaped = re.findall(r'class="tip" tabindex="0" aria-label="([^"]*)"', text)
    tips_of_file = [html.unescape(tip) for tip in escaped]
    assert tips_of_file == tips, "run: python -m docs.results.figures"


def test_pages_show_every_figure_in_both_modes():
    expected = set()
    for name in {**figures.plots(), **matrices.FIGURES}:
        for mode in figures.INK:
            expected.add(f"{name}-{mode}.svg")
    files = {path.name for path in figures.FOLDER.glob("*")}
    shown = set()
    for name in PAGES:
        shown.update(re.findall(r"figures/([\w-]+\.svg)", page(name)))
    assert files == expected
    assert shown == expected


def test_attention_weights_are_read_in_their_columns():
    """Two tokens of a sentence may be the same word."""
    rows = [weights for _, weights in matrices.read("attention-layer-1", 1)]
    attention = np.array(rows)
    assert attention.shape == (23, 23)
    assert_allclose(attention.sum(1), 1, atol=0.03)


def test_rows_of_filters_are_read_with_their_widths():
    rows = {}
    for names, weights in matrices.read("image-filters-rows", 3):
        rows[tuple(names)] = weights
    patch_row = rows["1", "patch 0", "0"]
    assert np.isfinite(patch_row).sum() == 8
    mean_row = rows["1", "mean", "0"]
    assert np.isfinite(mean_row).sum() == 15


def test_figures_have_the_ink_of_their_mode_and_no_background():
    drawn = dict(figures.drawn(["depth"]))
    for mode, (ink, _, _) in figures.INK.items():
        text = drawn[f"depth-{mode}.svg"]
        assert ink in text
        assert "#ffffff" not in text
    assert drawn["depth-light.svg"] != drawn["depth-dark.svg"]


# The rates that seeds 0 and 1 chose: row -> whether it was pretrained -> rate
SST2_RATES = {
    "sgu": {"True": "0.004", "False": "0.004"},
    "amlp_36": {"True": "0.004", "False": "0.001"},
    "bert_rel": {"True": "0.004", "False": "0.001"},
}
PAIRS_RATES = {"True": "0.004", "False": "0.001"}


def is_scored(line):
    """Whether a run is in the table. Seeds 0 and 1 of SST-2 chose its rates."""
    start = line["pretrained"]
    if line["task"] == "pairs":
        rate = PAIRS_RATES[start]
        pool = "mean with padding"
        chose_rate = False
    else:
        rate = SST2_RATES[line["row"]][start]
        pool = "mean"
        chose_rate = int(line["seed"]) <= 1
    return line["rate"] == rate and line["pool"] == pool and not chose_rate


@pytest.fixture(scope="module")
def finetuned():
    """(task, row, whether it was pretrained) -> the accuracies of five seeds."""
    accuracies = defaultdict(list)
    for line in generate.read("finetuning"):
        if is_scored(line):
            case = (line["task"], line["row"], line["pretrained"])
            accuracy = float(line["accuracy"])
            accuracies[case].append(accuracy)
    return accuracies


@pytest.mark.parametrize(
    ("task", "start", "title"),
    [
        ("sst2", "True", "SST-2, pretrained"),
        ("sst2", "False", "SST-2, random parameters"),
        ("pairs", "True", "pairs, pretrained"),
        ("pairs", "False", "pairs, random parameters"),
    ],
)
def test_the_table_of_finetuning(finetuned, task, start, title):
    table = lines("finetuning", "accuracy, mean of five seeds")
    cells = table[title][:3]
    for row, cell in zip(SST2_RATES, cells, strict=True):
        accuracies = finetuned[task, row, start]
        assert len(accuracies) == 5
        mean = statistics.mean(accuracies)
        assert cell == f"{mean:.1f}", row


def test_gmlp_is_not_decided_to_be_ahead_of_the_transformer_on_sst2(finetuned):
    gmlp = finetuned["sst2", "sgu", "True"]
    transformer = finetuned["sst2", "bert_rel", "True"]
    assert claims.verdict(gmlp, transformer, lower=False) == claims.OPEN  # "not decided"
    table = lines("finetuning", "the paper's claim")
    accuracies, verdict = table["gMLP is ahead of the Transformer on SST-2"]
    ours = ranged(Spread.mean(gmlp))
    theirs = ranged(Spread.mean(transformer))
    assert accuracies == f"{ours} and {theirs}"
    assert verdict == "not decided: 1.1 points ahead in the mean"


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        ("sgu", claims.HOLDS),
        ("amlp_36", claims.OPEN),
        ("bert_rel", claims.HOLDS),
    ],
)
def test_the_verdict_on_pretraining(finetuned, row, verdict):
    pretrained = finetuned["sst2", row, "True"]
    random = finetuned["sst2", row, "False"]
    assert claims.verdict(pretrained, random, lower=False) == verdict


def test_pretrained_amlp_wins_24_of_25_pairs_on_sst2(finetuned):
    wins = 0
    for pretrained in finetuned["sst2", "amlp_36", "True"]:
        for random in finetuned["sst2", "amlp_36", "False"]:
            wins += pretrained > random
    assert wins == 24


ORDER_TITLES = {
    "tokens": "over tokens, as published",
    "channels": "over channels",
    "tokens_rms": "over tokens, without subtracting their mean",
}


def test_the_order_of_the_feed_forward_stack():
    found = defaultdict(list)
    for line in generate.read("feed-forward-order"):
        case = (line["token_norm"], line["token_mlp_first"])
        perplexity = float(line["perplexity"])
        found[case].append(perplexity)
    table = lines("which-mixer", "held-out perplexity: norm before")
    for norm, title in ORDER_TITLES.items():
        for first, cell in zip(("False", "True"), table[title], strict=True):
            perplexities = found[norm, first]
            assert len(perplexities) == 3
            spread = Spread.mean(perplexities)
            expected = ranged(spread)
            assert cell.startswith(expected), (norm, first)
    published = generate.scores()["mlm"]["feed_forward"]
    published_perplexities = list(published.values)
    assert found["tokens", "False"] == published_perplexities


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("path", sorted(figures.FOLDER.glob("*.svg")), ids=lambda path: path.stem)
def test_words_of_figures_begin_within_them(path):
    root = ElementTree.parse(path).getroot()
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    texts = list(root.iter(f"{SVG}text"))
    for text in texts:
        x, y = position_of(text)
        assert 0 <= x <= width, text.text
        assert 0 <= y <= height, text.text
    assert texts


def position_of(text):
    """Where matplotlib puts a word: at x and y, or where it is moved to."""
    if "x" in text.attrib:
        return float(text.attrib["x"]), float(text.attrib["y"])
    moved = re.match(r"translate\(([-\d.]+) ([-\d.]+)\)", text.attrib["transform"])
    return float(moved[1]), float(moved[2])


def test_figures_too_low_for_their_labels_are_refused():
    axis = Figure(figsize=(4, 2)).add_axes((0.2, 0.2, 0.5, 0.7))
    height = axis.get_window_extent().height
    ends = {"a": 0.5, "b": 0.5, "c": 0.6}
    gap = 0.4 * height
    shares = figures.stacked(axis, ends, gap)
    assert_allclose([shares["a"], shares["b"], shares["c"]], [0.2, 0.6, 1.0])
    with pytest.raises(ValueError, match="3 labels do not fit"):
        figures.stacked(axis, ends, 0.6 * height)
