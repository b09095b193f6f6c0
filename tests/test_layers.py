"""The single layers, under the transformations and tools of JAX and Flax."""

import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax import layers
from tests.models.reference import in_float64, normal

TOKENS = 6
LAYERS = ("gate", "toeplitz", "attention", "block")
each_layer = pytest.mark.parametrize("name", LAYERS)


def make(name: str, **options):
    """A layer of 16 channels whose initial spatial weights are not small."""
    options = {"rngs": nnx.Rngs(0), "spatial_init_std": 1.0} | options
    if name == "gate":
        return layers.SpatialGatingUnit(16, TOKENS, **options)
    if name == "toeplitz":
        return layers.ToeplitzLinear(TOKENS, **options)
    if name == "attention":
        return layers.TinyAttention(16, 8, 4, **options)
    return layers.GMLPBlock(16, d_ffn=32, tokens=TOKENS, d_attn=4, **options)


def assert_close(found, expected):
    assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@each_layer
def test_inputs_may_have_any_leading_axes(name):
    layer = make(name)
    numbers = normal(1, 2, 3, TOKENS, 16)
    x = np.float32(numbers)
    y = layer(x)
    channels = 8 if name in ("gate", "attention") else 16
    assert y.shape == (2, 3, TOKENS, channels)
    compiled = jax.jit(layer)
    for i, j in np.ndindex(2, 3):
        alone = compiled(x[i, j])
        assert_close(alone, y[i, j])
    assert_close(compiled(x), y)
    vectorized = jax.vmap(compiled)
    together = vectorized(x[0])
    assert_close(together, y[0])


def sine_loss(name):
    """A smooth function of the state of a layer and a factor of its input, and the state."""
    definition, state = nnx.split(make(name, dtype="float64"))
    x = normal(1, 2, TOKENS, 16)

    def loss(state, factor):
        layer = nnx.merge(definition, state)
        return jnp.sin(layer(factor * x)).sum()

    return loss, state


@each_layer
@in_float64
def test_forward_mode_agrees_with_reverse_mode(name):
    loss, state = sine_loss(name)
    direction = jax.tree.map(lambda leaf: normal(2, *leaf.shape), state)

    def loss_of_state(state):
        return loss(state, 1.0)

    @jax.jit
    def forward(state):
        _, slope = jax.jvp(loss_of_state, (state,), (direction,))
        return slope

    differentiated = jax.jit(jax.grad(loss))
    gradients = differentiated(state, 1.0)
    products = jax.tree.map(np.vdot, gradients, direction)
    expected = sum(jax.tree.leaves(products))
    assert_allclose(forward(state), expected, rtol=1e-9)


@each_layer
@in_float64
def test_second_derivatives_agree(name):
    """Forward over reverse mode, and reverse mode twice."""
    loss, state = sine_loss(name)
    hessian = jax.jit(jax.hessian(loss, argnums=1))
    slope = jax.grad(loss, argnums=1)
    second_slope = jax.jit(jax.grad(slope, argnums=1))
    of_hessian = hessian(state, 1.0)
    of_slopes = second_slope(state, 1.0)
    assert_allclose(of_hessian, of_slopes, rtol=1e-8)


def test_the_gate_is_equation_4():
    rngs = nnx.Rngs(0)
    layer = layers.SpatialGatingUnit(16, TOKENS, rngs=rngs, spatial_init_std=1.0)
    x = np.float32(normal(1, TOKENS, 16))
    exact = np.asarray(x, np.float64)
    u, v = np.split(exact, 2, axis=-1)
    mean = v.mean(-1, keepdims=True)
    variance = v.var(-1, keepdims=True)
    deviation = np.sqrt(variance + 1e-6)
    normed = (v - mean) / deviation
    weight = np.asarray(layer.spatial.weight[...])
    gate = weight @ normed + 1
    expected = u * gate
    assert_allclose(layer(x), expected, rtol=1e-4, atol=1e-5)
    fresh = layers.SpatialGatingUnit(16, TOKENS, rngs=nnx.Rngs(0))
    # near the identity on the first half
    assert_allclose(fresh(x), u, rtol=1e-4, atol=1e-4)


def test_toeplitz_is_one_filter_for_all_positions():
    layer = make("toeplitz")
    w = np.asarray(layer.matrix())
    taps = np.asarray(layer.taps[...])
    for i, j in np.ndindex(TOKENS, TOKENS):
        offset = j - i
        column = TOKENS - 1 + offset
        assert w[i, j] == taps[column]


def test_toeplitz_takes_fewer_tokens():
    x = jnp.ones((4, 3))
    y = make("toeplitz")(x)
    assert y.shape == (4, 3)


def test_causal_toeplitz_matrices_are_lower_triangular():
    matrix = make("toeplitz", causal=True).matrix()
    assert np.all(np.triu(matrix, 1) == 0)
    assert np.any(matrix)


@each_layer
def test_layers_survive_pickle(name):
    layer = make(name)
    x = np.float32(normal(1, 2, TOKENS, 16))
    copy = pickle.loads(pickle.dumps(layer))
    assert_array_equal(copy(x), layer(x))


WIDE = {"force_terminal": False, "width": 200}


@each_layer
def test_layers_are_tabulated(name):
    layer = make(name)
    x = np.float32(normal(1, 2, TOKENS, 16))
    table = nnx.tabulate(layer, x, console_kwargs=WIDE)
    assert type(layer).__name__ in table
    assert "float32[2,6,16]" in table


@each_layer
def test_treescope_renders_layers(name):
    treescope = pytest.importorskip("treescope")
    layer = make(name)
    with warnings.catch_warnings():  # treescope reads deprecated names of NumPy
        warnings.simplefilter("ignore", DeprecationWarning)
        rendered = treescope.render_to_text(layer)
    assert type(layer).__name__ in rendered


def test_whole_models_are_tabulated():
    import gmlp_flax as gf

    sizes = {"image_size": 32, "patch_size": (8, 8), "layers": 2, "d_model": 8, "d_ffn": 16}
    model = gf.create("gmlp_s", classes=2, **sizes)
    images = jnp.ones((1, 32, 32, 3))
    table = nnx.tabulate(model.module, images, console_kwargs=WIDE)
    assert "encoder" in table
    assert "ImageClassifier" in table


class LinenModel(linen.Module):
    """A block between two layers of linen."""

    @linen.compact
    def __call__(self, x):
        block = nnx.bridge.to_linen(layers.GMLPBlock, 16, d_ffn=32, tokens=TOKENS, name="block")
        wide = linen.Dense(16)(x)
        return linen.Dense(1)(block(wide))


@pytest.mark.slow
def test_linen_models_may_have_our_layers():
    model = LinenModel()
    x = np.float32(normal(1, 2, TOKENS, 4))
    key = jax.random.key(0)
    variables = model.init(key, x)
    y = model.apply(variables, x)
    assert y.shape == (2, TOKENS, 1)
    gradients = jax.grad(lambda variables: model.apply(variables, x).sum())(variables)
    params = linen.unbox(gradients)["params"]
    kernel = params["block"]["proj_in"]["kernel"]
    assert kernel.shape == (16, 32)
    assert np.any(kernel)


def odd_d_ffn(rngs):
    layers.GMLPBlock(16, d_ffn=33, tokens=6, rngs=rngs)


def no_length(rngs):
    layers.ToeplitzLinear(0, rngs=rngs)


def fewer_tokens(rngs):
    block = layers.GMLPBlock(16, d_ffn=32, tokens=6, rngs=rngs)
    block(jnp.ones((5, 16)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (odd_d_ffn, "it must be even"),
        (no_length, "length is 0"),
        (fewer_tokens, "was given 5"),
    ],
)
def test_invalid_sizes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(nnx.Rngs(0))
