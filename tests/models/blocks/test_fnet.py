import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)

NORMS = pytest.mark.parametrize("norm", ["post", "pre"])


def block(kind=FNetBlock, **fields):
    spec = small_spec(block="fnet" if kind is FNetBlock else "fnet_hybrid", **fields)
    return kind(spec, nnx.Rngs(0))


def jacobian(function, x):
    """[out tokens, out channels, in tokens, in channels] of a function of one sample."""
    return np.asarray(quick_jit(jax.jacrev(lambda x: function(x[None])[0]))(x))


@pytest.mark.smoke
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("tokens", "channels"), [(5, 6), (1, 4), (8, 3), (7, 1)])
@in_float64
def test_the_transform_against_sums(algorithm, tokens, channels):
    x = normal(0, 2, tokens, channels)
    found = quick_jit(lambda x: fourier(x, algorithm))(x)
    np.testing.assert_allclose(found, [reference.fourier(sample) for sample in x], atol=1e-12)


def by_fft(x):
    return fourier(x, "fft")


@in_float64
def test_the_transform_is_its_own_transpose():
    """So is its gradient, which all algorithms share."""
    matrix = jacobian(by_fft, normal(0, 4, 3)).reshape(12, 12)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    by_hand = jacobian(lambda x: ALGORITHMS["matmul"](x), normal(0, 4, 3)).reshape(12, 12)
    np.testing.assert_allclose(by_hand, matrix, atol=1e-12)


@in_float64
def test_twice_the_transform_is_the_input_turned_and_added_to_itself():
    x = normal(1, 1, 4, 3)
    turned = np.roll(x[:, ::-1, ::-1], (1, 1), (1, 2))
    expected = 12 * (x + turned) / 2
    np.testing.assert_allclose(by_fft(by_fft(x)), expected, atol=1e-12)


def test_the_matrices_of_a_long_transform_are_exact_in_float32():
    """Angles are reduced as integers: float32 alone would lose all digits of j k for 5,000
    points."""
    cosines, sines = fnet.dft(5000, jnp.float32)
    for j in (0, 1, 1234, 4999):
        for k in (0, 1, 1234, 4999):
            angle = 2 * np.pi * (j * k % 5000) / 5000
            np.testing.assert_allclose(cosines[j, k], np.cos(angle), atol=1e-7)
            np.testing.assert_allclose(sines[j, k], np.sin(angle), atol=1e-7)


@NORMS
@pytest.mark.parametrize(("kind", "options", "draws"), [
    (FNetBlock, {}, 1), (FNetHybridBlock, {}, 1), (FNetHybridBlock, {"attention_dropout": 0.1}, 2),
])  # fmt: skip
def test_dropout_is_not_for_the_transform(norm, kind, options, draws):
    """As published. The MLP's output has it, and the weights of attention, but not attention's
    output."""
    state, call = function_of(block(kind, norm=norm, dtype="float32", **options))
    x = jnp.ones((3, 5, 6), jnp.float32)
    assert (
        count("random_bits", lambda state, x: call(state, x, LayerRng(keys(0, 3), 0.5)), state, x)
        == draws
    )


def by_matmul(x):
    return fourier(x, "matmul")


def test_a_gradient_costs_one_more_transform():
    x = jnp.ones((2, 5, 6))
    forward = matmul_flops(by_matmul, x)
    assert forward == 2 * 2 * (2 * 5 * 6 * 6 + 2 * 5 * 5 * 6)
    gradient = jax.grad(lambda x: by_matmul(x).sum())
    assert matmul_flops(gradient, x) == 2 * forward


def test_a_gradient_keeps_nothing():
    x = jnp.ones((2, 5, 6))
    _, pullback = jax.vjp(by_matmul, x)
    for leaf in jax.tree.leaves(pullback):
        assert getattr(leaf, "size", 0) < x.size


@pytest.mark.parametrize(("tokens", "channels", "products"), [(8, 16, 4), (512, 16, 0)])
def test_auto_on_this_platform(tokens, channels, products):
    """Products for a small transform, none for a large one: counted in the program for a CPU."""
    transform = jax.jit(lambda x: fourier(x, "auto"))
    text = transform.lower(jnp.ones((1, tokens, channels))).as_text()
    assert text.count("dot_general") == products
    assert ("fft" in text) == (not products)


@pytest.mark.parametrize(
    ("platform", "tokens", "products"), [("tpu", 128, 4), ("tpu", 8192, 0), ("cuda", 128, 0)]
)
def test_auto_on_other_platforms(platform, tokens, products):
    shape = jax.ShapeDtypeStruct((1, tokens, 64), jnp.float32)
    export = jax.export.export(jax.jit(lambda x: fourier(x, "auto")), platforms=[platform])
    text = export(shape).mlir_module()
    assert text.count("stablehlo.dot_general") == products


@NORMS
@pytest.mark.parametrize("attention_layers", [0, 1, 2, 3])
@in_float64
def test_hybrid_encoders_against_numpy(norm, attention_layers):
    """Layer by layer: the transform first, attention in the last layers, and a final norm for
    pre-norm alone."""
    spec = small_spec(block="fnet_hybrid", attention_layers=attention_layers, norm=norm)
    module = randomized(lambda: Encoder(spec, nnx.Rngs(0)))
    p = params_of(module)
    x = normal(0, 5, 6)
    y = quick_jit(module)(x[None])[0]
    stacks = [p["blocks"]] if attention_layers in (0, 3) else list(p["blocks"].values())
    kinds = [False] * (attention_layers < 3) + [True] * (attention_layers > 0)
    assert ["attention" in stack for stack in stacks] == kinds
    for stack in stacks:
        x = reference.encoder(
            {"blocks": stack, "norm": None}, x, lambda p, x: fnet_block(p, x, norm), lambda _, x: x
        )
    np.testing.assert_allclose(
        y, layer_norm(p["norm"], x, 1e-12) if norm == "pre" else x, atol=1e-9
    )
    assert ("norm" in p) == (norm == "pre")


def test_options_that_both_have_alike():
    """Of two parents of a spec, each gives what it has of its own."""
    for name in ("fnet", "fnet_hybrid"):
        spec = small_spec(block=name)
        assert (spec.norm_eps, spec.norm, spec.dft, spec.positions) == (
            1e-12,
            "post",
            "auto",
            "none",
        )
    assert small_spec(block="fnet_hybrid", positions="relative").positions == "relative"


def test_options_that_contradict_each_other():
    with pytest.raises(ValueError, match="model.attention_layers is 4: .*model.layers, 3"):
        small_spec(block="fnet_hybrid", attention_layers=4)
    assert "model.d_model is 6: model.heads, 4" in raised(
        ValueError, small_spec, block="fnet_hybrid", heads=4
    )
