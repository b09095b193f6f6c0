"""The costs of training steps, as `gmlp benchmark mixers` measures them, and how they grow."""

import pytest

from gmlp_flax.errors import DataError, RunError
from gmlp_flax.paper.alternatives import ROWS
from gmlp_flax.reports.costs import cost_chart, growth, nearest, read_costs
from tests.reports import made_up_columns


@pytest.fixture
def measured(tmp_path):
    made_up_columns.write_costs(tmp_path)
    return read_costs(str(tmp_path), ROWS)


def test_costs_over_tokens_with_their_powers(measured):
    [panel] = cost_chart(measured, ROWS).panels
    [bert] = [series for series in panel.series if series.name == "bert"]
    assert bert.x == [128, 1024, 2048, 4096]
    milliseconds = [400 * (n / 1024) ** 2 for n in bert.x]
    assert bert.y == pytest.approx(milliseconds)
    assert bert.fit == pytest.approx(bert.y, rel=1e-6)


def test_costs_at_one_length_are_drawn(measured):
    at_128 = {}
    for row, costs in measured.items():
        at_128[row] = {128: costs[128]}
    [panel] = cost_chart(at_128, ROWS).panels
    assert panel.title == "Memory over time, n = 128"
    names = {series.name for series in panel.series}
    assert names == set(measured)
    for series in panel.series:
        cost = measured[series.name][128]
        milliseconds = 1e3 * cost.seconds[0] / cost.batch
        assert series.x == [pytest.approx(milliseconds)]
        assert series.y == [pytest.approx(cost.size / 1e6)]
        assert series.labels == [series.name]
    assert cost_chart({}, ROWS) is None


def test_growth_is_per_sequence_from_1024_tokens(tmp_path):
    made_up_columns.write_costs(tmp_path)
    made_up_columns.write_cost(tmp_path, "sgu", 256, (100.0,))  # too short to count
    found = read_costs(str(tmp_path), ("bert", "sgu"))
    bert = found["bert"]
    sgu = found["sgu"]
    assert growth(sgu).exponent == pytest.approx(1.5)
    assert growth(sgu, memory=True).exponent == pytest.approx(1)
    assert growth(bert, memory=True).exponent == pytest.approx(2)
    assert growth({1024: bert[1024]}) is None
    assert growth({}) is None


def test_nearest_length(tmp_path):
    made_up_columns.write_costs(tmp_path, {"sgu": (1.0, 1.0)}, (128, 1024))
    made_up_columns.write_cost(tmp_path, "sgu", 2048, ())
    found = read_costs(str(tmp_path), ("sgu",))
    nearest_lengths = {64: 128, 128: 128, 1000: 1024, 2000: 1024}
    for tokens, expected in nearest_lengths.items():
        cost = nearest(found, ("sgu",), tokens)["sgu"]
        assert cost.tokens == expected
    for tokens in (300, 4096):
        assert not nearest(found, ("sgu",), tokens)
    assert nearest({}, ("sgu",), 128) == {}


def test_damaged_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "notes.txt").write_text("not ours")
    for text in ("{", "{}", "[1]", '[{"figure": "seconds"}]'):
        (tmp_path / "costs" / "sgu-128.json").write_text(text)
        assert read_costs(str(tmp_path), ("fnet",)) == {}
        with pytest.raises((DataError, RunError), match=r"costs/sgu-128\.json"):
            read_costs(str(tmp_path), ("sgu",))
