"""Attention within a window, in blocks: each block of queries reads two windows of keys."""

import jax.numpy as jnp
from jax import Array

from gmlp_flax.models.attention.dot_product import mix, within_reach
from gmlp_flax.models.attention.spec import AttentionSpec, ContentAttentionSpec
from gmlp_flax.models.padding import pad_axis


def reads_windows(spec: AttentionSpec, tokens: int) -> bool:
    """Whether `attend_in_windows` computes this attention, which must have no bias, and reads fewer
    keys than all of these tokens."""
    has_bias = spec.positions.startswith("relative")
    return spec.window > 0 and not has_bias and tokens > 2 * spec.window


def attend_in_windows(
    q: Array,
    k: Array,
    v: Array,
    spec: ContentAttentionSpec,
    padding_mask: Array | None = None,
    dropout_keys: Array | None = None,
) -> Array:
    """softmax(q k^T / sqrt(d)) v of tokens that see only the spec's window, in time and memory of
    tokens times window.

    A block of `window` queries reads the keys of twice as many tokens: its own, and half a window
    on each side. Which weights are dropped depends on the blocks.

    Args:
        q: queries, [batch, heads, tokens, d].
        k: keys, of the same shape.
        v: values, of the same shape.
        spec: has a window; may be causal.
        padding_mask: as in `hide_padding`.
        dropout_keys: as in `mix`.

    Returns:
        [batch, heads, tokens, d] in the type of v.
    """
    *leading, tokens, d = q.shape
    window = spec.window
    blocks = -(-tokens // window)
    padded_tokens = blocks * window
    padded_q = _padded(q, 0, padded_tokens)
    q_blocks = padded_q.reshape(*leading, blocks, window, d)
    k_blocks = _overlapping(k, blocks, window)
    v_blocks = _overlapping(v, blocks, window)
    products = jnp.einsum(
        "...nd,...md->...nm", q_blocks, k_blocks, preferred_element_type=spec.precise_dtype
    )
    scores = products * d**-0.5  # [batch, heads, blocks, window, 2 window]
    in_reach = _within_reach_of_blocks(spec, tokens, blocks)
    scores = jnp.where(in_reach, scores, -jnp.inf)
    if padding_mask is not None:
        visible = _visible_in_windows(padding_mask, blocks, window)
        least = jnp.finfo(scores.dtype).min
        scores = jnp.where(visible[:, None], scores, jnp.minimum(scores, least))
    by_block = mix(scores, v_blocks, spec.attention_dropout, dropout_keys)
    by_token = by_block.reshape(*leading, padded_tokens, d)
    return by_token[..., :tokens, :]


def _within_reach_of_blocks(spec: ContentAttentionSpec, tokens: int, blocks: int) -> Array:
    """Which of the keys that a block reads each of its queries may see, bool [blocks, window, 2
    window]."""
    window = spec.window
    half = window // 2
    numbers = jnp.arange(blocks)[:, None, None]
    starts = window * numbers  # the position of each block's first query
    queries_of_block = jnp.arange(window)[:, None]
    query_positions = starts + queries_of_block  # [blocks, window, 1]
    keys_of_block = jnp.arange(2 * window)
    key_positions = starts + keys_of_block - half  # [blocks, 1, 2 window]
    is_after_start = key_positions >= 0
    is_before_end = key_positions < tokens
    is_token = is_after_start & is_before_end
    # queries beyond the tokens see themselves: a row without any key would be NaN
    is_itself = key_positions == query_positions
    in_reach = within_reach(query_positions, key_positions, spec)
    is_key = is_token | is_itself
    return in_reach & is_key


def _visible_in_windows(padding_mask: Array, blocks: int, window: int) -> Array:
    """`visible_keys` for the blocks of `attend_in_windows`: bool [batch, blocks, window or 1, 2
    window]."""
    by_token = padding_mask[..., None]  # [batch, tokens, 1]
    by_key = _overlapping(by_token, blocks, window)  # [batch, blocks, 2 window, 1]
    documents_of_keys = by_key.swapaxes(-1, -2)  # [batch, blocks, 1, 2 window]
    if padding_mask.dtype == jnp.bool_:
        return documents_of_keys
    batch = len(padding_mask)
    padded = _padded(by_token, 0, blocks * window)
    documents_of_queries = padded.reshape(batch, blocks, window, 1)
    is_same_document = documents_of_keys == documents_of_queries
    is_text = documents_of_keys > 0
    return is_same_document & is_text


def _padded(x: Array, before: int, total: int) -> Array:
    """x [..., tokens, d] with `before` zeros before the tokens, and zeros after them up to a total:
    [..., total, d]."""
    tokens = x.shape[-2]
    after = total - before - tokens
    return pad_axis(x, -2, before, after)


def _overlapping(x: Array, blocks: int, window: int) -> Array:
    """The tokens of x [..., tokens, d] that each block of `window` tokens reads, its own and half a
    window on each side: [..., blocks, 2 window, d], zeros beyond the tokens.

    Moved by half a window, the tokens are cut into parts of a window. The end of one part and the
    start of the next lie in a block, so a block reads these two parts.
    """
    *leading, _, d = x.shape
    half = window // 2
    count = blocks + 1
    total = count * window
    padded = _padded(x, half, total)
    parts = padded.reshape(*leading, count, window, d)
    first_parts = parts[..., :-1, :, :]  # [..., blocks, window, d]
    second_parts = parts[..., 1:, :, :]
    return jnp.concatenate([first_parts, second_parts], axis=-2)
