"""Measured columns: their files, the growth that is fitted, the nearest length."""

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.reports import measured_costs
from tests.reports import made_up_columns


def test_growth_is_that_of_a_sequence_from_1024_tokens_on(tmp_path):
    made_up_columns.write_costs(tmp_path)
    made_up_columns.write_cost(tmp_path, "sgu", 256, (100.0,))  # too short to count
    found = measured_costs.costs(str(tmp_path), ("bert", "sgu"))
    assert measured_costs.growth(found["sgu"]).exponent == pytest.approx(1.5)
    assert measured_costs.growth(found["sgu"], memory=True).exponent == pytest.approx(1)
    assert measured_costs.growth(found["bert"], memory=True).exponent == pytest.approx(2)
    assert measured_costs.growth({1024: found["bert"][1024]}) is None and measured_costs.growth({}) is None


def test_the_nearest_length(tmp_path):
    made_up_columns.write_costs(tmp_path, {"sgu": (1.0, 1.0)}, (128, 1024))
    made_up_columns.write_cost(tmp_path, "sgu", 2048, ())
    found = measured_costs.costs(str(tmp_path), ("sgu",))["sgu"]
    for tokens, near in {64: 128, 128: 128, 1000: 1024, 2000: 1024}.items():
        assert measured_costs.nearest(found, tokens).tokens == near
    assert all(measured_costs.nearest(found, tokens) is None for tokens in (300, 4096))
    assert measured_costs.nearest({}, 128) is None


def test_a_damaged_file_is_one_line(tmp_path):
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "sgu-128.json").write_text("{")
    (tmp_path / "costs" / "notes.txt").write_text("not ours")
    assert measured_costs.costs(str(tmp_path), ("fnet",)) == {}
    with pytest.raises(RunError, match="costs/sgu-128.json.*remove the file"):
        measured_costs.costs(str(tmp_path), ("sgu",))
