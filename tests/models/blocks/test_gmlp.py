"""The gMLP block and its parts. test_init.py compares whole blocks with numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models import toeplitz
from gmlp_flax.models.blocks.gmlp import (
    GMLPBlock,
    SpatialGatingUnit,
    SpatialProjection,
    TinyAttention,
)
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.parameters import ParamMetadata, count, metadata
from tests.models.reference import (
    by_example,
    function_of,
    in_float64,
    layer_norm,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
    spatial,
    tiny_attention,
)

KINDS = {"dense": {"spatial": "dense"}}
for form in toeplitz.FORMS:
    KINDS[form] = {"toeplitz": form}


def gating_unit(kind="split", **fields):
    spec = small_spec(gate=kind, **fields)
    return SpatialGatingUnit(spec, nnx.Rngs(0))


def projection(bias=0.0, **fields):
    spec = small_spec(**fields)
    return SpatialProjection(spec, bias, nnx.Rngs(0))


def attention(**fields):
    spec = small_spec(**{"d_attn": 3} | fields)
    return TinyAttention(spec, 4, nnx.Rngs(0))


PASSED = {
    "linear": lambda z: np.zeros_like(z),
    "additive": lambda z: z,
    "multiplicative": lambda z: z,
    "split": lambda z: z[..., :4],
}


@pytest.mark.parametrize("kind", PASSED)
def test_fresh_gates_pass_their_input(kind):
    """Or its first half, or zeros."""
    numbers = normal(0, 2, 5, 8)
    z = numbers.astype(np.float32)
    expected = PASSED[kind](z)
    with_zeros = gating_unit(kind, dtype="float32", spatial_init_std=0.0)
    fresh = gating_unit(kind, dtype="float32")
    assert_array_equal(with_zeros(z), expected)
    assert_allclose(fresh(z), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("norm_eps", "gate_norm_eps", "eps"),
    [
        (1e-6, 0, 1e-6),
        (0.1, 0, 0.1),
        (0.1, 0.2, 0.2),
    ],
)
@in_float64
def test_gates_use_their_own_epsilon_or_that_of_the_norms(norm_eps, gate_norm_eps, eps):
    module = randomized(lambda: gating_unit(norm_eps=norm_eps, gate_norm_eps=gate_norm_eps))
    p = params_of(module)
    z = normal(0, 5, 8)
    passed, gated = np.split(z, 2, axis=1)
    normed = layer_norm(p["norm"], gated, eps)
    f = spatial(p["spatial"], normed)
    assert_allclose(module(z[None])[0], passed * f, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [
        ("dense", 5),
        ("direct", 1),
        ("direct", 4),
        ("direct", 5),
        ("fft", 1),
        ("fft", 4),
        ("fft", 5),
    ],
)
@in_float64
def test_projections_agree_with_loops(kind, tokens):
    f = randomized(lambda: projection(**KINDS[kind]))
    z = normal(0, 2, tokens, 3)
    expected = by_example(spatial, params_of(f), z)
    assert_allclose(f(z), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [
        ("dense", "weight", (5, 5)),
        ("direct", "taps", (9,)),
    ],
)
def test_projections_start_near_zero_with_one_bias_per_token(kind, name, shape):
    f = projection(bias=1.0, dtype="float32", **KINDS[kind])
    params = params_of(f)
    assert params.keys() == {name, "bias"}
    assert params[name].shape == shape
    assert_array_equal(params["bias"], np.ones(5))
    numbers = normal(0, 1, 5, 2)
    z = numbers.astype(np.float32)
    assert_allclose(f(z), 1, atol=1e-4)


@pytest.mark.parametrize(("kind", "name"), [("dense", "weight"), ("direct", "taps")])
def test_projections_start_with_the_standard_deviation_of_the_option(kind, name):
    f = projection(length=200, spatial_init_std=0.02, dtype="float32", **KINDS[kind])
    params = params_of(f)
    deviation = params[name].std()
    assert deviation == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_projections_keep_float32_biases(kind):
    f = randomized(lambda: projection(dtype="bfloat16", **KINDS[kind]))
    numbers = normal(0, 2, 5, 3)
    z = jnp.asarray(numbers, jnp.bfloat16)
    y = f(z)
    assert y.dtype == jnp.bfloat16
    assert f.bias.dtype == jnp.float32
    exact_z = np.asarray(z, np.float64)
    expected = by_example(spatial, params_of(f), exact_z)
    found = y.astype(jnp.float32)
    assert_allclose(found, expected, rtol=0.03, atol=0.03)


@in_float64
def test_cropped_projections_have_gradients_for_their_taps_only():
    module = randomized(lambda: projection(length=6))
    state, call = function_of(module)

    def loss(state, z):
        y = call(state, z)
        return (y**2).sum()

    z = normal(0, 1, 4, 2)
    differentiated = quick_jit(jax.grad(loss))
    gradient = differentiated(state, z)
    taps = np.asarray(gradient["taps"])
    unused = taps[[0, 1, 9, 10]]
    assert (unused == 0).all()
    assert (taps[2:9] != 0).all()
    bias = np.asarray(gradient["bias"])
    assert (bias[4:] == 0).all()
    assert (bias[:4] != 0).all()


@in_float64
def test_large_scores_of_tiny_attention_do_not_overflow():
    module = randomized(attention, std=30.0)
    x = 30 * normal(0, 1, 5, 6)
    expected = by_example(tiny_attention, params_of(module), x)
    assert_allclose(module(x), expected, rtol=1e-9)


@pytest.mark.parametrize(("std", "bound"), [(1e-6, 1e-4), (0.0, 0.0)])
def test_tiny_attention_starts_near_zero(std, bound):
    module = attention(dtype="float32", spatial_init_std=std)
    numbers = normal(0, 2, 5, 6)
    x = jnp.asarray(numbers, jnp.float32)
    y = module(x)
    assert y.shape == (2, 5, 4)
    assert np.abs(y).max() <= bound


def depthwise_spec(**fields):
    return small_spec(**{"spatial": "depthwise", "gate_kernel": 4} | fields)


@pytest.mark.slow
def test_depthwise_gates_start_as_published():
    """Near zero, with biases of 1 where f multiplies, so that the gate passes its input."""
    spec = depthwise_spec(length=40, gate_kernel=31, d_ffn=64, dtype="float32")
    gate = SpatialGatingUnit(spec, nnx.Rngs(0))
    params = params_of(gate.spatial)
    taps = params["taps"]
    assert taps.shape == (31, 32)
    assert taps.std() == pytest.approx(1e-6, rel=0.1)
    assert_array_equal(params["bias"], np.ones(32))
    numbers = normal(0, 2, 40, 64)
    z = numbers.astype(np.float32)
    passed = z[..., :32]
    assert_allclose(gate(z), passed, atol=1e-4)


def test_depthwise_encoders_have_the_parameters_counted_by_hand():
    """Two linear layers, two norms, and for each gated channel a kernel and a bias."""
    spec = depthwise_spec(length=40, gate_kernel=31, d_model=16, d_ffn=48, dtype="float32")
    encoder = nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))
    proj_in = 16 * 48 + 48
    proj_out = 24 * 16 + 16
    norms = 2 * 16 + 2 * 24
    kernels = 24 * 31 + 24
    layer = proj_in + proj_out + norms + kernels
    final_norm = 2 * 16
    params = nnx.state(encoder, nnx.Param)
    layers = 3 * layer
    assert count(params) == layers + final_norm
    found = metadata(encoder)
    taps = found["blocks/gate/spatial/taps"]
    assert taps == ParamMetadata((None, "tensor"), True, None, taps.layers)
    bias = found["blocks/gate/spatial/bias"]
    assert bias == ParamMetadata(("tensor",), False, None, bias.layers)


@in_float64
def test_depthwise_gates_support_every_length_with_the_same_parameters():
    """Also more tokens than n; with learned positions at most n."""
    spec = depthwise_spec()
    module = randomized(lambda: GMLPBlock(spec, nnx.Rngs(0)))
    x = normal(0, 1, 12, 6)
    for tokens in (1, 5, 12):
        assert spec.supports_length(tokens)
        prefix = x[:, :tokens]
        y = quick_jit(module)(prefix)
        assert y.shape == (1, tokens, 6)
    with_positions = depthwise_spec(positions="absolute")
    supports = with_positions.supports_length
    supported = [supports(tokens) for tokens in (1, 5, 6)]
    assert supported == [True, True, False]


@pytest.mark.parametrize(
    ("causal", "before", "after"),
    [
        pytest.param(False, 1, 2, id="centered"),
        pytest.param(True, 3, 0, id="causal"),
    ],
)
@in_float64
def test_depthwise_gates_read_only_their_window(causal, before, after):
    spec = depthwise_spec(length=9, causal=causal)
    module = randomized(lambda: GMLPBlock(spec, nnx.Rngs(0)))
    x = jnp.asarray(normal(0, 9, 6))

    @quick_jit
    @jax.jacrev
    def jacobian(x):
        [y] = module(x[None])
        return y

    slopes = np.abs(jacobian(x))
    effect = slopes.max(axis=(1, 3))
    for i, j in np.ndindex(9, 9):
        offset = j - i
        is_read = -before <= offset <= after
        has_effect = effect[i, j] > 0
        assert has_effect == is_read, (i, j)


@pytest.mark.parametrize(
    ("causal", "before", "after"),
    [
        pytest.param(False, 1, 2, id="centered"),
        pytest.param(True, 3, 0, id="causal"),
    ],
)
@in_float64
def test_matrices_of_depthwise_gates_have_the_mean_taps(causal, before, after):
    spec = depthwise_spec(length=9, causal=causal)
    module = randomized(lambda: GMLPBlock(spec, nnx.Rngs(0)))
    spatial_params = params_of(module)["gate"]["spatial"]
    taps = spatial_params["taps"]
    mean_taps = taps.mean(axis=1)
    expected = np.zeros((9, 9))
    for i, j in np.ndindex(9, 9):
        offset = j - i
        if -before <= offset <= after:
            column = offset + before
            expected[i, j] = mean_taps[column]
    matrix = module.spatial_matrix()
    assert_allclose(matrix, expected, atol=1e-12)


def test_kernels_wider_than_the_tokens_are_refused():
    """They would have entries that read no token."""
    assert depthwise_spec(gate_kernel=9).length == 5
    with pytest.raises(ValueError, match="model.gate_kernel is 10, too wide for 5 .* at most 9$"):
        depthwise_spec(gate_kernel=10)
    with pytest.raises(ValueError, match="model.gate_kernel is 6, too wide for 5 .* at most 5$"):
        depthwise_spec(gate_kernel=6, causal=True)
    assert small_spec(gate_kernel=31).spatial == "toeplitz"
