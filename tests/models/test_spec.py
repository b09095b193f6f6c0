import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.models.blocks.gmlp import GMLPBlock, GMLPSpec
from gmlp_flax.options import options_of
from tests.models.reference import small_spec
from tests.timm_modules import timm_module


@pytest.mark.parametrize("field", ["gate", "activation", "dtype"])
def test_names_are_checked(field):
    allowed = options_of(GMLPSpec)[field].values
    for name in allowed:
        assert getattr(small_spec(**{field: name}), field) == name
    with pytest.raises(ValueError, match=f"model.{field} is 'other': expected one of {', '.join(allowed)}"):
        small_spec(**{field: "other"})


@pytest.mark.parametrize("field", ["spatial", "toeplitz", "positions", "remat", "survival_schedule"])
def test_other_names_are_checked(field):
    with pytest.raises(ValueError, match=f"model.{field} is 'x': expected one of"):
        small_spec(**{field: "x"})


@pytest.mark.parametrize("field", ["layers", "length", "d_model", "d_ffn", "heads", "d_spatial"])
def test_sizes_are_positive(field):
    with pytest.raises(ValueError, match=f"model.{field} is 0: expected from 1 to 1,048,576"):
        small_spec(**{field: 0})


def test_attention_may_be_left_out_but_not_negative():
    assert small_spec(d_attn=0).d_attn == 0
    with pytest.raises(ValueError, match="model.d_attn is -64: expected 0"):
        small_spec(d_attn=-64)


def test_the_split_gate_needs_an_even_width():
    with pytest.raises(ValueError, match="model.d_ffn is 7: the split gate halves it, so it must be even"):
        small_spec(d_ffn=7)
    assert small_spec(d_ffn=7, gate="additive").d_ffn == small_spec(d_ffn=7, block="mixer").d_ffn == 7


def test_heads_divide_the_width_of_a_transformer():
    assert small_spec(block="transformer", heads=2).heads == 2
    with pytest.raises(ValueError, match="model.d_model is 6: model.heads, 4, must divide it"):
        small_spec(block="transformer", heads=4)


@pytest.mark.parametrize("buckets", [-2, 2, 7, 258])
def test_numbers_of_buckets(buckets):
    assert small_spec(relative_buckets=32).relative_buckets == 32
    with pytest.raises(ValueError, match=rf"model.relative_buckets is {buckets}: expected 0 \(a bias per offset\) or"):
        small_spec(relative_buckets=buckets)


@pytest.mark.parametrize("scale", [0.0, -0.1, float("nan")])
def test_layer_scale_is_positive(scale):
    with pytest.raises(ValueError, match=r"model.layer_scale is .*: expected above 0"):
        small_spec(layer_scale=scale)


def test_the_epsilon_of_the_gate_may_be_left_to_the_others_but_not_negative():
    assert small_spec().gate_norm_eps == 0
    with pytest.raises(ValueError, match=r"model.gate_norm_eps is -1e-05: expected at least 0"):
        small_spec(gate_norm_eps=-1e-5)


@pytest.mark.parametrize("survival", [0.0, -0.1, 1.1, float("nan")])
def test_survival_is_a_probability(survival):
    with pytest.raises(ValueError, match="model.survival is"):
        small_spec(survival=survival)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
def test_dropout_is_a_rate(name, rate):
    with pytest.raises(ValueError, match=f"model.{name} is"):
        small_spec(**{name: rate})


@pytest.mark.parametrize("dtype, precise", [("float32", "float32"), ("bfloat16", "float32"), ("float64", "float64")])
def test_types(dtype, precise):
    spec = small_spec(dtype=dtype)
    assert spec.compute_dtype == jnp.dtype(dtype)
    assert spec.precise_dtype == spec.param_dtype == jnp.dtype(precise)


def test_survival_by_layer():
    constant = small_spec(layers=4, survival=0.8).survival_by_layer()
    linear = small_spec(layers=5, survival=0.8, survival_schedule="linear").survival_by_layer()
    np.testing.assert_allclose(constant, [0.8, 0.8, 0.8, 0.8], rtol=1e-6)
    np.testing.assert_allclose(linear, [1.0, 0.95, 0.9, 0.85, 0.8], rtol=1e-6)
    assert constant.dtype == linear.dtype == jnp.float32
    assert linear[0] == 1


def test_a_single_layer_with_the_linear_schedule_always_survives():
    """As timm's, whose rates start at 0; with the constant schedule it survives with the given probability."""
    linear, constant = (
        small_spec(layers=1, survival=0.8, survival_schedule=schedule).survival_by_layer()
        for schedule in ("linear", "constant")
    )
    assert linear.tolist() == [1.0] and constant.tolist() == [pytest.approx(0.8)]


def test_the_linear_schedule_is_timms():
    rates = timm_module("layers.drop").calculate_drop_path_rates
    for layers in (1, 2, 12, 24):
        ours = small_spec(layers=layers, survival=0.9, survival_schedule="linear").survival_by_layer()
        np.testing.assert_allclose(ours, 1 - np.array(rates(0.1, layers)), rtol=1e-6)


def test_a_spec_is_frozen_and_hashable():
    spec = small_spec()
    assert hash(spec) == hash(small_spec()) and spec == small_spec()
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.layers = 4


def test_defaults_are_the_papers():
    spec = GMLPBlock.spec(layers=1, length=2, d_model=2, d_ffn=2)
    assert (spec.gate, spec.d_attn, spec.survival, spec.dropout, spec.dtype) == ("split", 0, 1.0, 0.0, "float32")
