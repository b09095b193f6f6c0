import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.blocks.transformer import TransformerBlock
from tests.models.reference import (
    by_example,
    dot_products,
    in_float64,
    layer_norm,
    linear,
    normal,
    params_of,
    post_norm_block,
    quick_jit,
    randomized,
    small_spec,
)


def block(**fields):
    spec = small_spec(**{"block": "transformer"} | fields)
    return TransformerBlock(spec, nnx.Rngs(0))


@in_float64
def test_post_norm_blocks_agree_with_numpy():
    module = randomized(lambda: block(norm="post", positions="absolute", heads=2))
    x = normal(0, 2, 5, 6)
    expected = by_example(post_norm_block, params_of(module), x)
    assert_allclose(quick_jit(module)(x), expected, atol=1e-10)


@pytest.mark.slow
@in_float64
def test_post_norm_blocks_end_with_a_norm_and_the_encoder_has_none():
    """The channels of each token have the mean 0 and the variance 1, whatever was added."""
    module = block(norm="post")
    y = np.asarray(quick_jit(module)(7 * normal(0, 2, 5, 6)))
    assert_allclose(y.mean(-1), 0, atol=1e-9)
    assert_allclose(y.var(-1), 1, atol=1e-4)
    final = TransformerBlock.final_norm(small_spec(block="transformer", norm="post"), 6)
    assert_array_equal(final(y), y)


@pytest.mark.parametrize("norm", ["pre", "post"])
@in_float64
def test_attention_scores_are_scaled_products_of_queries_and_keys(norm):
    """[batch, heads, tokens, tokens], of the normed stream, or of the stream itself."""
    module = randomized(lambda: block(norm=norm, positions="absolute"))
    p = params_of(module)
    x = normal(0, 2, 5, 6)
    scores = module.attention_scores(x)
    assert scores.shape == (2, 3, 5, 5)
    for sample, of_sample in zip(x, scores, strict=True):
        read = layer_norm(p["attention_norm"], sample) if norm == "pre" else sample
        projected = linear(p["attention"]["proj_in"], read)
        by_head = np.split(projected, 9, axis=1)  # three queries, keys and values
        for head in range(3):
            queries = by_head[head]
            keys = by_head[3 + head]
            expected = [dot_products(query, keys) for query in queries]
            assert_allclose(of_sample[head], expected, atol=1e-10)


@in_float64
def test_causal_blocks_read_no_later_token():
    module = randomized(lambda: block(causal=True))
    call = quick_jit(module)
    x = normal(0, 1, 5, 6)
    other = x.copy()
    other[:, 3] = 7.0
    difference = np.abs(call(x) - call(other))
    is_changed = difference.max(axis=(0, 2)) > 1e-9
    assert is_changed.tolist() == [False, False, False, True, True]
