"""What training steps cost, as `gmlp benchmark mixers` measures it, and how it grows."""

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
    series = {each.name: each for each in panel.series}
    assert series["bert"].x == [128, 1024, 2048, 4096]
    # ms
    expected = [400 * (n / 1024) ** 2 for n in series["bert"].x]
    assert series["bert"].y == pytest.approx(expected)
    assert series["bert"].fit == pytest.approx(series["bert"].y, rel=1e-6)


def test_costs_at_one_length_are_drawn(measured):
    at_128 = {row: {128: by_length[128]} for row, by_length in measured.items()}
    [panel] = cost_chart(at_128, ROWS).panels
    assert panel.title == "Memory over time, n = 128"
    assert {each.name for each in panel.series} == set(measured)
    for each in panel.series:
        cost = measured[each.name][128]
        assert each.x == [pytest.approx(1e3 * cost.seconds[0] / cost.batch)]
        assert each.y == [pytest.approx(cost.size / 1e6)]
        assert each.labels == [each.name]
    assert cost_chart({}, ROWS) is None


def test_growth_is_per_sequence_from_1024_tokens(tmp_path):
    made_up_columns.write_costs(tmp_path)
    made_up_columns.write_cost(tmp_path, "sgu", 256, (100.0,))  # too short to count
    found = read_costs(str(tmp_path), ("bert", "sgu"))
    assert growth(found["sgu"]).exponent == pytest.approx(1.5)
    assert growth(found["sgu"], memory=True).exponent == pytest.approx(1)
    assert growth(found["bert"], memory=True).exponent == pytest.approx(2)
    assert growth({1024: found["bert"][1024]}) is None
    assert growth({}) is None


def test_nearest_length(tmp_path):
    made_up_columns.write_costs(tmp_path, {"sgu": (1.0, 1.0)}, (128, 1024))
    made_up_columns.write_cost(tmp_path, "sgu", 2048, ())
    found = read_costs(str(tmp_path), ("sgu",))
    for tokens, near in {64: 128, 128: 128, 1000: 1024, 2000: 1024}.items():
        assert nearest(found, ("sgu",), tokens)["sgu"].tokens == near
    assert not any(nearest(found, ("sgu",), tokens) for tokens in (300, 4096))
    assert nearest({}, ("sgu",), 128) == {}


def test_damaged_file_is_refused_in_one_line(tmp_path):
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "notes.txt").write_text("not ours")
    for text in ("{", "{}", "[1]", '[{"figure": "seconds"}]'):
        (tmp_path / "costs" / "sgu-128.json").write_text(text)
        assert read_costs(str(tmp_path), ("fnet",)) == {}
        with pytest.raises((DataError, RunError), match=r"costs/sgu-128\.json"):
            read_costs(str(tmp_path), ("sgu",))
