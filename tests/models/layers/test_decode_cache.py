"""Causal blocks and models: what they see, and how they go on from what they have kept."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.models.layers import DecodeCache
from gmlp_flax.models.matmul import matmul_flops
from gmlp_flax.models.text import CausalLM
from tests.models import reference
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
    **{
        gate: {"block": "gmlp", "gate": gate}
        for gate in ("split", "linear", "additive", "multiplicative")
    },
    "amlp": {"block": "gmlp", "d_attn": 3},
    "dense": {"block": "gmlp", "spatial": "dense", "d_attn": 3},
    "depthwise": {"block": "gmlp", "spatial": "depthwise", "gate_kernel": N},
    "depthwise amlp": {"block": "gmlp", "spatial": "depthwise", "gate_kernel": 3, "d_attn": 3},
    **{
        positions: TRANSFORMER | {"positions": positions}
        for positions in ("none", "absolute", "relative", "relative_only")
    },
    "buckets": TRANSFORMER | {"positions": "relative", "relative_buckets": 6},
    "long_conv": {"block": "long_conv", "filter_width": 4},
}
# their causal forms have tests of their own, beside what all causal blocks share
RECURRENT = {
    "bigs": {"block": "bigs", "d_state": 4},
    "bigs, 2 state spaces": {"block": "bigs", "d_state": 3, "state_spaces": 2},
    "delta": {"block": "delta", "chunk": 4},
}
EVERY = pytest.mark.parametrize("name", CASES)
# These gates differ from "split" behind the product over tokens alone.
EVERY_CACHE = pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("additive", "multiplicative")] + [*RECURRENT]
)


def spec(name, **fields):
    options = (CASES | RECURRENT)[name]
    return small_spec(**options | {"length": N, "causal": True} | fields)


def block(name, **fields):
    made = spec(name, **fields)
    return randomized(lambda: made.block(made, nnx.Rngs(0)))


def bidirectional(p, name):
    """The parameters of a causal block as those of one that sees all tokens, with numbers for the
    future that must not matter."""
    future = np.full(N - 1, 77.0)
    p = jax.tree.map(lambda leaf: leaf, p)
    if "gate" in p and "taps" in p["gate"]["spatial"]:
        taps = p["gate"]["spatial"]["taps"]
        if taps.ndim == 2:  # a kernel for each channel
            future = np.full((len(taps) - 1, taps.shape[1]), 77.0)
        p["gate"]["spatial"]["taps"] = np.concatenate([taps, future])
    if name == "buckets":
        columns = [reference.t5_bucket(offset, 6, causal=True) for offset in range(1 - N, 1)]
        p["attention"]["relative"]["bias"] = p["attention"]["relative"]["bias"][:, columns]
    if "relative" in p.get("attention", {}):
        p["attention"]["relative"]["bias"] = np.array(
            [[*row, *future] for row in p["attention"]["relative"]["bias"]]
        )
    return p


@EVERY
@in_float64
def test_against_numpy(name):
    """Each token is the last of a text that ends with it: what a block that sees all tokens makes
    of it."""
    module = block(name)
    x = normal(0, N, 6)
    p = bidirectional(params_of(module), name)

    def of_prefix(prefix):
        if name == "long_conv":
            return reference.long_conv_block(p, prefix, N)
        if CASES[name]["block"] == "gmlp":
            return reference.gmlp_block(p, prefix, CASES[name].get("gate", "split"))
        return reference.transformer_block(p, prefix, 3, N)

    expected = [of_prefix(x[: i + 1])[i] for i in range(N)]
    np.testing.assert_allclose(quick_jit(module)(x[None])[0], expected, atol=1e-10)


def token_jacobian(call, x):
    """Largest entry of each block of the Jacobian: [output token, input token]."""
    return np.abs(quick_jit(jax.jacrev(lambda x: call(x[None])[0]))(x)).max(axis=(1, 3))


@pytest.mark.smoke
@EVERY_CACHE
@pytest.mark.parametrize(
    "dtype", marked_unless(["float32"], ["float32", "bfloat16"], pytest.mark.slow)
)
@in_float64
def test_nothing_comes_from_the_future(name, dtype):
    """The Jacobian is exactly 0 above its diagonal, and not below: each token sees the cache and
    itself."""
    module = block(name, dtype=dtype)
    found = token_jacobian(lambda x: module(x), jnp.asarray(normal(0, N, 6), dtype))
    # a Fourier transform rounds
    leaked = 1e-5 * found.max() if name == "long_conv" else 0
    assert (found[np.triu_indices(N, 1)] <= leaked).all()
    assert (found[np.tril_indices(N)] > leaked).all()


@pytest.mark.parametrize("name", ["amlp", "relative"])
@in_float64
def test_nothing_comes_from_the_future_whatever_is_padding(name):
    """Also to a token all of whose cache is padding: no softmax falls back on the tokens behind
    it."""
    module = block(name)
    mask = np.array([[False] * 4 + [True] * 3 + [False] * 2])
    found = token_jacobian(lambda x: module(x, padding_mask=mask), jnp.asarray(normal(0, N, 6)))
    assert (found[np.triu_indices(N, 1)] == 0).all()
    assert np.isfinite(found).all()


# A long convolution that sees all tokens has a second filter.
@pytest.mark.parametrize("name", [name for name in CASES if name != "long_conv"])
def test_training_costs_the_products_that_a_bidirectional_block_costs(name):
    """Among them the product of the gate over tokens, as one."""
    found = []
    for causal in (True, False):
        state, call = function_of(block(name, causal=causal, dtype="float32"))
        gradient = jax.grad(lambda state, x, call=call: call(state, x).sum(), argnums=(0, 1))
        x = jnp.ones((2, N, 6))
        found.append(
            [count("dot_general", call, state, x), count("dot_general", gradient, state, x)]
        )
        found[-1].append(matmul_flops(gradient, state, x))
    assert found[0] == found[1]


@EVERY
def test_parameters_of_the_future_are_not_there(name):
    shapes = jax.tree.map(np.shape, params_of(block(name, dtype="float32")))
    if CASES[name].get("spatial") == "depthwise":
        width = CASES[name]["gate_kernel"]
        assert shapes["gate"]["spatial"] == {"taps": (width, 4), "bias": (4,)}
    elif CASES[name]["block"] == "gmlp":
        assert shapes["gate"]["spatial"] == {"bias": (N,)} | (
            {"weight": (N, N)} if name == "dense" else {"taps": (N,)}
        )
    elif name.startswith("relative"):
        assert shapes["attention"]["relative"] == {"bias": (3, N)}


@pytest.mark.slow
@EVERY_CACHE
@in_float64
def test_what_is_kept_gives_what_reading_anew_gives(name):
    """After a beginning of 4 tokens, padded to 6: token by token, then two at once."""
    made = spec(name)
    tokens = np.random.default_rng(0).integers(0, 11, (2, N))
    model = randomized(
        lambda: CausalLM(made, 11, nnx.Rngs(0), scale_embeddings=True, embedding_norm=True)
    )
    state, extend = function_of(model, "extend")
    extend = quick_jit(extend)
    expected = quick_jit(model)(tokens)
    padded = np.concatenate([tokens[:, :4], np.full((2, 2), 10)], axis=1)
    logits, kept = extend(state, padded, None, 0, 3)
    np.testing.assert_allclose(logits, expected[:, 3], atol=1e-10)
    for place in range(4, N - 2):
        logits, kept = extend(state, tokens[:, place : place + 1], kept, place, 0)
        np.testing.assert_allclose(logits, expected[:, place], atol=1e-10)
    logits, _ = extend(state, tokens[:, N - 2 :], kept, N - 2, 1)
    np.testing.assert_allclose(logits, expected[:, N - 1], atol=1e-10)
    # The right rows were compared: the last logits differ from those before.
    assert np.abs(expected[:, N - 1] - expected[:, N - 2]).max() > 1e-3


@pytest.mark.parametrize("name", ["split", "amlp", "relative"])
def test_one_more_token_costs_one_row_of_the_mixing(name):
    """Products over the channels of one token, and n of its row: not n^2."""
    flops = {}
    for length in (64, 128):
        made = dataclasses.replace(spec(name, dtype="float32"), length=length)
        model = nnx.eval_shape(lambda made=made: CausalLM(made, 11, nnx.Rngs(0)))
        state, extend = function_of(model, "extend")
        whole = jax.ShapeDtypeStruct((1, length), jnp.int32)
        _, kept = jax.eval_shape(extend, state, whole, None, 0, 0)
        one = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        flops[length] = (
            matmul_flops(extend, state, one, kept, 0, 0),
            matmul_flops(extend, state, whole, None, 0, 0),
        )
    # channels that are mixed in each layer
    width = {"split": 4, "amlp": 4 + 2 * 3, "relative": 2 * 6}[name]
    assert flops[128][0] - flops[64][0] == 3 * 2 * 64 * width
    assert flops[128][1] > 32 * flops[128][0]


def test_values_are_kept_at_their_places():
    cache = DecodeCache({}, jnp.int32(1), 4)
    assert cache.update("a", jnp.ones((2, 2, 3)), axis=1).shape == (2, 4, 3)
    later = DecodeCache(cache.arrays, jnp.int32(3), 4)
    np.testing.assert_array_equal(later.update("a", 5 * jnp.ones((2, 1, 3)))[0, :, 0], [0, 1, 1, 5])
    assert later.update("b", jnp.ones((1, 2, 1, 3), jnp.bfloat16), axis=2).shape == (1, 2, 4, 3)
    assert later.arrays["b"].dtype == jnp.bfloat16


def test_states_are_kept_after_the_text():
    """Padding behind the text is not counted."""
    cache = DecodeCache({}, jnp.int32(0), 4, text=jnp.int32(2))
    assert cache.count(3) == 2
    assert cache.state("s", jnp.zeros(3)).sum() == 0
    cache.store("s", jnp.ones(3))
    later = DecodeCache(cache.arrays, jnp.int32(2), 4)
    assert later.count(1) == 1
    assert later.state("s", jnp.zeros(3)).sum() == 3


def test_the_last_tokens_before_a_call_are_kept():
    """Zeros before the first token; of the first call, whose last two tokens are padding, the first
    three; of calls that are shorter than the window, tokens of several."""
    x = jnp.arange(1.0, 8.0).reshape(1, 7, 1)
    padding = jnp.full((1, 2, 1), 77.0)
    padded = jnp.concatenate([x[:, :3], padding], axis=1)
    cache = DecodeCache({}, jnp.int32(0), 9, text=jnp.int32(3))
    first = cache.with_earlier("a", padded, 2)
    np.testing.assert_array_equal(first[0, :, 0], [0, 0, 1, 2, 3, 77, 77])
    cache = DecodeCache(cache.arrays, jnp.int32(3), 9)
    np.testing.assert_array_equal(cache.with_earlier("a", x[:, 3:4], 2)[0, :, 0], [2, 3, 4])
    assert cache.arrays["a"].shape == (1, 2, 1)
    cache = DecodeCache(cache.arrays, jnp.int32(4), 9)
    whole = cache.with_earlier("a", x[:, 4:], 2)
    np.testing.assert_array_equal(whole[0, :, 0], [3, 4, 5, 6, 7])


def test_no_token_before_a_call_is_kept():
    cache = DecodeCache({}, jnp.int32(0), 9)
    x = jnp.ones((2, 3, 4))
    np.testing.assert_array_equal(cache.with_earlier("a", x, 0), x)
    assert cache.arrays["a"].shape == (2, 0, 4)


@pytest.mark.parametrize("name", ["depthwise", "long_conv", "delta"])
def test_a_short_convolution_keeps_as_many_tokens_as_it_reads(name):
    """Not all n: a kernel of 4 tokens keeps the 3 before the next, one of N tokens N - 1."""
    model = nnx.eval_shape(lambda: CausalLM(spec(name, dtype="float32"), 11, nnx.Rngs(0)))
    state, extend = function_of(model, "extend")
    whole = jax.ShapeDtypeStruct((1, N), jnp.int32)
    _, (kept,) = jax.eval_shape(extend, state, whole, None, 0, 0)
    array, past = {
        "depthwise": ("gate", N - 1),
        "long_conv": ("projections", 2),
        "delta": ("convolution", 3),
    }[name]
    assert kept[array].shape[2] == past  # [layers, batch, past, channels]


def test_other_blocks_refuse_to_be_causal():
    able = {name for name, block in BLOCKS.items() if block.can_be_causal}
    assert able == {"gmlp", "transformer", "bigs", "delta", "hydra", "long_conv"}
    for name in BLOCKS.keys() - able:
        with pytest.raises(
            ValueError, match=r"^model.causal is True: \w+Block mixes all tokens; set it to False$"
        ):
            BLOCKS[name].spec(length=N, causal=True)
    for form in ("fft", "blocked"):
        with pytest.raises(
            ValueError, match=f"^model.toeplitz is '{form}', whose rounding depends on later tokens"
        ):
            spec("split", toeplitz=form)
        assert spec("dense", toeplitz=form)
    assert dataclasses.replace(spec("split"), length=16384).form(16384) == "direct"
