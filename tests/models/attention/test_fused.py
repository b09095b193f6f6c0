"""The kernel against the plain form, values and gradients; interpreted, as there is no TPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.models.attention import fused
from gmlp_flax.models.sharding import DATA, FSDP, TENSOR
from tests.models.reference import normal, quick_jit

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
    monkeypatch.setattr(fused, "MOST_LOGITS", 640)
    rng = np.random.default_rng(0)
    exact = [rng.normal(size=(BATCH, tokens, 3 * 256)), rng.normal(size=(heads, tokens, tokens))]
    qkv, bias = (jnp.asarray(x, kind) for x, kind in zip(exact, (dtype, "float32"), strict=True))
    # The last example is padding alone.
    mask = np.arange(tokens) < np.array([[tokens], [11], [0]]) if masked else None
    weights = rng.normal(size=(BATCH, tokens, 256))

    def by_kernel(qkv, bias):
        options = {"heads": heads, "causal": bool(causal), "interpret": True}
        mixed = fused.attention(qkv, bias if biased else None, mask, **options)
        assert mixed.dtype == dtype
        assert mixed.shape == (BATCH, tokens, 256)
        return (mixed * jnp.asarray(weights, "float32")).sum(), mixed

    (_, mixed), found = quick_jit(jax.value_and_grad(by_kernel, argnums=(0, 1), has_aux=True))(
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
    assert fused.serves(tokens, width, heads) is served


def test_devices_that_share_a_batch_each_run_it():
    """On a mesh whose axes are the compiler's, each device runs the kernel on its examples; of one
    device here."""
    mesh = jax.make_mesh(
        (1, 1, 1), (DATA, FSDP, TENSOR), axis_types=(jax.sharding.AxisType.Auto,) * 3
    )
    qkv = np.float32(normal(0, 2, 16, 384))
    bias = np.float32(normal(1, 2, 16, 16))
    value = lambda bias: fused.attention(qkv, bias, None, heads=2, interpret=True).sum()  # noqa: E731
    alone = quick_jit(jax.grad(value))(bias)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        text = str(jax.make_jaxpr(value)(bias))
    with jax.set_mesh(mesh):
        np.testing.assert_allclose(quick_jit(jax.grad(value))(bias), alone, rtol=1e-5, atol=1e-6)
    assert "shard_map" in text
