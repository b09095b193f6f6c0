"""Long convolutions: the filter, the transform, what starts how. test_init.py compares whole blocks
with numpy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models import parameters, sharding
from gmlp_flax.models.blocks import long_conv
from gmlp_flax.models.blocks.long_conv import ImplicitFilter, LongConvBlock, LongConvolution
from gmlp_flax.models.parameters import ParamMetadata, metadata
from tests.models import reference
from tests.models.reference import (
    count,
    function_of,
    in_float64,
    largest_array,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)


def spec_of(**fields):
    return small_spec(**{"block": "long_conv", "filter_width": 4} | fields)


def direct(x, past, future=None):
    """Pair by pair."""
    y = np.zeros_like(x)
    for i, j in np.ndindex(len(x), len(x)):
        if j <= i:
            y[i] += past[i - j] * x[j]
        elif future is not None:
            y[i] += future[j - i - 1] * x[j]
    return y


@pytest.mark.smoke
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 33])
@in_float64
def test_the_transform_against_sums(tokens, both):
    x = normal(0, 2, tokens, 3)
    filters = normal(1, 1 + both, tokens, 3)
    found = quick_jit(long_conv.convolve)(x, *filters)
    expected = [direct(sample, *filters) for sample in x]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 7, 8])
@in_float64
def test_exported_transforms_are_products(tokens):
    """They give the same numbers."""
    x = normal(0, 2, tokens, 3)
    past, future = normal(1, 2, tokens, 3)

    def exported(*arrays):
        return long_conv.convolve(*arrays)

    with sharding.portable():
        found = exported(x, past, future)
        assert count("fft", exported, x, past, future) == 0
    np.testing.assert_allclose(found, long_conv.convolve(x, past, future), atol=1e-12)


@pytest.mark.parametrize("row", [0, 3, 8])
@in_float64
def test_a_row_against_the_whole(row):
    x = normal(0, 2, 9, 3)
    past = normal(1, 9, 3)
    found = long_conv.convolve_row(x, past, jnp.int32(row))
    whole = long_conv.convolve(x, past)
    np.testing.assert_allclose(found, whole[:, row : row + 1], atol=1e-12)


@pytest.mark.parametrize(("features", "length", "tokens"), [(3, 5, 5), (5, 9, 4), (7, 5, 12)])
@in_float64
def test_filters_against_numpy(features, length, tokens):
    """Also of distances beyond n."""
    spec = spec_of(filter_features=features, length=length)
    module = randomized(lambda: ImplicitFilter(spec, nnx.Rngs(0)))
    expected = reference.implicit_filter(params_of(module), tokens, length)
    np.testing.assert_allclose(module(tokens), expected, atol=1e-12)


@in_float64
def test_a_filter_does_not_depend_on_how_many_distances_are_asked_for():
    module = randomized(lambda: ImplicitFilter(spec_of(), nnx.Rngs(0)))
    np.testing.assert_allclose(module(20)[:5], module(5), atol=1e-14)


def test_the_window_falls_to_a_hundredth_between_0_3_and_1_5_of_n():
    """Of a filter whose MLP gives 1, made by hand."""
    n = 1001
    module = ImplicitFilter(spec_of(length=n, d_model=5, dtype="float32"), nnx.Rngs(0))
    module.frequencies[...] = jnp.zeros(4)
    assert np.abs(module(n)).max() == 0
    module.third.bias[...] = jnp.full(4, math.pi / 2)
    module.frequencies[...] = jnp.ones(4)
    module.third.weight[...] = jnp.zeros((4, 4))
    module.last.weight[...] = jnp.full((4, 5), 0.25)
    window = np.asarray(module(1501))
    np.testing.assert_allclose(window[0], 1, rtol=1e-5)
    np.testing.assert_allclose(window[1500, 0], 0.01, rtol=1e-3)
    np.testing.assert_allclose(window[300, -1], 0.01, rtol=1e-3)
    np.testing.assert_allclose(window[1000, 0], 0.01 ** (1 / 1.5), rtol=1e-3)


def test_a_fresh_filter_is_as_published():
    """Uniform within 1 / sqrt(fan-in), frequencies of 10, and a skip of standard deviation 1."""
    spec = spec_of(length=64, d_model=512, filter_width=64, dtype="float32")
    module = LongConvolution(spec, nnx.Rngs(0))
    p = params_of(module)
    for of in (p["past"], p["future"]):
        assert (of["frequencies"] == 10).all()
        for name, fan_in in (("first", 5), ("second", 64), ("third", 64), ("last", 64)):
            weight = of[name]["weight"]
            assert np.abs(weight).max() <= fan_in**-0.5
            np.testing.assert_allclose(weight.std(), (3 * fan_in) ** -0.5, rtol=0.1)
    np.testing.assert_allclose(p["short"]["taps"].std(), 1 / 3, rtol=0.05)
    np.testing.assert_allclose(p["skip"].std(), 1, rtol=0.1)
    assert np.abs(p["past"]["last"]["weight"] - p["future"]["last"]["weight"]).max() > 0.01


def test_parameters_by_hand():
    """Four projections, three kernels of 3 with biases, a skip, and one filter or two."""
    d = 16
    width = 8
    filter_size = (5 * width + width) + 2 * (width**2 + width) + width * d + width
    mlp = (d * 24 + 24) + (24 * d + d)
    for causal in (False, True):
        filters = 1 if causal else 2
        spec = spec_of(d_model=d, d_ffn=24, filter_width=width, causal=causal, dtype="float32")
        block = nnx.eval_shape(lambda spec=spec: LongConvBlock(spec, nnx.Rngs(0)))
        mixing = 4 * d * d + 4 * d + 3 * d * (3 + 1) + d + filters * filter_size
        assert parameters.count(nnx.state(block, nnx.Param)) == mixing + mlp + 2 * 2 * d
        found = metadata(block)
        assert found["convolution/skip"] == ParamMetadata((), False)
        assert found["convolution/past/last/weight"] == ParamMetadata((None, "fsdp"))


@in_float64
def test_both_directions_or_one():
    """A change of one token changes the outputs of all, or of those from it on."""
    x = normal(0, 1, 9, 6)
    other = x.copy()
    other[:, 4, 0] += 1
    for causal in (False, True):
        spec = spec_of(length=9, causal=causal)
        module = randomized(lambda spec=spec: LongConvBlock(spec, nnx.Rngs(0)))
        call = quick_jit(module)
        changes = np.abs(call(other) - call(x))[0].max(axis=-1)
        if causal:
            assert changes[:4].max() < 1e-13
            assert changes[4:].min() > 1e-3
        else:
            assert changes.min() > 1e-3


@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_as_the_tokens(causal):
    """No array of n^2, forward or backward: the largest is the padded gradient of the three
    projections, and the transform of 2n points has two for each."""
    largest = []
    for tokens in (64, 128):
        spec = spec_of(length=tokens, causal=causal, dtype="float32")
        state, call = function_of(LongConvBlock(spec, nnx.Rngs(0)))

        def loss(state, x, call=call):
            return call(state, x).sum()

        x = jnp.ones((2, tokens, 6))
        largest.append(largest_array(jax.grad(loss, argnums=(0, 1)), state, x))
    assert largest == [2 * (tokens + 2 * 2) * 3 * 6 for tokens in (64, 128)]


def test_a_long_text_in_bfloat16_keeps_float32_transforms():
    """Its error is that of rounding the inputs and outputs."""
    x = jnp.asarray(normal(0, 1, 512, 4), jnp.bfloat16)
    past = jnp.asarray(normal(1, 512, 4), jnp.float32)
    y = long_conv.convolve(x, past)
    assert y.dtype == jnp.bfloat16
    exact = long_conv.convolve(x.astype(jnp.float32), past)
    np.testing.assert_allclose(y.astype(jnp.float32), exact, rtol=2**-8, atol=1e-4)


def test_an_even_number_of_features_is_refused():
    with pytest.raises(ValueError, match="model.filter_features is 4: expected an odd number"):
        spec_of(filter_features=4)
    with pytest.raises(ValueError, match="model.filter_features is 1: expected an odd number from"):
        spec_of(filter_features=1)
