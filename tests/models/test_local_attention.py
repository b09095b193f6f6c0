"""Attention in windows, keys and values shared by several heads, and encoders whose layers have
several programs in turn."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models import attention, blocks, fused_attention, sharding
from gmlp_flax.models.attention import MultiHeadAttention
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.text import CausalLM
from tests.models.reference import quick_jit

ROTARY = {"positions": "rotary", "local_rotary_theta": 100.0}


def transformer(length=24, **options):
    """A spec of a narrow Transformer."""
    sizes = {"layers": 2, "d_model": 16, "d_ffn": 24, "heads": 2}
    return blocks.find("transformer").spec(length=length, **sizes | options)


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def slow_mix(q, k, v, spec, visible):
    """softmax(q k^T / sqrt(d)) v, token by token: arrays [tokens, d], and who sees whom."""
    tokens, d = q.shape
    mixed = np.zeros_like(v)
    for query in range(tokens):
        keys = []
        for key in range(tokens):
            is_near = abs(query - key) <= spec.window // 2
            is_past = key <= query or not spec.causal
            if is_near and is_past and visible[query, key]:
                keys.append(key)
        scores = np.array([q[query] @ k[key] for key in keys]) / np.sqrt(d)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        mixed[query] = sum(weight * v[key] for weight, key in zip(weights, keys, strict=True))
    return mixed


# Lengths that are a multiple of the window, one more, one less, and shorter than the window.
@pytest.mark.parametrize("tokens", [16, 17, 15, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding", "documents"])
def test_windows_are_those_of_the_slow_loop(tokens, causal, mask):
    spec = transformer(window=4, causal=causal)
    q, k, v = np.asarray(normal(3, 2, 2, tokens, 8))
    padding_mask = None
    visible = np.ones((tokens, tokens), bool)
    read = tokens  # the rows that are compared: those of padding have no meaning
    if mask == "padding":
        read = tokens - 2
        padding_mask = jnp.broadcast_to(jnp.arange(tokens) < read, (2, tokens))
        visible[:, read:] = False
    elif mask == "documents":
        documents = 1 + np.arange(tokens) // 3
        padding_mask = jnp.broadcast_to(jnp.asarray(documents, jnp.int32), (2, tokens))
        visible = documents[:, None] == documents
    attend = quick_jit(lambda q, k, v: attention.attend_in_windows(q, k, v, spec, padding_mask))
    mixed = attend(q, k, v)
    assert mixed.shape == (2, 2, tokens, 8)
    for example in range(2):
        for head in range(2):
            expected = slow_mix(q[example, head], k[example, head], v[example, head], spec, visible)
            np.testing.assert_allclose(mixed[example, head, :read], expected[:read], atol=1e-5)


def test_windows_have_the_gradients_of_the_whole_matrix():
    """Also with examples of padding alone, and without an array of tokens times tokens."""
    spec = transformer(window=4)
    q, k, v = normal(3, 2, 2, 33, 8)
    mask = jnp.arange(33) < jnp.array([[30], [0]])
    weights = normal(2, 2, 33, 8, seed=1) * mask[:, None, :, None]

    def in_windows(q, k, v):
        return (weights * attention.attend_in_windows(q, k, v, spec, mask)).sum()

    def whole(q, k, v):
        logits = attention.dot_products(q, k, spec)
        return (weights * attention.attend(logits, v, 33, mask)).sum()

    found = quick_jit(jax.grad(in_windows, argnums=(0, 1, 2)))(q, k, v)
    expected = quick_jit(jax.grad(whole, argnums=(0, 1, 2)))(q, k, v)
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, atol=1e-5)
    program = str(jax.make_jaxpr(jax.grad(in_windows))(q, k, v))
    assert "33,33]" not in program
    assert "33,33]" in str(jax.make_jaxpr(jax.grad(whole))(q, k, v))


def test_dropout_in_windows_keeps_the_mean():
    spec = transformer(window=4, attention_dropout=0.25)
    q, k, v = normal(3, 1, 2, 20, 8)
    expected = attention.attend_in_windows(q, k, v, spec)
    draw = jax.jit(lambda key: attention.attend_in_windows(q, k, v, spec, dropout_keys=key[None]))
    drawn = jax.vmap(draw)(jax.random.split(jax.random.key(0), 3000))
    assert float(jnp.abs(drawn[0] - expected).max()) > 0.1
    np.testing.assert_allclose(drawn.mean(0), expected, atol=0.1)


@pytest.mark.parametrize(("tokens", "causal"), [(24, True), (600, False)])
def test_the_kernel_of_tpus_has_windows(monkeypatch, causal, tokens):
    """In one block of queries, and in two, the last one of fewer queries."""
    kernel = functools.partial(fused_attention.attention, interpret=True)
    monkeypatch.setattr(fused_attention, "attention", kernel)
    spec = transformer(length=tokens, d_qkv=128, window=8, causal=causal)
    layer = MultiHeadAttention(spec, nnx.Rngs(0))
    x = normal(1, tokens, 16)
    mask = (jnp.arange(tokens) < tokens - 3)[None]
    weights = normal(1, tokens, 16, seed=1) * mask[..., None]

    def loss(x):
        return (weights * layer(x, padding_mask=mask)).sum()

    expected = quick_jit(jax.value_and_grad(loss))(x)
    monkeypatch.setattr(sharding, "platform", lambda: "tpu")
    found = quick_jit(jax.value_and_grad(loss))(x)
    assert "pallas_call" in str(jax.make_jaxpr(loss)(x))
    assert np.isfinite(found[1]).all()
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-4)


def test_relative_positions_have_windows_too():
    spec = transformer(positions="relative", window=4)
    layer = MultiHeadAttention(spec, nnx.Rngs(0))
    scores = layer.scores(normal(2, 24, 16))
    distances = np.abs(np.arange(24)[:, None] - np.arange(24))
    assert (np.isneginf(scores) == (distances > 2)).all()
    far = normal(1, 24, 16).at[0, 20].add(5.0)
    near = layer(normal(1, 24, 16))[0, :18]
    np.testing.assert_array_equal(layer(far)[0, :18], near)


# Keys and values that several heads share.


@pytest.mark.parametrize("window", [0, 4])
def test_shared_keys_are_those_of_a_wider_projection(window):
    grouped = transformer(heads=4, kv_heads=2, positions="rotary", window=window, causal=True)
    full = dataclasses.replace(grouped, kv_heads=0)
    shared = MultiHeadAttention(grouped, nnx.Rngs(0))
    own = MultiHeadAttention(full, nnx.Rngs(1))
    kernel = np.asarray(shared.proj_in.kernel[...])
    assert kernel.shape == (16, 16 + 2 * 8)
    queries, keys, values = np.split(kernel, [16, 24], axis=1)

    def repeated(part):
        by_head = part.reshape(16, 2, 4)
        return np.repeat(by_head, 2, axis=1).reshape(16, 16)

    wide = np.concatenate([queries, repeated(keys), repeated(values)], axis=1)
    own.proj_in.kernel[...] = jnp.asarray(wide)
    own.out.kernel[...] = shared.out.kernel[...]
    x = normal(2, 24, 16)
    np.testing.assert_allclose(shared(x), own(x), atol=1e-5)
    np.testing.assert_allclose(shared.scores(x), own.scores(x), atol=1e-5)


def test_a_cache_stores_shared_keys_once():
    spec = transformer(9, heads=4, kv_heads=2, causal=True, window=4, **ROTARY, layers=5)
    model = CausalLM(spec, 40, nnx.Rngs(0))
    tokens = jax.random.randint(jax.random.key(0), (2, 9), 0, 40)
    whole = quick_jit(model)(tokens)
    extend = quick_jit(model.extend)
    caches = None
    for position in range(9):
        token = tokens[:, position : position + 1]
        logits, caches = extend(token, caches, jnp.int32(position), jnp.int32(0))
        np.testing.assert_allclose(logits, whole[:, position], rtol=1e-4, atol=1e-5)
    [cache] = caches
    assert cache["keys"].shape == (5, 2, 2, 9, 4)  # layers, batch, heads, tokens, channels


# Encoders.


def first_layers(stacked, count):
    """The first layers of a tree of stacked parameters."""
    return jax.tree.map(lambda leaf: leaf[:count], stacked)


def in_turn(encoder, x):
    """The layers of an encoder one by one, each made from its spec."""
    number = 0
    for stack_spec, stack in zip(encoder.stack_specs, encoder.stacks, strict=True):
        params = nnx.state(stack)
        for row in range(stack_spec.layers):
            spec = encoder.layer_specs[number]
            block = spec.block(spec, nnx.Rngs(0))
            nnx.update(block, jax.tree.map(lambda leaf, row=row: leaf[row], params))
            x = block(x)
            number += 1
    return encoder.norm(x)


# Whole periods, incomplete ones, and less than one.
@pytest.mark.parametrize(
    ("layers", "options"),
    [
        (2, {}),
        (7, {}),
        (1, {"first_norm": False}),
        (8, {"first_norm": False}),
        (7, {"scan_layers": False}),
    ],
)
def test_every_layer_has_its_program(layers, options):
    spec = transformer(layers=layers, window=4, **ROTARY, **options)
    encoder = Encoder(spec, nnx.Rngs(0))
    windows = [layer.window for layer in encoder.layer_specs]
    assert windows == [0 if number % 3 == 0 else 4 for number in range(layers)]
    thetas = [layer.rotary_theta for layer in encoder.layer_specs]
    assert thetas == [10_000.0 if number % 3 == 0 else 100.0 for number in range(layers)]
    x = normal(2, 24, 16)

    def loss(x, run):
        y = run(x)
        return jnp.sin(y).sum(), y

    gradient_of = jax.grad(loss, has_aux=True)
    gradient, y = quick_jit(lambda x: gradient_of(x, encoder))(x)
    expected, expected_y = quick_jit(lambda x: gradient_of(x, functools.partial(in_turn, encoder)))(
        x
    )
    np.testing.assert_allclose(y, expected_y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4)


def test_the_states_of_layers_within_a_period():
    """As an encoder of so many layers has them."""
    spec = transformer(layers=7, window=4, **ROTARY)
    encoder = Encoder(spec, nnx.Rngs(0))
    x = normal(2, 24, 16)
    layers = (1, 4, 6)
    states = quick_jit(lambda x: encoder.states(x, layers))(x)
    for layer, state in zip(layers, states, strict=True):
        count = layer + 1
        shorter = Encoder(dataclasses.replace(spec, layers=count), nnx.Rngs(0))
        nnx.update(shorter.blocks, first_layers(nnx.state(encoder.blocks), count))
        np.testing.assert_allclose(state, quick_jit(shorter)(x), rtol=1e-4, atol=1e-5)


def test_runs_are_consecutive_layers_of_one_program():
    spec = transformer(layers=8, window=4, first_norm=False, **ROTARY)
    encoder = Encoder(spec, nnx.Rngs(0))
    counts = []
    windows = []
    for run in encoder.runs:
        counts.append(len(run.mlp_norm.scale[...]))
        windows.append(run.attention.spec.window)
    assert counts == [1, 2, 1, 2, 1, 1]
    assert windows == [0, 4, 0, 4, 0, 4]
    last = encoder.runs[-1].mlp.proj_in.kernel[...]
    np.testing.assert_array_equal(last[0], encoder.stacks[-1].mlp.proj_in.kernel[-1])


def test_a_deep_encoder_is_compiled_by_periods():
    """As many products in the program for 22 layers as for 7."""

    def products(layers):
        spec = transformer(layers=layers, window=4, first_norm=False, **ROTARY)
        abstract = nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))
        definition, params = nnx.split(abstract)

        def run(params, x):
            return nnx.merge(definition, params)(x)

        return str(jax.make_jaxpr(run)(params, normal(1, 24, 16))).count("dot_general")

    assert products(22) == products(7)
    assert products(22) < 2 * products(4)


@pytest.mark.parametrize(
    ("platform", "dtype", "length", "local", "others"),
    [
        ("tpu", "bfloat16", 1024, "the attention kernel", "the attention kernel"),
        ("tpu", "bfloat16", 2048, "two windows of keys", "XLA, with all keys"),
        ("gpu", "bfloat16", 2048, "two windows of keys", "cuDNN"),
        ("gpu", "float32", 2048, "two windows of keys", "XLA, with all keys"),
        ("gpu", "bfloat16", 256, "XLA, with all keys", "cuDNN"),
    ],
)
def test_a_plan_says_what_computes_attention(platform, dtype, length, local, others):
    spec = transformer(length, layers=22, window=128, d_model=768, heads=12, dtype=dtype, **ROTARY)
    first, second = spec.block.notes(spec, platform)
    assert "14 layers with windows of 128" in first
    assert first.endswith(local)
    assert "8 layers that see all tokens" in second
    assert second.endswith(others)
    assert not spec.block.notes(dataclasses.replace(spec, window=0), platform)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 3}, "model.window is 3: expected 0, or an even number"),
        ({"kv_heads": 3}, "model.kv_heads is 3: expected a divisor of model.heads, 2"),
        ({"kv_heads": 1, "positions": "relative_only"}, "set model.kv_heads to 0"),
        ({"first_norm": False, "norm": "post"}, "set model.norm to 'pre'"),
        ({"global_every": -1}, "global_every is -1: expected at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        transformer(**options)
