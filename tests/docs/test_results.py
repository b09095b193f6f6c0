"""What the pages of docs/results say is what the reports make of the measured CSV files."""

import html
import re
import statistics
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

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
    """The cells of the table of a page whose head begins with these words: row -> its other
    cells."""
    found = re.search(rf"^\| {re.escape(first)}.*\n\|[-|]+\n((?:\|.*\n)+)", page(name), re.M)
    assert found, f"{name}: no table {first}"
    table = {}
    for line in found[1].splitlines():
        row, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        table[row.strip("`")] = cells
    return table


def ranged(spread):
    lowest = min(spread.values)
    highest = max(spread.values)
    return f"{spread.centre:.1f} ({lowest:.1f} to {highest:.1f})"


@pytest.mark.parametrize("name", generate.PAGES)
def test_generated_parts_are_what_the_report_makes_of_the_files(name):
    assert page(name) == generate.results_page(name), "run: python docs/generate.py"


def test_the_table_of_the_alternatives():
    scores = generate.scores()
    costs = generate.costs()
    table = lines("which-mixer", "row | what mixes tokens")
    assert table.keys() == scores["mlm"].keys()
    centres = [scores["mlm"][row].centre for row in table]
    assert centres == sorted(centres)
    for row, (_, perplexity, *cells) in table.items():
        assert perplexity == ranged(scores["mlm"][row]), row
        finetuned = ("sst2", "sst2 from random", "imdb", "imdb from random")
        *accuracies, top1 = cells
        got = [float(cell) for cell in accuracies]
        expected = [scores[column][row].centre for column in finetuned]
        assert got == pytest.approx(expected, abs=0.051), row
        assert (top1 != "") == (row in scores["cifar10"])
        if top1:
            accuracy = scores["cifar10"][row].centre
            assert float(top1) == pytest.approx(accuracy, abs=0.051), row
    cost_table = lines("which-mixer", "row | ms, n = 128")
    assert cost_table.keys() == table.keys()
    for row, cells in cost_table.items():
        times = cells[:3]
        sizes = cells[3:]
        for tokens, cell in zip((128, 1024, 8192), times, strict=True):
            measured = costs[row][tokens].per_thousand if tokens in costs[row] else None
            expected_time = f"{measured.centre:,.0f}" if measured else "\u2013"
            assert cell == expected_time, (row, tokens)
        for tokens, cell in zip((1024, 8192), sizes, strict=True):
            megabytes = costs[row][tokens].size / 1e6
            assert cell == f"{megabytes:,.0f}", (row, tokens)


def test_the_table_of_long_inputs():
    scores = generate.scores()
    table = lines("which-mixer", "row | ListOps")
    for row, (trees, *others) in table.items():
        if row in scores["listops"]:
            assert trees == ranged(scores["listops"][row]), row
            both = [scores[column][row].centre for column in ("bytes", "pixels")]
            got = [float(cell) for cell in others]
            assert got == pytest.approx(both, abs=0.051), row
    assert scores["listops"].keys() == table.keys() - {"the most frequent class"}


def rank(one, other):
    """Over the rows that both have; perplexities with their signs changed."""
    scores = generate.scores()
    rows = [row for row in scores[one] if row in scores[other]]
    columns = []
    for name in (one, other):
        sign = -1 if name == "mlm" else 1
        columns.append([sign * scores[name][row].centre for row in rows])
    return float(claims.spearman(*columns))


def gains(column):
    """Row -> what pretraining adds to its score."""
    scores = generate.scores()
    from_random = scores[f"{column} from random"]
    return {row: score.centre - from_random[row].centre for row, score in scores[column].items()}


def test_rank_correlations_and_gains_of_the_alternatives():
    text = words("which-mixer")
    scores = generate.scores()
    assert f"the rank correlation is {rank('mlm', 'cifar10'):.2f}" in text
    assert f"(rank correlations {rank('mlm', 'sst2'):.2f} and {rank('mlm', 'imdb'):.2f})" in text
    assert f"from random parameters ({rank('mlm', 'sst2 from random'):.2f})" in text
    numbers = ("no", "one", "two", "three", "four", "five", "six", "seven")
    correlations = []
    means = []
    for column in ("sst2", "imdb"):
        gain = gains(column)
        values = list(gain.values())
        perplexities = [scores["mlm"][row].centre for row in gain]
        with_gain = float(claims.spearman(perplexities, values))
        ranks = (-rank("mlm", column), -rank("mlm", f"{column} from random"), with_gain)
        correlations.append("; ".join(f"{value:.2f}" for value in ranks))
        losing = [value for value in values if value < 0]
        mean = statistics.mean(values)
        means.append(f"{mean:.1f} points; {numbers[len(losing)]} rows lose")
    table = lines("which-mixer", "over the 21 rows")
    [printed] = [cells for row, cells in table.items() if row.startswith("rank correlation")]
    assert correlations == printed
    assert table["gain by pretraining, mean"] == means
    trees = rank("listops", "cifar10")
    of_trees = [score.centre for score in scores["listops"].values()]
    of_images = [scores["cifar10"][row].centre for row in scores["listops"]]
    p = claims.chance(of_trees, of_images)
    assert (
        f"over these 11 rows is {trees:.2f} with CIFAR-10 (one-sided permutation p = {p:.2f})"
        in text
    )
    others = (rank("listops", name) for name in ("mlm", "pixels", "bytes", "sst2"))
    assert max(others) < trees


def test_rank_correlations_with_a_low_perplexity():
    """Over the rows that have both; of three orders of three rows in six, one is the best."""

    def scores(**of_rows):
        return {row: Spread(value, (value,)) for row, value in of_rows.items()}

    made = {"mlm": scores(sgu=50.0, bert=60.0, mixer=70.0, fnet=1.0)}
    made |= {"sst2": scores(sgu=80.0, bert=70.0, mixer=60.0), "imdb from random": scores(sgu=1.0)}
    over = "SST-2 (%): rank correlation with a low perplexity over 3 rows: 1.00; one-sided permutation p = 0.17."
    assert list(generate.rank_notes(made)) == [over]


def test_the_verdicts_of_table_3():
    """The introduction's, and the index's of each."""
    holding = []
    for name, only in TABLE_3.items():
        last = generate.orderings(name, **only)
        verdicts = [claim.verdict for claim in last.claims]
        holding.append(verdicts.count(claims.HOLDS) + verdicts.count(claims.ONE_HOLDS))
    short, long, wide = holding
    told = f"{short} of 28 orderings hold after 1.8 M tokens, {long} of 28 after 18 M, {wide} of 28"
    assert f"{told} in" in words("README")
    assert last.agree == wide
    intro = words("table3").partition("## ")[0]
    assert f"tokens {last.agree} of the paper's 28 orderings hold, where chance gives 14" in intro
    assert (
        f"p = {last.agree_p:.2f} for {last.agree} of 28, and {last.rank_p:.2f} for the rank correlation of"
        in intro
    )
    assert f"of {last.rank:.2f})" in intro


def test_an_agreeing_pair_counts_once():
    assert generate.agreeing([1, 2, 3], [10, 20, 30]) == 3
    assert generate.agreeing([1, 3, 2], [10, 20, 20]) == 2
    curves = {"bert_rel": [[(1, 0.0)]], "sgu": [[(1, 1.0)]], "bert": [[(1, 2.0)]]}
    found = generate.of_curves(curves)
    assert found.agree == 3
    assert found.rank == 1
    assert found.rank_p == pytest.approx(1 / 6)
    assert found.agree_p == pytest.approx(1 / 6)


def mean_and_bounds(values: list[float]) -> str:
    """A cell: the mean, the lowest and the highest."""
    return f"{statistics.mean(values):.1f} ({min(values):.1f}, {max(values):.1f})"


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
    last = {name: defaultdict(dict) for name in TABLE_3}
    for name, only in TABLE_3.items():
        for line in generate.read(name):
            if all(line[key] == value for key, value in only.items()):
                point = int(line["tokens"]), float(line["perplexity"])
                seeds = last[name][line["row"]]
                seeds[line["seed"]] = max(point, seeds.get(line["seed"], point))
    for title, row in names.items():
        values = []
        for name in TABLE_3:
            values.append([value for _, value in last[name][row].values()])
        short, long, wide = values
        paper = PUBLISHED[row].perplexity
        cells = table[title]
        assert cells[0] == mean_and_bounds(short), title
        assert cells[1] == mean_and_bounds(long), title
        assert cells[2] == f"{wide[0]:.2f}", title
        assert cells[3] == (f"{paper:.2f}" if paper else "not in the table"), title


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
def test_tables_beside_the_results_are_those_of_their_files(path, head, name, columns):
    table = lines(f"../{path.removesuffix('.md')}", head)
    rows = [list(line.values()) for line in generate.read(name)]
    kept = [[row[column] for column in columns] for row in rows]
    got = [[row, *cells] for row, cells in table.items()]
    expected = [row for row in kept if any(row[1:])]
    assert got == expected


def test_the_table_of_61_m_tokens():
    """Both seeds of four rows, and SGU beside positions alone."""
    found = defaultdict(dict)  # row and millions of tokens -> seed -> perplexity
    for line in generate.read("table3-longest"):
        millions = round(int(line["tokens"]) / 1e6, 1)
        by_seed = found[line["row"], millions]
        by_seed[line["seed"]] = float(line["perplexity"])
    names = {
        "Transformer, relative positions": "bert_rel",
        "additive gate": "additive",
        "SGU": "sgu",
    }
    names["Transformer, relative positions alone"] = "bert_rel_only"
    times = (3.1, 6.1, 12.3, 18.4, 30.7, 43.0, 61.4)
    table = lines("table3", "held-out perplexity after M tokens | 3.1")
    for title, row in names.items():
        for cell, time in zip(table[title], times, strict=False):
            values = [value for _, value in sorted(found[row, time].items())]
            assert numbers_of(cell) == pytest.approx(values, abs=0.051), (title, time)
    for cell, time in zip(table["SGU beside positions alone"], times, strict=False):
        ratios = []
        for seed in ("0", "1"):
            alone = found["bert_rel_only", time][seed]
            ratios.append(found["sgu", time][seed] / alone)
        assert numbers_of(cell) == pytest.approx(ratios, abs=0.00501), time


def numbers_of(cell):
    """The numbers of a cell, one for each seed."""
    return [float(part) for part in cell.split(", ")]


def test_the_verdicts_of_table_4():
    """The middle depths are rows of Table 3."""
    found = generate.depth_orderings()
    text = f"is {found.rank:.2f} over six models, one-sided permutation p = {found.rank_p:.2f}"
    assert text in words("table3")
    assert f"with the paper is {found.rank:.2f}, p = {found.rank_p:.2f} over six models" in words(
        "README"
    )


def test_the_table_of_depths():
    table = lines("table3", "model | M parameters")
    for name, points in figures.depths().items():
        rows = [cells for title, cells in table.items() if title.startswith(name)]
        for point, cells in zip(points, rows, strict=True):
            params, spread, paper = point
            size, perplexity, _, printed = cells
            assert size == f"{params:.2f}"
            assert perplexity == mean_and_bounds(spread.values)
            assert printed == (f"{paper:.2f}" if paper else "not tabulated")


def test_the_power_laws_of_depth():
    """Of ours and of the paper's."""
    text = words("table3")
    for name, title, digits in (
        ("gMLP", "gMLP", 2),
        ("Transformer", "the Transformer", 1),
        ("aMLP", "aMLP", 2),
    ):
        points = figures.depths()[name]
        params = [params for params, _, _ in points]
        perplexities = [spread.centre for _, spread, _ in points]
        law = scaling.power_law(params, perplexities)
        assert f"{law.exponent:.2f} for {title}" in text
        assert law.interval(digits) in text
    papers = {name: round(law, 2) for name, law in figures.PAPERS.items()}
    assert papers == {"gMLP": -0.23, "Transformer": -0.20}


def test_advice_has_ten_sentences_each_with_a_number_and_a_limit():
    sentences = advice.sentences()
    assert len(sentences) == 10
    for sentence in sentences:
        told, _, limit = sentence.partition(" Limit: ")
        assert re.search(r"\d", told)
        assert limit


def test_smooth_noise_of_the_figures():
    """The bands are what the report draws."""
    for shape, drawn in (((8, 8), figures.IMAGE_NOISE), ((128,), figures.TEXT_NOISE)):
        chance = shift_invariance.chance(shape)
        expected = [100 * value for value in (chance.smooth, chance.low, chance.high)]
        assert drawn == pytest.approx(expected, abs=0.5 if shape == (8, 8) else 0.06)


@pytest.mark.parametrize("name", figures.PANELS)
def test_the_points_of_which_mixer(name):
    """Every row whose step was measured, with its numbers, on a light and on a dark page."""
    _, column, tokens = figures.PANELS[name]
    tips = [mark.tip for mark in figures.marks(column, tokens)]
    scores = figures.scores_of(column)
    costs = generate.costs()
    timed = [row for row in scores if tokens in costs.get(row, {}) and costs[row][tokens].seconds]
    assert len(tips) == len(timed) > 8
    for row, tip in zip(timed, tips, strict=True):
        assert f"({row}): " in tip
        assert f"{scores[row].centre:.1f}" in tip
    for mode in figures.INK:
        text = (figures.FOLDER / f"{name}-{mode}.svg").read_text()
        ElementTree.fromstring(text)
        found = re.findall(r'class="tip" tabindex="0" aria-label="([^"]*)"', text)
        assert [html.unescape(tip) for tip in found] == tips, "run: python -m docs.results.figures"


def test_the_figures_are_those_that_are_drawn():
    expected = {
        f"{name}-{mode}.svg"
        for name in {**figures.plots(), **matrices.FIGURES}
        for mode in figures.INK
    }
    assert {path.name for path in figures.FOLDER.glob("*")} == expected
    got = {
        f"{name}.svg" for name in re.findall(r"figures/([\w-]+)\.svg", "".join(map(page, PAGES)))
    }
    assert got == expected


def test_weights_of_the_matrices_are_read_in_their_columns():
    """Two tokens of a sentence may be the same word."""
    attention = np.array([weights for _, weights in matrices.read("attention-layer-1", 1)])
    assert attention.shape == (23, 23)
    assert np.allclose(attention.sum(1), 1, atol=0.03)
    filters = {tuple(names): weights for names, weights in matrices.read("image-filters-rows", 3)}
    assert np.isfinite(filters["1", "patch 0", "0"]).sum() == 8
    assert np.isfinite(filters["1", "mean", "0"]).sum() == 15


def test_a_figure_is_drawn_without_background_in_the_inks_of_its_page():
    drawn = dict(figures.drawn(["depth"]))
    for mode, (ink, _, _) in figures.INK.items():
        text = drawn[f"depth-{mode}.svg"]
        assert ink in text
        assert "#ffffff" not in text
    assert drawn["depth-light.svg"] != drawn["depth-dark.svg"]


def test_the_verdicts_of_finetuning():
    """Seeds 2 to 6 of SST-2, after 0 and 1 chose the rates; all five of pairs."""
    rates = {
        "sgu": {"True": "0.004", "False": "0.004"},
        "amlp_36": {"True": "0.004", "False": "0.001"},
    }
    rates["bert_rel"] = rates["amlp_36"]
    found = defaultdict(list)
    for line in generate.read("finetuning"):
        start = line["pretrained"]
        task = line["task"]
        rate = (
            rates[line["row"]][start]
            if task == "sst2"
            else {"True": "0.004", "False": "0.001"}[start]
        )
        if (
            line["rate"] == rate
            and line["pool"] == ("mean" if task == "sst2" else "mean with padding")
            and (task == "pairs" or int(line["seed"]) > 1)
        ):
            found[task, line["row"], start].append(float(line["accuracy"]))
    table = lines("finetuning", "accuracy, mean of five seeds")
    for task, title in (("sst2", "SST-2"), ("pairs", "pairs")):
        for start, words_ in (("True", "pretrained"), ("False", "random parameters")):
            runs = [found[task, row, start] for row in ("sgu", "amlp_36", "bert_rel")]
            assert [len(values) for values in runs] == [5, 5, 5]
            expected = [f"{statistics.mean(values):.1f}" for values in runs]
            assert table[f"{title}, {words_}"][:3] == expected
    gmlp = found["sst2", "sgu", "True"]
    transformer = found["sst2", "bert_rel", "True"]
    assert claims.verdict(gmlp, transformer, lower=False) == claims.OPEN  # "not decided"
    both = " and ".join(ranged(Spread.mean(values)) for values in (gmlp, transformer))
    assert lines("finetuning", "the paper's claim")[
        "gMLP is ahead of the Transformer on SST-2"
    ] == [
        both,
        "not decided: 1.1 points ahead in the mean",
    ]
    for row, verdict in (
        ("sgu", claims.HOLDS),
        ("amlp_36", claims.OPEN),
        ("bert_rel", claims.HOLDS),
    ):
        pair = found["sst2", row, "True"], found["sst2", row, "False"]
        assert claims.verdict(*pair, lower=False) == verdict
    pretrained = found["sst2", "amlp_36", "True"]
    random = found["sst2", "amlp_36", "False"]
    got = sum(one > other for one in pretrained for other in random)
    assert got == 24


def test_the_order_of_the_feed_forward_stack():
    found = defaultdict(list)
    for line in generate.read("feed-forward-order"):
        found[line["token_norm"], line["token_mlp_first"]].append(float(line["perplexity"]))
    table = lines("which-mixer", "held-out perplexity: norm before")
    rows = {"tokens": "over tokens, as published", "channels": "over channels"}
    rows["tokens_rms"] = "over tokens, without subtracting their mean"
    for norm, row in rows.items():
        for first, cell in zip(("False", "True"), table[row], strict=True):
            assert len(found[norm, first]) == 3
            assert cell.startswith(ranged(Spread.mean(found[norm, first]))), (norm, first)
    assert found["tokens", "False"] == list(generate.scores()["mlm"]["feed_forward"].values)
