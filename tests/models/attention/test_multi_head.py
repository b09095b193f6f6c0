import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.attention.multi_head import MultiHeadAttention
from gmlp_flax.models.text import CausalLM
from tests.models import reference
from tests.models.attention.cases import ROTARY, normal, transformer
from tests.models.continuation import assert_same_logits_token_by_token
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
    options = {"block": "transformer", "heads": 3, "positions": "relative"}
    spec = small_spec(**options | fields)
    return MultiHeadAttention(spec, nnx.Rngs(0))


def traced(**fields):
    """The state of a float32 layer without numbers, its function, and the gradient of its sum."""
    module = nnx.eval_shape(lambda: many_heads(dtype="float32", **fields))
    state, call = function_of(module)

    def loss(state, x):
        return call(state, x).sum()

    return state, call, jax.grad(loss, argnums=(0, 1))


def test_weights_without_content_are_not_repeated_for_each_example():
    """Every array is smaller than [batch, heads, tokens, tokens], forward and backward."""
    state, call, gradient = traced(positions="relative_only", length=16)
    batch = 8
    x = jnp.ones((batch, 16, 6), jnp.float32)
    repeated = batch * 3 * 16 * 16
    assert largest_array(call, state, x) < repeated
    assert largest_array(gradient, state, x) < repeated


@pytest.mark.parametrize("primitive", ["gather", "scatter-add", "scatter", "dynamic_slice"])
def test_unbucketed_bias_neither_gathers_nor_scatters(primitive):
    state, call, gradient = traced()
    x = jnp.ones((2, 4, 6), jnp.float32)
    assert count(primitive, call, state, x) == 0
    assert count(primitive, gradient, state, x) == 0


def test_bucketed_bias_gathers_once():
    state, call, _ = traced(relative_buckets=4)
    x = jnp.ones((2, 4, 6), jnp.float32)
    assert count("gather", call, state, x) == 1


@pytest.mark.parametrize(
    ("positions", "shape"),
    [
        ("none", (2, 3, 5, 5)),
        ("relative", (2, 3, 5, 5)),
        ("relative_only", (3, 5, 5)),
    ],
)
def test_bfloat16_layers_compute_the_softmax_in_float32(positions, shape):
    module = randomized(lambda: many_heads(dtype="bfloat16", positions=positions))
    x = jnp.ones((2, 5, 6), jnp.bfloat16)
    output = jax.eval_shape(module, x)
    assert output.dtype == jnp.bfloat16
    exponentials = []
    types_of_products = set()
    for equation in program(module, x):
        if equation.primitive.name == "exp":
            [result] = equation.outvars
            result_type = result.aval.dtype
            exponentials.append((result_type, result.aval.shape))
        elif equation.primitive.name == "dot_general":
            types_of_products |= {str(operand.aval.dtype) for operand in equation.invars}
    assert exponentials == [(jnp.float32, shape)]
    assert types_of_products == {"bfloat16"}


@in_float64
def test_wider_heads_without_biases_agree_with_loops():
    """3 heads of 4 channels, in a stream of 6."""
    module = randomized(lambda: many_heads(positions="none", d_qkv=12, attention_bias=False))
    p = params_of(module)
    assert set(p["proj_in"]) == {"kernel"}
    assert set(p["out"]) == {"kernel"}
    proj_in = p["proj_in"]["kernel"]
    out = p["out"]["kernel"]
    assert proj_in.shape == (6, 36)
    x = reference.normal(0, 5, 6)
    projected = x @ proj_in
    by_head = np.split(projected, 9, axis=1)
    mixed = []
    for head in range(3):
        q = by_head[head]
        k = by_head[3 + head]
        v = by_head[6 + head]
        mixed.append(reference.attended(q, k, v))
    expected = np.concatenate(mixed, axis=1) @ out
    [found] = quick_jit(module)(x[None])
    assert_allclose(found, expected, atol=1e-12)


@pytest.mark.slow
def test_relative_positions_may_have_windows():
    spec = transformer(positions="relative", window=4)
    layer = MultiHeadAttention(spec, nnx.Rngs(0))
    scores = layer.scores(normal(2, 24, 16))
    positions = np.arange(24)
    columns = positions[:, None]
    distances = np.abs(columns - positions)
    is_far = distances > 2
    is_hidden = np.broadcast_to(is_far, scores.shape)
    assert_array_equal(np.isneginf(scores), is_hidden)
    x = normal(1, 24, 16)
    changed = x.at[0, 20].add(5.0)
    y = layer(x)
    y_changed = layer(changed)
    changed_before = y_changed[0, :18]
    before = y[0, :18]
    assert_array_equal(changed_before, before)


def repeated_for_each_head(part):
    """[channels, 2 groups of 4] to [channels, 4 heads of 4]."""
    by_group = part.reshape(16, 2, 4)
    by_head = np.repeat(by_group, 2, axis=1)
    return by_head.reshape(16, 16)


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 4])
def test_shared_keys_agree_with_repeated_ones(window):
    """Of a wider projection, in which the keys and values of a group are repeated."""
    grouped = transformer(heads=4, kv_heads=2, positions="rotary", window=window, causal=True)
    full = dataclasses.replace(grouped, kv_heads=0)
    shared = MultiHeadAttention(grouped, nnx.Rngs(0))
    repeated = MultiHeadAttention(full, nnx.Rngs(1))
    kernel_array = shared.proj_in.kernel[...]
    kernel = np.asarray(kernel_array)
    shape = (16, 16 + 2 * 8)
    assert kernel.shape == shape
    queries, keys, values = np.split(kernel, [16, 24], axis=1)
    parts = [
        queries,
        repeated_for_each_head(keys),
        repeated_for_each_head(values),
    ]
    joined = jnp.concatenate(parts, axis=1)
    repeated.proj_in.kernel[...] = joined
    repeated.out.kernel[...] = shared.out.kernel[...]
    x = normal(2, 24, 16)
    assert_allclose(shared(x), repeated(x), atol=1e-5)
    expected = repeated.scores(x)
    assert_allclose(shared.scores(x), expected, atol=1e-5)


@pytest.mark.slow
def test_caches_store_shared_keys_once():
    spec = transformer(9, heads=4, kv_heads=2, causal=True, window=4, **ROTARY, layers=5)
    model = CausalLM(spec, 40, nnx.Rngs(0))
    key = jax.random.key(0)
    tokens = jax.random.randint(key, (2, 9), 0, 40)
    [cache] = assert_same_logits_token_by_token(model, tokens)
    assert cache["keys"].shape == (5, 2, 2, 9, 4)  # layers, batch, heads, tokens, channels
