import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.attention import dot_product
from gmlp_flax.models.attention.dot_product import attend, hide_padding, mix
from gmlp_flax.models.attention.multi_head import MultiHeadAttention
from gmlp_flax.models.blocks.gmlp import TinyAttention
from gmlp_flax.models.layers import DecodeCache
from tests.models.reference import (
    function_of,
    in_float64,
    keys,
    largest_array,
    normal,
    quick_jit,
    randomized,
    small_spec,
)


def attention(**fields):
    return TinyAttention(small_spec(**{"d_attn": 3} | fields), 4, nnx.Rngs(0))


def many_heads(**fields):
    fields = {"block": "transformer", "heads": 3, "positions": "relative"} | fields
    return MultiHeadAttention(small_spec(**fields), nnx.Rngs(0))


MASK = np.array([[True] * 5, [True, True, True, False, False], [True, False, True, True, False]])


@pytest.mark.parametrize("kind", ["tiny", "none", "relative", "relative_only"])
@in_float64
def test_hidden_keys_might_as_well_not_be_there(kind):
    """Seen tokens get what they get where the hidden ones are far away: with the same offsets, at a
    score of -1e9."""
    module = (
        randomized(attention) if kind == "tiny" else randomized(lambda: many_heads(positions=kind))
    )
    x = normal(0, 3, 5, 6)
    found = quick_jit(module)(x, None, MASK)
    np.testing.assert_allclose(found[0], quick_jit(module)(x)[0], atol=1e-14)
    other = np.where(MASK[..., None], x, normal(1, 3, 5, 6))
    np.testing.assert_allclose(found[MASK], quick_jit(module)(other, None, MASK)[MASK], atol=1e-12)
    # Padding at the end: as the shorter sequence.
    np.testing.assert_allclose(found[1, :3], quick_jit(module)(x[1:2, :3])[0], atol=1e-12)
    assert np.abs(np.asarray(found)[1, :3] - quick_jit(module)(x)[1, :3]).max() > 1e-3


def test_hide_padding_of_all_keys_leaves_no_nan():
    scores = hide_padding(jnp.ones((2, 3, 3)), jnp.zeros((1, 3), bool), heads=True)
    np.testing.assert_allclose(jax.nn.softmax(scores, -1), np.full((1, 2, 3, 3), 1 / 3), rtol=1e-6)


def test_dropout_is_of_weights():
    """Seen through values that are an identity: a weight is kept, times 1 / 0.8, or 0."""
    scores = np.float32(normal(0, 300, 8, 8))
    values = np.broadcast_to(np.eye(8, dtype=np.float32), (300, 8, 8))
    both = quick_jit(
        lambda scores: (mix(scores, values, 0.2, keys(0, 300)), mix(scores, values, 0.2))
    )
    found, kept = map(np.asarray, both(scores))
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    dropped = found == 0
    np.testing.assert_allclose(found[~dropped], weights[~dropped] / 0.8, rtol=1e-5)
    assert abs(dropped.mean() - 0.2) < 4 * np.sqrt(0.16 / scores.size)
    np.testing.assert_allclose(kept, weights, rtol=1e-5)


@pytest.fixture
def in_blocks(monkeypatch):
    """More than four queries take turns: ten in blocks of three, three, three and, again with two
    of them, three."""
    monkeypatch.setattr(dot_product, "WHOLE", 4)
    monkeypatch.setattr(dot_product, "BLOCK", 3)


KINDS = {
    "tiny": lambda: attention(length=10),
    "tiny, causal": lambda: attention(length=10, causal=True, spatial="dense"),
    **{
        f"{positions}, {buckets} buckets{', causal' * causal}": lambda fields=(positions, buckets, causal): (
            many_heads(
                length=10,
                **dict(zip(("positions", "relative_buckets", "causal"), fields, strict=True)),
            )
        )
        for positions, buckets in (
            ("none", 0),
            ("relative", 0),
            ("relative", 4),
            ("relative_only", 0),
        )
        for causal in (False, True)
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@in_float64
def test_queries_in_blocks_are_those_at_once(kind, monkeypatch):
    """Values and gradients, with padding and without, of all tokens and of fewer."""
    module = randomized(KINDS[kind])
    state, call = function_of(module)
    mask = np.arange(10) < np.array([[10], [7]])

    def results():
        def found(state, x):
            return call(state, x), call(state, x, None, mask), call(state, x[:, :8])

        def both(state, x):
            value, back = jax.vjp(found, state, x)
            return value, back(jax.tree.map(lambda y: jnp.asarray(normal(1, *y.shape)), value))

        return quick_jit(both)(state, normal(0, 2, 10, 6))

    expected = results()
    monkeypatch.setattr(dot_product, "WHOLE", 4)
    monkeypatch.setattr(dot_product, "BLOCK", 3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), results(), expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "causal" in kind])
@in_float64
def test_blocks_of_queries_behind_those_that_were_read(kind, in_blocks):
    """Four tokens, then six: the second call's queries are in blocks, and begin at the fifth
    place."""
    module = randomized(KINDS[kind])

    @quick_jit
    def both(x):
        first = DecodeCache({}, jnp.array(0), 10)
        before = module(x[:, :4], cache=first)
        after = module(x[:, 4:], cache=DecodeCache(first.arrays, jnp.array(4), 10))
        return jnp.concatenate([before, after], 1), module(x)

    np.testing.assert_allclose(*both(normal(0, 2, 10, 6)), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_hold_no_scores_of_all_queries(kind, monkeypatch):
    """Neither forwards nor backwards, for 60 tokens in blocks of ten; at once they do."""

    def largest():
        small = {"length": 60, "dtype": "float32"}
        monkeypatch.setattr(f"{__name__}.small_spec", lambda **fields: made(**fields | small))
        state, call = function_of(KINDS[kind]())
        gradient = jax.grad(lambda state, x: call(state, x).sum(), argnums=(0, 1))
        return largest_array(gradient, state, jnp.ones((1, 60, 6), jnp.float32))

    made = small_spec
    assert largest() >= 60 * 60
    monkeypatch.setattr(dot_product, "WHOLE", 20)
    monkeypatch.setattr(dot_product, "BLOCK", 10)
    assert largest() <= 3 * 10 * 60


def test_weights_of_every_block_are_dropped_apart(in_blocks):
    """As `test_dropout_is_of_weights`, for ten queries in blocks; each block draws numbers of its
    own."""
    values = jnp.broadcast_to(jnp.eye(10), (300, 10, 10))

    def scores(first, count):
        return jnp.zeros((count, 10))

    found = np.asarray(quick_jit(lambda: attend(scores, values, 10, None, 0.2, keys(0, 300)))())
    dropped = found == 0
    np.testing.assert_allclose(found[~dropped], 0.1 / 0.8, rtol=1e-5)
    assert abs(dropped.mean() - 0.2) < 4 * np.sqrt(0.16 / found.size)
    # 2 * 0.2 * 0.8 if they are independent
    assert 0.25 < (dropped[:, :3] != dropped[:, 3:6]).mean() < 0.39


@pytest.mark.parametrize("heads", [False, True])
def test_visible_keys_against_loops(heads):
    """Of queries in the middle, with and without documents."""
    documents = np.array([[1, 1, 2, 2, 2, 3, 0], [1, 1, 1, 1, 1, 1, 1]])
    shape = (2, 3, 4, 7) if heads else (2, 4, 7)
    scores = normal(0, *shape).astype(np.float32)
    found = np.asarray(hide_padding(jnp.asarray(scores), jnp.asarray(documents), heads, first=2))
    for index in np.ndindex(*shape):
        example = index[0]
        query = index[-2] + 2
        key = index[-1]
        document = documents[example, key]
        is_seen = document > 0 and document == documents[example, query]
        assert (found[index] == scores[index]) == is_seen
        assert is_seen or found[index] < -1e30


@in_float64
def test_documents_in_blocks_of_queries(monkeypatch):
    """A long window, whose queries run in blocks, is that of all queries at once."""
    module = randomized(lambda: many_heads(length=50, attention="xla"))
    documents = jnp.asarray(np.repeat([[1, 2, 3, 4, 0]], 10, axis=1))
    x = normal(0, 1, 50, 6)
    whole = module(x, padding_mask=documents)
    monkeypatch.setattr(dot_product, "WHOLE", 10)
    monkeypatch.setattr(dot_product, "BLOCK", 8)
    np.testing.assert_allclose(module(x, padding_mask=documents), whole, atol=1e-12)
    assert np.abs(module(x) - whole).max() > 1e-3
