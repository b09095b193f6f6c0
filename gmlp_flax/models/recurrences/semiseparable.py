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

from gmlp_flax.models.padding import pad_axis
from gmlp_flax.models.recurrences import chunks as chunks_lib
from gmlp_flax.models.recurrences.chunks import Decays

# Tokens that a scan multiplies as a matrix. On a CPU 64 take three quarters of the time of 128.
CHUNK = 64


class StateSpaceModel(NamedTuple):
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

    def flipped(self) -> "StateSpaceModel":
        """With the last token first."""
        return StateSpaceModel(
            steps=jnp.flip(self.steps, 2),
            log_decays=jnp.flip(self.log_decays, 2),
            b=jnp.flip(self.b, 2),
            c=jnp.flip(self.c, 2),
        )


def rows(
    forward: StateSpaceModel,
    backward: StateSpaceModel | None,
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
    row_positions = first + jnp.arange(count)[:, None]
    is_below = jnp.arange(n) < row_positions  # [count, n]
    entries = _below_diagonal(forward, first, count)
    visible = is_below
    if backward is not None:
        is_above = jnp.arange(n) > row_positions
        above = _above_diagonal(backward, first, count)
        entries = _where(is_below, entries, above)
        visible = is_below | is_above
    if documents is not None:
        documents_of_rows = _rows_of(documents, first, count, axis=1)
        is_same_document = documents_of_rows[..., None] == documents[:, None]  # [batch, count, n]
        visible = visible & is_same_document[:, None]
    decays = chunks_lib.masked_exp(entries.exponents, visible)
    return entries.products * decays * entries.steps


class _Entries(NamedTuple):
    """The factors of a matrix's entries [i, j], in some rows and all n columns. An entry is
    products * exp(exponents) * steps.

    Attributes:
        exponents: sums of log decays, [batch, heads, count, n].
        products: C . B, [batch, heads, count, n].
        steps: s_j, [batch, heads, 1 or count, n].
    """

    exponents: Array
    products: Array
    steps: Array


def _where(condition: Array, entries: _Entries, others: _Entries) -> _Entries:
    """`entries` where the condition, bool [count, n], is True, and the others elsewhere."""

    def select(factors: Array, others: Array) -> Array:
        return jnp.where(condition, factors, others)

    return jax.tree.map(select, entries, others)


def _below_diagonal(model: StateSpaceModel, first: Array | int, count: int) -> _Entries:
    """The entries of some rows for j < i: SS shifted down by a token, so that row i has C_{i-1} .
    B_j and the exponent a_{j+1} + ... + a_{i-1}."""
    # With S_i = a_1 + ... + a_i, the exponent is S_{i-1} - S_j.
    sums = jnp.cumsum(model.log_decays, axis=-1)  # S_i
    sums_before = sums - model.log_decays  # S_{i-1}
    sums_of_rows = _rows_of(sums_before, first, count)
    to_rows = sums_of_rows[..., None]  # [batch, heads, count, 1]
    to_columns = sums[:, :, None]  # [batch, heads, 1, n]
    exponents = to_rows - to_columns
    c_before = _shift(model.c, axis=2)  # C_{i-1}
    products = _products(c_before, model, first, count)
    steps = model.steps[:, :, None]  # [batch, heads, 1, n]
    return _Entries(exponents, products, steps)


def _above_diagonal(model: StateSpaceModel, first: Array | int, count: int) -> _Entries:
    """The entries of some rows for j > i: a reversed SS shifted up by a token, so that row i has
    C_{i+1} . B_j and the exponent a_{i+1} + ... + a_{j-1}."""
    # With S_i = a_1 + ... + a_i, the exponent is S_{j-1} - S_i.
    sums = jnp.cumsum(model.log_decays, axis=-1)  # S_i
    sums_before = sums - model.log_decays  # S_{j-1}
    sums_of_rows = _rows_of(sums, first, count)
    to_columns = sums_before[:, :, None]  # [batch, heads, 1, n]
    to_rows = sums_of_rows[..., None]  # [batch, heads, count, 1]
    exponents = to_columns - to_rows
    c_after = _shift_back(model.c, axis=2)  # C_{i+1}
    products = _products(c_after, model, first, count)
    steps = model.steps[:, :, None]  # [batch, heads, 1, n]
    return _Entries(exponents, products, steps)


def _products(c: Array, model: StateSpaceModel, first: Array | int, count: int) -> Array:
    """C_i . B_j of some rows, [batch, heads, count, n] in the type of the steps."""
    c_of_rows = _rows_of(c, first, count)
    precise_dtype = model.steps.dtype
    products = jnp.einsum(
        "bgis,bgjs->bgij", c_of_rows, model.b, preferred_element_type=precise_dtype
    )  # [batch, groups, count, n]
    return _for_heads(products, model.steps)


def _for_heads(by_group: Array, steps: Array) -> Array:
    """[batch, groups, ...] to [batch, heads, ...], the heads of the steps: repeated for the heads of a
    group."""
    heads = steps.shape[1]
    groups = by_group.shape[1]
    heads_of_group = heads // groups
    return jnp.repeat(by_group, heads_of_group, axis=1)


def _rows_of(x: Array, first: Array | int, count: int, axis: int = 2) -> Array:
    """The entries [first, first + count) along an axis."""
    if x.shape[axis] == count:
        return x
    return jax.lax.dynamic_slice_in_dim(x, first, count, axis)


def _shift(x: Array, axis: int) -> Array:
    """For each token along an axis, the entry of the token before it; 0 for the first token."""
    tokens = x.shape[axis]
    padded = pad_axis(x, axis, 1, 0)
    return jax.lax.slice_in_dim(padded, 0, tokens, axis=axis)


def _shift_back(x: Array, axis: int) -> Array:
    """For each token along an axis, the entry of the token after it; 0 for the last token."""
    tokens = x.shape[axis]
    padded = pad_axis(x, axis, 0, 1)
    stop = tokens + 1
    return jax.lax.slice_in_dim(padded, 1, stop, axis=axis)


def mix(
    forward: StateSpaceModel,
    backward: StateSpaceModel | None,
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
    from_past = _mix_past(forward, v, documents)
    if backward is None:
        return from_past
    flipped_direction = backward.flipped()
    flipped_documents = flip_documents(documents)
    flipped_v = jnp.flip(v, 2)
    flipped_mix = _mix_past(flipped_direction, flipped_v, flipped_documents)
    from_future = jnp.flip(flipped_mix, 2)
    return from_past + from_future


def _mix_past(model: StateSpaceModel, v: Array, documents: Array | None) -> Array:
    """SS shifted down by a token, times v: what each token gets from those before it."""
    scanned = scan(model, v, documents)
    return _shift_within(scanned, documents)


def flip_documents(documents: Array | None) -> Array | None:
    """[batch, n] with the last token first."""
    if documents is None:
        return None
    return jnp.flip(documents, 1)


def _shift_within(y: Array, documents: Array | None) -> Array:
    """For each token, y [batch, heads, n, channels] of the token before it; 0 for the first token
    of a document."""
    shifted = _shift(y, axis=2)
    if documents is None:
        return shifted
    documents_before = _shift(documents, axis=1)
    continues = documents == documents_before  # [batch, n]
    return jnp.where(continues[:, None, :, None], shifted, 0)


def scan(model: StateSpaceModel, v: Array, documents: Array | None = None) -> Array:
    """The semiseparable matrix SS times v: a product within chunks of CHUNK tokens, and states that
    are carried from chunk to chunk (arXiv 2405.21060, section 6).

    Args:
        model: a state space model.
        v: [batch, heads, n, channels].
        documents: int [batch, n], of which each takes consecutive tokens; the state is 0 at the
            start of each. None if there is one.

    Returns:
        [batch, heads, n, channels] in the type of the steps.
    """
    n = v.shape[2]
    chunks = _in_chunks(model, v, documents)
    from_chunk = _within_chunks(chunks)
    from_state = _across_chunks(chunks)
    y = from_chunk + from_state  # [batch, heads, chunks, CHUNK, channels]
    return chunks_lib.join(y, n, axis=2)


class _Chunks(NamedTuple):
    """A state space model and the values that it reads, chunk by chunk.

    Attributes:
        steps: [batch, heads, chunks, CHUNK].
        b: [batch, groups, chunks, CHUNK, state].
        c: of the shape of b.
        values: [batch, heads, chunks, CHUNK, channels].
        decays: within each chunk, [batch, heads, chunks, CHUNK, ...].
    """

    steps: Array
    b: Array
    c: Array
    values: Array
    decays: Decays


def _in_chunks(model: StateSpaceModel, v: Array, documents: Array | None) -> _Chunks:
    """Arguments as in `scan`."""
    log_decays = _split(model.log_decays)
    visible = chunks_lib.visibility(CHUNK, documents)
    return _Chunks(
        steps=_split(model.steps),
        b=_split(model.b),
        c=_split(model.c),
        values=_split(v),
        decays=chunks_lib.decays(log_decays, visible),
    )


def _split(x: Array) -> Array:
    """[batch, heads, n, ...] to [batch, heads, chunks, CHUNK, ...]."""
    return chunks_lib.split(x, CHUNK, axis=2)


def _within_chunks(chunks: _Chunks) -> Array:
    """What tokens get from those of their own chunk, SS of each chunk times its values: [batch, heads,
    chunks, CHUNK, channels] in the type of the steps."""
    precise_dtype = chunks.steps.dtype
    products = jnp.einsum(
        "bgkis,bgkjs->bgkij", chunks.c, chunks.b, preferred_element_type=precise_dtype
    )
    products_of_heads = _for_heads(products, chunks.steps)
    steps_of_columns = chunks.steps[..., None, :]
    decayed_products = products_of_heads * chunks.decays.ratios
    weights = decayed_products * steps_of_columns
    weights = weights.astype(chunks.values.dtype)
    return jnp.matmul(weights, chunks.values, preferred_element_type=precise_dtype)


def _across_chunks(chunks: _Chunks) -> Array:
    """What tokens get from the state at the end of the previous chunk; result as in
    `_within_chunks`."""
    precise_dtype = chunks.steps.dtype
    dtype = chunks.values.dtype
    from_state = chunks.decays.from_state[..., None]  # [batch, heads, chunks, CHUNK, 1]
    to_end = chunks.decays.to_end * chunks.steps
    weights = to_end[..., None]  # [batch, heads, chunks, CHUNK, 1]
    weighted = weights * chunks.values
    b = _for_heads(chunks.b, chunks.steps)  # [batch, heads, chunks, CHUNK, state]
    rounded = weighted.astype(dtype)
    added = jnp.einsum(
        "bhkjs,bhkjp->bhksp", b, rounded, preferred_element_type=precise_dtype
    )  # [batch, heads, chunks, state, channels]
    decay_of_chunk = from_state[..., -1:, :]  # [batch, heads, chunks, 1, 1]
    states = _accumulate(decay_of_chunk, added)  # at the end of each chunk
    states_before = _shift(states, axis=2)
    states_before = states_before.astype(dtype)
    c = _for_heads(chunks.c, chunks.steps)
    read = jnp.einsum("bhkis,bhksp->bhkip", c, states_before, preferred_element_type=precise_dtype)
    return from_state * read


def _accumulate(decay: Array, added: Array) -> Array:
    """The states H_k = decay_k H_{k-1} + added_k at the end of each chunk k, from H = 0: decays
    [batch, heads, chunks, 1, 1] and [batch, heads, chunks, state, channels] to the shape of the
    latter."""

    def join(earlier: tuple, later: tuple) -> tuple:
        earlier_decay, earlier_state = earlier
        later_decay, later_state = later
        decay = later_decay * earlier_decay
        state = later_decay * earlier_state + later_state
        return decay, state

    _, states = jax.lax.associative_scan(join, (decay, added), axis=2)
    return states
