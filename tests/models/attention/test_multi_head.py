import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.attention.multi_head import MultiHeadAttention
from gmlp_flax.models.text import CausalLM
from tests.models import reference
from tests.models.attention.cases import ROTARY, normal, transformer
from tests.models.reference import (
    count,
    function_of,
    in_float64,
    largest_array,
    params_of,
    program,
    quick_jit,
    randomized,
    small_spec,
)


def many_heads(**fields):
    fields = {"block": "transformer", "heads": 3, "positions": "relative"} | fields
    return MultiHeadAttention(small_spec(**fields), nnx.Rngs(0))


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
    x = reference.normal(0, 5, 6)
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


def test_relative_positions_have_windows_too():
    spec = transformer(positions="relative", window=4)
    layer = MultiHeadAttention(spec, nnx.Rngs(0))
    scores = layer.scores(normal(2, 24, 16))
    distances = np.abs(np.arange(24)[:, None] - np.arange(24))
    assert (np.isneginf(scores) == (distances > 2)).all()
    far = normal(1, 24, 16).at[0, 20].add(5.0)
    near = layer(normal(1, 24, 16))[0, :18]
    np.testing.assert_array_equal(layer(far)[0, :18], near)


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


@pytest.mark.slow
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
