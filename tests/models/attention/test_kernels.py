import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

from gmlp_flax.models import sharding
from gmlp_flax.models.attention.multi_head import MultiHeadAttention
from gmlp_flax.models.blocks.gmlp import TinyAttention
from gmlp_flax.models.sharding import DATA, FSDP, TENSOR
from tests.models import reference
from tests.models.attention.cases import ROTARY, normal, transformer
from tests.models.reference import function_of, quick_jit, randomized, small_spec


def layer(positions, **fields):
    """Attention with two heads, or aMLP's with one."""
    if positions == "tiny":
        width = fields.get("d_model", 6)
        return TinyAttention(small_spec(**fields), width, nnx.Rngs(0))
    spec = small_spec(block="transformer", heads=2, positions=positions, **fields)
    return MultiHeadAttention(spec, nnx.Rngs(0))


def value_and_gradients(module, x, mask):
    """Of the sum of squares of the outputs: all arrays, in float32."""
    state, call = function_of(module)

    def total(state, x):
        y = call(state, x, None, mask)
        float_outputs = y.astype(jnp.float32)
        squares = jnp.square(float_outputs)
        return squares.sum()

    value_and_gradients_of = quick_jit(jax.value_and_grad(total, argnums=(0, 1)))
    found = value_and_gradients_of(state, x)
    leaves = jax.tree.leaves(found)
    return [np.asarray(leaf, np.float32) for leaf in leaves]


@pytest.mark.parametrize(
    ("positions", "causal"),
    [
        ("none", False),
        ("relative", True),
        ("tiny", True),
    ],
)
def test_the_kernel_of_tpus_gives_the_same_layer(on_tpu, positions, causal):
    fields = {"length": 16, "dtype": "float32", "causal": causal}
    width = "d_attn" if positions == "tiny" else "d_qkv"
    fields[width] = 128
    numbers = reference.normal(1, 2, 16, 6)
    x = np.float32(numbers)
    lengths = jnp.array([[16], [9]])
    mask = jnp.arange(16) < lengths
    by_kernel = randomized(lambda: layer(positions, attention="auto", **fields))
    found = value_and_gradients(by_kernel, x, mask)
    by_xla = randomized(lambda: layer(positions, attention="xla", **fields))
    expected = value_and_gradients(by_xla, x, mask)
    assert len(on_tpu) == 1
    for one, other in zip(found, expected, strict=True):
        largest = np.abs(other).max()
        scale = max(1, largest)
        difference = np.abs(one - other).max()
        assert difference < 1e-5 * scale


@pytest.mark.parametrize(
    ("options", "has_dropout"),
    [
        pytest.param({"attention_dropout": 0.5}, True, id="dropout on weights"),
        pytest.param({"d_qkv": 6}, False, id="other shapes"),
        pytest.param({"positions": "relative_only"}, False, id="weights without content"),
    ],
)
def test_unsupported_attention_runs_without_the_kernel(on_tpu, options, has_dropout):
    fields = {"positions": "none", "d_qkv": 128, "length": 16, "dtype": "float32"} | options
    module = nnx.eval_shape(lambda: layer(**fields))
    state, call = function_of(module)
    x = jnp.ones((2, 16, 6))
    dropout_keys = reference.keys(0, 2) if has_dropout else None
    y = jax.eval_shape(call, state, x, dropout_keys)
    assert y.shape == x.shape
    assert not on_tpu


@pytest.mark.slow
@pytest.mark.parametrize(
    ("positions", "masked", "uses_cudnn"),
    [
        ("none", True, True),
        ("none", False, True),
        ("relative", False, True),
        pytest.param("relative", True, False, id="bias and mask"),
        ("tiny", True, True),
    ],
)
def test_cudnn_gets_masks_with_padding_anywhere(monkeypatch, positions, masked, uses_cudnn):
    """XLA computes here what cuDNN's kernel is asked for. A bias and a mask together run without
    it."""
    implementations = []
    attention = jax.nn.dot_product_attention

    def by_xla(q, k, v, bias, mask, *, is_causal, implementation):
        implementations.append(implementation)
        # [batch, heads, ...] is never in memory
        assert mask is None or mask.shape == (2, 1, 64, 64)
        return attention(q, k, v, bias, mask, is_causal=is_causal)

    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    key = jax.random.key(1)
    x = jax.random.normal(key, (2, 64, 16), jnp.bfloat16)
    mask = None
    if masked:
        ones = jnp.ones((2, 64), bool)
        mask = ones.at[1, 40:].set(False)
        mask = mask.at[0, 3:9].set(False)
    fields = {"d_model": 16, "length": 64, "dtype": "bfloat16"}
    if positions == "tiny":
        fields["d_attn"] = 8
    by_cudnn = randomized(lambda: layer(positions, attention="auto", **fields))
    found = value_and_gradients(by_cudnn, x, mask)
    without = randomized(lambda: layer(positions, attention="xla", **fields))
    expected = value_and_gradients(without, x, mask)
    assert implementations == (["cudnn"] if uses_cudnn else [])
    for one, other in zip(found, expected, strict=True):
        difference = np.abs(one - other).max()
        assert difference <= 0.03 * np.abs(other).max()
    automatic = jax.sharding.AxisType.Auto
    axes = (DATA, FSDP, TENSOR)
    mesh = jax.make_mesh((1, 1, 1), axes, axis_types=(automatic,) * 3)
    state, call = function_of(by_cudnn)
    # JAX's own partitioner fails where an axis is its own
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        jaxpr = jax.make_jaxpr(call)(state, x, None, mask)
        program = str(jaxpr)
    assert ("shard_map" in program) == uses_cudnn


@pytest.mark.parametrize(
    ("tokens", "causal"),
    [
        pytest.param(24, True, id="one block of queries"),
        pytest.param(600, False, id="two blocks, the last of fewer queries"),
    ],
)
def test_the_kernel_of_tpus_has_windows(on_tpu, causal, tokens):
    x = normal(1, tokens, 16)
    is_text = jnp.arange(tokens) < tokens - 3
    mask = is_text[None]
    numbers = normal(1, tokens, 16, seed=1)
    weights = jnp.where(mask[..., None], numbers, 0)

    def value_and_gradient(computed_by):
        spec = transformer(length=tokens, d_qkv=128, window=8, causal=causal, attention=computed_by)
        layer = MultiHeadAttention(spec, nnx.Rngs(0))

        def loss(x):
            y = layer(x, padding_mask=mask)
            return (weights * y).sum()

        return quick_jit(jax.value_and_grad(loss))(x)

    expected_value, expected_gradient = value_and_gradient("xla")
    assert not on_tpu
    value, gradient = value_and_gradient("auto")
    [options] = on_tpu
    assert options["window"] == 8
    assert np.isfinite(gradient).all()
    assert_allclose(value, expected_value, rtol=1e-4)
    assert_allclose(gradient, expected_gradient, atol=1e-4)


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
