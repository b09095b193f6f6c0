"""The kernel against the plain form, values and gradients; interpreted, as there is no TPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models import fused_attention, sharding
from gmlp_flax.models.attention import MultiHeadAttention
from gmlp_flax.models.blocks.gmlp import TinyAttention
from gmlp_flax.models.sharding import DATA, FSDP, TENSOR
from tests.models.reference import function_of, normal, quick_jit, randomized, small_spec

BATCH = 3


def plain(qkv, bias, padding_mask, heads, causal):
    """The definition, in float64."""
    tokens = qkv.shape[1]
    q, k, v = (
        part.reshape(BATCH, tokens, heads, -1).swapaxes(1, 2) for part in np.split(qkv, 3, axis=-1)
    )
    logits = q @ k.mT / q.shape[-1] ** 0.5 + (0 if bias is None else bias)
    if padding_mask is not None:
        logits = jnp.where(padding_mask[:, None, None], logits, jnp.finfo(jnp.float64).min)
    if causal:
        logits = jnp.where(np.tri(tokens, dtype=bool), logits, -jnp.inf)
    return (jax.nn.softmax(logits, axis=-1) @ v).swapaxes(1, 2).reshape(BATCH, tokens, -1)


@pytest.mark.parametrize(
    ("heads", "tokens", "biased", "masked", "causal", "dtype", "error"),
    [
        (1, 25, 1, 1, 1, "float32", 2e-6),  # of 256 columns
        (2, 24, 0, 1, 0, "bfloat16", 0.03),  # of 128
        (4, 32, 1, 1, 0, "float32", 2e-6),  # two share 128; two blocks of 16 queries
        (4, 24, 1, 0, 1, "bfloat16", 0.03),
        (4, 32, 0, 0, 1, "float32", 2e-6),
        # half of the last block is beyond the queries, and is NaN
        (2, 40, 1, 1, 1, "float32", 2e-6),
        (4, 40, 1, 0, 0, "bfloat16", 0.03),
    ],
)
def test_values_and_gradients(monkeypatch, heads, tokens, biased, masked, causal, dtype, error):
    monkeypatch.setattr(fused_attention, "MOST_LOGITS", 640)
    rng = np.random.default_rng(0)
    exact = [rng.normal(size=(BATCH, tokens, 3 * 256)), rng.normal(size=(heads, tokens, tokens))]
    qkv, bias = (jnp.asarray(x, kind) for x, kind in zip(exact, (dtype, "float32"), strict=True))
    # The last example is padding alone.
    mask = np.arange(tokens) < np.array([[tokens], [11], [0]]) if masked else None
    weights = rng.normal(size=(BATCH, tokens, 256))

    def fused(qkv, bias):
        options = {"heads": heads, "causal": bool(causal), "interpret": True}
        mixed = fused_attention.attention(qkv, bias if biased else None, mask, **options)
        assert mixed.dtype == dtype
        assert mixed.shape == (BATCH, tokens, 256)
        return (mixed * jnp.asarray(weights, "float32")).sum(), mixed

    (_, mixed), found = quick_jit(jax.value_and_grad(fused, argnums=(0, 1), has_aux=True))(
        qkv, bias
    )
    with jax.enable_x64(True):
        given = [np.asarray(qkv, np.float64), np.asarray(bias, np.float64)]

        def reference(qkv, bias):
            mixed = plain(qkv, bias if biased else None, mask, heads, causal)
            return (mixed * weights).sum(), mixed

        (_, right), expected = quick_jit(
            jax.value_and_grad(reference, argnums=(0, 1), has_aux=True)
        )(*given)
    pairs = [
        (mixed, right),
        (found[0], expected[0]),
        *([(found[1], expected[1])] if biased else []),
    ]
    for one, other in pairs:
        other = np.asarray(other)
        assert np.abs(np.asarray(one, np.float64) - other).max() < error * np.abs(other).max()


@pytest.mark.parametrize(
    ("tokens", "width", "heads", "served"),
    [
        (512, 768, 12, True),
        (128, 1024, 8, True),
        (1024, 768, 12, True),  # in four blocks of queries
        (576, 384, 6, True),  # in two
        (512, 64, 1, False),  # less than a register
        (577, 384, 6, True),  # of a ViT at 384 pixels, in two blocks, the last of fewer queries
        (2048, 768, 12, False),
        (197, 384, 6, True),  # of a ViT, in one block
        (128, 192, 3, False),  # of 64 columns each, an odd number
        (128, 768, 8, False),  # of 96 columns
    ],
)
def test_which_shapes_it_has(tokens, width, heads, served):
    assert fused_attention.serves(tokens, width, heads) is served


@pytest.fixture
def on_tpu(monkeypatch):
    """Attention takes this machine for a TPU, and interprets the kernel; gives the calls of it."""
    calls = []
    kernel = functools.partial(fused_attention.attention, interpret=True)
    monkeypatch.setattr(sharding, "platform", lambda: "tpu")
    monkeypatch.setattr(
        fused_attention,
        "attention",
        lambda *args, **options: (calls.append(options), kernel(*args, **options))[1],
    )
    return calls


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
        x = np.float32(normal(1, 2, 16, 6))
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


def test_devices_that_share_a_batch_each_run_it():
    """On a mesh whose axes are the compiler's, each device runs the kernel on its examples; of one
    device here."""
    mesh = jax.make_mesh(
        (1, 1, 1), (DATA, FSDP, TENSOR), axis_types=(jax.sharding.AxisType.Auto,) * 3
    )
    qkv = np.float32(normal(0, 2, 16, 384))
    bias = np.float32(normal(1, 2, 16, 16))
    value = lambda bias: fused_attention.attention(qkv, bias, None, heads=2, interpret=True).sum()  # noqa: E731
    alone = quick_jit(jax.grad(value))(bias)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        text = str(jax.make_jaxpr(value)(bias))
    with jax.set_mesh(mesh):
        np.testing.assert_allclose(quick_jit(jax.grad(value))(bias), alone, rtol=1e-5, atol=1e-6)
    assert "shard_map" in text
