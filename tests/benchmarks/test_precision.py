import pytest

from gmlp_flax.benchmarks import precision
from gmlp_flax.errors import RunError
from gmlp_flax.models.blocks import BLOCKS
from tests.failures import raised


@pytest.mark.slow
def test_errors_of_gradients_by_parameter():
    """Products of factors lose most: a single layer stays below 5 %."""
    plain, wide = precision.model_rows("synthesizer, dense+factorized_dense", layers=1)
    for row in (plain, wide):
        errors = row["parameters"]
        assert isinstance(errors, dict)
        assert "encoder/blocks/synthesizer/factorized_dense/second/weight" in errors
        assert 0 < row["min"] <= row["median"] <= row["max"] == max(errors.values()) < 5
    assert ", float32 stream: " in wide["name"]
    assert wide["parameters"] != plain["parameters"]


def test_every_block_has_a_row():
    got = {model["block"] for model in precision.ROWS.values()}
    assert got == {*BLOCKS}
    assert "'gmpl'" in raised(RunError, next, precision.bench_precision(["gmpl"], 12))
