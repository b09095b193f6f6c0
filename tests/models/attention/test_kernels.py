import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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
        return TinyAttention(small_spec(**fields), fields.get("d_model", 6), nnx.Rngs(0))
    return MultiHeadAttention(
        small_spec(block="transformer", heads=2, positions=positions, **fields), nnx.Rngs(0)
    )


@pytest.mark.parametrize(
    ("positions", "causal"), [("none", False), ("relative", True), ("tiny", True)]
)
def test_the_layer_is_the_same(on_tpu, positions, causal):
    fields = {"length": 16, "dtype": "float32", "causal": causal}
    fields |= {"d_attn": 128} if positions == "tiny" else {"d_qkv": 128}
    found = []
    for attention in ("auto", "xla"):
        state, call = function_of(
            randomized(lambda form=attention: layer(positions, attention=form, **fields))
        )
        x = np.float32(reference.normal(1, 2, 16, 6))
        mask = jnp.arange(16) < jnp.array([[16], [9]])
        value = lambda state, x, call=call, mask=mask: jnp.square(call(state, x, None, mask)).sum()  # noqa: E731
        found.append(quick_jit(jax.value_and_grad(value, argnums=(0, 1)))(state, x))
    assert len(on_tpu) == 1
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        assert np.abs(one - other).max() < 1e-5 * max(1, np.abs(other).max())


def test_what_the_kernel_does_not_do_runs_without_it(on_tpu):
    """Dropout on weights, other shapes, and weights without content."""
    x = jnp.ones((2, 16, 6))
    key = jax.random.split(jax.random.key(0), 2)
    for more, dropout_keys in (
        ({"attention_dropout": 0.5}, key),
        ({"d_qkv": 6}, None),
        ({"positions": "relative_only"}, None),
    ):
        fields = {
            "block": "transformer",
            "heads": 2,
            "d_qkv": 128,
            "length": 16,
            "dtype": "float32",
        } | more
        state, call = function_of(
            nnx.eval_shape(
                lambda fields=fields: MultiHeadAttention(small_spec(**fields), nnx.Rngs(0))
            )
        )
        assert jax.eval_shape(call, state, x, dropout_keys).shape == x.shape
    assert not on_tpu


@pytest.mark.slow
@pytest.mark.parametrize(
    ("positions", "masked", "calls"),
    [
        ("none", True, 1),
        ("none", False, 1),
        ("relative", False, 1),
        ("relative", True, 0),
        ("tiny", True, 1),
    ],
)
def test_gpus_get_masks_with_padding_anywhere(monkeypatch, positions, masked, calls):
    """What cuDNN's kernel is given, run by XLA: the same as without it. A bias and a mask together
    run without it."""
    given = []
    attention = jax.nn.dot_product_attention

    def by_xla(q, k, v, bias, mask, *, is_causal, implementation):
        given.append(implementation)
        # [batch, heads, ...] is never in memory
        assert mask is None or mask.shape == (2, 1, 64, 64)
        return attention(q, k, v, bias, mask, is_causal=is_causal)

    monkeypatch.setattr(sharding, "platform", lambda: "gpu")
    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    found = []
    x = jax.random.normal(jax.random.key(1), (2, 64, 16), jnp.bfloat16)
    mask = jnp.ones((2, 64), bool).at[1, 40:].set(False).at[0, 3:9].set(False) if masked else None
    fields = {"d_model": 16, "length": 64, "dtype": "bfloat16"} | (
        {"d_attn": 8} if positions == "tiny" else {}
    )
    for form in ("auto", "xla"):
        state, call = function_of(
            randomized(lambda form=form: layer(positions, attention=form, **fields))
        )

        def value(state, x, call=call):
            return jnp.square(call(state, x, None, mask).astype(jnp.float32)).sum()

        found.append(quick_jit(jax.value_and_grad(value, argnums=(0, 1)))(state, x))
    assert given == ["cudnn"] * calls
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        assert np.abs(one - other).max() <= 0.03 * np.abs(other).max()
    mesh = jax.make_mesh(
        (1, 1, 1), (DATA, FSDP, TENSOR), axis_types=(jax.sharding.AxisType.Auto,) * 3
    )
    state, call = function_of(nnx.eval_shape(lambda: layer(positions, **fields)))
    # JAX's own partitioner fails where an axis is its own
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        assert ("shard_map" in str(jax.make_jaxpr(call)(state, x, None, mask))) == bool(calls)


@pytest.mark.parametrize(("tokens", "causal"), [(24, True), (600, False)])
def test_the_kernel_of_tpus_has_windows(on_tpu, causal, tokens):
    """In one block of queries, and in two, the last one of fewer queries."""
    x = normal(1, tokens, 16)
    mask = (jnp.arange(tokens) < tokens - 3)[None]
    weights = normal(1, tokens, 16, seed=1) * mask[..., None]

    def value_and_gradient(computed_by):
        spec = transformer(length=tokens, d_qkv=128, window=8, causal=causal, attention=computed_by)
        layer = MultiHeadAttention(spec, nnx.Rngs(0))

        def loss(x):
            return (weights * layer(x, padding_mask=mask)).sum()

        return quick_jit(jax.value_and_grad(loss))(x)

    expected_value, expected_gradient = value_and_gradient("xla")
    assert not on_tpu
    value, gradient = value_and_gradient("auto")
    [options] = on_tpu
    assert options["window"] == 8
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(value, expected_value, rtol=1e-4)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-4)


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
