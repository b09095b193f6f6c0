"""Causal blocks and models: which tokens they read, and how they continue from a cache."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.models.layers import DecodeCache
from gmlp_flax.models.matmul import matmul_flops
from gmlp_flax.models.text import CausalLM
from tests.models import reference
from tests.models.continuation import assert_same_logits_in_parts
from tests.models.reference import (
    count,
    function_of,
    in_float64,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)
from tests.selection import marked_unless

N = 9
TRANSFORMER = {"block": "transformer", "heads": 3}
CASES = {
    "split": {"block": "gmlp", "gate": "split"},
    "linear": {"block": "gmlp", "gate": "linear"},
    "additive": {"block": "gmlp", "gate": "additive"},
    "multiplicative": {"block": "gmlp", "gate": "multiplicative"},
    "amlp": {"block": "gmlp", "d_attn": 3},
    "dense": {"block": "gmlp", "spatial": "dense", "d_attn": 3},
    "depthwise": {"block": "gmlp", "spatial": "depthwise", "gate_kernel": N},
    "depthwise amlp": {"block": "gmlp", "spatial": "depthwise", "gate_kernel": 3, "d_attn": 3},
    "none": TRANSFORMER | {"positions": "none"},
    "absolute": TRANSFORMER | {"positions": "absolute"},
    "relative": TRANSFORMER | {"positions": "relative"},
    "relative_only": TRANSFORMER | {"positions": "relative_only"},
    "buckets": TRANSFORMER | {"positions": "relative", "relative_buckets": 6},
    "long_conv": {"block": "long_conv", "filter_width": 4},
}
# Their own tests compare their causal forms with numpy.
RECURRENT = {
    "bigs": {"block": "bigs", "d_state": 4},
    "bigs, 2 state spaces": {"block": "bigs", "d_state": 3, "state_spaces": 2},
    "delta": {"block": "delta", "chunk": 4},
}
EVERY = pytest.mark.parametrize("name", CASES)

# These gates differ from "split" only after the product over tokens.
SAME_CACHE_AS_SPLIT = ("additive", "multiplicative")
CACHES = [name for name in CASES if name not in SAME_CACHE_AS_SPLIT]
EVERY_CACHE = pytest.mark.parametrize("name", [*CACHES, *RECURRENT])


def spec(name, **fields):
    options = (CASES | RECURRENT)[name]
    return small_spec(**options | {"length": N, "causal": True} | fields)


def block(name, **fields):
    block_spec = spec(name, **fields)
    return randomized(lambda: block_spec.block(block_spec, nnx.Rngs(0)))


def language_model(name, **options):
    """A causal language model of 11 words."""
    return CausalLM(spec(name), 11, nnx.Rngs(0), **options)


def abstract_extend(block_spec):
    """The state of a language model without numbers, and its function that continues a cache."""
    model = nnx.eval_shape(lambda: CausalLM(block_spec, 11, nnx.Rngs(0)))
    return function_of(model, "extend")


def tokens_like(count):
    return jax.ShapeDtypeStruct((1, count), jnp.int32)


FUTURE = 77.0  # a number that must not matter


def bidirectional(p, name):
    """The parameters of a causal block as those of one that sees all tokens, with numbers for the
    future that must not matter."""
    p = jax.tree.map(lambda leaf: leaf, p)
    if "taps" in p.get("gate", {}).get("spatial", {}):
        spatial = p["gate"]["spatial"]
        past = spatial["taps"]  # [offsets], or [offsets, channels]
        future = np.full_like(past[1:], FUTURE)
        spatial["taps"] = np.concatenate([past, future])
    if "relative" in p.get("attention", {}):
        relative = p["attention"]["relative"]
        past = relative["bias"]  # [heads, offsets]
        if name == "buckets":
            buckets = []
            for offset in range(1 - N, 1):
                buckets.append(reference.t5_bucket(offset, 6, causal=True))
            past = past[:, buckets]
        zeros_after = past[:, 1:]
        future = np.full_like(zeros_after, FUTURE)
        relative["bias"] = np.concatenate([past, future], axis=1)
    return p


@EVERY
@in_float64
def test_causal_blocks_agree_with_numpy(name):
    """The output of each token is that of a block that sees all tokens of the text up to it."""
    module = block(name)
    x = normal(0, N, 6)
    p = bidirectional(params_of(module), name)

    def of_prefix(prefix):
        if name == "long_conv":
            return reference.long_conv_block(p, prefix, N)
        if CASES[name]["block"] == "gmlp":
            gate = CASES[name].get("gate", "split")
            return reference.gmlp_block(p, prefix, gate)
        return reference.transformer_block(p, prefix, 3, N)

    expected = []
    for last in range(N):
        outputs = of_prefix(x[: last + 1])
        expected.append(outputs[last])
    [found] = quick_jit(module)(x[None])
    assert_allclose(found, expected, atol=1e-10)


def token_jacobian(call, x):
    """Largest entry of each block of the Jacobian: [output token, input token]."""

    def of_sample(x):
        [y] = call(x[None])
        return y

    entries = quick_jit(jax.jacrev(of_sample))(x)
    return np.abs(entries).max(axis=(1, 3))


@pytest.mark.smoke
@EVERY_CACHE
@pytest.mark.parametrize(
    "dtype", marked_unless(["float32"], ["float32", "bfloat16"], pytest.mark.slow)
)
@in_float64
def test_causal_blocks_read_no_later_token(name, dtype):
    """The Jacobian is exactly 0 above its diagonal, and nowhere else: each token sees the earlier
    ones and itself."""
    module = block(name, dtype=dtype)
    numbers = normal(0, N, 6)
    x = jnp.asarray(numbers, dtype)
    effect = token_jacobian(lambda x: module(x), x)
    # a Fourier transform rounds
    leaked = 1e-5 * effect.max() if name == "long_conv" else 0
    later = effect[np.triu_indices(N, 1)]
    assert (later <= leaked).all()
    earlier = effect[np.tril_indices(N)]
    assert (earlier > leaked).all()


@pytest.mark.parametrize("name", ["amlp", "relative"])
@in_float64
def test_tokens_after_padding_read_no_later_token(name):
    """Also a token with only padding before it: no softmax falls back on the later tokens."""
    module = block(name)
    mask = np.zeros((1, N), bool)
    mask[0, 4:7] = True
    x = jnp.asarray(normal(0, N, 6))
    effect = token_jacobian(lambda x: module(x, padding_mask=mask), x)
    later = np.triu_indices(N, 1)
    assert (effect[later] == 0).all()
    assert np.isfinite(effect).all()


# A long convolution that sees all tokens has a second filter.
@pytest.mark.parametrize("name", [name for name in CASES if name != "long_conv"])
def test_causal_blocks_need_as_many_products_as_bidirectional_ones(name):
    """Among them the product of the gate over tokens, as one."""
    causal = products(name, causal=True)
    assert causal == products(name, causal=False)


def products(name, causal):
    """How many products the forward pass and the gradient have, and the gradient's operations."""
    state, call = function_of(block(name, causal=causal, dtype="float32"))

    def loss(state, x):
        return call(state, x).sum()

    x = jnp.ones((2, N, 6))
    gradient = jax.grad(loss, argnums=(0, 1))
    return (
        count("dot_general", call, state, x),
        count("dot_general", gradient, state, x),
        matmul_flops(gradient, state, x),
    )


@EVERY
def test_causal_blocks_have_no_parameters_for_later_tokens(name):
    options = CASES[name]
    params = params_of(block(name, dtype="float32"))
    shapes = jax.tree.map(np.shape, params)
    if options.get("spatial") == "depthwise":
        width = options["gate_kernel"]
        spatial = shapes["gate"]["spatial"]
        assert spatial == {"taps": (width, 4), "bias": (4,)}
    elif name == "dense":
        spatial = shapes["gate"]["spatial"]
        assert spatial == {"weight": (N, N), "bias": (N,)}
    elif options["block"] == "gmlp":
        spatial = shapes["gate"]["spatial"]
        assert spatial == {"taps": (N,), "bias": (N,)}
    elif name.startswith("relative"):
        relative = shapes["attention"]["relative"]
        assert relative == {"bias": (3, N)}


@pytest.mark.slow
@EVERY_CACHE
@in_float64
def test_texts_are_continued_from_the_cache(name):
    model = randomized(lambda: language_model(name, scale_embeddings=True, embedding_norm=True))
    random = np.random.default_rng(0)
    tokens = random.integers(0, 11, (2, N))
    logits = assert_same_logits_in_parts(model, tokens)
    # The right rows were compared: the last logits differ from those before.
    last = logits[:, N - 1]
    before = logits[:, N - 2]
    difference = np.abs(last - before)
    assert difference.max() > 1e-3


@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("split", 4),
        ("amlp", 4 + 2 * 3),
        ("relative", 2 * 6),
    ],
)
def test_a_continued_token_costs_one_row_of_the_mixing(name, width):
    """Products over the channels of one token, and n of its row, not n^2; `width` channels are
    mixed in each layer."""
    short, _ = flops_of_continuing(name, 64)
    long, whole = flops_of_continuing(name, 128)
    layers = 3
    assert long - short == layers * 2 * 64 * width
    assert whole > 32 * long


def flops_of_continuing(name, length):
    """Operations for one more token of a text, and for the whole text."""
    block = spec(name, dtype="float32")
    block_spec = dataclasses.replace(block, length=length)
    state, extend = abstract_extend(block_spec)
    whole = tokens_like(length)
    _, cache = jax.eval_shape(extend, state, whole, None, 0, 0)
    of_one = matmul_flops(extend, state, tokens_like(1), cache, 0, 0)
    of_whole = matmul_flops(extend, state, whole, None, 0, 0)
    return of_one, of_whole


def test_values_are_stored_at_their_positions():
    cache = DecodeCache({}, jnp.int32(1), 4)
    ones = jnp.ones((2, 2, 3))
    stored = cache.update("a", ones, axis=1)
    assert stored.shape == (2, 4, 3)
    index = jnp.int32(3)
    later = DecodeCache(cache.arrays, index, 4)
    fives = jnp.full((2, 1, 3), 5.0)
    stored = later.update("a", fives)
    row = stored[0, :, 0]
    assert_array_equal(row, [0, 1, 1, 5])


def test_caches_have_the_type_and_the_axis_of_the_values():
    cache = DecodeCache({}, jnp.int32(3), 4)
    values = jnp.ones((1, 2, 1, 3), jnp.bfloat16)
    stored = cache.update("b", values, axis=2)
    assert stored.shape == (1, 2, 4, 3)
    assert cache.arrays["b"].dtype == jnp.bfloat16


def test_states_are_stored_after_the_text():
    """Padding after the text is not counted."""
    text = jnp.int32(2)
    cache = DecodeCache({}, jnp.int32(0), 4, text=text)
    assert cache.count(3) == 2
    first = cache.state("s", jnp.zeros(3))
    assert first.sum() == 0
    cache.store("s", jnp.ones(3))
    later = DecodeCache(cache.arrays, jnp.int32(2), 4)
    assert later.count(1) == 1
    stored = later.state("s", jnp.zeros(3))
    assert stored.sum() == 3


class Window:
    """A cache of the two tokens before each call."""

    def __init__(self):
        self.arrays = {}

    def extended(self, tokens, index, text=None):
        """The tokens of a call from position `index` on, after the two before them."""
        cache = DecodeCache(self.arrays, jnp.int32(index), 9, text=text)
        numbers = jnp.asarray(tokens, jnp.float32)
        x = numbers.reshape(1, -1, 1)
        extended = cache.with_earlier("a", x, 2)
        self.arrays = cache.arrays
        return extended.ravel().tolist()


def test_the_last_tokens_before_a_call_are_stored():
    """Zeros before the first token; of the first call, whose last two tokens are padding, the first
    three; of calls that are shorter than the window, tokens of several."""
    window = Window()
    text = jnp.int32(3)
    extended = window.extended([1, 2, 3, 77, 77], index=0, text=text)
    assert extended == [0, 0, 1, 2, 3, 77, 77]
    extended = window.extended([4], index=3)
    assert extended == [2, 3, 4]
    assert window.arrays["a"].shape == (1, 2, 1)
    extended = window.extended([5, 6, 7], index=4)
    assert extended == [3, 4, 5, 6, 7]


def test_no_token_is_stored_if_none_is_needed():
    cache = DecodeCache({}, jnp.int32(0), 9)
    x = jnp.ones((2, 3, 4))
    y = cache.with_earlier("a", x, 0)
    assert_array_equal(y, x)
    assert cache.arrays["a"].shape == (2, 0, 4)


@pytest.mark.parametrize(
    ("name", "array", "past"),
    [
        ("depthwise", "gate", N - 1),
        ("long_conv", "projections", 2),
        ("delta", "convolution", 3),
    ],
)
def test_short_convolutions_store_as_many_tokens_as_they_read(name, array, past):
    """Not all n: a kernel of 4 tokens keeps the 3 before the next, one of N tokens N - 1."""
    block_spec = spec(name, dtype="float32")
    state, extend = abstract_extend(block_spec)
    tokens = tokens_like(N)
    _, [cache] = jax.eval_shape(extend, state, tokens, None, 0, 0)
    _, _, stored, _ = cache[array].shape  # [layers, batch, past, channels]
    assert stored == past


CAUSAL_BLOCKS = {"gmlp", "transformer", "bigs", "delta", "hydra", "long_conv"}


def test_these_blocks_can_be_causal():
    can_be_causal = {name for name, block in BLOCKS.items() if block.can_be_causal}
    assert can_be_causal == CAUSAL_BLOCKS


@pytest.mark.parametrize("name", sorted(BLOCKS.keys() - CAUSAL_BLOCKS))
def test_other_blocks_refuse_to_be_causal(name):
    message = r"^model.causal is True: \w+Block mixes all tokens; set it to False$"
    with pytest.raises(ValueError, match=message):
        BLOCKS[name].spec(length=N, causal=True)


@pytest.mark.parametrize("form", ["fft", "blocked"])
def test_causal_gates_refuse_forms_that_round_by_later_tokens(form):
    message = f"^model.toeplitz is '{form}', whose rounding depends on later tokens"
    with pytest.raises(ValueError, match=message):
        spec("split", toeplitz=form)
    assert spec("dense", toeplitz=form)


def test_long_causal_gates_use_the_direct_form():
    long = dataclasses.replace(spec("split"), length=16384)
    assert long.form(16384) == "direct"
