"""The kernel, interpreted because there is no TPU, against the definition."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax.models.attention import fused
from gmlp_flax.models.sharding import DATA, FSDP, TENSOR
from tests.models.reference import normal, quick_jit

BATCH = 3
WIDTH = 256


class Case(NamedTuple):
    """Attention to compare with the definition, to a share `error` of the largest number."""

    heads: int
    tokens: int
    has_bias: bool
    has_mask: bool
    causal: bool
    dtype: str
    error: float


# `MOST_LOGITS` is 640 in the test, so that 40 tokens need blocks of 16 queries; half of their last
# block is beyond the queries, and is NaN.
CASES = {
    "256 columns": Case(1, 25, True, True, True, "float32", 2e-6),
    "128 columns": Case(2, 24, False, True, False, "bfloat16", 0.03),
    "two heads share 128, two blocks": Case(4, 32, True, True, False, "float32", 2e-6),
    "bfloat16 bias": Case(4, 24, True, False, True, "bfloat16", 0.03),
    "only causal": Case(4, 32, False, False, True, "float32", 2e-6),
    "last block is not full": Case(2, 40, True, True, True, "float32", 2e-6),
    "last block is not full, bfloat16": Case(4, 40, True, False, False, "bfloat16", 0.03),
}


def plain(qkv, bias, padding_mask, heads, causal):
    """The definition, in float64."""
    tokens = qkv.shape[1]
    by_head = []
    for part in np.split(qkv, 3, axis=-1):
        heads_last = part.reshape(BATCH, tokens, heads, -1)
        by_head.append(heads_last.swapaxes(1, 2))
    q, k, v = by_head
    logits = q @ k.mT / q.shape[-1] ** 0.5
    if bias is not None:
        logits = logits + bias
    if padding_mask is not None:
        lowest = jnp.finfo(jnp.float64).min
        logits = jnp.where(padding_mask[:, None, None], logits, lowest)
    if causal:
        logits = jnp.where(np.tri(tokens, dtype=bool), logits, -jnp.inf)
    mixed = jax.nn.softmax(logits, axis=-1) @ v
    return mixed.swapaxes(1, 2).reshape(BATCH, tokens, -1)


def random_inputs(case):
    """Queries, keys and values of all heads, and the bias, if there is one."""
    rng = np.random.default_rng(0)
    qkv = rng.normal(size=(BATCH, case.tokens, 3 * WIDTH))
    bias = None
    if case.has_bias:
        logits = rng.normal(size=(case.heads, case.tokens, case.tokens))
        bias = jnp.asarray(logits, jnp.float32)
    return jnp.asarray(qkv, case.dtype), bias


def mask_of(case):
    """The last example has only padding."""
    if not case.has_mask:
        return None
    lengths = np.array([[case.tokens], [11], [0]])
    return np.arange(case.tokens) < lengths


def outputs_and_gradients(function, weights, inputs):
    """Of the weighted sum of a function's outputs: all arrays."""

    def loss(inputs):
        mixed = function(*inputs)
        return (mixed * jnp.asarray(weights)).sum(), mixed

    gradients, mixed = quick_jit(jax.grad(loss, has_aux=True))(inputs)
    return jax.tree.leaves((mixed, gradients))


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_agree_with_the_definition(monkeypatch, name):
    monkeypatch.setattr(fused, "MOST_LOGITS", 640)
    case = CASES[name]
    mask = mask_of(case)
    weights = np.random.default_rng(1).normal(size=(BATCH, case.tokens, WIDTH))

    def by_kernel(qkv, bias):
        options = {"heads": case.heads, "causal": case.causal, "interpret": True}
        mixed = fused.attention(qkv, bias, mask, **options)
        assert mixed.dtype == case.dtype
        assert mixed.shape == (BATCH, case.tokens, WIDTH)
        return mixed

    def by_definition(qkv, bias):
        return plain(qkv, bias, mask, case.heads, case.causal)

    inputs = random_inputs(case)
    found = outputs_and_gradients(by_kernel, weights, inputs)
    with jax.enable_x64(True):
        exact_inputs = jax.tree.map(lambda array: np.asarray(array, np.float64), inputs)
        expected = outputs_and_gradients(by_definition, weights, exact_inputs)
    assert len(found) == (3 if case.has_bias else 2)
    for one, other in zip(found, expected, strict=True):
        exact = np.asarray(other)
        error = np.abs(np.asarray(one, np.float64) - exact)
        largest = np.abs(exact).max()
        assert error.max() < case.error * largest


@pytest.mark.parametrize(
    ("tokens", "width", "heads", "is_supported"),
    [
        (512, 768, 12, True),
        (128, 1024, 8, True),
        (1024, 768, 12, True),  # in four blocks of queries
        (576, 384, 6, True),  # in two
        (512, 64, 1, False),  # less than a register
        (577, 384, 6, True),  # a ViT at 384 pixels, in two blocks, the last of fewer queries
        (2048, 768, 12, False),
        (197, 384, 6, True),  # a ViT, in one block
        (128, 192, 3, False),  # 64 columns each, an odd number
        (128, 768, 8, False),  # 96 columns
    ],
)
def test_only_some_shapes_are_supported(tokens, width, heads, is_supported):
    assert fused.serves(tokens, width, heads) is is_supported


def test_each_device_of_a_mesh_runs_the_kernel():
    """On a mesh whose axes are the compiler's, on the device's examples; one device here."""
    automatic = jax.sharding.AxisType.Auto
    mesh = jax.make_mesh((1, 1, 1), (DATA, FSDP, TENSOR), axis_types=(automatic,) * 3)
    qkv = np.float32(normal(0, 2, 16, 384))
    bias = np.float32(normal(1, 2, 16, 16))

    def value(bias):
        return fused.attention(qkv, bias, None, heads=2, interpret=True).sum()

    gradient = quick_jit(jax.grad(value))
    alone = gradient(bias)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        text = str(jax.make_jaxpr(value)(bias))
    assert "shard_map" in text
    with jax.set_mesh(mesh):
        on_mesh = quick_jit(jax.grad(value))(bias)
    np.testing.assert_allclose(on_mesh, alone, rtol=1e-5, atol=1e-6)
