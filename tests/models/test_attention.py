import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models import attention as attention_lib
from gmlp_flax.models.attention import (
    MultiHeadAttention,
    RelativeBias,
    attend,
    buckets,
    hide_padding,
    mix,
)
from gmlp_flax.models.blocks.gmlp import TinyAttention
from gmlp_flax.models.layers import DecodeCache
from tests.models.reference import (
    count,
    function_of,
    in_float64,
    keys,
    largest_array,
    normal,
    params_of,
    program,
    quick_jit,
    randomized,
    small_spec,
    t5_bucket,
)


def attention(**fields):
    return TinyAttention(small_spec(**{"d_attn": 3} | fields), 4, nnx.Rngs(0))


def many_heads(**fields):
    fields = {"block": "transformer", "heads": 3, "positions": "relative"} | fields
    return MultiHeadAttention(small_spec(**fields), nnx.Rngs(0))


def relative(**fields):
    return RelativeBias(small_spec(**{"block": "transformer", "heads": 3} | fields), nnx.Rngs(0))


def test_weights_without_content_are_not_repeated_for_each_sample():
    """Every array is smaller than [batch, heads, tokens, tokens], forward and backward."""
    state, call = function_of(
        randomized(lambda: many_heads(positions="relative_only", length=16, dtype="float32"))
    )
    batch = 8
    x = jnp.ones((8, 16, 6), jnp.float32)
    gradient = jax.grad(lambda state, x: call(state, x).sum(), argnums=(0, 1))
    for function in (call, gradient):
        assert largest_array(function, state, x) < batch * 3 * 16 * 16


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


def test_unbucketed_bias_neither_gathers_nor_scatters():
    state, call = function_of(randomized(lambda: many_heads(dtype="float32")))
    x = jnp.ones((2, 4, 6), jnp.float32)
    gradient = jax.grad(lambda state, x: call(state, x).sum(), argnums=(0, 1))
    for primitive in ("gather", "scatter-add", "scatter", "dynamic_slice"):
        assert count(primitive, call, state, x) == count(primitive, gradient, state, x) == 0, (
            primitive
        )
    state, call = function_of(randomized(lambda: many_heads(dtype="float32", relative_buckets=4)))
    assert count("gather", call, state, x) == 1


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


@pytest.mark.parametrize("positions", ["none", "relative", "relative_only"])
def test_softmax_of_many_heads_runs_in_float32(positions):
    module = randomized(lambda: many_heads(dtype="bfloat16", positions=positions))
    x = jnp.ones((2, 5, 6), jnp.bfloat16)
    assert jax.eval_shape(module, x).dtype == jnp.bfloat16
    exponentials = [e for e in program(module, x) if e.primitive.name == "exp"]
    assert [e.outvars[0].aval.dtype for e in exponentials] == [jnp.float32]
    assert exponentials[0].outvars[0].aval.shape == (
        (3, 5, 5) if positions == "relative_only" else (2, 3, 5, 5)
    )
    dots = [e for e in program(module, x) if e.primitive.name == "dot_general"]
    assert {operand.aval.dtype for dot in dots for operand in dot.invars} == {
        jnp.dtype(jnp.bfloat16)
    }


@in_float64
def test_wider_heads_without_biases():
    """3 heads of 4 channels beside a stream of 6."""
    module = randomized(lambda: many_heads(positions="none", d_qkv=12, attention_bias=False))
    p = params_of(module)
    x = normal(0, 5, 6)
    assert set(p["proj_in"]) == set(p["out"]) == {"kernel"}
    assert p["proj_in"]["kernel"].shape == (
        6,
        36,
    )
    q, k, v = (part.reshape(5, 3, 4) for part in np.split(x @ p["proj_in"]["kernel"], 3, axis=1))
    mixed = np.empty((5, 3, 4))
    for head in range(3):
        for i in range(5):
            scores = np.exp(k[:, head] @ q[i, head] / 2)
            mixed[i, head] = scores @ v[:, head] / scores.sum()
    np.testing.assert_allclose(
        quick_jit(module)(x[None])[0], mixed.reshape(5, 12) @ p["out"]["kernel"], atol=1e-12
    )


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
    monkeypatch.setattr(attention_lib, "WHOLE", 4)
    monkeypatch.setattr(attention_lib, "BLOCK", 3)


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
    monkeypatch.setattr(attention_lib, "WHOLE", 4)
    monkeypatch.setattr(attention_lib, "BLOCK", 3)
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
    monkeypatch.setattr(attention_lib, "WHOLE", 20)
    monkeypatch.setattr(attention_lib, "BLOCK", 10)
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


def test_relative_bias_starts_small_and_differs_by_head():
    bias = params_of(relative(length=200, dtype="float32"))["bias"]
    np.testing.assert_allclose(bias.std(), 0.02, rtol=0.1)
    assert np.abs(np.corrcoef(bias) - np.eye(3)).max() < 0.3


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
    monkeypatch.setattr(attention_lib, "WHOLE", 10)
    monkeypatch.setattr(attention_lib, "BLOCK", 8)
    np.testing.assert_allclose(module(x, padding_mask=documents), whole, atol=1e-12)
    assert np.abs(module(x) - whole).max() > 1e-3
