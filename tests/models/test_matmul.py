import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models import matmul, toeplitz
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.matmul import matmul_flops, over_channels, over_tokens
from tests.models.reference import count, function_of, in_float64, normal, quick_jit, small_spec

A = jnp.ones((3, 4))
B = jnp.ones((4, 5))
ONE = 2 * 3 * 4 * 5
SECOND = 2 * 3 * 5 * 4  # of the product by the transpose of B
PLATFORMS = ("cpu", "cuda", "tpu")
PRODUCTS = pytest.mark.parametrize(
    ("product", "formula", "shapes"),
    [
        pytest.param(over_channels, "bni,io->bno", ((2, 3, 4), (4, 5)), id="over_channels"),
        pytest.param(over_tokens, "ij,bjc->bic", ((3, 4), (2, 4, 5)), id="over_tokens"),
    ],
)


@pytest.fixture(params=[(), (3,), (2, 3, 2)], ids=["example", "batch", "three axes"])
def axes(request):
    """The axes before those of a product."""
    return request.param


def factors(shapes, first_seed=0):
    """Random numbers for the two sides of a product."""
    left, right = shapes
    return normal(first_seed, *left), normal(first_seed + 1, *right)


def einsum_of(formula):
    return lambda left, right: jnp.einsum(formula, left, right)


def with_weight(product, weight, x):
    """Applies a product of either kind."""
    if product is over_channels:
        return product(x, weight)
    return product(weight, x)


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


def assert_close(found, expected, **tolerance):
    """Compares the arrays of two trees."""

    def compare(a, b):
        assert_allclose(a, b, **tolerance)

    jax.tree.map(compare, found, expected)


def assert_value_and_gradients(product, formula, shapes):
    """They are those of an einsum."""
    left, right = factors(shapes)
    exact = np.einsum(formula, left, right)
    slope = normal(2, *exact.shape)

    @functools.partial(quick_jit, static_argnums=0)
    def value_and_gradients(function, left, right):
        y, pullback = jax.vjp(function, left, right)
        return y, pullback(slope)

    found = value_and_gradients(product, left, right)
    expected = value_and_gradients(einsum_of(formula), left, right)
    value, _ = found
    assert_allclose(value, exact, atol=1e-13)
    assert_close(found, expected, atol=1e-13)


@pytest.mark.smoke
@in_float64
def test_products_over_channels_are_einsums(order, axes):
    assert_value_and_gradients(over_channels, "...i,io->...o", ((*axes, 4), (4, 5)))


@pytest.mark.smoke
@in_float64
def test_products_over_tokens_are_einsums(order, axes):
    assert_value_and_gradients(over_tokens, "ij,...jc->...ic", ((3, 4), (*axes, 4, 5)))


@PRODUCTS
@in_float64
def test_tangents_and_second_derivatives_are_those_of_einsums(order, product, formula, shapes):
    left, right = factors(shapes)
    tangents = factors(shapes, first_seed=2)

    @functools.partial(quick_jit, static_argnums=0)
    def derivatives(function, left, right):
        def along_tangents(factor):
            scaled = left * factor
            return jax.jvp(function, (scaled, right), tangents)

        one = along_tangents(1.0)
        directions = jnp.arange(3.0)
        many = jax.vmap(along_tangents)(directions)
        second = jax.hessian(function, argnums=(0, 1))
        return one, many, second(left, right)

    found = derivatives(squares(product), left, right)
    squared = squares(einsum_of(formula))
    expected = derivatives(squared, left, right)
    assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("shape", [(8,), (128, 1), (128, 8), (1,)])
def test_gradients_of_biases_are_summed_in_float32(shape):
    """Ones of 256 examples, of which a sum in bfloat16 would stop too early."""
    x = jnp.zeros((256, 128, 8), jnp.bfloat16)
    bias = jnp.full(shape, 0.5, jnp.float32)

    @jax.jit
    def output_and_gradients(x, bias):
        y, pullback = jax.vjp(matmul.add_bias, x, bias)
        ones = jnp.ones_like(y)
        return y, *pullback(ones)

    y, d_x, d_bias = output_and_gradients(x, bias)
    assert y.dtype == jnp.bfloat16
    assert d_x.dtype == jnp.bfloat16
    assert d_bias.dtype == jnp.float32
    assert np.all(y == 0.5)
    assert_array_equal(d_x, 1)
    terms = x.size / bias.size
    sums = np.full(shape, terms)
    assert_array_equal(d_bias, sums)


@PRODUCTS
def test_bfloat16_products_have_bfloat16_gradients(order, product, formula, shapes):
    def output_and_gradients(left, right):
        y, pullback = jax.vjp(product, left, right)
        return y, *pullback(y)

    inputs = []
    for shape in shapes:
        inputs.append(jax.ShapeDtypeStruct(shape, jnp.bfloat16))
    y, d_left, d_right = jax.eval_shape(output_and_gradients, *inputs)
    assert y.dtype == jnp.bfloat16
    assert d_left.dtype == jnp.bfloat16
    assert d_right.dtype == jnp.bfloat16


@PRODUCTS
def test_bfloat16_products_on_a_cpu_are_rounded_once(product, formula, shapes):
    """The program multiplies bfloat16 and adds float32, as AMX does."""
    sides = factors(shapes)
    left, right = (jnp.asarray(side, jnp.bfloat16) for side in sides)
    exact = jnp.einsum(formula, left, right, preferred_element_type=jnp.float32)
    y = jax.jit(product)(left, right)
    rounded = exact.astype(jnp.bfloat16)
    found = np.float32(y)
    expected = np.float32(rounded)
    assert_array_equal(found, expected)
    text = lowered(product, "cpu", left, right)
    [line] = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    _, types = line.rsplit(" : ", 1)
    inputs, output = types.split("->")
    assert inputs.count("bf16") == 2
    assert "f32" in output


@pytest.mark.parametrize(
    ("product", "shape", "expected"),
    [
        pytest.param(over_channels, (3, 4), 1024 * 2, id="over_channels"),
        pytest.param(over_tokens, (2, 2), 1024 * 3, id="over_tokens"),
    ],
)
def test_bfloat16_gradients_are_summed_over_a_batch_in_float32(order, product, shape, expected):
    """1,024 equal examples, whose sum in bfloat16 would stop at 256."""
    ones = jnp.ones((1024, 2, 3), jnp.bfloat16)

    @jax.jit
    @jax.grad
    def gradient(weight):
        return with_weight(product, weight, ones).sum()

    zeros = jnp.zeros(shape, jnp.bfloat16)
    d_weight = gradient(zeros)
    sums = np.full(shape, expected)
    assert_array_equal(np.float32(d_weight), sums)


@pytest.mark.parametrize(("product", "size"), [(over_channels, 4), (over_tokens, 3)])
def test_remat_policies_save_products_by_name(product, size):
    """Two products whose outputs the backward pass needs: 2 forward, 4 backward, and 2 more if
    recomputed."""
    weight = jnp.ones((size, size))
    x = jnp.ones((2, 3, 4))
    policies = jax.checkpoint_policies

    def chain(weight, x):
        for _ in range(2):
            y = with_weight(product, weight, x)
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
    """The program given to a platform's compiler; no such device is needed."""
    traced = jax.jit(function).trace(*args)
    program = traced.lower(lowering_platforms=(platform,))
    return program.as_text()


@PRODUCTS
@pytest.mark.parametrize("platform", PLATFORMS)
def test_each_platform_has_one_order_of_the_products(platform, product, formula, shapes):
    """Three products. W is repeated for each example in a CPU's two products by W, and in all of a
    GPU's."""
    left, right = (jnp.ones(shape) for shape in shapes)
    squared = squares(product)
    gradient = jax.grad(squared, argnums=(0, 1))
    text = lowered(gradient, platform, left, right)
    assert text.count("stablehlo.dot_general") == 3
    repeated = {"cpu": 2, "cuda": 3, "tpu": 0}
    expected = repeated[platform] if product is over_tokens else 0
    assert text.count("batching_dims") == expected


def scanned(a, b):
    """Seven times the product, each of them computed."""

    def add_product(total, _):
        return total + a @ b, None

    total, _ = jax.lax.scan(add_product, jnp.zeros((3, 5)), None, length=7)
    return total


def plain_sum(a, b):
    return a + 1


def two_products(a, b):
    return (a @ b) @ b.T


def nested(a, b):
    return jax.jit(jnp.matmul)(a, b)


def after_a_scan(a, b):
    return scanned(a, b) @ b.T + a


def over_tokens_of_one(a, b):
    return over_tokens(a, b[None])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(jnp.matmul, ONE, id="product"),
        pytest.param(plain_sum, 0, id="no product"),
        pytest.param(two_products, ONE + SECOND, id="two"),
        pytest.param(jax.jit(nested), ONE, id="nested jit"),
        pytest.param(scanned, 7 * ONE, id="scan"),
        pytest.param(after_a_scan, 7 * ONE + SECOND, id="after a scan"),
        pytest.param(jax.vmap(jnp.matmul, in_axes=(0, None)), ONE, id="vmap"),
        pytest.param(over_channels, ONE, id="over channels"),
        pytest.param(over_tokens_of_one, ONE, id="over tokens"),
        pytest.param(jax.checkpoint(jnp.matmul), ONE, id="checkpoint"),
    ],
)
def test_operations_of_matrix_products_are_counted(function, expected):
    assert matmul_flops(function, A, B) == expected


def test_einsum_over_two_axes_and_a_batch():
    a = jax.ShapeDtypeStruct((2, 3, 4, 5), jnp.float32)
    b = jax.ShapeDtypeStruct((2, 4, 5, 6), jnp.float32)

    def product(a, b):
        return jnp.einsum("bijk,bjkl->bil", a, b)

    assert matmul_flops(product, a, b) == 2 * 2 * 3 * 6 * 4 * 5


@pytest.mark.parametrize("product", [over_channels, over_tokens])
def test_gradients_cost_two_more_products(product):
    weight = jnp.ones((6, 6))
    x = jnp.ones((2, 6, 6))

    def apply(weight, x):
        return with_weight(product, weight, x)

    forward = matmul_flops(apply, weight, x)
    squared = squares(apply)
    gradient = jax.grad(squared, argnums=(0, 1))
    assert forward == 2 * 2 * 6 * 6 * 6
    backward_and_forward = matmul_flops(gradient, weight, x)
    assert backward_and_forward == 3 * forward


TOKENS = 2 * 5  # of two examples
LAYERS = 3


def traceable(**fields):
    """The state of an encoder without numbers, and its function."""
    spec = small_spec(dtype="float32", layers=LAYERS, **fields)
    encoder = nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))
    return function_of(encoder)


def encoder_flops(**fields):
    """The operations of an encoder for two examples."""
    state, call = traceable(**fields)
    x = jnp.ones((2, 5, 6))
    return matmul_flops(call, state, x)


@pytest.mark.parametrize("remat", ["none", "matmuls", "full"])
def test_operations_of_encoders_are_counted(remat):
    """Per layer and token: U, W and V; n 5, d_model 6, d_ffn 8. Full remat repeats U and W."""
    state, call = traceable(remat=remat)

    def loss(state, x):
        return call(state, x).sum()

    u_and_w = 6 * 8 + 5 * 4
    v = 4 * 6
    forward = 2 * LAYERS * TOKENS * (u_and_w + v)
    recomputed = 0
    if remat == "full":
        recomputed = 2 * LAYERS * TOKENS * u_and_w
    x = jnp.ones((2, 5, 6))
    gradient = jax.grad(loss, argnums=(0, 1))
    assert matmul_flops(call, state, x) == forward
    backward_and_forward = matmul_flops(gradient, state, x)
    assert backward_and_forward == 3 * forward + recomputed


MLP = 2 * 6 * 8
TRANSFORM = 2 * 36 + 2 * 5 * 6  # real and imaginary parts over channels and over tokens
VALUES_AND_OUTPUT = 2 * 36
MIX = 5 * 6
DOT_PRODUCTS = 2 * 36 + 5 * 6


# Other models are counted in tests/paper/test_published.py.
@pytest.mark.parametrize(
    ("fields", "multiplications"),
    [
        pytest.param(
            {"block": "transformer", "heads": 3, "positions": "relative_only"},
            VALUES_AND_OUTPUT + MIX + MLP,
            id="transformer",
        ),
        pytest.param({"block": "fnet", "dft": "matmul"}, TRANSFORM + MLP, id="fnet"),
        pytest.param({"block": "fnet", "dft": "fft"}, MLP, id="fnet by FFT"),
        pytest.param(
            {"block": "synthesizer", "synthesizer": "random+attention"},
            VALUES_AND_OUTPUT + MIX + MLP + DOT_PRODUCTS,
            id="synthesizer",
        ),
        pytest.param({"toeplitz": "fft"}, 6 * 8 + 4 * 6, id="gmlp by FFT"),
    ],
)
def test_operations_of_other_blocks_are_counted(fields, multiplications):
    """Multiplications for a token in a layer. An FFT is not a matrix product."""
    assert encoder_flops(**fields) == 2 * LAYERS * TOKENS * multiplications


def test_blocked_toeplitz_products_need_fewer_operations():
    """Complex products of all blocks, and two transforms over the blocks; what is made of taps is
    small."""
    n = 16384
    block = toeplitz.BAND
    taps = jnp.ones(2 * n - 1)
    x = jnp.ones((2, n, 64))
    columns = 2 * 64
    direct_form = toeplitz.FORMS["direct"]
    direct = matmul_flops(direct_form, taps, x)
    blocked_form = toeplitz.FORMS["blocked"]
    blocked = matmul_flops(blocked_form, taps, x)
    sizes = block + n / block
    products_and_transforms = 8 * n * sizes * columns
    assert direct == 2 * n**2 * columns
    assert 1 <= blocked / products_and_transforms < 1.1
    assert blocked < direct / 12
