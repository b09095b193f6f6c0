import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.attention.positions import RelativeBias, buckets, rotate
from tests.models.reference import params_of, quick_jit, randomized, small_spec, t5_bucket


def relative(**fields):
    return RelativeBias(small_spec(**{"block": "transformer", "heads": 3} | fields), nnx.Rngs(0))


def test_relative_bias_of_more_tokens():
    """One bias an offset has none for them; a bucket serves any distance."""
    with pytest.raises(
        ValueError, match="the relative bias was made for at most 5 tokens and was given 6"
    ):
        relative(dtype="float32")(0, 6, 6)
    bias = randomized(lambda: relative(dtype="float32", relative_buckets=4))
    far = np.asarray(quick_jit(lambda: bias(0, 400, 400))())
    assert far.shape == (3, 400, 400)
    assert (far[:, 0, 128:] == far[:, :1, 399]).all()


def test_relative_bias_starts_small_and_differs_by_head():
    bias = params_of(relative(length=200, dtype="float32"))["bias"]
    np.testing.assert_allclose(bias.std(), 0.02, rtol=0.1)
    assert np.abs(np.corrcoef(bias) - np.eye(3)).max() < 0.3


@pytest.mark.parametrize(
    ("number", "causal"), [(4, False), (10, False), (32, False), (256, False), (32, True)]
)
def test_buckets_are_t5s(number, causal):
    offsets = np.arange(-600, 1 if causal else 601)
    found = buckets(offsets, number, causal=causal)
    np.testing.assert_array_equal(
        found, [t5_bucket(int(offset), number, causal) for offset in offsets]
    )
    # An offset of 0 has its bucket on the other side; if all serve the past, there is none that is
    # not used.
    assert (number // 2 in found) == causal
    assert found.max() == number - 1


@pytest.mark.filterwarnings("error")
def test_causal_buckets_beyond_the_largest_distance():
    found = buckets(np.array([-1000, -129, -128, -127, 0]), 256, causal=True)
    np.testing.assert_array_equal(found, [255, 255, 128, 127, 0])


def slow_rotation(x: np.ndarray, first: int, theta: float) -> np.ndarray:
    """Each pair of channels as a complex number, turned by its angle."""
    tokens, d = x.shape
    turned = np.zeros_like(x)
    for token in range(tokens):
        for pair in range(d // 2):
            angle = (first + token) * theta ** (-2 * pair / d)
            point = complex(x[token, pair], x[token, pair + d // 2])
            point *= complex(np.cos(angle), np.sin(angle))
            turned[token, pair] = point.real
            turned[token, pair + d // 2] = point.imag
    return turned


@pytest.mark.parametrize(("first", "theta"), [(0, 10_000.0), (5, 100.0)])
def test_rotary_positions_turn_pairs_of_channels(first, theta):
    x = np.random.default_rng(0).normal(size=(2, 7, 3, 8)).astype(np.float32)
    turned = rotate(jnp.asarray(x), first, theta)
    for example in range(2):
        for head in range(3):
            expected = slow_rotation(x[example, :, head], first, theta)
            np.testing.assert_allclose(turned[example, :, head], expected, atol=1e-5)


def test_products_of_turned_queries_and_keys_depend_on_their_distance_alone():
    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.normal(size=(1, 1, 1, 8)), jnp.float32)
    k = jnp.asarray(rng.normal(size=(1, 1, 1, 8)), jnp.float32)

    def product(query_position, key_position):
        turned_q = rotate(q, query_position, 100.0)
        turned_k = rotate(k, key_position, 100.0)
        return float((turned_q * turned_k).sum())

    assert product(3, 1) == pytest.approx(product(12, 10), abs=1e-4)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-2)
