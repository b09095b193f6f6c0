import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.models.blocks.gmlp import GMLPBlock
from tests.failures import raised
from tests.models.reference import small_spec

NAN = float("nan")
WRONG = {
    **dict.fromkeys(("gate", "activation", "dtype", "spatial", "toeplitz", "positions", "remat"), ("x",)),
    **dict.fromkeys(("layers", "length", "d_model", "d_ffn", "heads", "d_spatial"), (0,)),
    **dict.fromkeys(("dropout", "attention_dropout"), (-0.1, 1.0, NAN)),
    "d_attn": (-64,), "relative_buckets": (-2, 2, 7, 258), "layer_scale": (0.0, -0.1, NAN), "gate_norm_eps": (-1e-5,),
    "survival_schedule": ("x",), "survival": (0.0, -0.1, 1.1, NAN),
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values]
)
def test_options_out_of_range(field, value):
    assert f"model.{field} is {value!r}: expected" in raised(
        ValueError, small_spec, **{field: value}
    )


def test_options_that_contradict_each_other():
    assert "model.d_ffn is 7" in raised(ValueError, small_spec, d_ffn=7)
    assert (
        small_spec(d_ffn=7, gate="additive").d_ffn == small_spec(d_ffn=7, block="mixer").d_ffn == 7
    )
    assert "model.d_model is 6: model.heads, 4" in raised(
        ValueError, small_spec, block="transformer", heads=4
    )
    assert "model.d_qkv is 4: model.heads, 3" in raised(
        ValueError, small_spec, block="transformer", d_qkv=4
    )


@pytest.mark.parametrize(
    "dtype, precise", [("float32", "float32"), ("bfloat16", "float32"), ("float64", "float64")]
)
def test_types(dtype, precise):
    spec = small_spec(dtype=dtype)
    assert spec.compute_dtype == jnp.dtype(dtype)
    assert spec.precise_dtype == spec.param_dtype == jnp.dtype(precise)


@pytest.mark.parametrize(("layers", "schedule", "expected"), [
    (4, "constant", [0.8, 0.8, 0.8, 0.8]), (5, "linear", [1.0, 0.95, 0.9, 0.85, 0.8]), (1, "constant", [0.8]),
    (1, "linear", [1.0]),
])  # fmt: skip
def test_survival_by_layer(layers, schedule, expected):
    survival = small_spec(
        layers=layers, survival=0.8, survival_schedule=schedule
    ).survival_by_layer()
    np.testing.assert_allclose(survival, expected, rtol=1e-6)
    assert survival.dtype == jnp.float32


def test_a_spec_is_frozen_and_hashable():
    spec = small_spec()
    assert hash(spec) == hash(small_spec())
    assert spec == small_spec()
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.layers = 4


def test_defaults_are_the_papers():
    spec = GMLPBlock.spec(layers=1, length=2, d_model=2, d_ffn=2)
    assert (spec.gate, spec.d_attn, spec.survival, spec.dropout, spec.dtype) == (
        "split",
        0,
        1.0,
        0.0,
        "float32",
    )
