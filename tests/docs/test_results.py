"""What the pages of docs/results say is what the reports make of the measured CSV files."""

import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

from docs import generate
from gmlp_flax.paper.published import PUBLISHED
from gmlp_flax.reports import claims
from gmlp_flax.reports.table import Spread

RESULTS = Path("docs/results")
TABLE_3 = {"table3": {}, "table3-longer": {}, "table3-gpu": {"steps": "1800"}}


def page(name):
    return (RESULTS / f"{name}.md").read_text()


def words(name):
    """A page without its line breaks."""
    return " ".join(page(name).split())


def lines(name, first):
    """The cells of the table of a page whose head begins with these words: row -> its other cells."""
    found = re.search(rf"^\| {re.escape(first)}.*\n\|[-|]+\n((?:\|.*\n)+)", page(name), re.M)
    assert found, f"{name}: no table {first}"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]
    return {row.strip("`"): rest for row, *rest in cells}


def ranged(spread):
    return f"{spread.centre:.1f} ({min(spread.values):.1f} to {max(spread.values):.1f})"


@pytest.mark.parametrize("name", generate.PARTS)
def test_generated_parts_are_what_the_report_makes_of_the_files(name):
    assert page(name) == generate.results_page(name), "run: python docs/generate.py"


def test_the_table_of_the_alternatives():
    scores, costs = generate.scores(), generate.costs()
    table = lines("alternatives", "row | what mixes tokens")
    assert table.keys() == scores["mlm"].keys()
    centres = [scores["mlm"][row].centre for row in table]
    assert centres == sorted(centres)
    for row, (_, perplexity, sst2, imdb, top1, times, _) in table.items():
        assert perplexity == ranged(scores["mlm"][row]), row
        for column, cell in (("sst2", sst2), ("imdb", imdb)):
            pair = [float(part) for part in cell.split("; ")]
            both = [scores[name][row].centre for name in (column, f"{column} from random")]
            assert pair == pytest.approx(both, abs=0.051), (row, column)
        assert (top1 != "") == (row in scores["cifar10"])
        assert not top1 or float(top1) == pytest.approx(scores["cifar10"][row].centre, abs=0.051), row
        for tokens, cell in zip((128, 1024, 8192), times.split("; "), strict=True):
            measured = costs[row][tokens].per_thousand if tokens in costs[row] else None
            assert cell == ("\u2013" if measured is None else f"{measured.centre:,.0f}"), (row, tokens)


def test_the_table_of_long_inputs():
    scores, table = generate.scores(), lines("alternatives", "row | ListOps")
    for row, (trees, *others) in table.items():
        if row in scores["listops"]:
            assert trees == ranged(scores["listops"][row]), row
            both = [scores[column][row].centre for column in ("bytes", "pixels")]
            assert [float(cell) for cell in others] == pytest.approx(both, abs=0.051), row
    assert scores["listops"].keys() == table.keys() - {"the most frequent class"}


def rank(one, other):
    """Over the rows that both have; perplexities with their signs changed."""
    scores = generate.scores()
    rows = [row for row in scores[one] if row in scores[other]]
    signed = [[(-1 if name == "mlm" else 1) * scores[name][row].centre for row in rows] for name in (one, other)]
    return float(claims.spearman(*signed))


def test_rank_correlations_and_gains_of_the_alternatives():
    text, scores = words("alternatives"), generate.scores()
    assert f"the rank correlation is {rank('mlm', 'cifar10'):.2f}" in text
    assert f"(rank correlations {rank('mlm', 'sst2'):.2f} and {rank('mlm', 'imdb'):.2f})" in text
    assert f"from random parameters ({rank('mlm', 'sst2 from random'):.2f})" in text
    gains = {
        column: {row: of[row].centre - scores[f"{column} from random"][row].centre for row in of}
        for column, of in scores.items()
        if column in ("sst2", "imdb")
    }
    found = []
    for column, gain in gains.items():
        with_gain = claims.spearman([scores["mlm"][row].centre for row in gain], list(gain.values()))
        ranks = (-rank("mlm", column), -rank("mlm", f"{column} from random"), float(with_gain))
        found.append("; ".join(f"{value:.2f}" for value in ranks))
    table = lines("alternatives", "over the 21 rows")
    assert found == next(cells for row, cells in table.items() if row.startswith("rank correlation"))
    numbers = ("no", "one", "two", "three", "four", "five", "six", "seven")
    expected = [
        f"{statistics.mean(gain.values()):.1f} points; {numbers[sum(value < 0 for value in gain.values())]} rows lose"
        for gain in gains.values()
    ]
    assert table["gain by pretraining, mean"] == expected
    listops = [rank("listops", name) for name in ("cifar10", "mlm", "pixels", "bytes", "sst2", "sst2 from random")]
    said = (
        "{:.2f} with CIFAR-10, {:.2f} with a low perplexity, {:.2f} with pixels, {:.2f} with bytes, {:.2f} and {:.2f}"
    )
    assert said.format(*listops) + " with SST-2" in text
    assert f"{rank('listops', 'imdb'):.2f} and {rank('listops', 'imdb from random'):.2f} with IMDB" in text


def test_rank_correlations_with_a_low_perplexity():
    """Over the rows that have both; of three orders of three rows in six, one is the best."""
    scores = lambda **of_rows: {row: Spread(value, (value,)) for row, value in of_rows.items()}  # noqa: E731
    made = {"mlm": scores(sgu=50.0, bert=60.0, mixer=70.0, fnet=1.0)}
    made |= {"sst2": scores(sgu=80.0, bert=70.0, mixer=60.0), "imdb from random": scores(sgu=1.0)}
    over = "SST-2 (%): rank correlation with a low perplexity over 3 rows: 1.00; one-sided permutation p = 0.17."
    assert list(generate.rank_notes(made)) == [over]


@pytest.mark.parametrize("name", TABLE_3)
def test_the_verdicts_of_table_3(name):
    made, correlation, _ = generate.orderings(name, **TABLE_3[name])
    holding = sum(claim.verdict in (claims.HOLDS, claims.ONE_HOLDS) for claim in made)
    reversed_ = sum(claim.verdict in (claims.REVERSED, claims.ONE_REVERSED) for claim in made)
    intro = words(name).partition("```")[0]
    row = next(line for line in words("README").split(" | [") if f"]({name}.md)" in line)
    assert f"{correlation:.2f}" in intro
    assert f"{holding} of 28 orderings hold" in row or f"{holding} of its 28 orderings hold" in intro
    assert f"{reversed_} are reversed" in row or f"All {reversed_} reversed orderings" in intro


def test_the_verdicts_of_table_4():
    """The middle depths are rows of Table 3."""
    last = defaultdict(list)
    for line in (*generate.read("settings-more"), *generate.read("table3")):
        row = {"bert_rel": "transformer_12", "sgu": "gmlp_36"}.get(line["row"], line["row"])
        depth = line.get("experiment", "depth") == "depth" and re.fullmatch(r"(transformer|gmlp)_\d+", row)
        if depth:
            last[row].append(float(line["perplexity"]))
    papers = {row: PUBLISHED[row].perplexity or 0 for row in last}
    made = [*claims.orderings(papers, last, {row: [[(1, value)] for value in last[row]] for row in last})]
    counts = [sum(claim.verdict == verdict for part in made for claim in part) for verdict in claims.PLURALS][:3]
    correlation = claims.spearman([statistics.mean(values) for values in last.values()], list(papers.values()))
    assert f"column is {correlation:.2f} (95 %" in words("table4")
    table = lines("table4", "of the paper's 15 orderings")
    assert [int(cells[0]) for cells in table.values()] == counts


def test_the_verdicts_of_finetuning():
    """Seeds 2 to 6 of SST-2, after 0 and 1 chose the rates; all five of pairs."""
    rates = {"sgu": {"True": "0.004", "False": "0.004"}, "amlp_36": {"True": "0.004", "False": "0.001"}}
    rates["bert_rel"] = rates["amlp_36"]
    found = defaultdict(list)
    for line in generate.read("finetuning"):
        start, task = line["pretrained"], line["task"]
        rate = rates[line["row"]][start] if task == "sst2" else {"True": "0.004", "False": "0.001"}[start]
        if line["rate"] == rate and line["pool"] == "mean" and (task == "pairs" or int(line["seed"]) > 1):
            found[task, line["row"], start].append(float(line["accuracy"]))
    table = lines("finetuning", "accuracy, mean of five seeds")
    for task, title in (("sst2", "SST-2"), ("pairs", "pairs")):
        for start, words_ in (("True", "pretrained"), ("False", "random parameters")):
            runs = [found[task, row, start] for row in ("sgu", "amlp_36", "bert_rel")]
            assert [len(values) for values in runs] == [5, 5, 5]
            assert table[f"{title}, {words_}"][:3] == [f"{statistics.mean(values):.1f}" for values in runs]
    gmlp, transformer = (found["sst2", row, "True"] for row in ("sgu", "bert_rel"))
    assert claims.verdict(gmlp, transformer, lower=False) == claims.OPEN  # "not decided"
    both = " and ".join(ranged(Spread.mean(values)) for values in (gmlp, transformer))
    assert lines("finetuning", "the paper's claim")["gMLP is ahead of the Transformer on SST-2"] == [
        both,
        "not decided: 2.3 points behind in the mean",
    ]
    for row in ("sgu", "amlp_36", "bert_rel"):
        pair = found["sst2", row, "True"], found["sst2", row, "False"]
        assert claims.verdict(*pair, lower=False) == claims.HOLDS


def test_the_order_of_the_feed_forward_stack():
    found = defaultdict(list)
    for line in generate.read("feed-forward-order"):
        found[line["token_norm"], line["token_mlp_first"]].append(float(line["perplexity"]))
    table = lines("alternatives", "held-out perplexity: norm before")
    rows = {"tokens": "over tokens, as published", "channels": "over channels"}
    rows["tokens_rms"] = "over tokens, without subtracting their mean"
    for norm, row in rows.items():
        for first, cell in zip(("False", "True"), table[row], strict=True):
            assert cell == "not run" or cell.startswith(ranged(Spread.mean(found[norm, first]))), (norm, first)
    assert found["tokens", "False"] == list(generate.scores()["mlm"]["feed_forward"].values)
