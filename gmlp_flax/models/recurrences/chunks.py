"""Chunks of tokens, which a recurrence reads at once, and the decays within a chunk, as pure
functions.

How a state passes from chunk to chunk is each recurrence's own.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from gmlp_flax.models.padding import pad_axis


def split(x: Array, size: int, axis: int) -> Array:
    """[..., tokens, ...] to [..., chunks, size, ...], with zeros after the tokens. `axis` is that of
    the tokens, counted from the start."""
    tokens = x.shape[axis]
    added = -tokens % size
    padded = pad_axis(x, axis, 0, added)
    chunks = padded.shape[axis] // size
    before = x.shape[:axis]
    after = x.shape[axis + 1 :]
    return padded.reshape(*before, chunks, size, *after)


def join(x: Array, tokens: int, axis: int) -> Array:
    """The inverse of `split`: [..., chunks, size, ...] to [..., tokens, ...]. `axis` is that of the
    chunks, counted from the start."""
    chunks = x.shape[axis]
    size = x.shape[axis + 1]
    before = x.shape[:axis]
    after = x.shape[axis + 2 :]
    padded_tokens = chunks * size
    padded = x.reshape(*before, padded_tokens, *after)
    return jax.lax.slice_in_dim(padded, 0, tokens, axis=axis)


class Visibility(NamedTuple):
    """Which tokens of a chunk a token sees: those of its own document, up to itself. All are bool,
    and any axis before `size` may be 1.

    Attributes:
        pairs: whether a token (a row) sees another one (a column), [batch, 1, chunks, size, size].
        state: whether a token sees the state before the chunk, [batch, 1, chunks, size].
        last: whether the last token of the chunk sees a token, [batch, 1, chunks, size].
    """

    pairs: Array
    state: Array
    last: Array


def visibility(size: int, documents: Array | None = None) -> Visibility:
    """What the tokens of chunks of `size` tokens see.

    Args:
        size: tokens of a chunk.
        documents: int [batch, tokens], the document of each token. The tokens of a document are
            consecutive. None if there is one document.
    """
    all_pairs = jnp.ones((size, size), bool)
    is_earlier = jnp.tril(all_pairs)
    if documents is None:
        everything = jnp.ones((1, 1, 1, size), bool)
        return Visibility(is_earlier[None, None, None], everything, everything)
    by_chunk = _split_documents(documents, size)  # [batch, 1, chunks, size]
    first = by_chunk[..., :1]
    last = by_chunk[..., -1:]
    # The document of the state before each chunk: the first state belongs to the first token.
    before_first_chunk = first[:, :, :1]
    before_other_chunks = last[:, :, :-1]
    before = jnp.concatenate([before_first_chunk, before_other_chunks], axis=2)
    rows = by_chunk[..., :, None]
    columns = by_chunk[..., None, :]
    is_same = rows == columns
    return Visibility(
        pairs=is_same & is_earlier,
        state=by_chunk == before,
        last=by_chunk == last,
    )


def _split_documents(documents: Array, size: int) -> Array:
    """[batch, tokens] to [batch, 1, chunks, size]. What is added after the tokens belongs to the last
    document."""
    batch, tokens = documents.shape
    added = -tokens % size
    widths = ((0, 0), (0, added))
    padded = jnp.pad(documents, widths, mode="edge")
    chunks = padded.shape[1] // size
    return padded.reshape(batch, 1, chunks, size)


class Decays(NamedTuple):
    """How much is left of what was written, 0 where it is not seen. With A_i the product of the
    decays of a chunk up to token i:

    Attributes:
        ratios: A_i / A_j, at token i (a row) of what token j (a column) wrote, [..., size, size].
        from_state: A_i, at token i of the state before the chunk, [..., size].
        to_end: A_t / A_j, at the last token t of what token j wrote, [..., size].
    """

    ratios: Array
    from_state: Array
    to_end: Array


def decays(log_decays: Array, visible: Visibility) -> Decays:
    """The decays within chunks, from the logarithm of each token's decay, at most 0: [..., size]."""
    log_a = jnp.cumsum(log_decays, axis=-1)  # log A
    log_of_rows = log_a[..., :, None]
    log_of_columns = log_a[..., None, :]
    log_ratios = log_of_rows - log_of_columns
    log_of_last = log_a[..., -1:]
    log_to_end = log_of_last - log_a
    return Decays(
        ratios=masked_exp(log_ratios, visible.pairs),
        from_state=masked_exp(log_a, visible.state),
        to_end=masked_exp(log_to_end, visible.last),
    )


def masked_exp(exponents: Array, mask: Array) -> Array:
    """exp(exponents) where the mask is True, else 0; a masked exponent may overflow."""
    visible = jnp.where(mask, exponents, -jnp.inf)
    return jnp.exp(visible)
