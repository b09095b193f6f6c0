"""Measured columns: their files, the growth that is fitted, the nearest length."""

from __future__ import annotations

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.reports import measured_costs
from tests.reports import made_up_columns


def test_costs_by_row_and_length(tmp_path):
    made_up_columns.write_costs(tmp_path)
    found = measured_costs.costs(str(tmp_path), ("sgu", "random", "random_vanilla"))
    assert list(found) == ["sgu", "random"] and list(found["sgu"]) == [128, 1024, 2048, 4096]
    cost = found["random"][1024]
    assert (cost.batch, sorted(cost.seconds)) == (2, pytest.approx([0.297, 0.3, 0.303]))
    assert cost.speed == pytest.approx(2048 / 0.3) and cost.per_thousand[0] == pytest.approx(300 / 2.048)


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
    assert {
        tokens: (near := measured_costs.nearest(found, tokens)) and near.tokens
        for tokens in (64, 128, 300, 1000, 2000, 4096)
    } == {
        64: 128,
        128: 128,
        300: None,
        1000: 1024,
        2000: 1024,
        4096: None,
    }
    assert measured_costs.nearest({}, 128) is None


def test_a_damaged_file_is_one_line(tmp_path):
    (tmp_path / "costs").mkdir()
    (tmp_path / "costs" / "sgu-128.json").write_text("{")
    (tmp_path / "costs" / "notes.txt").write_text("not ours")
    assert measured_costs.costs(str(tmp_path), ("fnet",)) == {}
    with pytest.raises(RunError, match="costs/sgu-128.json.*remove the file"):
        measured_costs.costs(str(tmp_path), ("sgu",))


def test_files_of_one_or_of_several_lengths(tmp_path):
    made_up_columns.write_lengths(tmp_path, "sgu")
    made_up_columns.write_tpu(tmp_path, "sgu", 4096, fits=False)
    made_up_columns.write_tpu(tmp_path, "sgu", 512)
    scores = measured_costs.measurements(str(tmp_path), "lengths", ("sgu", "bert"))
    assert list(scores) == ["sgu"] and scores["sgu"][0]["perplexity"]["128"] == 60
    steps = measured_costs.measurements(str(tmp_path), "tpu", ("sgu",))["sgu"]
    assert [(n, step["fits"]) for n, step in steps.items()] == [(512, True), (4096, False)]
    assert measured_costs.path("runs", "lengths", "sgu") == "runs/lengths/sgu.json"
