"""The kernel, interpreted because there is no TPU, against the definition."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

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
    scale = q.shape[-1] ** 0.5
    logits = q @ k.mT / scale
    if bias is not None:
        logits = logits + bias
    if padding_mask is not None:
        lowest = jnp.finfo(jnp.float64).min
        is_visible = padding_mask[:, None, None]
        logits = jnp.where(is_visible, logits, lowest)
    if causal:
        is_past = np.tri(tokens, dtype=bool)
        logits = jnp.where(is_past, logits, -jnp.inf)
    weights = jax.nn.softmax(logits, axis=-1)
    mixed = weights @ v
    tokens_first = mixed.swapaxes(1, 2)
    return tokens_first.reshape(BATCH, tokens, -1)


def random_inputs(case):
    """Queries, keys and values of all heads, and the bias, if there is one."""
    rng = np.random.default_rng(0)
    qkv_shape = (BATCH, case.tokens, 3 * WIDTH)
    qkv = rng.normal(size=qkv_shape)
    bias = None
    if case.has_bias:
        shape = (case.heads, case.tokens, case.tokens)
        logits = rng.normal(size=shape)
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
        weighted = mixed * jnp.asarray(weights)
        return weighted.sum(), mixed

    gradient = quick_jit(jax.grad(loss, has_aux=True))
    gradients, mixed = gradient(inputs)
    return jax.tree.leaves((mixed, gradients))


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_agree_with_the_definition(monkeypatch, name):
    monkeypatch.setattr(fused, "MOST_LOGITS", 640)
    case = CASES[name]
    mask = mask_of(case)
    output_shape = (BATCH, case.tokens, WIDTH)
    weights = np.random.default_rng(1).normal(size=output_shape)

    def by_kernel(qkv, bias):
        options = {"heads": case.heads, "causal": case.causal, "interpret": True}
        mixed = fused.attention(qkv, bias, mask, **options)
        assert mixed.dtype == case.dtype
        assert mixed.shape == output_shape
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
        in_float64 = np.asarray(one, np.float64)
        error = np.abs(in_float64 - exact)
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
    axes = (DATA, FSDP, TENSOR)
    mesh = jax.make_mesh((1, 1, 1), axes, axis_types=(automatic,) * 3)
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
    assert_allclose(on_mesh, alone, rtol=1e-5, atol=1e-6)
