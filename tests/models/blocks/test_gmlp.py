"""The gMLP block and its parts. test_init.py compares whole blocks with numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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

KINDS = {"dense": {"spatial": "dense"}} | {form: {"toeplitz": form} for form in toeplitz.FORMS}


def block(**fields):
    return GMLPBlock(small_spec(**fields), nnx.Rngs(0))


def gating_unit(kind="split", **fields):
    return SpatialGatingUnit(small_spec(gate=kind, **fields), nnx.Rngs(0))


def projection(bias=0.0, **fields):
    return SpatialProjection(small_spec(**fields), bias, nnx.Rngs(0))


def attention(**fields):
    return TinyAttention(small_spec(**{"d_attn": 3} | fields), 4, nnx.Rngs(0))


@pytest.mark.parametrize(
    "kind, expected",
    [("linear", "zero"), ("additive", "z"), ("multiplicative", "z"), ("split", "first half")],
)
def test_a_fresh_gate_passes_its_input(kind, expected):
    z = normal(0, 2, 5, 8).astype(np.float32)
    y = gating_unit(kind, dtype="float32", spatial_init_std=0.0)(z)
    np.testing.assert_array_equal(
        y, {"zero": np.zeros_like(z), "z": z, "first half": z[..., :4]}[expected]
    )
    np.testing.assert_allclose(gating_unit(kind, dtype="float32")(z), y, atol=1e-4)


@pytest.mark.parametrize(
    ("norm_eps", "gate_norm_eps", "eps"), [(1e-6, 0, 1e-6), (0.1, 0, 0.1), (0.1, 0.2, 0.2)]
)
@in_float64
def test_the_epsilon_inside_the_gate(norm_eps, gate_norm_eps, eps):
    """`gate_norm_eps`, or that of the other norms."""
    module = randomized(lambda: gating_unit(norm_eps=norm_eps, gate_norm_eps=gate_norm_eps))
    p = params_of(module)
    z = normal(0, 5, 8)
    f = spatial(p["spatial"], layer_norm(p["norm"], z[:, 4:], eps))
    np.testing.assert_allclose(module(z[None])[0], z[:, :4] * f, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "tokens"), [("dense", 5), *((k, n) for k in ("direct", "fft") for n in (1, 4, 5))]
)
@in_float64
def test_projections_against_loops(kind, tokens):
    f = randomized(lambda: projection(**KINDS[kind]))
    z = normal(0, 2, tokens, 3)
    np.testing.assert_allclose(f(z), [spatial(params_of(f), sample) for sample in z], atol=1e-12)


@pytest.mark.parametrize(
    "kind, shapes", [("dense", {"weight": (5, 5)}), ("direct", {"taps": (9,)})]
)
def test_a_projection_starts_near_zero_with_one_bias_a_token(kind, shapes):
    f = projection(bias=1.0, dtype="float32", **KINDS[kind])
    params = params_of(f)
    assert {name: p.shape for name, p in params.items()} == shapes | {"bias": (5,)}
    assert (params["bias"] == 1).all()
    np.testing.assert_allclose(f(normal(0, 1, 5, 2).astype(np.float32)), 1, atol=1e-4)
    params = params_of(
        projection(length=200, spatial_init_std=0.02, dtype="float32", **KINDS[kind])
    )
    (near_zero,) = (params[name] for name in shapes)
    np.testing.assert_allclose(near_zero.std(), 0.02, rtol=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_projections_in_bfloat16(kind):
    f = randomized(lambda: projection(dtype="bfloat16", **KINDS[kind]))
    z = jnp.asarray(normal(0, 2, 5, 3), jnp.bfloat16)
    assert f(z).dtype == jnp.bfloat16
    assert f.bias.dtype == jnp.float32
    expected = [spatial(params_of(f), np.asarray(sample).astype(np.float64)) for sample in z]
    np.testing.assert_allclose(f(z).astype(jnp.float32), expected, rtol=0.03, atol=0.03)


@in_float64
def test_the_gradient_of_a_cropped_projection_reaches_its_taps_alone():
    state, call = function_of(randomized(lambda: projection(length=6)))
    gradient = quick_jit(jax.grad(lambda state, z: (call(state, z) ** 2).sum()))(
        state, normal(0, 1, 4, 2)
    )
    gradient = jax.tree.map(np.asarray, nnx.to_pure_dict(gradient))
    assert (gradient["taps"][[0, 1, 9, 10]] == 0).all()
    assert (gradient["taps"][2:9] != 0).all()
    assert (gradient["bias"][4:] == 0).all()
    assert (gradient["bias"][:4] != 0).all()


@in_float64
def test_large_scores_of_tiny_attention_do_not_overflow():
    module = randomized(lambda: attention(), std=30.0)
    x = 30 * normal(0, 1, 5, 6)
    np.testing.assert_allclose(module(x)[0], tiny_attention(params_of(module), x[0]), rtol=1e-9)


@pytest.mark.parametrize("std, bound", [(1e-6, 1e-4), (0.0, 0.0)])
def test_tiny_attention_starts_near_zero(std, bound):
    y = attention(dtype="float32", spatial_init_std=std)(
        jnp.asarray(normal(0, 2, 5, 6), jnp.float32)
    )
    assert y.shape == (2, 5, 4)
    assert np.abs(y).max() <= bound


def depthwise_spec(**fields):
    return small_spec(**{"spatial": "depthwise", "gate_kernel": 4} | fields)


def test_a_depthwise_gate_starts_as_published():
    """Near zero, with biases of 1 where f multiplies, so that the gate passes its input."""
    spec = depthwise_spec(length=40, gate_kernel=31, d_ffn=64, dtype="float32")
    gate = SpatialGatingUnit(spec, nnx.Rngs(0))
    params = params_of(gate.spatial)
    assert params["taps"].shape == (31, 32)
    np.testing.assert_allclose(params["taps"].std(), 1e-6, rtol=0.1)
    np.testing.assert_array_equal(params["bias"], np.ones(32))
    z = normal(0, 2, 40, 64).astype(np.float32)
    np.testing.assert_allclose(gate(z), z[..., :32], atol=1e-4)


def test_parameters_of_a_depthwise_encoder_by_hand():
    """Two linear layers, two norms, and for each gated channel a kernel and a bias."""
    spec = depthwise_spec(length=40, gate_kernel=31, d_model=16, d_ffn=48, dtype="float32")
    encoder = nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))
    linear = 16 * 48 + 48 + 24 * 16 + 16
    layer = linear + 2 * 16 + 2 * 24 + 24 * 31 + 24
    assert count(nnx.state(encoder, nnx.Param)) == 3 * layer + 2 * 16
    found = metadata(encoder)
    taps = found["blocks/gate/spatial/taps"]
    assert taps == ParamMetadata((None, "tensor"), True, None, taps.layers)
    bias = found["blocks/gate/spatial/bias"]
    assert bias == ParamMetadata(("tensor",), False, None, bias.layers)


@in_float64
def test_a_depthwise_gate_takes_any_length_without_a_change_of_parameters():
    """Also more tokens than n; with learned positions at most n."""
    spec = depthwise_spec()
    module = randomized(lambda: GMLPBlock(spec, nnx.Rngs(0)))
    x = normal(0, 1, 12, 6)
    for tokens in (1, 5, 12):
        assert spec.supports_length(tokens)
        assert quick_jit(module)(x[:, :tokens]).shape == (1, tokens, 6)
    with_positions = depthwise_spec(positions="absolute")
    assert [with_positions.supports_length(n) for n in (1, 5, 6)] == [True, True, False]


@in_float64
def test_a_depthwise_gate_reads_its_window_alone():
    """Two layers of it read two windows."""
    x = jnp.asarray(normal(0, 9, 6))
    for causal, before, after in ((False, 1, 2), (True, 3, 0)):
        spec = depthwise_spec(length=9, causal=causal)
        module = randomized(lambda spec=spec: GMLPBlock(spec, nnx.Rngs(0)))
        jacobian = quick_jit(jax.jacrev(lambda x, module=module: module(x[None])[0]))(x)
        seen = np.abs(jacobian).max(axis=(1, 3)) > 0
        drawn = module.spatial_matrix()
        taps = params_of(module)["gate"]["spatial"]["taps"]
        for i, j in zip(*np.nonzero(drawn), strict=True):
            np.testing.assert_allclose(drawn[i, j], taps[j - i + before].mean(), atol=1e-12)
        for i, j in np.ndindex(9, 9):
            is_read = -before <= j - i <= after
            assert seen[i, j] == is_read, (i, j)
            assert (drawn[i, j] != 0) == is_read, (i, j)


def test_kernels_wider_than_the_tokens_are_refused():
    """They would have entries that read no token."""
    assert depthwise_spec(gate_kernel=9).length == 5
    with pytest.raises(ValueError, match="model.gate_kernel is 10, too wide for 5 .* at most 9$"):
        depthwise_spec(gate_kernel=10)
    with pytest.raises(ValueError, match="model.gate_kernel is 6, too wide for 5 .* at most 5$"):
        depthwise_spec(gate_kernel=6, causal=True)
    assert small_spec(gate_kernel=31).spatial == "toeplitz"
