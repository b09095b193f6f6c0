import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.layers import (
    ChannelMLP,
    LayerNorm,
    LayerRng,
    LearnedPositions,
    LearnedSegments,
    Linear,
    TokenMLP,
    activation,
    add_branch,
    drop_path,
    dropout,
    moments_in_one_pass,
)
from gmlp_flax.models.layers import layer_norm as plain_layer_norm
from gmlp_flax.models.parameters import POSITIONS
from tests.models.reference import (
    channel_mlp,
    function_of,
    gelu,
    gelu_tanh,
    in_float64,
    keys,
    layer_norm,
    normal,
    params_of,
    program,
    quick_jit,
    randomized,
    small_spec,
    token_mlp,
)

FORMULAS = {"gelu": gelu, "gelu_tanh": gelu_tanh}


@pytest.mark.smoke
@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float64", 1e-12)])
@in_float64
def test_gelu(name, dtype, tolerance):
    x = np.linspace(-5, 5, 2001).astype(dtype)
    y = activation(name, x)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, FORMULAS[name](x), rtol=0, atol=tolerance)


@in_float64
def test_the_gradient_of_gelu():
    """Phi(x) + x phi(x)."""
    x = np.linspace(-5, 5, 101)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    distribution = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])
    gradient = jax.grad(lambda x: activation("gelu", x).sum())
    np.testing.assert_allclose(quick_jit(gradient)(x), distribution + x * density, atol=1e-12)


@pytest.mark.parametrize("name", FORMULAS)
def test_gelu_in_bfloat16_is_the_float32_one_rounded(name):
    """On every finite bfloat16 number."""
    numbers = np.arange(2**16, dtype=np.uint16).view(jnp.bfloat16)
    x = numbers[np.abs(numbers.astype(np.float32)) < 1e12]
    call = jax.jit(lambda x: activation(name, x))
    y = call(x)
    exact = np.asarray(call(x.astype(np.float32)))
    assert x.size > 40_000
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, exact.astype(jnp.bfloat16))


@pytest.mark.parametrize("name", FORMULAS)
def test_gelu_far_out(name):
    value_and_slope = jax.value_and_grad(lambda x: activation(name, x))
    x = np.float32([-1e4, -30.0, 0.0, 30.0, 1e4])
    y, slopes = quick_jit(jax.vmap(value_and_slope))(x)
    np.testing.assert_array_equal(y, [0, 0, 0, 30, 1e4])
    np.testing.assert_array_equal(slopes, [0, 0, 0.5, 1, 1])


def test_linear_starts_glorot_uniform_with_no_bias():
    params = params_of(Linear(small_spec(dtype="float32"), 300, 100, nnx.Rngs(0)))
    bound = math.sqrt(6 / 400)
    assert (params["bias"] == 0).all()
    assert params["kernel"].shape == (300, 100)
    assert 0.99 * bound < np.abs(params["kernel"]).max() <= bound
    np.testing.assert_allclose(params["kernel"].std(), bound / math.sqrt(3), rtol=0.02)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_linear_computes_in_the_type_of_its_input(dtype):
    layer = randomized(lambda: Linear(small_spec(dtype="bfloat16"), 4, 7, nnx.Rngs(0)))
    assert layer.kernel.dtype == layer.bias.dtype == jnp.float32
    y = jax.eval_shape(layer, jax.ShapeDtypeStruct((2, 4), dtype))
    assert y.dtype == dtype


@pytest.mark.parametrize(("own", "eps"), [((), 0.1), ((0.3,), 0.3)])
@in_float64
def test_layer_norm(own, eps):
    """With the epsilon of the spec, or one of its own."""
    norm = randomized(lambda: LayerNorm(small_spec(norm_eps=0.1), 9, *own))
    x = 3 + 2 * normal(0, 4, 9)
    np.testing.assert_allclose(quick_jit(norm)(x), layer_norm(params_of(norm), x, eps), atol=1e-12)


@in_float64
def test_the_derivatives_of_a_layer_norm():
    """As JAX finds them for the formula: gradients, tangents, and gradients of gradients."""
    x = 3 + normal(0, 2, 5, 7)
    scale = normal(1, 7)
    bias = normal(2, 7)
    weights = normal(3, 2, 5, 7)

    def formula(x, scale, bias):
        variance = jnp.square(x - x.mean(-1, keepdims=True)).mean(-1, keepdims=True)
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(variance + 1e-3) * scale + bias

    def derivatives(norm):
        def loss(*args):
            return (jnp.sin(norm(*args)) * weights).sum()

        gradients = jax.grad(loss, argnums=(0, 1, 2))
        tangents = jax.jvp(norm, (x, scale, bias), (weights, bias, scale))
        return (
            gradients(x, scale, bias),
            tangents,
            jax.grad(lambda x: (gradients(x, scale, bias)[0] ** 2).sum())(x),
        )

    found, expected = quick_jit(
        lambda: (
            derivatives(lambda *args: plain_layer_norm(*args, 1e-3, jnp.float64)),
            derivatives(formula),
        )
    )()
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@in_float64
@pytest.mark.parametrize(
    "dtype, offset, tolerance", [("float64", 5, 1e-13), ("float32", 1e4, 2e-4)]
)
def test_mean_and_variance_in_one_pass(dtype, offset, tolerance):
    """As GPUs compute them, also of numbers whose squares lose their differences."""
    x = (offset + normal(0, 4, 512)).astype(dtype)
    mean, variance = quick_jit(moments_in_one_pass)(x)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean[:, 0], exact.mean(-1), rtol=tolerance)
    np.testing.assert_allclose(variance[:, 0], exact.var(-1), rtol=tolerance)


def test_layer_norm_starts_as_a_plain_norm():
    y = quick_jit(LayerNorm(small_spec(dtype="float32"), 64))(
        5 + 7 * normal(0, 3, 64).astype(np.float32)
    )
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(y.var(-1), 1, rtol=1e-5)


@in_float64
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_variance_of_a_constant_in_one_pass_is_0(dtype):
    _, variance = quick_jit(moments_in_one_pass)(np.full((1, 9), 0.1, dtype))
    assert (variance == 0).all()


def test_layer_norm_of_bfloat16_is_computed_in_float32():
    norm = randomized(lambda: LayerNorm(small_spec(dtype="bfloat16"), 256))
    exact = LayerNorm(small_spec(dtype="float32"), 256)
    nnx.update(exact, nnx.state(norm))
    x = jnp.asarray(100 + normal(0, 8, 256), jnp.bfloat16)
    y = jax.jit(lambda x: norm(x))(x)
    expected = jax.jit(lambda x: exact(x))(x.astype(jnp.float32))
    assert y.dtype == jnp.bfloat16
    assert norm.scale.dtype == jnp.float32
    np.testing.assert_array_equal(y, np.asarray(expected).astype(jnp.bfloat16))


def test_layer_norm_of_a_large_mean():
    norm = LayerNorm(small_spec(dtype="float32"), 512)
    x = (1000 + normal(0, 8, 512)).astype(np.float32)
    expected = layer_norm(params_of(norm), x)
    np.testing.assert_allclose(quick_jit(norm)(x), expected, atol=2e-4)


def test_layer_norm_of_a_constant_is_its_bias():
    norm = randomized(lambda: LayerNorm(small_spec(dtype="float32"), 16))
    y = quick_jit(norm)(np.full((2, 16), 3.0, np.float32))
    bias = params_of(norm)["bias"]
    np.testing.assert_allclose(y, np.stack([bias, bias]), atol=1e-6)


@in_float64
def test_parts_and_activation_of_a_linear_layer_change_no_number():
    spec = small_spec()
    x = normal(0, 2, 5, 6)
    plain, made = (
        Linear(spec, 6, 8, nnx.Rngs(0), **options)
        for options in ({}, {"parts": 2, "activation": "gelu"})
    )
    np.testing.assert_allclose(
        *quick_jit(lambda x: (made(x), activation("gelu", plain(x))))(x), atol=1e-12
    )
    # Each part is a product of its own, so a split of the output copies nothing.
    products = [
        e.outvars[0].aval.shape for e in program(made, x) if e.primitive.name == "dot_general"
    ]
    assert products == [(2, 5, 4)] * 2


def test_dropout():
    x = jnp.full((200, 100), 3.0)
    y = np.asarray(quick_jit(lambda: dropout(x, 0.2, keys(0, 200)))())
    zeros = y == 0
    np.testing.assert_allclose(y[~zeros], 3 / 0.8, rtol=1e-6)
    assert abs(zeros.mean() - 0.2) < 4 * np.sqrt(0.16 / x.size)
    assert zeros.mean(0).min() > 0
    assert zeros.mean(0).max() < 0.4
    assert dropout(x, 0.2, None) is x
    assert dropout(x, 0.0, keys(0, 200)) is x
    assert (
        jax.eval_shape(lambda: dropout(x.astype(jnp.bfloat16), 0.2, keys(0, 200))).dtype
        == jnp.bfloat16
    )


def test_the_gradient_of_layer_norm_at_a_constant_is_finite():
    norm = randomized(lambda: LayerNorm(small_spec(dtype="float32"), 16))
    gradient = quick_jit(jax.grad(lambda x: norm(x).sum()))
    assert np.isfinite(gradient(np.full((2, 16), 3.0, np.float32))).all()


def drop_ones(dtype):
    """Ones of 4,000 examples, a branch of which survives with probability 0.6."""
    return drop_path(jnp.ones((4000, 2, 3), dtype), jnp.float32(0.6), keys(0, 4000))


def test_stochastic_depth_drops_whole_branches_of_single_examples():
    y = np.asarray(quick_jit(lambda: drop_ones("float32"))())
    assert (y == y[:, :1, :1]).all()
    dropped = y[:, 0, 0] == 0
    np.testing.assert_allclose(y[~dropped], 1 / 0.6, rtol=1e-5)
    assert abs(dropped.mean() - (1 - 0.6)) < 4 * np.sqrt(0.24 / 4000)


def test_stochastic_depth_keeps_the_type():
    y = jax.eval_shape(lambda: drop_ones("bfloat16"))
    assert y.dtype == jnp.bfloat16


def branch_of_ones(number, **options):
    """Which numbers of a branch survive in 400 examples, by stochastic depth and by dropout."""

    @quick_jit
    def added():
        rng = LayerRng(keys(0, 400), 0.5, jnp.float32(0.5))
        shape = (400, 10, 10)
        return add_branch(jnp.zeros(shape), jnp.ones(shape), rng, number, **options)

    return np.asarray(added()) > 0


def test_branches_draw_with_keys_of_their_own():
    """Of one example neither dropout nor stochastic depth of two branches agree more often than by
    chance."""
    first = branch_of_ones(0)
    second = branch_of_ones(1)
    both = first.any((1, 2)) & second.any((1, 2))
    is_equal = first == second
    assert abs(both.mean() - 0.25) < 0.1
    assert abs(is_equal[both].mean() - 0.5) < 0.02


def positions(**fields):
    return LearnedPositions(small_spec(**fields), nnx.Rngs(0), POSITIONS)


def test_more_tokens_are_refused():
    with pytest.raises(
        ValueError, match="the positions were made for at most 5 tokens and were given 6"
    ):
        positions(dtype="float32")(jnp.ones((1, 6, 6)))


def test_the_type_is_the_input_s_and_the_table_float32():
    module = positions(dtype="bfloat16")
    assert module(jnp.ones((1, 5, 6), jnp.bfloat16)).dtype == jnp.bfloat16
    assert params_of(module)["table"].dtype == np.float32


def test_the_table_starts_with_berts_deviation():
    table = params_of(positions(length=300, d_model=20, dtype="float32"))["table"]
    assert table.shape == (300, 20)
    np.testing.assert_allclose(table.std(), 0.02, rtol=0.05)


def test_a_branch_without_dropout_survives_as_with_it():
    first = branch_of_ones(0)
    whole = branch_of_ones(0, dropped=False)
    np.testing.assert_array_equal(whole.any((1, 2)), first.any((1, 2)))


def test_a_branch_without_keys_is_added():
    one = jnp.ones((400, 10, 10))
    np.testing.assert_array_equal(add_branch(one, one, LayerRng()), 2 * one)
    assert LayerRng().mixing_keys is None


def test_gradients_of_segments_are_summed_in_float32():
    """4,096 equal ones in bfloat16 would stand still at 256."""
    module = LearnedSegments(small_spec(dtype="bfloat16", d_model=1, d_ffn=2, heads=1))
    state, call = function_of(module)
    segments = np.zeros((32, 128), int)
    x = jnp.zeros((32, 128, 1), jnp.bfloat16)
    gradient = jax.jit(jax.grad(lambda state: call(state, x, segments).sum()))(state)
    np.testing.assert_array_equal(params_of(gradient)["table"][:, 0], [4096, 0])


@in_float64
def test_mlps_against_loops():
    """With the other activation: blocks' own tests have gelu."""
    spec = small_spec(activation="gelu_tanh", d_ffn=7, d_spatial=7, block="mixer")
    x = normal(0, 2, 5, 6)
    channels, tokens = (
        randomized(lambda kind=kind: kind(spec, nnx.Rngs(0))) for kind in (ChannelMLP, TokenMLP)
    )
    for module, slow in ((channels, channel_mlp), (tokens, token_mlp)):
        expected = [slow(params_of(module), sample, gelu_tanh) for sample in x]
        np.testing.assert_allclose(quick_jit(module)(x), expected, atol=1e-12)
