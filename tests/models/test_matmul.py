import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models import matmul, toeplitz
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.matmul import matmul_flops, over_channels, over_tokens
from tests.models.reference import count, function_of, in_float64, normal, quick_jit, small_spec

A = jnp.ones((3, 4))
B = jnp.ones((4, 5))
ONE = 2 * 3 * 4 * 5
PLATFORMS = ("cpu", "cuda", "tpu")
PRODUCTS = pytest.mark.parametrize(
    "product, formula, shapes",
    [
        pytest.param(matmul.over_channels, "bni,io->bno", ((2, 3, 4), (4, 5)), id="over_channels"),
        pytest.param(matmul.over_tokens, "ij,bjc->bic", ((3, 4), (2, 4, 5)), id="over_tokens"),
    ],
)


AXES = ((), (3,), (2, 3, 2))  # before those of a product; none of a single example


@pytest.fixture(params=["cpu", "default"])
def order(request, monkeypatch):
    """Runs a test with each platform's order of the products, both on this machine."""

    def chosen(*args, **branches):
        branch = branches[request.param]
        return branch(*args)

    monkeypatch.setattr(jax.lax, "platform_dependent", chosen)


def squares(product):
    """A scalar function whose gradient needs the output of the product."""

    def sum_of_squares(left, right):
        y = product(left, right)
        return (y**2).sum()

    return sum_of_squares


def assert_close(found, wanted, **tolerance):
    """Compares the arrays of two trees."""

    def compare(a, b):
        np.testing.assert_allclose(a, b, **tolerance)

    jax.tree.map(compare, found, wanted)


@pytest.mark.smoke
@pytest.mark.parametrize(
    "product, formula, shapes",
    [(matmul.over_channels, "...i,io->...o", ((*axes, 4), (4, 5))) for axes in AXES]
    + [(matmul.over_tokens, "ij,...jc->...ic", ((3, 4), (*axes, 4, 5))) for axes in AXES],
)
@in_float64
def test_values_and_gradients_are_einsums(order, product, formula, shapes):
    left, right = (normal(seed, *shape) for seed, shape in enumerate(shapes))
    expected = np.einsum(formula, left, right)

    slope = normal(2, *expected.shape)

    def einsum(left, right):
        return jnp.einsum(formula, left, right)

    def value_and_gradients(function):
        y, pullback = jax.vjp(function, left, right)
        return y, pullback(slope)

    def both():
        return value_and_gradients(product), value_and_gradients(einsum)

    found, wanted = quick_jit(both)()
    value, _ = found
    np.testing.assert_allclose(value, expected, atol=1e-13)
    assert_close(found, wanted, atol=1e-13)


@PRODUCTS
@in_float64
def test_forward_mode_and_second_derivatives(order, product, formula, shapes):
    left, right = (normal(seed, *shape) for seed, shape in enumerate(shapes))
    tangents = tuple(normal(seed + 2, *shape) for seed, shape in enumerate(shapes))

    def einsum(left, right):
        return jnp.einsum(formula, left, right)

    def slopes(function):
        def along_tangents(factor):
            return jax.jvp(function, (left * factor, right), tangents)

        one = along_tangents(1.0)
        many = jax.vmap(along_tangents)(jnp.arange(3.0))
        second = jax.hessian(function, argnums=(0, 1))
        return one, many, second(left, right)

    def both():
        return slopes(squares(product)), slopes(squares(einsum))

    found, wanted = quick_jit(both)()
    assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("shape", [(8,), (128, 1), (128, 8), (1,)])
def test_a_biass_gradient_is_summed_in_float32(shape):
    """Ones of 256 examples: a sum in bfloat16 would stand still at 256 times what one step of it
    can hold."""
    x = jnp.zeros((256, 128, 8), jnp.bfloat16)
    bias = jnp.full(shape, 0.5, jnp.float32)

    @jax.jit
    def both(x, bias):
        y, pullback = jax.vjp(matmul.add_bias, x, bias)
        return y, *pullback(jnp.ones_like(y))

    y, d_x, d_bias = both(x, bias)
    assert y.dtype == jnp.bfloat16
    assert d_x.dtype == jnp.bfloat16
    assert d_bias.dtype == jnp.float32
    assert np.all(y == 0.5)
    np.testing.assert_array_equal(d_x, 1)
    np.testing.assert_array_equal(d_bias, np.full(shape, x.size / bias.size))


@PRODUCTS
def test_types_stay(order, product, formula, shapes):
    left, right = (jnp.ones(shape, jnp.bfloat16) for shape in shapes)

    def both(*given):
        y, pullback = jax.vjp(product, *given)
        return y, *pullback(y)

    y, d_left, d_right = jax.eval_shape(both, left, right)
    assert y.dtype == jnp.bfloat16
    assert d_left.dtype == jnp.bfloat16
    assert d_right.dtype == jnp.bfloat16


def test_gradients_in_bfloat16_are_summed_over_a_batch_in_float32(order):
    """1,024 equal examples, whose sum would stand still at 256."""
    ones = jnp.ones((1024, 2, 3), jnp.bfloat16)

    @jax.jit
    @jax.grad
    def gradient(weight):
        return matmul.over_tokens(weight, ones).sum()

    d_weight = gradient(jnp.zeros((2, 2), jnp.bfloat16))
    np.testing.assert_array_equal(np.float32(d_weight), np.full((2, 2), 3 * 1024))


@pytest.mark.parametrize(
    "product, shapes", [(matmul.over_channels, (4, 4)), (matmul.over_tokens, (3, 3))]
)
def test_a_policy_on_the_name_keeps_every_product(product, shapes):
    """Two products whose outputs the backward pass needs: 2 forward, 4 backward, and 2 more if
    recomputed."""
    weight = jnp.ones(shapes)
    x = jnp.ones((2, 3, 4))
    is_over_channels = product is matmul.over_channels
    policies = jax.checkpoint_policies

    def chain(weight, x):
        for _ in range(2):
            y = product(x, weight) if is_over_channels else product(weight, x)
            x = jnp.sin(y)
        return x.sum()

    def dots(function):
        gradient = jax.grad(function, argnums=(0, 1))
        return count("dot_general", gradient, weight, x)

    def dots_with(policy):
        return dots(jax.checkpoint(chain, policy=policy))

    assert dots(chain) == 6
    assert dots_with(policies.save_only_these_names(matmul.NAME)) == 6
    assert dots_with(policies.save_only_these_names("another name")) == 8
    assert dots_with(policies.nothing_saveable) == 8


def lowered(function, platform, *args):
    """The program handed to a platform's compiler; no such device is needed."""
    traced = jax.jit(function).trace(*args)
    program = traced.lower(lowering_platforms=(platform,))
    return program.as_text()


@PRODUCTS
@pytest.mark.parametrize("platform", PLATFORMS)
def test_one_branch_is_lowered(platform, product, formula, shapes):
    """Of each of the three products; a CPU's two by W repeat it for each sample, and all of
    NVIDIA's GPUs."""
    left, right = (jnp.ones(shape) for shape in shapes)
    gradient = jax.grad(squares(product), argnums=(0, 1))
    text = lowered(gradient, platform, left, right)
    assert text.count("stablehlo.dot_general") == 3
    repeated = 0
    if product is matmul.over_tokens:
        repeated = {"cpu": 2, "cuda": 3, "tpu": 0}[platform]
    assert text.count("batching_dims") == repeated


def scanned(a, b):
    """Seven times the product, each of them computed."""

    def add_product(total, _):
        return total + a @ b, None

    total, _ = jax.lax.scan(add_product, jnp.zeros((3, 5)), None, length=7)
    return total


@pytest.mark.parametrize("function, expected", [
    pytest.param(lambda a, b: a @ b, ONE, id="product"),
    pytest.param(lambda a, b: a + 1, 0, id="no product"),
    pytest.param(lambda a, b: (a @ b) @ b.T, ONE + 2 * 3 * 5 * 4, id="two"),
    pytest.param(jax.jit(lambda a, b: jax.jit(jnp.matmul)(a, b)), ONE, id="nested jit"),
    pytest.param(scanned, 7 * ONE, id="scan"),
    pytest.param(lambda a, b: scanned(a, b) @ b.T + a, 7 * ONE + 2 * 3 * 5 * 4, id="after a scan"),
    pytest.param(jax.vmap(lambda row, b: row @ b, in_axes=(0, None)), ONE, id="vmap"),
    pytest.param(over_channels, ONE, id="over channels"),
    pytest.param(lambda a, b: over_tokens(a, b[None]), ONE, id="over tokens"),
    pytest.param(jax.checkpoint(lambda a, b: a @ b), ONE, id="checkpoint"),
])  # fmt: skip
def test_counts(function, expected):
    assert matmul_flops(function, A, B) == expected


def test_einsum_over_two_axes_and_a_batch():
    a = jax.ShapeDtypeStruct((2, 3, 4, 5), jnp.float32)
    b = jax.ShapeDtypeStruct((2, 4, 5, 6), jnp.float32)

    def product(a, b):
        return jnp.einsum("bijk,bjkl->bil", a, b)

    assert matmul_flops(product, a, b) == 2 * 2 * 3 * 6 * 4 * 5


@pytest.mark.parametrize("product", [over_channels, over_tokens])
def test_a_gradient_costs_two_more_products(product):
    weight = jnp.ones((6, 6))
    x = jnp.ones((2, 6, 6))
    args = (x, weight) if product is over_channels else (weight, x)
    forward = matmul_flops(product, *args)
    assert forward == 2 * 2 * 6 * 6 * 6
    gradient = jax.grad(squares(product), argnums=(0, 1))
    assert matmul_flops(gradient, *args) == 3 * forward


def traceable(**fields):
    """An encoder's state, of shapes alone, and its function."""
    spec = small_spec(dtype="float32", **fields)
    encoder = nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))
    return function_of(encoder)


@pytest.mark.parametrize("remat", ["none", "matmuls", "full"])
def test_an_encoder(remat):
    """Per layer and token: U, W and V; n 5, d_model 6, d_ffn 8. Full remat repeats U and W."""
    state, call = traceable(remat=remat)
    x = jnp.ones((2, 5, 6))
    of_every_token = 3 * 2 * (2 * 5)
    forward = of_every_token * (6 * 8 + 5 * 4 + 4 * 6)
    assert matmul_flops(call, state, x) == forward
    again = 0
    if remat == "full":
        again = of_every_token * (6 * 8 + 5 * 4)
    gradient = jax.grad(lambda state, x: call(state, x).sum(), argnums=(0, 1))
    assert matmul_flops(gradient, state, x) == 3 * forward + again


@pytest.mark.parametrize("fields, layer", [
    # Models of others are counted in tests/paper/test_published.py. Per token of 5: values, output,
    # mix and the MLP.
    ({"block": "transformer", "heads": 3, "positions": "relative_only"}, 6 * 12 + 5 * 6 + 2 * 6 * 8),
    # The transform's real and imaginary parts over channels and over tokens, and the MLP; by FFT
    # the MLP alone.
    ({"block": "fnet", "dft": "matmul"}, 2 * 36 + 2 * 5 * 6 + 2 * 6 * 8), ({"block": "fnet", "dft": "fft"}, 2 * 6 * 8),
    # Values, output, mix and MLP; then the logits.
    ({"block": "synthesizer", "synthesizer": "random+attention"}, 2 * 36 + 5 * 6 + 2 * 6 * 8 + 2 * 36 + 5 * 6),
])  # fmt: skip
def test_other_blocks(fields, layer):
    state, call = traceable(**fields)
    assert matmul_flops(call, state, jnp.ones((2, 5, 6))) == 3 * 2 * (2 * 5) * layer


def test_the_fft_is_not_a_matrix_product():
    state, call = traceable(toeplitz="fft")
    assert matmul_flops(call, state, jnp.ones((2, 5, 6))) == 3 * 2 * (2 * 5) * (6 * 8 + 4 * 6)


def test_blocks_have_fewer_operations_than_the_matrix():
    n = 16384
    block = toeplitz.BAND
    taps = jnp.ones(2 * n - 1)
    x = jnp.ones((2, n, 64))
    direct = matmul_flops(toeplitz.FORMS["direct"], taps, x)
    blocked = matmul_flops(toeplitz.FORMS["blocked"], taps, x)
    assert direct == 2 * n**2 * 2 * 64
    # Complex products of all blocks, and two transforms over the blocks; what is made of taps is
    # small.
    of_blocks = 8 * n * (block + n / block) * 2 * 64
    assert 1 <= blocked / of_blocks < 1.1
    assert blocked < direct / 12
