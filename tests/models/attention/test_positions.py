import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.attention.positions import RelativeBias, buckets, rotate
from tests.models.reference import params_of, quick_jit, randomized, small_spec, t5_bucket


def relative(**fields):
    spec = small_spec(**{"block": "transformer", "heads": 3} | fields)
    return RelativeBias(spec, nnx.Rngs(0))


def test_relative_bias_of_too_many_tokens_is_refused():
    bias = relative(dtype="float32")
    message = "the relative bias was made for at most 5 tokens and was given 6"
    with pytest.raises(ValueError, match=message):
        bias(0, 6, 6)


def test_bucketed_bias_supports_every_number_of_tokens():
    """All keys from a distance of 128 share a bucket."""
    bias = randomized(lambda: relative(dtype="float32", relative_buckets=4))
    computed = quick_jit(lambda: bias(0, 400, 400))()
    logits = np.asarray(computed)
    assert logits.shape == (3, 400, 400)
    far = logits[:, 0, 128:]
    farthest = logits[:, :1, 399]
    assert (far == farthest).all()


def test_relative_bias_starts_small_and_differs_by_head():
    bias = params_of(relative(length=200, dtype="float32"))["bias"]
    assert_allclose(bias.std(), 0.02, rtol=0.1)
    correlations = np.corrcoef(bias) - np.eye(3)
    assert np.abs(correlations).max() < 0.3


@pytest.mark.parametrize(
    ("number", "causal"),
    [
        (4, False),
        (10, False),
        (32, False),
        (256, False),
        (32, True),
    ],
)
def test_buckets_are_those_of_t5(number, causal):
    last = 0 if causal else 600
    offsets = np.arange(-600, last + 1)
    found = buckets(offsets, number, causal=causal)
    expected = []
    for offset in offsets:
        expected.append(t5_bucket(int(offset), number, causal))
    assert_array_equal(found, expected)
    # An offset of 0 has its bucket on the other side. Causal models use every bucket.
    assert (number // 2 in found) == causal
    assert found.max() == number - 1


@pytest.mark.filterwarnings("error")
def test_causal_distances_beyond_the_largest_share_the_last_bucket():
    distances = [-1000, -129, -128, -127, 0]
    offsets = np.array(distances)
    found = buckets(offsets, 256, causal=True)
    assert_array_equal(found, [255, 255, 128, 127, 0])


def slow_rotation(x: np.ndarray, first: int, theta: float) -> np.ndarray:
    """Each pair of channels as a complex number, rotated by its angle."""
    tokens, d = x.shape
    pairs = d // 2
    real, imaginary = np.split(x, 2, axis=1)
    points = real + 1j * imaginary
    for token, pair in np.ndindex(tokens, pairs):
        position = first + token
        frequency = theta ** (-pair / pairs)
        angle = position * frequency
        rotation = complex(np.cos(angle), np.sin(angle))
        points[token, pair] *= rotation
    return np.concatenate([points.real, points.imag], axis=1)


@pytest.mark.parametrize(("first", "theta"), [(0, 10_000.0), (5, 100.0)])
def test_rotary_positions_rotate_pairs_of_channels(first, theta):
    random = np.random.default_rng(0)
    numbers = random.normal(size=(2, 7, 3, 8))
    x = numbers.astype(np.float32)
    rotated = rotate(jnp.asarray(x), first, theta)
    for example, head in np.ndindex(2, 3):
        of_head = x[example, :, head]
        found = rotated[example, :, head]
        expected = slow_rotation(of_head, first, theta)
        assert_allclose(found, expected, atol=1e-5)


def test_products_of_rotated_queries_and_keys_depend_only_on_the_distance():
    random = np.random.default_rng(0)
    shape = (1, 1, 1, 8)
    query_numbers = random.normal(size=shape)
    key_numbers = random.normal(size=shape)
    q = jnp.asarray(query_numbers, jnp.float32)
    k = jnp.asarray(key_numbers, jnp.float32)

    def product(query_position, key_position):
        rotated_q = rotate(q, query_position, 100.0)
        rotated_k = rotate(k, key_position, 100.0)
        return float((rotated_q * rotated_k).sum())

    near = product(3, 1)
    assert near == pytest.approx(product(12, 10), abs=1e-4)
    assert near != pytest.approx(product(3, 2), abs=1e-2)
