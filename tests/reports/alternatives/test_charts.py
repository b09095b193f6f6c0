"""Scores over speed, and cost over the number of tokens."""

from __future__ import annotations

import pytest

from gmlp_flax.analysis import charts as drawn
from gmlp_flax.paper.alternatives import ROWS
from gmlp_flax.reports.alternatives import charts, measured
from gmlp_flax.reports.table import Spread
from tests.reports import made_up_columns


@pytest.fixture
def costs(tmp_path):
    made_up_columns.write_costs(tmp_path)
    return measured.costs(str(tmp_path), ROWS)


def test_a_score_over_speed(costs):
    scores = {"bert": Spread(60.0, (58.0, 62.0)), "fnet": Spread(70.0, (70.0,)), "mixer": Spread(10.0, (10.0,))}
    [panel] = charts.over_speed("mlm", scores, costs, "cpu").panels
    found = {each.labels[0]: (each.x, each.y, each.low, each.high) for each in panel.series}
    assert [each.name for each in panel.series] == ["Transformer", "FNet"]
    # bert: 0.4 s of a sequence at 1,024 tokens, a 64th of it at 128, sixteen of them in a step.
    assert found["bert"] == ([pytest.approx(2048 / (0.4 / 64 * 16))], [60], [58], [62])
    assert set(found) == {"bert", "fnet"}  # the Mixer's speed is not known
    assert panel.title == "bert is best (60.0) and fastest"  # of perplexities the lowest
    assert panel.x.label == "tokens per second in training, n = 128" and panel.y.log
    accuracies = charts.over_speed("sst2", scores, costs, "cpu").panels[0]
    assert accuracies.title == "fnet is best (70.0), bert the fastest" and not accuracies.y.log


def test_speeds_of_one_length_alone_compare(costs, tmp_path):
    made_up_columns.write_cost(tmp_path, "mixer", 256, (1.0,))
    both = measured.costs(str(tmp_path), ROWS)
    scores = {row: Spread(50.0, (50.0,)) for row in ("bert", "sgu", "mixer")}
    [panel] = charts.over_speed("mlm", scores, both, "cpu").panels
    assert [each.labels for each in panel.series] == [["bert"], ["sgu"]]
    assert charts.over_speed("mlm", {"bert": scores["bert"]}, both, "cpu") is None
    assert charts.over_speed("bytes", scores, both, "gpu").panels[0].x.label.endswith("n = 1,024")
    assert charts.over_speed("listops", scores, both, "cpu") is None  # of 32 tokens nothing was measured


def test_rows_of_a_family_are_one_series(costs):
    scores = {
        row: Spread(value, (value,))
        for row, value in {"random": 40.0, "sgu": 50.0, "fnet": 60.0, "dynamic": 70.0}.items()
    }
    costs = costs | {"fixed_random": costs["bert"]}
    [panel] = charts.over_speed("sst2", scores | {"fixed_random": Spread(30.0, (30.0,))}, costs, "cpu").panels
    [synthesizer] = [each for each in panel.series if each.name == "Synthesizer"]
    assert synthesizer.labels == ["random", "fixed_random"] and synthesizer.y == [40, 30] and not synthesizer.joined


def test_costs_over_tokens_with_their_powers(costs):
    time, memory = charts.over_tokens(costs).panels
    assert time.title == "A sequence's time grows as n^1.00 to n^2.00"
    series = {each.name: each for each in time.series}
    assert series["bert"].x == [128, 1024, 2048, 4096]
    assert series["bert"].y == pytest.approx([400 / 1.024 * n / 1024 for n in series["bert"].x])
    assert series["bert"].fit == pytest.approx(series["bert"].y, rel=1e-6)
    assert {each.name: each for each in memory.series}["bert"].y[1] == pytest.approx(1 / 1.024)  # MB
    assert charts.over_tokens({row: {128: by_length[128]} for row, by_length in costs.items()}) is None


def test_what_has_no_costs_has_no_figure(costs):
    scores = {"mlm": {row: Spread(5.0, (5.0,)) for row in ("bert", "sgu")}}
    assert charts.charts(scores, {}, "cpu") == {}
    made = charts.charts(scores, costs, "cpu")
    assert list(made) == ["speed_mlm", "costs"]
    for chart in made.values():
        assert drawn.draw(chart).axes
