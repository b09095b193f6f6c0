import dataclasses

import jax.numpy as jnp
import pytest
from numpy.testing import assert_allclose

from gmlp_flax.models.blocks.gmlp import GMLPBlock
from tests.failures import raised
from tests.models.reference import small_spec

NAN = float("nan")
OUT_OF_RANGE = [
    ("gate", "x"),
    ("activation", "x"),
    ("dtype", "x"),
    ("spatial", "x"),
    ("toeplitz", "x"),
    ("positions", "x"),
    ("remat", "x"),
    ("layers", 0),
    ("length", 0),
    ("d_model", 0),
    ("d_ffn", 0),
    ("heads", 0),
    ("d_spatial", 0),
    ("dropout", -0.1),
    ("dropout", 1.0),
    ("dropout", NAN),
    ("attention_dropout", -0.1),
    ("attention_dropout", 1.0),
    ("attention_dropout", NAN),
    ("d_attn", -64),
    ("relative_buckets", -2),
    ("relative_buckets", 2),
    ("relative_buckets", 7),
    ("relative_buckets", 258),
    ("layer_scale", 0.0),
    ("layer_scale", -0.1),
    ("layer_scale", NAN),
    ("gate_norm_eps", -1e-5),
    ("survival_schedule", "x"),
    ("survival", 0.0),
    ("survival", -0.1),
    ("survival", 1.1),
    ("survival", NAN),
]


@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE)
def test_options_out_of_range_are_refused(field, value):
    message = raised(ValueError, small_spec, **{field: value})
    assert f"model.{field} is {value!r}: expected" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_ffn": 7}, "model.d_ffn is 7"),
        ({"block": "transformer", "heads": 4}, "model.d_model is 6: model.heads, 4"),
        ({"block": "transformer", "d_qkv": 4}, "model.d_qkv is 4: model.heads, 3"),
    ],
)
def test_contradictory_options_are_refused(options, message):
    assert message in raised(ValueError, small_spec, **options)


@pytest.mark.parametrize("options", [{"gate": "additive"}, {"block": "mixer"}])
def test_only_split_gates_need_an_even_width(options):
    spec = small_spec(d_ffn=7, **options)
    assert spec.d_ffn == 7


@pytest.mark.parametrize(
    ("dtype", "precise"),
    [
        ("float32", "float32"),
        ("bfloat16", "float32"),
        ("float64", "float64"),
    ],
)
def test_parameters_are_at_least_float32(dtype, precise):
    spec = small_spec(dtype=dtype)
    assert spec.compute_dtype == jnp.dtype(dtype)
    assert spec.precise_dtype == jnp.dtype(precise)
    assert spec.param_dtype == jnp.dtype(precise)


@pytest.mark.parametrize(
    ("layers", "schedule", "expected"),
    [
        (4, "constant", [0.8, 0.8, 0.8, 0.8]),
        (5, "linear", [1.0, 0.95, 0.9, 0.85, 0.8]),
        (1, "constant", [0.8]),
        (1, "linear", [1.0]),
    ],
)
def test_survival_follows_the_schedule(layers, schedule, expected):
    spec = small_spec(layers=layers, survival=0.8, survival_schedule=schedule)
    survival = spec.survival_by_layer()
    assert_allclose(survival, expected, rtol=1e-6)
    assert survival.dtype == jnp.float32


def test_specs_are_frozen_and_hashable():
    spec = small_spec()
    assert hash(spec) == hash(small_spec())
    assert spec == small_spec()
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.layers = 4


def test_defaults_are_those_of_the_paper():
    spec = GMLPBlock.spec(layers=1, length=2, d_model=2, d_ffn=2)
    assert spec.gate == "split"
    assert spec.d_attn == 0
    assert spec.survival == 1.0
    assert spec.dropout == 0.0
    assert spec.dtype == "float32"
