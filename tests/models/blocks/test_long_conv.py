"""Long convolutions: the filter, the transform and the initial values. test_init.py compares whole
blocks with numpy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

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
    """The convolution pair by pair."""
    y = np.zeros_like(x)
    tokens = len(x)
    for i, j in np.ndindex(tokens, tokens):
        distance = abs(i - j)
        if j <= i:
            weight = past[distance]
            y[i] += weight * x[j]
        elif future is not None:
            weight = future[distance - 1]
            y[i] += weight * x[j]
    return y


@pytest.mark.smoke
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 9, 33])
@in_float64
def test_convolutions_agree_with_sums(tokens, directions):
    x = normal(0, 2, tokens, 3)
    filters = normal(1, directions, tokens, 3)
    y = quick_jit(long_conv.convolve)(x, *filters)
    expected = []
    for sample in x:
        expected.append(direct(sample, *filters))
    assert_allclose(y, expected, atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 7, 8])
@in_float64
def test_exported_convolutions_use_products_in_place_of_fft(tokens):
    x = normal(0, 2, tokens, 3)
    past, future = normal(1, 2, tokens, 3)

    def exported(*arrays):
        return long_conv.convolve(*arrays)

    with sharding.portable():
        y = exported(x, past, future)
        assert count("fft", exported, x, past, future) == 0
    expected = long_conv.convolve(x, past, future)
    assert_allclose(y, expected, atol=1e-12)


@pytest.mark.parametrize("row", [0, 3, 8])
@in_float64
def test_one_row_is_that_of_the_whole_convolution(row):
    x = normal(0, 2, 9, 3)
    past = normal(1, 9, 3)
    index = jnp.int32(row)
    y = long_conv.convolve_row(x, past, index)
    whole = long_conv.convolve(x, past)
    expected = whole[:, row : row + 1]
    assert_allclose(y, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("features", "length", "tokens"),
    [
        (3, 5, 5),
        (5, 9, 4),
        pytest.param(7, 5, 12, id="beyond n"),
    ],
)
@in_float64
def test_filters_agree_with_numpy(features, length, tokens):
    spec = spec_of(filter_features=features, length=length)
    module = randomized(lambda: ImplicitFilter(spec, nnx.Rngs(0)))
    params = params_of(module)
    expected = reference.implicit_filter(params, tokens, length)
    assert_allclose(module(tokens), expected, atol=1e-12)


@in_float64
def test_filters_of_more_distances_begin_alike():
    module = randomized(lambda: ImplicitFilter(spec_of(), nnx.Rngs(0)))
    long = module(20)
    short = module(5)
    assert_allclose(long[:5], short, atol=1e-14)


def filter_of_ones(n):
    """A filter whose MLP gives 1 for every distance and each of five channels."""
    spec = spec_of(length=n, d_model=5, dtype="float32")
    module = ImplicitFilter(spec, nnx.Rngs(0))
    sine_is_one = jnp.full(4, math.pi / 2)
    module.third.bias[...] = sine_is_one
    module.frequencies[...] = jnp.ones(4)
    zeros = jnp.zeros((4, 4))
    module.third.weight[...] = zeros
    quarters = jnp.full((4, 5), 0.25)
    module.last.weight[...] = quarters
    return module


@pytest.mark.slow
def test_windows_fall_to_a_hundredth_between_0_3_and_1_5_of_n():
    n = 1001
    window = np.asarray(filter_of_ones(n)(1501))
    slowest = window[:, 0]
    fastest = window[:, -1]
    assert_allclose(window[0], 1, rtol=1e-5)
    assert slowest[1500] == pytest.approx(0.01, rel=1e-3)
    assert fastest[300] == pytest.approx(0.01, rel=1e-3)
    expected = 0.01 ** (1 / 1.5)
    assert slowest[1000] == pytest.approx(expected, rel=1e-3)


def test_filters_without_frequencies_are_0():
    module = ImplicitFilter(spec_of(length=1001, dtype="float32"), nnx.Rngs(0))
    module.frequencies[...] = jnp.zeros(4)
    assert not module(1001).any()


@pytest.fixture(scope="module")
def fresh_convolution():
    spec = spec_of(length=64, d_model=512, filter_width=64, dtype="float32")
    return params_of(LongConvolution(spec, nnx.Rngs(0)))


@pytest.mark.parametrize("direction", ["past", "future"])
def test_fresh_filters_are_as_published(fresh_convolution, direction):
    """Uniform within 1 / sqrt(fan-in), and frequencies of 10."""
    params = fresh_convolution[direction]
    assert (params["frequencies"] == 10).all()
    fan_ins = {"first": 5, "second": 64, "third": 64, "last": 64}
    for name, fan_in in fan_ins.items():
        weight = params[name]["weight"]
        bound = fan_in**-0.5
        assert np.abs(weight).max() <= bound
        deviation = bound / 3**0.5
        assert weight.std() == pytest.approx(deviation, rel=0.1)


def test_fresh_filters_of_both_directions_differ(fresh_convolution):
    past = fresh_convolution["past"]["last"]["weight"]
    future = fresh_convolution["future"]["last"]["weight"]
    assert np.abs(past - future).max() > 0.01


def test_fresh_skips_and_short_filters_are_as_published(fresh_convolution):
    """A skip of standard deviation 1."""
    short_deviation = fresh_convolution["short"]["taps"].std()
    assert short_deviation == pytest.approx(1 / 3, rel=0.05)
    skip_deviation = fresh_convolution["skip"].std()
    assert skip_deviation == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(
    ("causal", "filters"),
    [
        pytest.param(False, 2, id="both directions"),
        pytest.param(True, 1, id="causal"),
    ],
)
def test_parameters_are_those_counted_by_hand(causal, filters):
    """Four projections, three kernels of 3 with biases, a skip, and one filter or two."""
    d = 16
    width = 8
    spec = spec_of(d_model=d, d_ffn=24, filter_width=width, causal=causal, dtype="float32")
    block = nnx.eval_shape(lambda: LongConvBlock(spec, nnx.Rngs(0)))
    first = 5 * width + width
    second_and_third = 2 * (width**2 + width)
    last = width * d
    filter_size = first + second_and_third + last + width
    projections = 4 * (d * d + d)
    kernels = 3 * d * (3 + 1)
    skip = d
    first_layer = d * 24 + 24
    second_layer = 24 * d + d
    mlp = first_layer + second_layer
    norms = 2 * 2 * d
    filters_size = filters * filter_size
    convolution = projections + kernels + skip + filters_size
    params = nnx.state(block, nnx.Param)
    assert parameters.count(params) == convolution + mlp + norms
    found = metadata(block)
    assert found["convolution/skip"] == ParamMetadata((), False)
    assert found["convolution/past/last/weight"] == ParamMetadata((None, "fsdp"))


@pytest.mark.parametrize("causal", [False, True])
@in_float64
def test_a_changed_token_changes_all_outputs_or_the_later_ones(causal):
    spec = spec_of(length=9, causal=causal)
    module = randomized(lambda: LongConvBlock(spec, nnx.Rngs(0)))
    x = normal(0, 1, 9, 6)
    other = x.copy()
    other[:, 4, 0] += 1
    call = quick_jit(module)
    change = call(other) - call(x)
    difference = np.abs(change)[0]
    changes = difference.max(axis=-1)
    if causal:
        assert changes[:4].max() < 1e-13
        assert changes[4:].min() > 1e-3
    else:
        assert changes.min() > 1e-3


@pytest.mark.parametrize("causal", [False, True])
def test_memory_is_linear_in_the_tokens(causal):
    """No array of n^2, forward or backward: the largest is the padded gradient of the three
    projections, and the transform of 2n points has two for each."""
    for tokens in (64, 128):
        spec = spec_of(length=tokens, causal=causal, dtype="float32")
        block = LongConvBlock(spec, nnx.Rngs(0))
        state, call = function_of(block)

        def loss(state, x, call=call):
            return call(state, x).sum()

        x = jnp.ones((2, tokens, 6))
        gradient = jax.grad(loss, argnums=(0, 1))
        padded_tokens = tokens + 2 * 2
        padded_projections = 2 * padded_tokens * 3 * 6
        assert largest_array(gradient, state, x) == padded_projections


def test_bfloat16_convolutions_keep_float32_transforms():
    """Their error is that of rounding the inputs and outputs."""
    numbers = normal(0, 1, 512, 4)
    x = jnp.asarray(numbers, jnp.bfloat16)
    filter_numbers = normal(1, 512, 4)
    past = jnp.asarray(filter_numbers, jnp.float32)
    y = long_conv.convolve(x, past)
    assert y.dtype == jnp.bfloat16
    found = y.astype(jnp.float32)
    exact_input = x.astype(jnp.float32)
    exact = long_conv.convolve(exact_input, past)
    assert_allclose(found, exact, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("features", [1, 4])
def test_invalid_numbers_of_features_are_refused(features):
    with pytest.raises(ValueError, match=f"model.filter_features is {features}: expected an odd"):
        spec_of(filter_features=features)
