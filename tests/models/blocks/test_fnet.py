import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

from gmlp_flax.models.blocks import fnet
from gmlp_flax.models.blocks.fnet import ALGORITHMS, FNetBlock, FNetHybridBlock, fourier
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.layers import LayerRng
from gmlp_flax.models.matmul import matmul_flops
from tests.failures import raised
from tests.models import reference
from tests.models.reference import (
    count,
    fnet_block,
    function_of,
    in_float64,
    keys,
    layer_norm,
    layer_of,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)

EITHER_NORM = pytest.mark.parametrize("norm", ["post", "pre"])


def block(kind=FNetBlock, **fields):
    spec = small_spec(block="fnet" if kind is FNetBlock else "fnet_hybrid", **fields)
    return kind(spec, nnx.Rngs(0))


def jacobian(function, x):
    """[out tokens, out channels, in tokens, in channels] of a function of one sample."""

    def of_sample(x):
        batch = function(x[None])
        return batch[0]

    return np.asarray(quick_jit(jax.jacrev(of_sample))(x))


def by_auto(x):
    return fourier(x, "auto")


@pytest.mark.smoke
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("tokens", "channels"), [(5, 6), (1, 4), (8, 3), (7, 1)])
@in_float64
def test_transforms_agree_with_sums(algorithm, tokens, channels):
    x = normal(0, 2, tokens, channels)
    y = quick_jit(lambda x: fourier(x, algorithm))(x)
    expected = [reference.fourier(sample) for sample in x]
    assert_allclose(y, expected, atol=1e-12)


def by_fft(x):
    return fourier(x, "fft")


@in_float64
def test_transforms_are_their_own_transpose():
    """So is the gradient, which all algorithms share."""
    x = normal(0, 4, 3)
    of_fft = jacobian(by_fft, x).reshape(12, 12)
    assert_allclose(of_fft, of_fft.T, atol=1e-12)
    of_products = jacobian(ALGORITHMS["matmul"], x).reshape(12, 12)
    assert_allclose(of_products, of_fft, atol=1e-12)


@in_float64
def test_two_transforms_average_the_input_and_its_reversal():
    x = normal(1, 1, 4, 3)
    flipped = x[:, ::-1, ::-1]
    reversed_ = np.roll(flipped, (1, 1), (1, 2))
    expected = 12 * (x + reversed_) / 2
    twice = by_fft(by_fft(x))
    assert_allclose(twice, expected, atol=1e-12)


@pytest.mark.slow
def test_matrices_of_long_transforms_are_exact_in_float32():
    """Angles are reduced as integers: float32 alone would lose all digits of j k for 5,000
    points."""
    size = 5000
    cosines, sines = fnet.dft(size, jnp.float32)
    points = (0, 1, 1234, 4999)
    for j, k in itertools.product(points, repeat=2):
        remainder = j * k % size
        turns = remainder / size
        angle = 2 * np.pi * turns
        cosine = np.cos(angle)
        assert_allclose(cosines[j, k], cosine, atol=1e-7)
        sine = np.sin(angle)
        assert_allclose(sines[j, k], sine, atol=1e-7)


@EITHER_NORM
@pytest.mark.parametrize(
    ("kind", "options", "draws"),
    [
        pytest.param(FNetBlock, {}, 1, id="fnet"),
        pytest.param(FNetHybridBlock, {}, 1, id="fnet_hybrid"),
        pytest.param(FNetHybridBlock, {"attention_dropout": 0.1}, 2, id="attention_dropout"),
    ],
)
def test_transforms_have_no_dropout(norm, kind, options, draws):
    """As published. The MLP's output has it, and the weights of attention, but not attention's
    output."""
    module = block(kind, norm=norm, dtype="float32", **options)
    state, call = function_of(module)

    def train(state, x):
        rng = LayerRng(keys(0, 3), 0.5)
        return call(state, x, rng)

    x = jnp.ones((3, 5, 6), jnp.float32)
    assert count("random_bits", train, state, x) == draws


def by_matmul(x):
    return fourier(x, "matmul")


def test_gradients_cost_one_more_transform():
    x = jnp.ones((2, 5, 6))
    forward = matmul_flops(by_matmul, x)
    over_channels = 2 * 5 * 6 * 6
    over_tokens = 2 * 5 * 5 * 6
    assert forward == 2 * 2 * (over_channels + over_tokens)
    gradient = jax.grad(lambda x: by_matmul(x).sum())
    assert matmul_flops(gradient, x) == 2 * forward


def test_gradients_store_no_activations():
    x = jnp.ones((2, 5, 6))
    _, pullback = jax.vjp(by_matmul, x)
    for leaf in jax.tree.leaves(pullback):
        assert getattr(leaf, "size", 0) < x.size


@pytest.mark.parametrize(
    ("tokens", "channels", "products"),
    [
        pytest.param(8, 16, 4, id="small"),
        pytest.param(512, 16, 0, id="large"),
    ],
)
def test_cpus_use_products_for_small_transforms(tokens, channels, products):
    x = jnp.ones((1, tokens, channels))
    lowered = jax.jit(by_auto).lower(x)
    text = lowered.as_text()
    assert text.count("dot_general") == products
    uses_fft = products == 0
    assert ("fft" in text) == uses_fft


@pytest.mark.parametrize(
    ("platform", "tokens", "products"),
    [
        ("tpu", 128, 4),
        ("tpu", 8192, 0),
        ("cuda", 128, 0),
    ],
)
def test_tpus_use_products_for_short_transforms(platform, tokens, products):
    shape = jax.ShapeDtypeStruct((1, tokens, 64), jnp.float32)
    jitted = jax.jit(by_auto)
    export = jax.export.export(jitted, platforms=[platform])
    text = export(shape).mlir_module()
    assert text.count("stablehlo.dot_general") == products


@EITHER_NORM
@pytest.mark.parametrize("attention_layers", [0, 1, 2, 3])
@in_float64
def test_hybrid_encoders_agree_with_numpy(norm, attention_layers):
    """Layer by layer: the transform first, attention in the last layers. Only pre-norm encoders
    have a final norm."""
    spec = small_spec(block="fnet_hybrid", attention_layers=attention_layers, norm=norm)
    module = randomized(lambda: Encoder(spec, nnx.Rngs(0)))
    p = params_of(module)
    x = normal(0, 5, 6)
    batch = x[None]
    y = quick_jit(module)(batch)[0]
    if attention_layers == 0:
        stacks = [p["blocks"]]
        have_attention = [False]
    elif attention_layers == 3:
        stacks = [p["blocks"]]
        have_attention = [True]
    else:
        stacks = list(p["blocks"].values())
        have_attention = [False, True]
    assert ["attention" in stack for stack in stacks] == have_attention
    for stack in stacks:
        layers = len(stack["mlp_norm"]["scale"])
        for layer in range(layers):
            params = layer_of(stack, layer)
            x = fnet_block(params, x, norm)
    if norm == "pre":
        x = layer_norm(p["norm"], x, 1e-12)
    assert_allclose(y, x, atol=1e-9)
    assert ("norm" in p) == (norm == "pre")


@pytest.mark.parametrize("name", ["fnet", "fnet_hybrid"])
def test_both_blocks_have_the_same_defaults(name):
    """A hybrid's spec, which has two parents, takes these from FNet's."""
    spec = small_spec(block=name)
    assert spec.norm_eps == 1e-12
    assert spec.norm == "post"
    assert spec.dft == "auto"
    assert spec.positions == "none"


def test_hybrids_may_have_relative_positions():
    spec = small_spec(block="fnet_hybrid", positions="relative")
    assert spec.positions == "relative"


def test_contradictory_options_are_refused():
    with pytest.raises(ValueError, match="model.attention_layers is 4: .*model.layers, 3"):
        small_spec(block="fnet_hybrid", attention_layers=4)
    message = raised(ValueError, small_spec, block="fnet_hybrid", heads=4)
    assert "model.d_model is 6: model.heads, 4" in message
