"""Errors of gradients in bfloat16 by parameter."""

import pytest

from gmlp_flax.benchmarks import precision
from gmlp_flax.errors import RunError
from gmlp_flax.models.blocks import BLOCKS
from tests.failures import raised


@pytest.mark.slow
def test_errors_of_gradients_by_parameter():
    """Products of factors have the largest errors, which are below 5 % in a single layer."""
    plain, wide = precision.model_rows("synthesizer, dense+factorized_dense", layers=1)
    for row in (plain, wide):
        errors = row["parameters"]
        assert isinstance(errors, dict)
        assert "encoder/blocks/synthesizer/factorized_dense/second/weight" in errors
        assert row["max"] == max(errors.values())
        assert 0 < row["min"] <= row["median"] <= row["max"] < 5
    assert ", float32 stream: " in wide["name"]
    assert wide["parameters"] != plain["parameters"]


def test_every_block_has_a_row():
    measured = {model["block"] for model in precision.ROWS.values()}
    assert measured == set(BLOCKS)


def test_unknown_rows_are_refused():
    rows = precision.bench_precision(["gmpl"], 12)
    assert "'gmpl'" in raised(RunError, next, rows)
