"""Softmax attention: its logits, masks and weights; relative positions; the many heads of a
Transformer."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import fused_attention, sharding, toeplitz
from gmlp_flax.models.layers import (
    ChannelMLPSpec,
    DecodeCache,
    Linear,
    dropout,
    fold_in,
    rms_norm,
)
from gmlp_flax.models.matmul import NAME
from gmlp_flax.models.parameters import OFFSETS, PAST_OFFSETS, parameter
from gmlp_flax.models.sharding import FSDP, TENSOR
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import ABOVE_0, FINETUNED_RUNS, RATE, SIZE, SIZE_OR_0, option

MAX_DISTANCE = 128  # T5: offsets from this on share the last bucket of their direction
WHOLE = 1024  # up to so many queries have their logits computed at once
BLOCK = 512  # most queries of a block, if there are more than that

# (first, count) -> logits [..., count, keys] of the queries [first, first + count)
Logits = Callable[[jax.Array | int, int], jax.Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadsSpec(ChannelMLPSpec):
    """Options of blocks that split the channels into heads."""

    heads: int = option(4, "heads, each of d_model / heads channels", SIZE, architecture=True)

    def check(self) -> None:
        """Raises ValueError if the heads do not divide the channels."""
        super().check()
        if self.d_model % self.heads:
            raise ValueError(
                f"model.d_model is {self.d_model}: model.heads, {self.heads}, must divide it"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightDropoutSpec(BlockSpec):
    """Options of blocks that weigh tokens by a softmax."""

    attention_dropout: float = option(
        0.0,
        "rate of dropout on the weights of attention, or on kernels",
        RATE,
        compared=FINETUNED_RUNS,
    )

    @property
    def draws(self) -> bool:
        """See `BlockSpec`."""
        return super().draws or self.attention_dropout > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContentAttentionSpec(WeightDropoutSpec):
    """Options of blocks whose tokens are weighed by q k^T."""

    attention: str = option(
        "auto",
        "auto: a kernel of TPUs, or cuDNN's on GPUs, where there is one; xla: none",
        ("auto", "xla"),
        may_change=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSpec(HeadsSpec, ContentAttentionSpec):
    """Options of multi-head attention."""

    positions: str = option(
        "none",
        "none; a learned table (absolute); a bias on the logits per offset (relative); "
        "only that bias; queries and keys turned by their positions (rotary)",
        ("none", "absolute", "relative", "relative_only", "rotary"),
        architecture=True,
    )
    rotary_theta: float = option(
        10_000.0, "of rotary positions: the base of their wavelengths", ABOVE_0, architecture=True
    )
    qk_norm: bool = option(
        False, "each head's queries and keys divided by their root mean square", architecture=True
    )
    relative_buckets: int = option(
        0, "T5's logarithmic buckets of offsets (T5: 32); 0: a bias per offset", architecture=True
    )
    attention_bias: bool = option(True, "biases in the projections of attention", architecture=True)
    d_qkv: int = option(
        0,
        "width of queries, keys and values, over all heads; 0: d_model",
        SIZE_OR_0,
        architecture=True,
    )
    kv_heads: int = option(
        0,
        "heads of keys and values, each of which serves as many heads of queries (grouped-query "
        "attention); 0: heads",
        SIZE_OR_0,
        architecture=True,
    )
    window: int = option(
        0,
        "attention sees half as many tokens on each side (ModernBERT: 128); 0: all tokens",
        SIZE_OR_0,
        architecture=True,
    )

    def check(self) -> None:
        """Raises ValueError if the heads do not divide the channels, or for an impossible number of
        buckets or an odd window."""
        super().check()
        if self.window % 2:
            raise ValueError(
                f"model.window is {self.window}: expected 0, or an even number, half of which lies "
                "on each side"
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(
                f"model.kv_heads is {self.kv_heads}: expected a divisor of model.heads, "
                f"{self.heads}"
            )
        if self.kv_heads and self.positions == "relative_only":
            raise ValueError(
                "model.positions is 'relative_only', without queries and keys: set model.kv_heads "
                "to 0"
            )
        if self.d_qkv % self.heads:
            raise ValueError(
                f"model.d_qkv is {self.d_qkv}: model.heads, {self.heads}, must divide it"
            )
        if self.positions == "rotary" and self.d_head % 2:
            raise ValueError(
                f"model.positions is 'rotary', and a head has {self.d_head} channels: "
                "expected an even number"
            )
        if self.positions == "relative_only" and self.qk_norm:
            raise ValueError(
                "model.positions is 'relative_only', without queries and keys: set model.qk_norm "
                "to False"
            )
        count = self.relative_buckets
        if count and (count % 2 or not 4 <= count <= 256):
            raise ValueError(
                f"model.relative_buckets is {count}: "
                "expected 0, or an even number from 4 to 256 (T5: 32)"
            )

    def supports_length(self, tokens: int) -> bool:
        """Any number of tokens, or at most n if each position or offset has parameters of its
        own."""
        in_buckets = self.positions.startswith("relative") and self.relative_buckets > 0
        has_no_parameters = self.positions in ("none", "rotary")
        return tokens <= self.length or has_no_parameters or in_buckets

    @property
    def d_head(self) -> int:
        """Channels of a query, a key and a value in each head."""
        return (self.d_qkv or self.d_model) // self.heads

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.kv_heads or self.heads


def dot_products(q: jax.Array, k: jax.Array, spec: BlockSpec, first: jax.Array | int = 0) -> Logits:
    """q k^T / sqrt(d) in the precise type, -inf for keys out of reach (`hide_out_of_reach`). q is
    [..., queries, d], k [..., keys, d], and `first` the position of the first query among the
    keys."""

    def logits(start: jax.Array | int, count: int) -> jax.Array:
        """The logits of `count` queries from `start` on, [..., count, keys]."""
        *_, queries, d = q.shape
        rows = q
        if count != queries:
            rows = jax.lax.dynamic_slice_in_dim(q, start, count, axis=-2)
        products = jnp.einsum(
            "...nd,...md->...nm", rows, k, preferred_element_type=spec.precise_dtype
        )
        scores = products * d**-0.5  # [..., count, keys]
        return hide_out_of_reach(scores, spec, first + start)

    return logits


def hide_out_of_reach(scores: jax.Array, spec: BlockSpec, first: jax.Array | int) -> jax.Array:
    """Scores [..., queries, keys], -inf for the keys after each query if the spec is causal, and for
    those farther from it than half the spec's window; `first` is the position of the first query
    among the keys."""
    if not spec.causal and not spec.window:
        return scores
    queries, keys = scores.shape[-2:]
    query_positions = first + jnp.arange(queries)[:, None]
    is_in_reach = within_reach(query_positions, jnp.arange(keys), spec)
    return jnp.where(is_in_reach, scores, -jnp.inf)


def within_reach(queries: jax.Array, keys: jax.Array, spec: BlockSpec) -> jax.Array:
    """Whether tokens at the positions `queries` may see tokens at the positions `keys`, bool in the
    shape of both together."""
    distances = queries - keys
    in_reach = jnp.ones(distances.shape, bool)
    if spec.causal:
        in_reach &= distances >= 0
    if spec.window:
        in_reach &= jnp.abs(distances) <= spec.window // 2
    return in_reach


def hide_padding(
    scores: jax.Array,
    padding_mask: jax.Array | None,
    heads: bool = False,
    first: jax.Array | int = 0,
) -> jax.Array:
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


def visible_keys(padding_mask: jax.Array, first: jax.Array | int, queries: int) -> jax.Array:
    """Which keys each query sees, bool [batch, queries or 1, keys]; arguments as in
    `hide_padding`."""
    of_keys = padding_mask[:, None]  # [batch, 1, keys]
    if padding_mask.dtype == jnp.bool_:
        return of_keys
    of_queries = jax.lax.dynamic_slice_in_dim(padding_mask, first, queries, axis=1)
    is_same_document = of_keys == of_queries[..., None]  # [batch, queries, keys]
    is_text = of_keys > 0
    return is_same_document & is_text


def mix(
    scores: jax.Array, v: jax.Array, rate: float = 0.0, dropout_keys: jax.Array | None = None
) -> jax.Array:
    """softmax(scores) v, [..., queries, d] in the type of v, the softmax in the type of the scores.

    Args:
        scores: [..., queries, keys]; missing leading axes are shared.
        v: [..., keys, d].
        rate: of dropout on the weights.
        dropout_keys: a random key per example, [batch]; None for evaluation.
    """
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)  # [..., queries, keys]
    if dropout_keys is not None and rate:
        *leading, _, _ = v.shape
        *_, queries, keys = weights.shape
        weights = jnp.broadcast_to(weights, (*leading, queries, keys))
        weights = dropout(weights, rate, dropout_keys)
    mixed = jnp.einsum("...nm,...md->...nd", weights, v)
    return checkpoint_name(mixed, NAME)


def attend(
    logits: Logits,
    v: jax.Array,
    queries: int,
    padding_mask: jax.Array | None = None,
    rate: float = 0.0,
    dropout_keys: jax.Array | None = None,
) -> jax.Array:
    """`mix` for all queries, [..., queries, d] in the type of v; v is [batch, keys, d] or [batch,
    heads, keys, d], and the other arguments are those of `hide_padding` and `mix`.

    More than WHOLE queries run in blocks, one after another, forwards and backwards: no array of
    [queries, keys] exists then (Rabe and Staats, arXiv 2112.05682), and no product is computed more
    often than the remat policy says. Which weights are dropped depends on the blocks.
    """
    has_heads = v.ndim == 4

    def rows(first: jax.Array | int, count: int, dropout_keys: jax.Array | None) -> jax.Array:
        scores = hide_padding(logits(first, count), padding_mask, has_heads, first)
        return mix(scores, v, rate, dropout_keys)

    if queries <= WHOLE:
        return rows(0, queries, dropout_keys)
    return _in_blocks(rows, queries, dropout_keys)


def _in_blocks(
    rows: Callable[[jax.Array, int, jax.Array | None], jax.Array],
    queries: int,
    dropout_keys: jax.Array | None,
) -> jax.Array:
    """The rows of all queries, [..., queries, d], from `rows(first, count, dropout_keys)`, those of
    a block [..., count, d]."""
    blocks = -(-queries // BLOCK)
    count = -(-queries // blocks)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def block(first: jax.Array) -> jax.Array:
        keys = None if dropout_keys is None else fold_in(dropout_keys, first)
        return rows(first, count, keys)

    # the last block may overlap the one before
    starts = jnp.minimum(jnp.arange(blocks) * count, queries - count)
    by_block = jax.lax.map(block, starts)  # [blocks, ..., count, d]
    by_block = jnp.moveaxis(by_block, 0, -3)  # [..., blocks, count, d]
    *leading, _, _, d = by_block.shape
    before = by_block[..., :-1, :, :]
    before = before.reshape(*leading, -1, d)
    overlap = blocks * count - queries
    last = by_block[..., -1, overlap:, :]
    mixed = jnp.concatenate([before, last], axis=-2)
    return checkpoint_name(mixed, NAME)


def attend_in_windows(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    spec: ContentAttentionSpec,
    padding_mask: jax.Array | None = None,
    dropout_keys: jax.Array | None = None,
) -> jax.Array:
    """softmax(q k^T / sqrt(d)) v of tokens that see only the spec's window, in time and memory of
    tokens times window.

    A block of `window` queries reads the keys of twice as many tokens: its own, and half a window
    on each side. Which weights are dropped depends on the blocks.

    Args:
        q, k, v: [batch, heads, tokens, d].
        padding_mask, dropout_keys: those of `hide_padding` and `mix`.

    Returns:
        [batch, heads, tokens, d] in the type of v.
    """
    *leading, tokens, d = q.shape
    window = spec.window
    half = window // 2
    blocks = -(-tokens // window)
    q_blocks = _padded(q, 0, blocks * window).reshape(*leading, blocks, window, d)
    k_blocks = _overlapping(k, blocks, window)
    v_blocks = _overlapping(v, blocks, window)
    products = jnp.einsum(
        "...nd,...md->...nm", q_blocks, k_blocks, preferred_element_type=spec.precise_dtype
    )
    scores = products * d**-0.5  # [batch, heads, blocks, window, 2 window]
    starts = window * jnp.arange(blocks)[:, None, None]
    query_positions = starts + jnp.arange(window)[:, None]  # [blocks, window, 1]
    key_positions = starts + jnp.arange(2 * window) - half  # [blocks, 1, 2 window]
    is_token = (key_positions >= 0) & (key_positions < tokens)
    # queries beyond the tokens see themselves: a row without any key would be NaN
    is_itself = key_positions == query_positions
    in_reach = within_reach(query_positions, key_positions, spec)
    scores = jnp.where(in_reach & (is_token | is_itself), scores, -jnp.inf)
    if padding_mask is not None:
        visible = _visible_in_windows(padding_mask, blocks, window)
        least = jnp.finfo(scores.dtype).min
        scores = jnp.where(visible[:, None], scores, jnp.minimum(scores, least))
    mixed = mix(scores, v_blocks, spec.attention_dropout, dropout_keys)
    return mixed.reshape(*leading, blocks * window, d)[..., :tokens, :]


def _visible_in_windows(padding_mask: jax.Array, blocks: int, window: int) -> jax.Array:
    """`visible_keys` for the blocks of `attend_in_windows`: bool [batch, blocks, window or 1, 2
    window]."""
    by_token = padding_mask[..., None]  # [batch, tokens, 1]
    of_keys = _overlapping(by_token, blocks, window).swapaxes(-1, -2)  # [batch, blocks, 1, ...]
    if padding_mask.dtype == jnp.bool_:
        return of_keys
    batch = len(padding_mask)
    of_queries = _padded(by_token, 0, blocks * window).reshape(batch, blocks, window, 1)
    return (of_keys == of_queries) & (of_keys > 0)


def _padded(x: jax.Array, before: int, total: int) -> jax.Array:
    """x [..., tokens, d] with so many zeros before the tokens, and others after them: [..., total,
    d]."""
    after = total - before - x.shape[-2]
    widths = [(0, 0)] * x.ndim
    widths[-2] = (before, after)
    return jnp.pad(x, widths)


def _overlapping(x: jax.Array, blocks: int, window: int) -> jax.Array:
    """The tokens [..., tokens, d] that each block of `window` tokens reads, its own and half a
    window on each side: [..., blocks, 2 window, d], zeros beyond the tokens."""
    *leading, _, d = x.shape
    padded = _padded(x, window // 2, (blocks + 1) * window)
    parts = padded.reshape(*leading, blocks + 1, window, d)
    before = parts[..., :-1, :, :]
    after = parts[..., 1:, :, :]
    return jnp.concatenate([before, after], axis=-2)


def buckets(offsets: np.ndarray, count: int, causal: bool = False) -> np.ndarray:
    """T5's buckets, integers below `count`, of offsets key - query of any shape (arXiv 1910.10683,
    section 2.1).

    Half of the buckets serve offsets above 0. If attention is causal, all serve offsets up to 0,
    and those above 0 get the bucket of 0. In each direction, the first half holds one distance per
    bucket, and the rest grow logarithmically up to MAX_DISTANCE.
    """
    if causal:
        per_direction = count
        distance = np.maximum(-offsets, 0)
        first = np.zeros_like(distance)
    else:
        per_direction = count // 2
        distance = np.abs(offsets)
        first = np.where(offsets > 0, per_direction, 0)
    exact = per_direction // 2
    logarithmic = per_direction - exact
    # 256 causal buckets: MAX_DISTANCE begins the last ones
    span = np.log2(max(MAX_DISTANCE / exact, 1 + 1e-9))
    doublings = np.log2(np.maximum(distance, exact) / exact)
    growth = np.minimum(doublings * logarithmic / span, per_direction)
    far = np.minimum(exact + growth.astype(int), per_direction - 1)
    bucket = np.where(distance < exact, distance, far)
    return first + bucket


class RelativeBias(nnx.Module):
    """The bias that each head of each layer adds to its logits, by the offset of a key from its
    query (as in T5).

    Parameter: `bias` [heads, 2n - 1], one per offset in the order of Toeplitz taps ([heads, n] if
    causal, for offsets up to 0), or [heads, relative_buckets]. The default is one per offset: it
    fits the 96M parameters that Table 3 gives for the Transformer without content terms, for which
    32 buckets give 95M.
    """

    def __init__(self, spec: AttentionSpec, rngs: nnx.Rngs):
        if spec.relative_buckets:
            entries = spec.relative_buckets
            resize = None
        elif spec.causal:
            entries = spec.length
            resize = PAST_OFFSETS
        else:
            entries = 2 * spec.length - 1
            resize = OFFSETS
        init = nnx.initializers.normal(0.02)
        bias = init(rngs.params(), (spec.heads, entries), spec.param_dtype)
        self.bias = parameter(bias, decayed=False, resize=resize)
        self.spec = spec

    def __call__(self, first: jax.Array | int, count: int, keys: int) -> jax.Array:
        """The bias of the queries [first, first + count) for the first keys: [heads, count, keys],
        -inf for keys out of reach. Raises ValueError for more keys than n, if each offset has a
        bias of its own."""
        spec = self.spec
        bias = self.bias[...]
        if spec.relative_buckets:
            offsets = np.arange(1 - keys, keys)
            taps = bias[:, buckets(offsets, spec.relative_buckets, spec.causal)]
        elif keys > spec.length:
            raise ValueError(
                f"the relative bias was made for at most {spec.length} tokens and was given {keys}"
            )
        else:
            if spec.causal:
                bias = toeplitz.pad_future(bias)
            taps = toeplitz.crop(bias, keys)

        def rows_of_head(taps: jax.Array) -> jax.Array:
            return toeplitz.rows(taps, first, count)

        rows = jax.vmap(rows_of_head)(taps)  # [heads, 2 keys - 1] to [heads, count, keys]
        return hide_out_of_reach(rows, spec, first)


def rotate(x: jax.Array, first: jax.Array | int, theta: float) -> jax.Array:
    """Rotary positions (Su et al., arXiv 2104.09864): turns the channels i and i + d / 2 of a token
    at position p, as a point of the plane, by the angle p theta^(-2 i / d).

    Args:
        x: [batch, tokens, heads, d], the queries or keys of the positions [first, first + tokens).
        first: the position of the first token.
        theta: the base of the wavelengths.

    Returns:
        The same shape and type; computed in float32.
    """
    tokens = x.shape[1]
    d = x.shape[-1]
    exponents = np.arange(0, d, 2) / d
    frequencies = jnp.asarray(theta**-exponents, jnp.float32)
    positions = first + jnp.arange(tokens)
    angles = jnp.outer(positions, frequencies)[:, None]  # [tokens, 1, d / 2]
    cosines = jnp.cos(angles)
    sines = jnp.sin(angles)
    precise = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    left, right = jnp.split(precise, 2, axis=-1)
    turned_left = left * cosines - right * sines
    turned_right = right * cosines + left * sines
    turned = jnp.concatenate([turned_left, turned_right], axis=-1)
    return turned.astype(x.dtype)


def attend_fused(
    spec: ContentAttentionSpec,
    qkv: jax.Array,
    heads: int,
    padding_mask: jax.Array | None,
    dropout_keys: jax.Array | None,
    relative: RelativeBias | None = None,
) -> jax.Array | None:
    """softmax(q k^T / sqrt(d) + bias) v of each head by a kernel of the platform.

    Args:
        qkv: [batch, tokens, 3 heads d].
        relative: gives the bias; the other arguments are those of `hide_padding` and `mix`.

    Returns:
        [batch, tokens, heads d]; None if there is no kernel for these shapes, for dropout on the
        weights, or at all.
    """
    dropped = dropout_keys is not None and spec.attention_dropout > 0
    if spec.attention == "xla" or dropped or qkv.ndim != 3 or TENSOR in sharding.compiler_axes():
        return None
    platform = sharding.platform()
    mixed = None
    if platform == "tpu":
        mixed = _attend_on_tpu(spec, qkv, heads, padding_mask, relative)
    elif platform == "gpu" and not spec.window:  # cuDNN has no windows with two sides
        mixed = _attend_on_gpu(qkv, heads, spec.causal, padding_mask, relative)
    if mixed is None:
        return None
    return checkpoint_name(mixed, NAME)


def _attend_on_tpu(
    spec: ContentAttentionSpec,
    qkv: jax.Array,
    heads: int,
    padding_mask: jax.Array | None,
    relative: RelativeBias | None,
) -> jax.Array | None:
    """`attend_fused` by `fused_attention`, which has no masks of documents."""
    tokens = qkv.shape[1]
    width = qkv.shape[2] // 3
    by_document = padding_mask is not None and padding_mask.dtype != jnp.bool_
    if by_document or not fused_attention.serves(tokens, width, heads):
        return None
    bias = None
    if relative is not None:
        bias = relative(0, tokens, tokens)
    return fused_attention.attention(
        qkv, bias, padding_mask, heads=heads, causal=spec.causal, window=spec.window
    )


def _attend_on_gpu(
    qkv: jax.Array,
    heads: int,
    causal: bool,
    padding_mask: jax.Array | None,
    relative: RelativeBias | None,
) -> jax.Array | None:
    """`attend_fused` by cuDNN's kernel, for activations of half precision."""
    batch, tokens, width_of_three = qkv.shape
    width = width_of_three // 3
    d = width // heads
    # would be one array [batch, heads, tokens, tokens]
    has_both = relative is not None and padding_mask is not None
    if has_both or not _cudnn_serves(qkv.dtype, tokens, d):
        return None
    bias = None
    if relative is not None:
        bias = relative(0, tokens, tokens)[None].astype(qkv.dtype)
    mask = None
    if padding_mask is not None:
        visible = visible_keys(padding_mask, 0, tokens)[:, None]
        mask = jnp.broadcast_to(visible, (batch, 1, tokens, tokens))

    def on_shard(batched: tuple[jax.Array, jax.Array | None], bias: jax.Array | None) -> jax.Array:
        by_head, mask = batched
        q, k, v = jnp.moveaxis(by_head, 2, 0)  # each [batch, tokens, heads, d]
        return jax.nn.dot_product_attention(
            q, k, v, bias, mask, is_causal=causal, implementation="cudnn"
        )

    by_head = qkv.reshape(batch, tokens, 3, heads, d)
    mixed = sharding.map_shards(on_shard, (by_head, mask), bias)  # [batch, tokens, heads, d]
    return mixed.reshape(batch, tokens, width)


def _cudnn_serves(dtype: jnp.dtype, tokens: int, d: int) -> bool:
    """Whether cuDNN's kernel has heads of this size and type."""
    is_half = dtype in (jnp.bfloat16, jnp.float16)
    return is_half and d % 8 == 0 and d <= 128 and tokens % 64 == 0


def reads_windows(spec: AttentionSpec, tokens: int) -> bool:
    """Whether `attend_in_windows` reads fewer keys of so many tokens than all of them, and the spec
    has no bias, which it does not add."""
    has_bias = spec.positions.startswith("relative")
    return spec.window > 0 and not has_bias and tokens > 2 * spec.window


def served_by(spec: AttentionSpec, platform: str) -> str:
    """What computes attention of n tokens on a platform, "tpu", "gpu" or "cpu", in words: without a
    mask of documents, dropout on weights, or heads that several devices share."""
    is_auto = spec.attention == "auto" and spec.positions != "relative_only"
    width = spec.heads * spec.d_head
    if is_auto and platform == "tpu" and fused_attention.serves(spec.length, width, spec.heads):
        return "the attention kernel"
    may_be_cudnn = is_auto and platform == "gpu" and not spec.window
    if may_be_cudnn and _cudnn_serves(spec.compute_dtype, spec.length, spec.d_head):
        return "cuDNN"
    if reads_windows(spec, spec.length):
        return "XLA, in blocks that read two windows of keys"
    return "XLA, with all keys"


class MultiHeadAttention(nnx.Module):
    """softmax(q k^T / sqrt(d_qkv / heads) + bias) v in each head; the heads, concatenated, through
    a projection. With `kv_heads` several heads of queries share keys and values (Ainslie et al.,
    arXiv 2305.13245). With a `window`, tokens see only those near them.

    With `positions="relative_only"` there are no content terms and neither q nor k: the weights are
    softmax(bias), the same for every input (Table 3's "rel pos - attn"; a shift-invariant Random
    Synthesizer).
    """

    def __init__(self, spec: AttentionSpec, rngs: nnx.Rngs):
        width = spec.heads * spec.d_head
        width_in = width
        if spec.positions != "relative_only":
            width_in += 2 * spec.key_heads * spec.d_head
        self.proj_in = Linear(spec, spec.d_model, width_in, rngs, bias=spec.attention_bias)
        self.relative = RelativeBias(spec, rngs) if spec.positions.startswith("relative") else None
        if spec.qk_norm:
            ones = jnp.ones((spec.d_head,), spec.param_dtype)
            self.q_scale = parameter(ones, decayed=False)
            self.k_scale = parameter(ones, decayed=False)
        self.out = Linear(
            spec, width, spec.d_model, rngs, sharding=(None, FSDP), bias=spec.attention_bias
        )
        self.spec = spec

    def __call__(
        self,
        x: jax.Array,
        dropout_keys: jax.Array | None = None,
        padding_mask: jax.Array | None = None,
        cache: DecodeCache | None = None,
    ) -> jax.Array:
        """[batch, tokens, d_model] to the same; `dropout_keys` as in `mix`, `padding_mask` as in
        `hide_padding`, and a cache of the keys and values of earlier tokens."""
        spec = self.spec
        projected = self._project(x, 0 if cache is None else cache.first)
        if cache is None and spec.positions != "relative_only":
            qkv = self._with_shared_heads(projected)
            mixed = attend_fused(spec, qkv, spec.heads, padding_mask, dropout_keys, self.relative)
            if mixed is not None:
                return self.out(mixed)
        batch, tokens, _ = x.shape
        q, k, v = self._by_head(projected, cache)
        if cache is None and reads_windows(spec, tokens):
            by_head = attend_in_windows(q, k, v, spec, padding_mask, dropout_keys)
        else:
            logits = self._logits(q, k, v, 0 if cache is None else cache.first)
            by_head = attend(logits, v, tokens, padding_mask, spec.attention_dropout, dropout_keys)
        mixed = by_head.swapaxes(1, 2)  # [batch, heads, tokens, d] to [batch, tokens, heads, d]
        return self.out(mixed.reshape(batch, tokens, -1))

    def scores(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to the logits before the softmax, [batch, heads, tokens,
        tokens]; without content terms the batch is 1."""
        q, k, v = self._by_head(self._project(x, 0), None)
        tokens = x.shape[1]
        scores = self._logits(q, k, v, 0)(0, tokens)
        return scores.reshape(-1, *scores.shape[-3:])

    def _project(self, x: jax.Array, first: jax.Array | int) -> jax.Array:
        """Queries, keys and values side by side, [batch, tokens, (heads + 2 kv_heads) d],
        normalised and turned as the spec says; without content terms the values alone. `first` is
        the first position."""
        spec = self.spec
        projected = self.proj_in(x)
        if not spec.qk_norm and spec.positions != "rotary":
            return projected
        q, k, v = self._split(projected)
        if spec.qk_norm:
            q = rms_norm(q, self.q_scale[...], spec.norm_eps, q.dtype)
            k = rms_norm(k, self.k_scale[...], spec.norm_eps, k.dtype)
        if spec.positions == "rotary":
            q = rotate(q, first, spec.rotary_theta)
            k = rotate(k, first, spec.rotary_theta)
        qkv = jnp.concatenate([q, k, v], axis=2)
        return qkv.reshape(projected.shape)

    def _split(self, projected: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What `_project` gives as queries [batch, tokens, heads, d], and keys and values [batch,
        tokens, kv_heads, d]."""
        spec = self.spec
        batch, tokens, _ = projected.shape
        by_head = projected.reshape(batch, tokens, -1, spec.d_head)
        ends = [spec.heads, spec.heads + spec.key_heads]
        q, k, v = jnp.split(by_head, ends, axis=2)
        return q, k, v

    def _with_shared_heads(self, projected: jax.Array) -> jax.Array:
        """What `_project` gives with keys and values repeated for each head of queries: [batch,
        tokens, 3 heads d]."""
        spec = self.spec
        if spec.key_heads == spec.heads:
            return projected
        batch, tokens, _ = projected.shape
        q, k, v = self._split(projected)
        k = self._for_query_heads(k, axis=2)
        v = self._for_query_heads(v, axis=2)
        return jnp.concatenate([q, k, v], axis=2).reshape(batch, tokens, -1)

    def _by_head(
        self, projected: jax.Array, cache: DecodeCache | None
    ) -> tuple[Any, Any, jax.Array]:
        """Queries, keys and values, each [batch, heads, tokens, d]; without content terms None, None
        and the values. The keys and values are those of the tokens of `projected`; of n tokens with a
        cache, which stores each of them once for all heads of queries that share it."""
        spec = self.spec
        batch, tokens, _ = projected.shape
        if spec.key_heads == spec.heads:
            by_head = projected.reshape(batch, tokens, -1, spec.heads, spec.d_head)
            *q_and_k, v = by_head.transpose(2, 0, 3, 1, 4)  # each [batch, heads, tokens, d]
        else:
            *q_and_k, v = [part.swapaxes(1, 2) for part in self._split(projected)]
        q, k = q_and_k or (None, None)
        if cache is not None:
            if k is not None:
                k = cache.update("keys", k, axis=2)
            v = cache.update("values", v, axis=2)
        return q, self._for_query_heads(k, axis=1), self._for_query_heads(v, axis=1)

    def _for_query_heads(self, part: Any, axis: int) -> Any:
        """Keys or values with each of their heads, which lie along an axis, repeated for the heads of
        queries that share it."""
        spec = self.spec
        if spec.key_heads == spec.heads:
            return part
        return jnp.repeat(part, spec.heads // spec.key_heads, axis=axis)

    def _logits(self, q: Any, k: Any, v: jax.Array, position: jax.Array | int) -> Logits:
        """The logits of what `_by_head` gives; `position` is that of the first query."""
        spec = self.spec
        keys = v.shape[2]
        products = None
        if q is not None:
            products = dot_products(q, k, spec, position)

        def logits(first: jax.Array | int, count: int) -> jax.Array:
            bias = jnp.zeros((), spec.precise_dtype)
            if self.relative is not None:
                bias = self.relative(position + first, count, keys)
            if products is None:
                return bias
            return products(first, count) + bias

        return logits
