"""Softmax attention as pure functions: its logits, masks and weights, and their product with the
values."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models.layers import dropout, fold_in
from gmlp_flax.models.matmul import NAME
from gmlp_flax.models.spec import BlockSpec

WHOLE = 1024  # up to so many queries have their logits computed at once
BLOCK = 512  # most queries of a block, if there are more than that

# (first, count) -> logits [..., count, keys] of the queries [first, first + count)
Logits = Callable[[Array | int, int], Array]


def dot_products(q: Array, k: Array, spec: BlockSpec, first: Array | int = 0) -> Logits:
    """q k^T / sqrt(d) in the precise type, -inf for keys out of reach (`hide_out_of_reach`).

    Args:
        q: [..., queries, d].
        k: [..., keys, d].
        spec: has the precise type and the reach.
        first: the position of the first query among the keys.
    """

    def logits(start: Array | int, count: int) -> Array:
        """The logits of `count` queries from `start` on, [..., count, keys]."""
        *_, queries, d = q.shape
        rows = q
        if count != queries:
            rows = jax.lax.dynamic_slice_in_dim(q, start, count, axis=-2)
        products = jnp.einsum(
            "...nd,...md->...nm", rows, k, preferred_element_type=spec.precise_dtype
        )
        scale = d**-0.5
        scores = products * scale  # [..., count, keys]
        first_row = first + start
        return hide_out_of_reach(scores, spec, first_row)

    return logits


def hide_out_of_reach(scores: Array, spec: BlockSpec, first: Array | int) -> Array:
    """Scores [..., queries, keys], -inf for the keys after each query if the spec is causal, and for
    those farther from it than half the spec's window; `first` is the position of the first query
    among the keys."""
    if not spec.causal and not spec.window:
        return scores
    *_, queries, keys = scores.shape
    rows = jnp.arange(queries)[:, None]
    query_positions = first + rows
    key_positions = jnp.arange(keys)
    is_in_reach = within_reach(query_positions, key_positions, spec)
    return jnp.where(is_in_reach, scores, -jnp.inf)


def within_reach(queries: Array, keys: Array, spec: BlockSpec) -> Array:
    """Whether tokens at the positions `queries` may see tokens at the positions `keys`: bool, in the
    shape to which the two are broadcast."""
    distances = queries - keys
    in_reach = jnp.ones(distances.shape, bool)
    if spec.causal:
        in_reach &= distances >= 0
    if spec.window:
        in_reach &= jnp.abs(distances) <= spec.window // 2
    return in_reach


def hide_padding(
    scores: Array,
    padding_mask: Array | None,
    heads: bool = False,
    first: Array | int = 0,
) -> Array:
    """Excludes padding, and other documents, from the softmax.

    Args:
        scores: [batch, queries, keys] or, with `heads`, [batch, heads, queries, keys]; the batch
            may be left out. Those of padding become the least finite number of their type, unless
            they are -inf already.
        padding_mask: bool [batch, keys], False for padding; or int [batch, keys], the document of
            each token, from 1, and 0 for padding: tokens then see only their own document. None
            leaves the scores unchanged.
        first: the position of the first query among the keys.
    """
    if padding_mask is None:
        return scores
    queries = scores.shape[-2]
    visible = visible_keys(padding_mask, first, queries)
    if heads:
        visible = visible[:, None]
    least = jnp.finfo(scores.dtype).min
    return jnp.where(visible, scores, jnp.minimum(scores, least))


def visible_keys(padding_mask: Array, first: Array | int, queries: int) -> Array:
    """Which keys each query sees, bool [batch, queries or 1, keys]; arguments as in
    `hide_padding`."""
    documents_of_keys = padding_mask[:, None]  # [batch, 1, keys]
    if padding_mask.dtype == jnp.bool_:
        return documents_of_keys
    documents_of_queries = jax.lax.dynamic_slice_in_dim(padding_mask, first, queries, axis=1)
    documents_of_rows = documents_of_queries[..., None]  # [batch, queries, 1]
    is_same_document = documents_of_keys == documents_of_rows
    is_text = documents_of_keys > 0
    return is_same_document & is_text  # [batch, queries, keys]


def mix(
    scores: Array,
    v: Array,
    rate: float = 0.0,
    dropout_keys: Array | None = None,
    trained: bool = True,
) -> Array:
    """softmax(scores) v, [..., queries, d] in the type of v, the softmax in the type of the scores.

    Args:
        scores: [..., queries, keys]; missing leading axes are shared.
        v: [..., keys, d].
        rate: of dropout on the weights.
        dropout_keys: a random key per example, [batch]; None for evaluation.
        trained: whether the scores have a gradient.
    """
    precise_weights = jax.nn.softmax(scores, axis=-1)  # [..., queries, keys]
    weights = precise_weights.astype(v.dtype)
    if not trained:
        weights = _unfused(weights)
    if dropout_keys is not None and rate:
        *leading, _, _ = v.shape
        *_, queries, keys = weights.shape
        shape = (*leading, queries, keys)
        weights = jnp.broadcast_to(weights, shape)
        weights = dropout(weights, rate, dropout_keys)
    mixed = jnp.einsum("...nm,...md->...nd", weights, v)
    return checkpoint_name(mixed, NAME)


def _unfused(weights: Array) -> Array:
    """The same weights, rounded to the precision that they have, so that XLA computes them before
    their product with the values.

    If the gradient of the values is all that needs them, XLA on a CPU fuses the softmax into the
    product with its transpose, and sums each row once for every column: n^3 operations, 25 times as
    long for 2,048 tokens (jaxlib 0.10.2). It removes jax.lax.optimization_barrier before that.
    """
    precision = jnp.finfo(weights.dtype)
    return jax.lax.reduce_precision(weights, precision.nexp, precision.nmant)


def attend(
    logits: Logits,
    v: Array,
    queries: int,
    padding_mask: Array | None = None,
    rate: float = 0.0,
    dropout_keys: Array | None = None,
) -> Array:
    """`mix` for all queries, [..., queries, d] in the type of v; v is [batch, keys, d] or [batch,
    heads, keys, d], and the other arguments are those of `hide_padding` and `mix`.

    More than WHOLE queries run in blocks, one after another, forwards and backwards, so that no array
    [queries, keys] exists (Rabe and Staats, arXiv 2112.05682). No product is computed more often than
    the remat policy says. Which weights are dropped depends on the blocks.
    """
    has_heads = v.ndim == 4

    def rows(first: Array | int, count: int, dropout_keys: Array | None) -> Array:
        scores = logits(first, count)
        scores = hide_padding(scores, padding_mask, has_heads, first)
        return mix(scores, v, rate, dropout_keys)

    if queries <= WHOLE:
        return rows(0, queries, dropout_keys)
    return _in_blocks(rows, queries, dropout_keys)


def _in_blocks(
    rows: Callable[[Array, int, Array | None], Array],
    queries: int,
    dropout_keys: Array | None,
) -> Array:
    """The rows of all queries, [..., queries, d], from `rows(first, count, dropout_keys)`, those of
    a block [..., count, d]."""
    blocks = -(-queries // BLOCK)
    count = -(-queries // blocks)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def block(first: Array) -> Array:
        keys = None
        if dropout_keys is not None:
            keys = fold_in(dropout_keys, first)
        return rows(first, count, keys)

    # the last block may overlap the one before
    starts = jnp.arange(blocks) * count
    starts = jnp.minimum(starts, queries - count)
    by_block = jax.lax.map(block, starts)  # [blocks, ..., count, d]
    overlap = blocks * count - queries
    mixed = _joined(by_block, overlap)
    return checkpoint_name(mixed, NAME)


def _joined(by_block: Array, overlap: int) -> Array:
    """[blocks, ..., count, d] to [..., queries, d]. The first `overlap` queries of the last block
    are also in the block before, and are left out."""
    by_block = jnp.moveaxis(by_block, 0, -3)  # [..., blocks, count, d]
    blocks_before = by_block[..., :-1, :, :]
    queries_before = jax.lax.collapse(blocks_before, -3, -1)
    last_queries = by_block[..., -1, overlap:, :]
    return jnp.concatenate([queries_before, last_queries], axis=-2)
