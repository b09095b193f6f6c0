"""The CSV files of the alternatives after ten times the tokens, and the table made from them."""

import collections
import json
import pathlib
import statistics

import pytest

from docs import generate
from docs.results import longer
from gmlp_flax.paper.alternatives import COLUMNS, RATES, ROWS
from gmlp_flax.sweeps import points
from tests.reports.test_runs import write_run

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def runs(tmp_path):
    """Two finished seeds of gMLP, an unfinished third, and the search for its learning rate."""
    column = COLUMNS["longer"]
    [config] = column.configs("cpu", ("sgu",)).values()
    config.data.train = "books"
    curves = [
        [(900, 50.0), (9000, 18.5)],
        [(900, 50.0), (9000, 17.5)],
        [(900, 51.0)],
    ]
    for seed, curve in enumerate(curves):
        config.seed = seed
        write_run(tmp_path / "longer" / f"{seed}", config, curve)
    for point in column.search_points("cpu", "sgu"):
        folder = tmp_path / "longer" / "search" / points.name(point)
        folder.mkdir(parents=True)
        perplexity = 25.0 + 1000 * point["optimizer.learning_rate"]
        result = {"step": 3000, "eval": {"perplexity": perplexity}}
        (folder / "result.json").write_text(json.dumps(result))
    return tmp_path


def test_runs_become_csv_files(runs, monkeypatch, tmp_path):
    """Lines of other rows and seeds are kept."""
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setattr(generate, "DATA", data)
    curves = data / "alternatives-longer.csv"
    rates = data / "alternatives-rates.csv"
    titles = "row,seed,rate,tokens,perplexity"
    before = [titles, "fnet,0,0.002,18432000,29.00", "sgu,0,0.004,921600,99.00"]
    curves.write_text("\n".join([*before, ""]))
    rates.write_text("row,rate,perplexity\nfnet,0.001,51.8\n")
    longer.collect(str(runs))
    assert curves.read_text().splitlines() == [
        titles,
        "fnet,0,0.002,18432000,29.00",
        "sgu,0,0.004,1843200,50.00",
        "sgu,0,0.004,18432000,18.50",
        "sgu,1,0.004,1843200,50.00",
        "sgu,1,0.004,18432000,17.50",
        "sgu,2,0.004,1843200,51.00",
    ]
    lines = rates.read_text().splitlines()
    assert lines[:4] == [
        "row,rate,perplexity",
        "fnet,0.001,51.8",
        "sgu,0.001,26.0",
        "sgu,0.002,27.0",
    ]


def test_the_published_files_have_every_row_and_rate():
    rows = longer.rows()
    assert rows.keys() == set(ROWS) == longer.WHAT.keys()
    for row in rows.values():
        assert tuple(row.rates) == RATES
        assert row.rates[row.rate] == min(row.rates.values())


def test_medians_are_of_three_finished_seeds():
    last = collections.defaultdict(list)
    for line in generate.read("alternatives-longer"):
        if line["tokens"] == "18432000":
            perplexity = float(line["perplexity"])
            last[line["row"]].append(perplexity)
    expected = {}
    for row, perplexities in last.items():
        if len(perplexities) == 3:
            expected[row] = statistics.median(perplexities)
    assert longer.medians() == expected
    assert len(expected) >= 14


def test_a_row_shows_how_many_of_its_seeds_have_ended():
    rates = {1e-3: 30.0}
    ended = {longer.TOKENS: 20.0}
    half = {longer.TOKENS // 2: 40.0}
    row = longer.Row(rates, {0: ended, 1: half}, None)
    assert longer._end(row) == "20.0 (one seed)"
    curves = {seed: {longer.TOKENS: 20.0 + seed} for seed in range(3)}
    row = longer.Row(rates, curves, None)
    assert longer._end(row) == "21.0 (20.0 to 22.0)"


def test_an_unfinished_row_is_in_brackets():
    rates = {1e-3: 30.0}
    curves = {0: {100_000: 60.0, 200_000: 40.0}, 1: {100_000: 70.0}}
    row = longer.Row(rates, curves, None)
    assert longer._end(row) == "[65.0 at 0.1 M]"
    not_begun = longer.Row(rates, {}, None)
    assert longer._end(not_begun) == ""


def test_a_curve_is_of_the_finished_seeds():
    first = {100: 60.0, longer.TOKENS: 20.0}
    second = {100: 80.0, longer.TOKENS: 30.0}
    stopped = {100: 500.0}
    row = longer.Row({1e-3: 30.0}, {0: first, 1: second, 2: stopped}, None)
    assert row.median_curve() == {100: 70.0, longer.TOKENS: 25.0}


@pytest.mark.parametrize("page", ["README.md", "docs/README.md"])
def test_alternative_texts_count_the_mixers_in_the_figures(page):
    text = (ROOT / page).read_text()
    with_a_curve = [name for name, row in longer.rows().items() if row.last]
    with_three_seeds = longer.medians()
    assert f"of {len(with_a_curve)} mixers over the number of tokens" in text
    assert f"of {len(with_three_seeds)} mixers after 18 M tokens" in text
