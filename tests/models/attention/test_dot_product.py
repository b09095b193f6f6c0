import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

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
    spec = small_spec(**{"d_attn": 3} | fields)
    return TinyAttention(spec, 4, nnx.Rngs(0))


def many_heads(**fields):
    options = {"block": "transformer", "heads": 3, "positions": "relative"}
    spec = small_spec(**options | fields)
    return MultiHeadAttention(spec, nnx.Rngs(0))


MASK = np.array(
    [
        [True, True, True, True, True],
        [True, True, True, False, False],
        [True, False, True, True, False],
    ]
)


@pytest.mark.parametrize("kind", ["tiny", "none", "relative", "relative_only"])
@in_float64
def test_hidden_keys_have_no_effect(kind):
    """Other numbers in their place change nothing. Padding at the end might as well not be
    there."""
    relative = functools.partial(many_heads, positions=kind)
    make = attention if kind == "tiny" else relative
    call = quick_jit(randomized(make))
    x = normal(0, 3, 5, 6)
    noise = normal(1, 3, 5, 6)
    is_visible = MASK[..., None]
    other = np.where(is_visible, x, noise)
    masked = call(x, None, MASK)
    masked_other = call(other, None, MASK)
    assert_allclose(masked[MASK], masked_other[MASK], atol=1e-12)
    unmasked = call(x)
    assert_allclose(masked[0], unmasked[0], atol=1e-14)
    text = masked[1, :3]
    [without_padding] = call(x[1:2, :3])
    assert_allclose(text, without_padding, atol=1e-12)
    effect = text - unmasked[1, :3]
    assert np.abs(effect).max() > 1e-3


def test_hiding_all_keys_gives_equal_weights():
    """And no NaN."""
    no_keys = jnp.zeros((1, 3), bool)
    scores = jnp.ones((2, 3, 3))
    hidden = hide_padding(scores, no_keys, heads=True)
    weights = jax.nn.softmax(hidden, -1)
    share = 1 / 3
    expected = np.full((1, 2, 3, 3), share)
    assert_allclose(weights, expected, rtol=1e-6)


def test_dropout_drops_single_weights():
    """Seen through values that are an identity: a weight is kept, times 1 / 0.8, or 0."""
    scores = np.float32(normal(0, 300, 8, 8))
    identity = np.eye(8, dtype=np.float32)
    values = np.broadcast_to(identity, (300, 8, 8))
    rate = 0.2

    @quick_jit
    def with_and_without_keys(scores):
        return mix(scores, values, rate, keys(0, 300)), mix(scores, values, rate)

    with_keys, without_keys = with_and_without_keys(scores)
    exponentials = np.exp(scores)
    sums = exponentials.sum(-1, keepdims=True)
    weights = exponentials / sums
    assert_allclose(without_keys, weights, rtol=1e-5)
    mixed_with_keys = np.asarray(with_keys)
    dropped = assert_dropped(mixed_with_keys, weights, rate)
    assert dropped.any()


def assert_dropped(found, weights, rate):
    """Asserts that a share `rate` of the weights is 0 and the others are scaled; returns which are
    0."""
    is_dropped = found == 0
    is_kept = ~is_dropped
    expected = weights[is_kept] / (1 - rate)
    assert_allclose(found[is_kept], expected, rtol=1e-5)
    variance = rate * (1 - rate)
    standard_error = np.sqrt(variance / found.size)
    dropped_share = is_dropped.mean()
    error = abs(dropped_share - rate)
    assert error < 4 * standard_error
    return is_dropped


def set_blocks(monkeypatch, whole, block):
    """More queries than `whole` are computed in blocks of `block`."""
    monkeypatch.setattr(dot_product, "WHOLE", whole)
    monkeypatch.setattr(dot_product, "BLOCK", block)


@pytest.fixture
def in_blocks(monkeypatch):
    """More than four queries take turns: ten in blocks of three, three, three and, again with two
    of them, three."""
    set_blocks(monkeypatch, 4, 3)


KINDS = {
    "tiny": {},
    "tiny, causal": {"causal": True, "spatial": "dense"},
}
for positions, buckets in (("none", 0), ("relative", 0), ("relative", 4), ("relative_only", 0)):
    options = {"positions": positions, "relative_buckets": buckets}
    KINDS[f"{positions}, {buckets} buckets"] = options
    KINDS[f"{positions}, {buckets} buckets, causal"] = options | {"causal": True}
CAUSAL_KINDS = [kind for kind in KINDS if "causal" in kind]


def layer_of(kind, length=10, **fields):
    """Attention of one of the kinds."""
    make = attention if kind.startswith("tiny") else many_heads
    return make(length=length, **KINDS[kind] | fields)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@in_float64
def test_blocks_of_queries_give_the_same_values_and_gradients(kind, monkeypatch):
    """With padding and without, of all tokens and of fewer."""
    module = randomized(lambda: layer_of(kind))
    state, call = function_of(module)
    lengths = np.array([[10], [7]])
    mask = np.arange(10) < lengths
    x = normal(0, 2, 10, 6)

    def outputs(state, x):
        unmasked = call(state, x)
        masked = call(state, x, None, mask)
        shorter_x = x[:, :8]
        shorter = call(state, shorter_x)
        return unmasked, masked, shorter

    def outputs_and_gradients():
        @quick_jit
        def both(state, x):
            found, pullback = jax.vjp(outputs, state, x)
            weights = jax.tree.map(lambda y: jnp.asarray(normal(1, *y.shape)), found)
            return found, pullback(weights)

        return jax.tree.leaves(both(state, x))

    expected = outputs_and_gradients()
    set_blocks(monkeypatch, 4, 3)
    for in_blocks, at_once in zip(outputs_and_gradients(), expected, strict=True):
        assert_allclose(in_blocks, at_once, atol=1e-12)


@pytest.mark.parametrize("kind", CAUSAL_KINDS)
@in_float64
def test_blocks_of_queries_continue_a_cache(kind, in_blocks):
    """Four tokens, then six: the second call's queries are in blocks, and begin at the fifth
    place."""
    module = randomized(lambda: layer_of(kind))

    @quick_jit
    def with_cache(x):
        first = DecodeCache({}, jnp.array(0), 10)
        first_tokens = x[:, :4]
        before = module(first_tokens, cache=first)
        index = jnp.array(4)
        second = DecodeCache(first.arrays, index, 10)
        later_tokens = x[:, 4:]
        after = module(later_tokens, cache=second)
        return jnp.concatenate([before, after], 1)

    x = normal(0, 2, 10, 6)
    continued = with_cache(x)
    assert_allclose(continued, quick_jit(module)(x), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_hold_no_scores_of_all_queries(kind, monkeypatch):
    """Neither forwards nor backwards, for 60 tokens in blocks of ten; without blocks they do."""
    layer = layer_of(kind, length=60, dtype="float32")
    state, call = function_of(layer)
    x = jnp.ones((1, 60, 6), jnp.float32)

    def largest():
        def loss(state, x):
            return call(state, x).sum()

        gradient = jax.grad(loss, argnums=(0, 1))
        return largest_array(gradient, state, x)

    assert largest() >= 60 * 60
    set_blocks(monkeypatch, 20, 10)
    assert largest() <= 3 * 10 * 60


def test_blocks_drop_weights_independently(in_blocks):
    """As `test_dropout_drops_single_weights`, for ten queries in blocks."""
    identity = jnp.eye(10)
    values = jnp.broadcast_to(identity, (300, 10, 10))

    def scores(first, count):
        return jnp.zeros((count, 10))

    @quick_jit
    def mixed():
        return attend(scores, values, 10, None, 0.2, keys(0, 300))

    found = np.asarray(mixed())
    weights = np.full(found.shape, 0.1)
    is_dropped = assert_dropped(found, weights, 0.2)
    first_block = is_dropped[:, :3]
    second_block = is_dropped[:, 3:6]
    share_different = (first_block != second_block).mean()
    # 2 * 0.2 * 0.8 if they are independent
    assert 0.25 < share_different < 0.39


@pytest.mark.parametrize("shape", [(2, 4, 7), (2, 3, 4, 7)], ids=["one head", "3 heads"])
def test_hidden_keys_agree_with_loops(shape):
    """Of queries in the middle, with and without documents."""
    rows = [[1, 1, 2, 2, 2, 3, 0], [1, 1, 1, 1, 1, 1, 1]]
    documents = np.array(rows)
    numbers = normal(0, *shape)
    scores = jnp.asarray(numbers, jnp.float32)
    has_heads = len(shape) == 4
    on_device = jnp.asarray(documents)
    found = hide_padding(scores, on_device, has_heads, first=2)
    found = np.asarray(found)
    for index in np.ndindex(*shape):
        example, *_, row, key = index
        of_tokens = documents[example]
        document = of_tokens[key]
        if document > 0 and document == of_tokens[row + 2]:
            assert found[index] == scores[index]
        else:
            assert found[index] < -1e30


@pytest.mark.slow
@in_float64
def test_blocks_of_queries_keep_documents_apart(monkeypatch):
    """A long window, whose queries run in blocks, is that of all queries at once."""
    module = randomized(lambda: many_heads(length=50, attention="xla"))
    repeated = np.repeat([[1, 2, 3, 4, 0]], 10, axis=1)
    documents = jnp.asarray(repeated)
    x = normal(0, 1, 50, 6)
    whole = module(x, padding_mask=documents)
    set_blocks(monkeypatch, 10, 8)
    in_blocks = module(x, padding_mask=documents)
    assert_allclose(in_blocks, whole, atol=1e-12)
    effect = module(x) - whole
    assert np.abs(effect).max() > 1e-3


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fixed_weights_are_computed_before_the_product_with_their_transpose(dtype):
    """From 1,024 tokens on, XLA on a CPU would sum each row of the softmax once for every column."""

    def gradient(scores, v):
        """The product of v with the transposed weights."""
        mixed = functools.partial(mix, scores, trained=False)
        _, transposed = jax.vjp(mixed, v)
        [product] = transposed(v)
        return product

    scores = jax.ShapeDtypeStruct((4, 1024, 1024), "float32")
    v = jax.ShapeDtypeStruct((2, 4, 1024, 32), dtype)
    program = jax.jit(gradient).lower(scores, v).compile().as_text()
    computations = program.split("\n\n")
    products = [text for text in computations if " dot(" in text and "ENTRY" not in text]
    assert products
    for text in products:
        assert " reduce(" not in text


def test_fixed_weights_are_those_of_trained_ones():
    scores = normal(3, 5, 5).astype("float32")
    v = normal(2, 3, 5, 4).astype("float32")
    np.testing.assert_allclose(mix(scores, v, trained=False), mix(scores, v), rtol=1e-6)
