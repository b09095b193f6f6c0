import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.blocks import fnet
from gmlp_flax.models.blocks.fnet import ALGORITHMS, FNetBlock, FNetHybridBlock, fourier
from gmlp_flax.models.encoder import Encoder, Residual
from gmlp_flax.models.layers import split_keys
from gmlp_flax.planning.flops import matmul_flops
from tests.models import reference
from tests.models.blocks.calls import add, branches
from tests.models.reference import (
    fnet_block,
    in_float64,
    keys,
    layer_norm,
    multi_head_attention,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)

NORMS = pytest.mark.parametrize("norm", ["post", "pre"])
HYBRID = {"block": "fnet_hybrid", "attention_layers": 1}


def block(kind=FNetBlock, **fields):
    return kind(
        small_spec(**{"block": {FNetBlock: "fnet", FNetHybridBlock: "fnet_hybrid"}[kind]} | fields), nnx.Rngs(0)
    )


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


@in_float64
def test_the_transform_is_its_own_transpose():
    """So is its gradient, which all algorithms share; and twice the transform is x, turned and added to itself."""
    found = jacobian(lambda x: fourier(x, "fft"), normal(0, 4, 3)).reshape(12, 12)
    np.testing.assert_allclose(found, found.T, atol=1e-12)
    by_hand = jacobian(lambda x: ALGORITHMS["matmul"](x), normal(0, 4, 3)).reshape(12, 12)
    np.testing.assert_allclose(found, by_hand, atol=1e-12)
    x = normal(1, 1, 4, 3)
    turned = np.roll(x[:, ::-1, ::-1], (1, 1), (1, 2))
    np.testing.assert_allclose(fourier(fourier(x, "fft"), "fft"), 12 * (x + turned) / 2, atol=1e-12)


def test_the_matrices_of_a_long_transform_are_exact_in_float32():
    """Angles are reduced as integers: float32 alone would lose all digits of j k for 5,000 points."""
    cosines, sines = fnet.dft(5000, jnp.float32)
    places = np.array([0, 1, 1234, 4999])
    turns = np.multiply.outer(places.astype(object), places.astype(object)) % 5000
    angles = 2 * np.pi * turns.astype(float) / 5000
    np.testing.assert_allclose(cosines[places[:, None], places], np.cos(angles), atol=1e-7)
    np.testing.assert_allclose(sines[places[:, None], places], np.sin(angles), atol=1e-7)


@NORMS
@pytest.mark.parametrize(("kind", "dropped"), [(FNetBlock, 0.0), (FNetHybridBlock, 0.5)])
@in_float64
def test_dropout_is_not_for_the_transform(norm, kind, dropped):
    """As published. Attention's output in its place has it, and the MLP's."""
    spec = small_spec(block="fnet" if kind is FNetBlock else "fnet_hybrid", norm=norm, dropout=0.5, d_model=48)
    layer = randomized(lambda: kind(spec, nnx.Rngs(0)))
    residual, shares = Residual(spec, jnp.float32(1), split_keys(keys(1, 3), 4)), []

    def spy(shortcut, branch):
        added = residual(shortcut, branch)
        shares.append(float(jnp.isclose(added, shortcut, rtol=0, atol=1e-12).mean()))
        return added

    layer(normal(0, 3, 5, 48), spy)
    assert shares == [pytest.approx(dropped, abs=0.06), pytest.approx(0.5, abs=0.06)]


def test_a_gradient_costs_one_more_transform_and_keeps_nothing():
    x = jnp.ones((2, 5, 6))
    forward = matmul_flops(lambda x: fourier(x, "matmul"), x)
    assert forward == 2 * 2 * (2 * 5 * 6 * 6 + 2 * 5 * 5 * 6)
    assert matmul_flops(jax.grad(lambda x: fourier(x, "matmul").sum()), x) == 2 * forward
    _, pullback = jax.vjp(lambda x: fourier(x, "matmul"), x)
    assert not [leaf for leaf in jax.tree.leaves(pullback) if getattr(leaf, "size", 0) >= x.size]


@pytest.mark.parametrize(("tokens", "channels", "products"), [(8, 16, 4), (512, 16, 0)])
def test_auto_on_this_platform(tokens, channels, products):
    """Products for a small transform, none for a large one: counted in the program for a CPU."""
    text = jax.jit(lambda x: fourier(x, "auto")).lower(jnp.ones((1, tokens, channels))).as_text()
    assert text.count("dot_general") == products and ("fft" in text) == (not products)


@pytest.mark.parametrize(("platform", "tokens", "products"), [("tpu", 128, 4), ("tpu", 8192, 0), ("cuda", 128, 0)])
def test_auto_on_other_platforms(platform, tokens, products):
    shape = jax.ShapeDtypeStruct((1, tokens, 64), jnp.float32)
    exported = jax.export.export(jax.jit(lambda x: fourier(x, "auto")), platforms=[platform])(shape)
    assert exported.mlir_module().count("stablehlo.dot_general") == products


@pytest.mark.smoke
@NORMS
@pytest.mark.parametrize("kind", [FNetBlock, FNetHybridBlock])
@in_float64
def test_against_numpy(norm, kind):
    module = randomized(lambda: block(kind, norm=norm))
    x = normal(0, 2, 5, 6)
    expected = [fnet_block(params_of(module), sample, norm) for sample in x]
    np.testing.assert_allclose(quick_jit(lambda x: module(x, add))(x), expected, atol=1e-10)


@in_float64
def test_branches_of_a_post_norm_block():
    """Each starts from the norm of the sum before it."""
    module, x = randomized(block), normal(0, 1, 5, 6)
    y, [(first, mixed), (second, channels)] = branches(module, x)
    p = params_of(module)
    np.testing.assert_allclose(first, x)
    np.testing.assert_allclose(second[0], layer_norm(p["mixing_norm"], x[0] + mixed[0], 1e-12), atol=1e-12)
    np.testing.assert_allclose(y[0], layer_norm(p["mlp_norm"], second[0] + channels[0], 1e-12), atol=1e-12)


@NORMS
@in_float64
def test_a_fresh_block_depends_on_every_input_token(norm):
    """Through the cosine of each pair of places; the fresh MLP adds nothing across tokens."""
    module = block(norm=norm)
    blocks = np.abs(jacobian(lambda x: module(x, add), normal(0, 5, 6))).max(axis=(1, 3))
    assert blocks.min() > 1e-3 * blocks.max()


@in_float64
def test_before_its_norm_a_fresh_mixing_branch_is_linear_and_the_same_for_all_inputs():
    """Its Jacobian is the matrix of cosines: entry (i, c), (j, e) is cos 2 pi (i j / n + c e / d) / sqrt(n d)."""
    module = block(norm="pre")
    found = jacobian(lambda x: module.mix(x, None, None), normal(0, 5, 6))
    i, c, j, e = np.indices((5, 6, 5, 6))
    np.testing.assert_allclose(found, np.cos(2 * np.pi * (i * j / 5 + c * e / 6)) / 30**0.5, atol=1e-12)


def test_the_pre_norm_transform_keeps_the_scale():
    """Of normal numbers: the real part holds half of the squares. As published, sqrt(n d / 2) times as much."""
    x = jnp.asarray(normal(0, 2, 64, 128), jnp.float32)
    for norm, expected in (("pre", 0.5**0.5), ("post", (64 * 128 / 2) ** 0.5)):
        module = block(norm=norm, dtype="float32", length=64, d_model=128)
        assert abs(module.mix(x, None, None).std() / expected - 1) < 0.05


@pytest.mark.parametrize("tokens", [1, 3, 5, 9])
@in_float64
def test_other_lengths(tokens):
    """Another transform at each length. With a table of positions, up to its rows."""
    module = randomized(block)
    x = normal(0, tokens, 6)
    y = quick_jit(lambda x: module(x, add))(x[None])[0]
    np.testing.assert_allclose(y, fnet_block(params_of(module), x), atol=1e-10)
    assert FNetBlock.supports_length(small_spec(block="fnet"), tokens)
    assert FNetBlock.supports_length(small_spec(block="fnet", positions="absolute"), tokens) == (tokens <= 5)


@NORMS
@pytest.mark.parametrize("attention_layers", [0, 1, 2, 3])
@in_float64
def test_hybrid_encoders_against_numpy(norm, attention_layers):
    """Layer by layer: the transform first, attention in the last layers, and a final norm for pre-norm alone."""
    spec = small_spec(block="fnet_hybrid", attention_layers=attention_layers, norm=norm)
    module = randomized(lambda: Encoder(spec, nnx.Rngs(0)))
    p, x = params_of(module), normal(0, 5, 6)
    y = quick_jit(module)(x[None])[0]
    stacks = [p["blocks"]] if attention_layers in (0, 3) else list(p["blocks"].values())
    assert ["attention" in stack for stack in stacks] == [False] * (attention_layers < 3) + [True] * (
        attention_layers > 0
    )
    for stack in stacks:
        x = reference.encoder({"blocks": stack, "norm": None}, x, lambda p, x: fnet_block(p, x, norm), lambda _, x: x)
    np.testing.assert_allclose(y, layer_norm(p["norm"], x, 1e-12) if norm == "pre" else x, atol=1e-9)
    assert ("norm" in p) == (norm == "pre")


@in_float64
def test_attention_of_a_hybrid_ignores_padding():
    module, x = randomized(lambda: block(FNetHybridBlock)), normal(0, 1, 5, 6)
    seen = jnp.arange(5)[None] < 3
    call = quick_jit(lambda x: module(x, add, seen))
    other = np.where(np.arange(5)[:, None] < 3, x, 7.0)
    np.testing.assert_allclose(call(x)[:, :3], call(other)[:, :3], atol=1e-12)
    p = params_of(module)
    scores = module.attention_scores(jnp.asarray(x))
    assert scores.shape == (1, 3, 5, 5)
    short = multi_head_attention(p["attention"], x[0, :3], 3, 5)
    np.testing.assert_allclose(module.mix(jnp.asarray(x), seen, None)[0, :3], short, atol=1e-10)


def test_parameters():
    params = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: block(dtype="float32")), nnx.Param))
    norm = {"scale": (6,), "bias": (6,)}
    assert jax.tree.map(lambda p: p.shape, params) == {
        "mixing_norm": norm,
        "mlp_norm": norm,
        "mlp": {"proj_in": {"kernel": (6, 8), "bias": (8,)}, "proj_out": {"kernel": (8, 6), "bias": (6,)}},
    }


def test_options_that_both_have_alike():
    """Of two parents of a spec, each gives what it has of its own."""
    for name in ("fnet", "fnet_hybrid"):
        spec = small_spec(block=name)
        assert (spec.norm_eps, spec.norm, spec.dft, spec.positions) == (1e-12, "post", "auto", "none")
    assert small_spec(block="fnet_hybrid", positions="relative").positions == "relative"


def test_options_that_contradict_each_other():
    with pytest.raises(ValueError, match="model.attention_layers is 4: expected at most model.layers, 3"):
        small_spec(block="fnet_hybrid", attention_layers=4)
    with pytest.raises(ValueError, match="model.d_model is 6: model.heads, 4, must divide it"):
        small_spec(block="fnet_hybrid", heads=4)
    with pytest.raises(ValueError, match="model.dft is 'dct': expected one of auto, matmul, fft"):
        small_spec(block="fnet", dft="dct")
