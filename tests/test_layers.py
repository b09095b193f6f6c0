"""The layers by themselves, under the transformations and tools of JAX and Flax."""

import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from gmlp_flax import layers
from tests.models.reference import in_float64, normal

TOKENS = 6
MADE = {
    "gate": lambda **more: layers.SpatialGatingUnit(
        channels=16, tokens=TOKENS, spatial_init_std=1.0, **more
    ),
    "toeplitz": lambda **more: layers.ToeplitzLinear(TOKENS, spatial_init_std=1.0, **more),
    "attention": lambda **more: layers.TinyAttention(16, 8, 4, spatial_init_std=1.0, **more),
    "block": lambda **more: layers.GMLPBlock(
        16, d_ffn=32, tokens=TOKENS, d_attn=4, spatial_init_std=1.0, **more
    ),
}
each_layer = pytest.mark.parametrize("name", MADE)


def made(name: str, **more):
    return MADE[name](rngs=nnx.Rngs(0), **more)


@each_layer
def test_any_leading_axes(name):
    layer = made(name)
    x = np.float32(normal(1, 2, 3, TOKENS, 16))
    call = jax.jit(layer)
    y = layer(x)
    assert y.shape == (2, 3, TOKENS, 8 if name in ("gate", "attention") else 16)
    for i, j in np.ndindex(2, 3):
        got = call(x[i, j])
        np.testing.assert_allclose(got, y[i, j], rtol=1e-5, atol=1e-5)
    got = jax.vmap(call)(x[0])
    np.testing.assert_allclose(got, y[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(call(x), y, rtol=1e-5, atol=1e-5)


@each_layer
@in_float64
def test_forward_mode_agrees_with_reverse_mode(name):
    definition, state = nnx.split(made(name, dtype="float64"))
    x = normal(1, 2, TOKENS, 16)
    direction = jax.tree.map(lambda leaf: normal(2, *leaf.shape), state)

    def loss(state, x):
        return jnp.sin(nnx.merge(definition, state)(x)).sum()

    @jax.jit
    def both(state, direction):
        _, slope = jax.jvp(lambda state: loss(state, x), (state,), (direction,))
        scaled = lambda factor: loss(state, factor * x)  # noqa: E731
        return (
            slope,
            jax.grad(loss)(state, x),
            jax.hessian(scaled)(1.0),
            jax.grad(jax.grad(scaled))(1.0),
        )

    slope, gradients, forward, reverse = both(state, direction)
    expected = sum(jax.tree.leaves(jax.tree.map(np.vdot, gradients, direction)))
    np.testing.assert_allclose(slope, expected, rtol=1e-9)
    np.testing.assert_allclose(forward, reverse, rtol=1e-8)


def test_the_gate_is_equation_4():
    layer = layers.SpatialGatingUnit(16, TOKENS, rngs=nnx.Rngs(0), spatial_init_std=1.0)
    x = np.float32(normal(1, TOKENS, 16))
    u, v = np.split(np.asarray(x, np.float64), 2, axis=-1)
    mean = v.mean(-1, keepdims=True)
    deviation = np.sqrt(v.var(-1, keepdims=True) + 1e-6)
    normed = (v - mean) / deviation
    weight = np.asarray(layer.spatial.weight[...])
    gate = weight @ normed + 1
    expected = u * gate
    np.testing.assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)
    fresh = layers.SpatialGatingUnit(16, TOKENS, rngs=nnx.Rngs(0))
    # near the identity on the first half
    np.testing.assert_allclose(fresh(x), u, rtol=1e-4, atol=1e-4)


def test_toeplitz_is_one_filter_for_all_positions():
    layer = made("toeplitz")
    w = np.asarray(layer.matrix())
    taps = np.asarray(layer.taps[...])
    for i, j in np.ndindex(TOKENS, TOKENS):
        assert w[i, j] == taps[TOKENS - 1 + j - i]
    assert layer(jnp.ones((4, 3))).shape == (4, 3)  # fewer tokens
    causal = layers.ToeplitzLinear(TOKENS, rngs=nnx.Rngs(0), causal=True, spatial_init_std=1.0)
    assert np.all(np.triu(causal.matrix(), 1) == 0)
    assert np.any(causal.matrix())


@each_layer
def test_tools(name):
    layer = made(name)
    x = np.float32(normal(1, 2, TOKENS, 16))
    got = pickle.loads(pickle.dumps(layer))(x)
    np.testing.assert_array_equal(got, layer(x))
    table = nnx.tabulate(layer, x, console_kwargs={"force_terminal": False, "width": 200})
    assert type(layer).__name__ in table
    assert "float32[2,6,16]" in table
    treescope = pytest.importorskip("treescope")
    with warnings.catch_warnings():  # of NumPy, about names that treescope looks into
        warnings.simplefilter("ignore", DeprecationWarning)
        assert type(layer).__name__ in treescope.render_to_text(layer)


def test_whole_models_are_tabulated():
    import gmlp_flax as gf

    model = gf.create(
        "gmlp_s", classes=2, image_size=32, patch_size=(8, 8), layers=2, d_model=8, d_ffn=16
    )
    table = nnx.tabulate(
        model.module,
        jnp.ones((1, 32, 32, 3)),
        console_kwargs={"force_terminal": False, "width": 200},
    )
    assert "encoder" in table
    assert "ImageClassifier" in table


def test_layers_of_a_linen_model():
    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            block = nnx.bridge.to_linen(layers.GMLPBlock, 16, d_ffn=32, tokens=TOKENS, name="block")
            return linen.Dense(1)(block(linen.Dense(16)(x)))

    x = np.float32(normal(1, 2, TOKENS, 4))
    variables = Model().init(jax.random.key(0), x)
    assert Model().apply(variables, x).shape == (2, TOKENS, 1)
    gradients = jax.grad(lambda variables: Model().apply(variables, x).sum())(variables)
    kernel = linen.unbox(gradients)["params"]["block"]["proj_in"]["kernel"]
    assert kernel.shape == (16, 32)
    assert np.any(kernel)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rngs: layers.GMLPBlock(16, d_ffn=33, tokens=6, rngs=rngs), "it must be even"),
        (lambda rngs: layers.ToeplitzLinear(0, rngs=rngs), "length is 0"),
        (
            lambda rngs: layers.GMLPBlock(16, d_ffn=32, tokens=6, rngs=rngs)(jnp.ones((5, 16))),
            "was given 5",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(nnx.Rngs(0))
