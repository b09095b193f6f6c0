"""Semiseparable and quasiseparable matrices as pure functions: state space models as products with
a matrix over the tokens (Mamba-2, arXiv 2405.21060, section 3; Hydra, arXiv 2407.09941, section 3).

A state space model h_i = exp(a_i) h_{i-1} + s_i B_i x_i, y_i = C_i h_i is a product with a
semiseparable matrix, which is 0 above its diagonal:

    SS[i, j] = C_i . B_j  s_j  exp(a_{j+1} + ... + a_i)    for j <= i

Hydra shifts one of them down by a token, a reversed one up by a token, and adds a free diagonal.
The sum is quasiseparable. Each product with v takes O(n^2) as a matrix, and O(n) as a scan.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

# Tokens that a scan multiplies as a matrix. On a CPU 64 take three quarters of the time of 128.
CHUNK = 64


class Direction(NamedTuple):
    """One state space model, of which each head has its own decays.

    Attributes:
        steps: s, [batch, heads, n] in the precise type.
        log_decays: a, at most 0, of the shape and type of the steps.
        b: B, [batch, groups, n, state]; the heads of a group share it.
        c: C, of the shape of B.
    """

    steps: Array
    log_decays: Array
    b: Array
    c: Array

    def flipped(self) -> "Direction":
        """With the last token first."""
        return Direction(
            steps=jnp.flip(self.steps, 2),
            log_decays=jnp.flip(self.log_decays, 2),
            b=jnp.flip(self.b, 2),
            c=jnp.flip(self.c, 2),
        )


def rows(
    forward: Direction,
    backward: Direction | None,
    first: Array | int = 0,
    count: int | None = None,
    documents: Array | None = None,
) -> Array:
    """Rows of a quasiseparable matrix without its diagonal.

    Args:
        forward: gives the entries below the diagonal, shifted down by one token.
        backward: gives those above it, shifted up by one token; None leaves them 0.
        first: the first row.
        count: the number of rows; None for all.
        documents: int [batch, n]; entries between different documents are 0. None if there is one.

    Returns:
        [batch, heads, count, n] in the type of the steps.
    """
    n = forward.steps.shape[-1]
    count = n if count is None else count
    positions = first + jnp.arange(count)[:, None]
    is_before = jnp.arange(n) < positions  # [count, n]
    exponents, products = _below_diagonal(forward, first, count)
    steps = forward.steps[:, :, None]  # [batch, heads, 1, n]
    visible = is_before
    if backward is not None:
        is_after = jnp.arange(n) > positions
        exponents_after, products_after = _above_diagonal(backward, first, count)
        exponents = jnp.where(is_before, exponents, exponents_after)
        products = jnp.where(is_before, products, products_after)
        steps = jnp.where(is_before, steps, backward.steps[:, :, None])
        visible = is_before | is_after
    if documents is not None:
        of_rows = _rows_of(documents, first, count, axis=1)
        is_same_document = of_rows[..., None] == documents[:, None]  # [batch, count, n]
        visible = visible & is_same_document[:, None]
    decays = _masked_exp(exponents, visible)
    return products * decays * steps


def _masked_exp(exponents: Array, visible: Array) -> Array:
    """exp(exponents) where they are visible, else 0."""
    hidden = jnp.where(visible, exponents, -jnp.inf)
    return jnp.exp(hidden)


def _below_diagonal(direction: Direction, first: Array | int, count: int) -> tuple[Array, Array]:
    """The exponents a_{j+1} + ... + a_{i-1} and the products C_{i-1} . B_j of some rows, both
    [batch, heads, count, n]; they are meant for j < i."""
    through = jnp.cumsum(direction.log_decays, axis=-1)
    before = through - direction.log_decays  # the sum up to the token before
    of_rows = _rows_of(before, first, count)
    to_rows = of_rows[..., None]  # [batch, heads, count, 1]
    to_columns = through[:, :, None]  # [batch, heads, 1, n]
    exponents = to_rows - to_columns
    earlier = _shift(direction.c, axis=2)
    products = _products(earlier, direction, first, count)
    return exponents, products


def _above_diagonal(direction: Direction, first: Array | int, count: int) -> tuple[Array, Array]:
    """The exponents a_{i+1} + ... + a_{j-1} and the products C_{i+1} . B_j of some rows, as
    `_below_diagonal`; they are meant for j > i."""
    through = jnp.cumsum(direction.log_decays, axis=-1)
    before = through - direction.log_decays
    of_rows = _rows_of(through, first, count)
    to_columns = before[:, :, None]  # [batch, heads, 1, n]
    to_rows = of_rows[..., None]  # [batch, heads, count, 1]
    exponents = to_columns - to_rows
    later = _shift_back(direction.c, axis=2)
    products = _products(later, direction, first, count)
    return exponents, products


def _products(c: Array, direction: Direction, first: Array | int, count: int) -> Array:
    """C_i . B_j of some rows, [batch, heads, count, n] in the type of the steps."""
    products = jnp.einsum(
        "bgis,bgjs->bgij",
        _rows_of(c, first, count),
        direction.b,
        preferred_element_type=direction.steps.dtype,
    )
    return _for_heads(products, direction)


def _for_heads(of_groups: Array, direction: Direction) -> Array:
    """[batch, groups, ...] to [batch, heads, ...]."""
    heads = direction.steps.shape[1]
    groups = of_groups.shape[1]
    return jnp.repeat(of_groups, heads // groups, axis=1)


def _rows_of(x: Array, first: Array | int, count: int, axis: int = 2) -> Array:
    """The entries [first, first + count) of an axis."""
    if x.shape[axis] == count:
        return x
    return jax.lax.dynamic_slice_in_dim(x, first, count, axis)


def _shift(x: Array, axis: int) -> Array:
    """The entries of the token before, 0 for the first token."""
    tokens = x.shape[axis]
    widths = [(0, 0)] * x.ndim
    widths[axis] = (1, 0)
    padded = jnp.pad(x, widths)
    return jax.lax.slice_in_dim(padded, 0, tokens, axis=axis)


def _shift_back(x: Array, axis: int) -> Array:
    """The entries of the token after, 0 for the last token."""
    tokens = x.shape[axis]
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, 1)
    padded = jnp.pad(x, widths)
    return jax.lax.slice_in_dim(padded, 1, tokens + 1, axis=axis)


def mix(
    forward: Direction,
    backward: Direction | None,
    v: Array,
    documents: Array | None = None,
) -> Array:
    """`rows` of all tokens, multiplied by v, in O(n) operations.

    Args:
        forward: as in `rows`.
        backward: as in `rows`.
        v: [batch, heads, n, channels].
        documents: int [batch, n], of which each takes consecutive tokens; None if there is one.

    Returns:
        [batch, heads, n, channels] in the type of the steps.
    """
    scanned = scan(forward, v, documents)
    mixed = _shift_within(scanned, documents)
    if backward is None:
        return mixed
    flipped_direction = backward.flipped()
    flipped_documents = flip_documents(documents)
    flipped_v = jnp.flip(v, 2)
    scanned = scan(flipped_direction, flipped_v, flipped_documents)
    shifted = _shift_within(scanned, flipped_documents)
    return mixed + jnp.flip(shifted, 2)


def flip_documents(documents: Array | None) -> Array | None:
    """[batch, n] with the last token first."""
    if documents is None:
        return None
    return jnp.flip(documents, 1)


def _shift_within(y: Array, documents: Array | None) -> Array:
    """y [batch, heads, n, channels] of the token before, 0 for the first token of a document."""
    shifted = _shift(y, axis=2)
    if documents is None:
        return shifted
    documents_before = _shift(documents, axis=1)
    continues = documents == documents_before  # [batch, n]
    return jnp.where(continues[:, None, :, None], shifted, 0)


class _Documents(NamedTuple):
    """The documents of the tokens in chunks.

    Attributes:
        tokens: int [batch, 1, chunks, CHUNK].
        last: of the last token of each chunk, [batch, 1, chunks, 1].
        before: of the last token of the chunk before, of the same shape.
    """

    tokens: Array
    last: Array
    before: Array


def scan(direction: Direction, v: Array, documents: Array | None = None) -> Array:
    """The semiseparable matrix SS times v: a product within chunks of CHUNK tokens, and states that
    are carried from chunk to chunk (arXiv 2405.21060, section 6).

    Args:
        direction: a state space model.
        v: [batch, heads, n, channels].
        documents: int [batch, n], of which each takes consecutive tokens; the state is 0 at the
            start of each. None if there is one.

    Returns:
        [batch, heads, n, channels] in the type of the steps.
    """
    n = v.shape[2]
    steps = _in_chunks(direction.steps)  # [batch, heads, chunks, CHUNK]
    log_decays = _in_chunks(direction.log_decays)
    through = jnp.cumsum(log_decays, axis=-1)
    b = _in_chunks(direction.b)  # [batch, groups, chunks, CHUNK, state]
    c = _in_chunks(direction.c)
    chunks = Direction(steps, through, b, c)
    values = _in_chunks(v)
    of_chunks = None
    if documents is not None:
        of_chunks = _documents_of_chunks(documents)
    within = _within_chunks(chunks, values, of_chunks)
    across = _across_chunks(chunks, values, of_chunks)
    y = within + across  # [batch, heads, chunks, CHUNK, channels]
    batch, heads, _, _, channels = y.shape
    whole = y.reshape(batch, heads, -1, channels)  # with padding after the n tokens
    return whole[:, :, :n]


def _in_chunks(x: Array) -> Array:
    """[batch, heads, n, ...] to [batch, heads, chunks, CHUNK, ...], with zeros after the n
    tokens."""
    batch, heads, n, *inner = x.shape
    count = -(-n // CHUNK)
    added = count * CHUNK - n
    widths = [(0, 0)] * x.ndim
    widths[2] = (0, added)
    padded = jnp.pad(x, widths)
    return padded.reshape(batch, heads, count, CHUNK, *inner)


def _documents_of_chunks(documents: Array) -> _Documents:
    tokens = _in_chunks(documents[:, None])
    last = tokens[..., -1:]
    before = _shift(last, axis=2)
    return _Documents(tokens, last, before)


def _within_chunks(chunks: Direction, values: Array, documents: _Documents | None) -> Array:
    """What tokens get from those of their own chunk; `chunks.log_decays` are sums from the start of
    a chunk."""
    through = chunks.log_decays
    to_rows = through[..., :, None]
    to_columns = through[..., None, :]
    exponents = to_rows - to_columns
    all_pairs = jnp.ones((CHUNK, CHUNK), bool)
    visible = jnp.tril(all_pairs)
    if documents is not None:
        rows = documents.tokens[..., :, None]
        columns = documents.tokens[..., None, :]
        is_same_document = rows == columns
        visible = visible & is_same_document
    decays = _masked_exp(exponents, visible)
    products = jnp.einsum(
        "bgkis,bgkjs->bgkij", chunks.c, chunks.b, preferred_element_type=through.dtype
    )
    products_of_heads = _for_heads(products, chunks)
    steps_of_columns = chunks.steps[..., None, :]
    weights = products_of_heads * decays * steps_of_columns
    weights = weights.astype(values.dtype)
    return jnp.matmul(weights, values, preferred_element_type=through.dtype)


def _across_chunks(chunks: Direction, values: Array, documents: _Documents | None) -> Array:
    """What tokens get from the state at the end of the chunk before; arguments as in
    `_within_chunks`."""
    through = chunks.log_decays
    total = through[..., -1:]  # [batch, heads, chunks, 1]
    decay_to_end = jnp.exp(total - through)
    to_end = decay_to_end * chunks.steps
    from_start = jnp.exp(through)
    decay = jnp.exp(total)
    if documents is not None:
        reaches_end = documents.tokens == documents.last
        to_end = jnp.where(reaches_end, to_end, 0)
        continues = documents.tokens == documents.before
        from_start = jnp.where(continues, from_start, 0)
        spans_chunk = documents.last == documents.before
        decay = jnp.where(spans_chunk, decay, 0)
    weighted = to_end[..., None] * values
    weighted = weighted.astype(values.dtype)
    added = jnp.einsum(
        "bhkjs,bhkjp->bhksp",
        _for_heads(chunks.b, chunks),
        weighted,
        preferred_element_type=through.dtype,
    )
    states = _accumulate(decay[..., None], added)  # at the end of each chunk
    states_before = _shift(states, axis=2).astype(values.dtype)
    read = jnp.einsum(
        "bhkis,bhksp->bhkip",
        _for_heads(chunks.c, chunks),
        states_before,
        preferred_element_type=through.dtype,
    )
    return from_start[..., None] * read


def _accumulate(decay: Array, added: Array) -> Array:
    """H_k = decay_k H_{k-1} + added_k from H = 0, for [batch, heads, chunks, 1, 1] and [batch,
    heads, chunks, state, channels]."""

    def join(earlier: tuple, later: tuple) -> tuple:
        earlier_decay, earlier_state = earlier
        later_decay, later_state = later
        decay = later_decay * earlier_decay
        state = later_decay * earlier_state + later_state
        return decay, state

    _, states = jax.lax.associative_scan(join, (decay, added), axis=2)
    return states
