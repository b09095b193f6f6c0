import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from gmlp_flax.models import toeplitz
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.flops import matmul_flops
from gmlp_flax.models.matmul import over_channels, over_tokens
from tests.models.reference import function_of, small_spec

A, B = jnp.ones((3, 4)), jnp.ones((4, 5))
ONE = 2 * 3 * 4 * 5


def scanned(a, b):
    return jax.lax.scan(lambda carry, _: (carry + a @ b, None), jnp.zeros((3, 5)), None, length=7)[0]


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
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 3, 4, 5), (2, 4, 5, 6))]
    assert matmul_flops(lambda a, b: jnp.einsum("bijk,bjkl->bil", a, b), *shapes) == 2 * 2 * 3 * 6 * 4 * 5


@pytest.mark.parametrize("product", [over_channels, over_tokens])
def test_a_gradient_costs_two_more_products(product):
    weight, x = jnp.ones((6, 6)), jnp.ones((2, 6, 6))
    args = (x, weight) if product is over_channels else (weight, x)
    forward = matmul_flops(product, *args)
    assert forward == 2 * 2 * 6 * 6 * 6
    gradient = jax.grad(lambda *args: (product(*args) ** 2).sum(), argnums=(0, 1))
    assert matmul_flops(gradient, *args) == 3 * forward


def traceable(**fields):
    """An encoder's state, of shapes alone, and its function."""
    return function_of(nnx.eval_shape(lambda: Encoder(small_spec(dtype="float32", **fields), nnx.Rngs(0))))


@pytest.mark.parametrize("remat", ["none", "matmuls", "full"])
def test_an_encoder(remat):
    """Per layer and token: U, W and V; n 5, d_model 6, d_ffn 8. Full remat repeats U and W."""
    state, call = traceable(remat=remat)
    x = jnp.ones((2, 5, 6))
    forward = 3 * 2 * (2 * 5) * (6 * 8 + 5 * 4 + 4 * 6)
    assert matmul_flops(call, state, x) == forward
    again = 3 * 2 * (2 * 5) * (6 * 8 + 5 * 4) if remat == "full" else 0
    gradient = jax.grad(lambda state, x: call(state, x).sum(), argnums=(0, 1))
    assert matmul_flops(gradient, state, x) == 3 * forward + again


@pytest.mark.parametrize("fields, layer", [
    # Per token of 5: q, k, v, output, scores, mix, and the MLP twice.
    ({"block": "transformer", "heads": 2}, 6 * 24 + 2 * 5 * 6 + 2 * 6 * 8),
    ({"block": "transformer", "heads": 2, "positions": "relative"}, 6 * 24 + 2 * 5 * 6 + 2 * 6 * 8),
    ({"block": "transformer", "heads": 3, "positions": "relative_only"}, 6 * 12 + 5 * 6 + 2 * 6 * 8),
    ({"block": "mixer", "d_spatial": 4}, 2 * 4 * 6 + 2 * 6 * 8),
    # The transform's real and imaginary parts over channels and over tokens, and the MLP; by FFT the MLP alone.
    ({"block": "fnet", "dft": "matmul"}, 2 * 6 * 6 + 2 * 5 * 6 + 2 * 6 * 8),
    ({"block": "fnet"}, 2 * 6 * 6 + 2 * 5 * 6 + 2 * 6 * 8), ({"block": "fnet", "dft": "fft"}, 2 * 6 * 8),
    # Values, output, mix and MLP; then the logits.
    ({"block": "synthesizer"}, 2 * 36 + 5 * 6 + 2 * 6 * 8),
    (
        {"block": "synthesizer", "synthesizer": "factorized_random", "rank": 2},
        2 * 36 + 5 * 6 + 2 * 6 * 8 + 3 * 5 * 2 / 2,
    ),
    ({"block": "synthesizer", "synthesizer": "dense"}, 2 * 36 + 5 * 6 + 2 * 6 * 8 + 36 + 6 * 5),
    ({"block": "synthesizer", "synthesizer": "random+attention"}, 2 * 36 + 5 * 6 + 2 * 6 * 8 + 2 * 36 + 5 * 6),
    # Projection, scores on a memory of 7, recall, output.
    ({"block": "external_attention", "memory": 7}, 2 * 36 + 2 * 7 * 6 + 2 * 6 * 8),
    # Both halves of the GLU and the output; for the dynamic one 7 logits for each of 3 heads.
    ({"block": "convolution"}, 3 * 36 + 2 * 6 * 8),
    ({"block": "convolution", "convolution": "dynamic"}, 3 * 36 + 2 * 6 * 8 + 6 * 3 * 7),
])  # fmt: skip
def test_other_blocks(fields, layer):
    state, call = traceable(**fields)
    assert matmul_flops(call, state, jnp.ones((2, 5, 6))) == 3 * 2 * (2 * 5) * layer


def test_the_fft_is_not_a_matrix_product():
    state, call = traceable(toeplitz="fft")
    assert matmul_flops(call, state, jnp.ones((2, 5, 6))) == 3 * 2 * (2 * 5) * (6 * 8 + 4 * 6)


def test_blocks_have_fewer_operations_than_the_matrix():
    n, block = 16384, toeplitz.BAND
    given = jnp.ones(2 * n - 1), jnp.ones((2, n, 64))
    direct, blocked = (matmul_flops(toeplitz.FORMS[form], *given) for form in ("direct", "blocked"))
    assert direct == 2 * n**2 * 2 * 64
    # Complex products of all blocks, and two transforms over the blocks; what is made of taps is small.
    assert 0 <= blocked / (8 * n * (block + n / block) * 2 * 64) - 1 < 0.1 and blocked < direct / 12
