"""The gMLP block and its parts. test_init.py compares whole blocks with numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.blocks.gmlp import GMLPBlock, SpatialGatingUnit, SpatialProjection, TinyAttention
from tests.models.blocks.cases import GATES
from tests.models.reference import (
    function_of,
    gate,
    gelu,
    in_float64,
    layer_norm,
    linear,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
    spatial,
    tiny_attention,
)

ATTENTION = pytest.mark.parametrize("d_attn", [0, 3], ids=["gmlp", "amlp"])
KINDS = {"dense": {"spatial": "dense"}, "direct": {"toeplitz": "direct"}, "fft": {"toeplitz": "fft"}}


def block(**fields):
    return GMLPBlock(small_spec(**fields), nnx.Rngs(0))


def gating_unit(kind="split", **fields):
    return SpatialGatingUnit(small_spec(gate=kind, **fields), nnx.Rngs(0))


def projection(bias=0.0, **fields):
    return SpatialProjection(small_spec(**fields), bias, nnx.Rngs(0))


def attention(**fields):
    return TinyAttention(small_spec(**{"d_attn": 3} | fields), 4, nnx.Rngs(0))


def fresh(**fields):
    """A block as it starts, made by one compiled program."""
    state = quick_jit(lambda: nnx.state(block(**fields)))()
    return nnx.merge(nnx.graphdef(nnx.eval_shape(lambda: block(**fields))), state)


def token_jacobian(module, x):
    """Largest entry of each block of the Jacobian: [output token, input token]."""
    jacobian = quick_jit(jax.jacrev(lambda x: module(x[None])[0]))(x)
    return np.abs(jacobian).max(axis=(1, 3))


@ATTENTION
@pytest.mark.parametrize("std, largest", [(1e-6, 1e-4), (0.0, 0.0)])
@in_float64
def test_tokens_of_a_fresh_block_do_not_mix(d_attn, std, largest):
    jacobian = token_jacobian(fresh(d_attn=d_attn, spatial_init_std=std), jnp.asarray(normal(0, 5, 6)))
    diagonal = np.diag(jacobian)
    others = jacobian - np.diag(diagonal)
    assert diagonal.min() > 0.5 and others.max() <= largest * diagonal.min()
    if std:
        assert others[~np.eye(5, dtype=bool)].min() > 0


@ATTENTION
@in_float64
def test_tokens_of_a_trained_block_do_mix(d_attn):
    assert token_jacobian(randomized(lambda: block(d_attn=d_attn)), jnp.asarray(normal(0, 5, 6))).min() > 1e-4


@ATTENTION
@in_float64
def test_a_fresh_block_is_a_feed_forward_network(d_attn):
    """x + V Z1, Z1 the first half of gelu(U norm(x))."""
    module = fresh(d_attn=d_attn, spatial_init_std=0.0)
    p, x = params_of(module), normal(0, 5, 6)
    z = gelu(linear(p["proj_in"], layer_norm(p["norm"], x)))
    y = quick_jit(lambda x: module(x[None])[0])(x)
    np.testing.assert_allclose(y, x + linear(p["proj_out"], z[:, :4]), atol=1e-12)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("attended", [False, True])
@in_float64
def test_gates_against_numpy(kind, attended):
    module, width = randomized(lambda: gating_unit(kind)), small_spec(gate=kind).gate_width
    z, attention = normal(0, 2, 5, 8), normal(1, 2, 5, width) if attended else None
    expected = [gate(params_of(module), z[i], kind, attention[i] if attended else 0) for i in range(2)]
    assert width == (4 if kind == "split" else 8)
    np.testing.assert_allclose(module(z, attention), expected, atol=1e-12)


@pytest.mark.parametrize(
    "kind, expected", [("linear", "zero"), ("additive", "z"), ("multiplicative", "z"), ("split", "first half")]
)
def test_a_fresh_gate_passes_its_input(kind, expected):
    z = normal(0, 2, 5, 8).astype(np.float32)
    y = gating_unit(kind, dtype="float32", spatial_init_std=0.0)(z)
    np.testing.assert_array_equal(y, {"zero": np.zeros_like(z), "z": z, "first half": z[..., :4]}[expected])
    np.testing.assert_allclose(gating_unit(kind, dtype="float32")(z), y, atol=1e-4)


@pytest.mark.parametrize(("norm_eps", "gate_norm_eps", "eps"), [(1e-6, 0, 1e-6), (0.1, 0, 0.1), (0.1, 0.2, 0.2)])
@in_float64
def test_the_epsilon_inside_the_gate(norm_eps, gate_norm_eps, eps):
    """`gate_norm_eps`, or that of the other norms."""
    module = randomized(lambda: gating_unit(norm_eps=norm_eps, gate_norm_eps=gate_norm_eps))
    p, z = params_of(module), normal(0, 5, 8)
    f = spatial(p["spatial"], layer_norm(p["norm"], z[:, 4:], eps))
    np.testing.assert_allclose(module(z[None])[0], z[:, :4] * f, atol=1e-12)


@pytest.mark.parametrize(("kind", "tokens"), [("dense", 5), *((k, n) for k in ("direct", "fft") for n in (1, 4, 5))])
@in_float64
def test_projections_against_loops(kind, tokens):
    f = randomized(lambda: projection(**KINDS[kind]))
    z = normal(0, 2, tokens, 3)
    np.testing.assert_allclose(f(z), [spatial(params_of(f), sample) for sample in z], atol=1e-12)


@pytest.mark.parametrize("kind, shapes", [("dense", {"weight": (5, 5)}), ("direct", {"taps": (9,)})])
def test_a_projection_starts_near_zero_with_one_bias_a_token(kind, shapes):
    f = projection(bias=1.0, dtype="float32", **KINDS[kind])
    params = params_of(f)
    assert {name: p.shape for name, p in params.items()} == shapes | {"bias": (5,)}
    assert (params["bias"] == 1).all()
    np.testing.assert_allclose(f(normal(0, 1, 5, 2).astype(np.float32)), 1, atol=1e-4)
    params = params_of(projection(length=200, spatial_init_std=0.02, dtype="float32", **KINDS[kind]))
    (near_zero,) = (params[name] for name in shapes)
    np.testing.assert_allclose(near_zero.std(), 0.02, rtol=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_projections_in_bfloat16(kind):
    f = randomized(lambda: projection(dtype="bfloat16", **KINDS[kind]))
    z = jnp.asarray(normal(0, 2, 5, 3), jnp.bfloat16)
    assert f(z).dtype == jnp.bfloat16 and f.bias.dtype == jnp.float32
    expected = [spatial(params_of(f), np.asarray(sample).astype(np.float64)) for sample in z]
    np.testing.assert_allclose(f(z).astype(jnp.float32), expected, rtol=0.03, atol=0.03)


@in_float64
def test_the_gradient_of_a_cropped_projection_reaches_its_taps_alone():
    state, call = function_of(randomized(lambda: projection(length=6)))
    gradient = quick_jit(jax.grad(lambda state, z: (call(state, z) ** 2).sum()))(state, normal(0, 1, 4, 2))
    gradient = jax.tree.map(np.asarray, nnx.to_pure_dict(gradient))
    assert (gradient["taps"][[0, 1, 9, 10]] == 0).all() and (gradient["taps"][2:9] != 0).all()
    assert (gradient["bias"][4:] == 0).all() and (gradient["bias"][:4] != 0).all()


@pytest.mark.parametrize("d_attn", [1, 3, 16])
@in_float64
def test_tiny_attention_against_loops(d_attn):
    """With d_attn 16 and large numbers the scale of the scores, d_attn ** -0.5, decides."""
    module = randomized(lambda: attention(d_attn=d_attn), std=1.0)
    x = normal(0, 2, 5, 6)
    np.testing.assert_allclose(module(x), [tiny_attention(params_of(module), sample) for sample in x], atol=1e-12)


@in_float64
def test_large_scores_of_tiny_attention_do_not_overflow():
    module = randomized(lambda: attention(), std=30.0)
    x = 30 * normal(0, 1, 5, 6)
    np.testing.assert_allclose(module(x)[0], tiny_attention(params_of(module), x[0]), rtol=1e-9)


@pytest.mark.parametrize("std, bound", [(1e-6, 1e-4), (0.0, 0.0)])
def test_tiny_attention_starts_near_zero(std, bound):
    y = attention(dtype="float32", spatial_init_std=std)(jnp.asarray(normal(0, 2, 5, 6), jnp.float32))
    assert y.shape == (2, 5, 4) and np.abs(y).max() <= bound
