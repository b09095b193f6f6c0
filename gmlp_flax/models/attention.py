"""Attention: the tiny head that makes aMLP of gMLP, the many heads of a Transformer, and their relative positions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import toeplitz
from gmlp_flax.models.decode_cache import DecodeCache
from gmlp_flax.models.layers import Linear, dropout
from gmlp_flax.models.matmul import NAME
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.resize import Offsets, PastTaps
from gmlp_flax.models.sharding import FSDP
from gmlp_flax.models.spatial import SpatialSpec
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import RATE, SIZE, Range, option

MAX_DISTANCE = 128  # T5: offsets from here on share the last bucket of their side
WHOLE, BLOCK = 1024, 512  # so many queries are scored at once; of more, so many at a time

Scores = Callable[
    [jax.Array | int, int], jax.Array
]  # (first, count) to the scores of so many queries, [..., count, keys]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadsSpec(BlockSpec):
    """Options of layers that split the channels into heads."""

    heads: int = option(4, "heads, each of d_model / heads channels", SIZE, architecture=True)

    def check(self) -> None:
        """Raises ValueError if the heads do not divide the channels."""
        super().check()
        if self.d_model % self.heads:
            raise ValueError(f"model.d_model is {self.d_model}: model.heads, {self.heads}, must divide it")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightDropoutSpec(BlockSpec):
    """Options of layers whose weights on tokens come out of a softmax."""

    attention_dropout: float = option(0.0, "rate of dropout on the weights of attention", RATE)

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers."""
        return super().draws or self.attention_dropout > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSpec(HeadsSpec, WeightDropoutSpec):
    """Options of multi-head attention."""

    positions: str = option(
        "none",
        "none; a learned table (absolute); a bias on the logits per offset (relative); only that bias",
        ("none", "absolute", "relative", "relative_only"),
        architecture=True,
    )
    relative_buckets: int = option(
        0, "T5's logarithmic buckets of offsets (T5: 32); 0: a bias per offset", architecture=True
    )

    def check(self) -> None:
        """Raises ValueError if the heads do not divide the channels, or for a number of buckets that makes no sense."""
        super().check()
        if self.relative_buckets and (self.relative_buckets % 2 or not 4 <= self.relative_buckets <= 256):
            raise ValueError(
                f"model.relative_buckets is {self.relative_buckets}: expected 0 (a bias per offset) or an even number "
                "from 4 to 256 (T5: 32)"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TinyAttentionSpec(SpatialSpec, WeightDropoutSpec):
    """Options of tiny attention."""

    d_attn: int = option(
        0,
        "head size of tiny attention: 0 for gMLP, 64 or 128 for aMLP",
        Range("0 (no attention) or the size of its head", 0, SIZE.most),
        architecture=True,
    )


def supports_length(spec: AttentionSpec, tokens: int) -> bool:
    """Whether multi-head attention can be applied to so many tokens: to any number, or to at most n if each position or
    offset has parameters of its own."""
    bounded = spec.positions != "none" and not (spec.relative_buckets and spec.positions != "absolute")
    return tokens <= spec.length or not bounded


def scaled_scores(q: jax.Array, k: jax.Array, precise_dtype: jnp.dtype) -> jax.Array:
    """q k^T / sqrt(d): [..., queries, d] and [..., keys, d] to [..., queries, keys] in the precise type."""
    return jnp.einsum("...nd,...md->...nm", q, k, preferred_element_type=precise_dtype) * q.shape[-1] ** -0.5


def hide_padding(scores: jax.Array, padding_mask: jax.Array | None, heads: bool = False) -> jax.Array:
    """Takes keys out of the softmax.

    Args:
        scores: [batch, queries, keys] or, with `heads`, [batch, heads, queries, keys]; the batch may be left out.
        padding_mask: bool [batch, keys], False for padding; None if all keys stay.

    Returns:
        The scores, with a batch: the least number of their type for hidden keys, unless they are -inf already. Unchanged
        if `padding_mask` is None.
    """
    if padding_mask is None:
        return scores
    keys = padding_mask[:, None, None] if heads else padding_mask[:, None]
    return jnp.where(keys, scores, jnp.minimum(scores, jnp.finfo(scores.dtype).min))


def hide_future(scores: jax.Array, first: jax.Array | int = 0) -> jax.Array:
    """Takes the keys behind each query out of the softmax: their scores become -inf.

    Args:
        scores: [..., queries, keys].
        first: the place of the first query among the keys.
    """
    queries, keys = scores.shape[-2:]
    return jnp.where(jnp.arange(keys) <= first + jnp.arange(queries)[:, None], scores, -jnp.inf)


def mix(scores: jax.Array, v: jax.Array, rate: float = 0.0, key: jax.Array | None = None) -> jax.Array:
    """softmax(scores) v, the softmax in the type of the scores.

    Args:
        scores: [..., queries, keys]; leading axes that it lacks are shared.
        v: [..., keys, d].
        rate, key: dropout on the weights, with a random key per example, [batch]; no dropout without keys.

    Returns:
        [..., queries, d] in the type of v. As a product over tokens, it is kept by the remat policy `matmuls`.
    """
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    if key is not None and rate:
        weights = dropout(jnp.broadcast_to(weights, (*v.shape[:-2], *weights.shape[-2:])), rate, key)
    return checkpoint_name(jnp.einsum("...nm,...md->...nd", weights, v), NAME)


def attend(scores: Scores, v: jax.Array, queries: int, rate: float = 0.0, key: jax.Array | None = None) -> jax.Array:
    """`mix` for all queries, of which more than WHOLE take turns in blocks, forwards and backwards: no array of
    [queries, keys] is held then (Rabe and Staats, arXiv 2112.05682), and no product is computed more often than by a
    remat policy.

    Args:
        scores: of some queries.
        v: [..., keys, d].
        queries: their number.
        rate, key: as in `mix`; the weights that are dropped depend on the blocks.

    Returns:
        [..., queries, d] in the type of v.
    """
    if queries <= WHOLE:
        return mix(scores(0, queries), v, rate, key)
    blocks = -(-queries // BLOCK)
    count = -(-queries // blocks)

    def rows(first: jax.Array) -> jax.Array:
        own = None if key is None else jax.vmap(jax.random.fold_in, (0, None))(key, first)
        return mix(scores(first, count), v, rate, own)

    starts = jnp.minimum(jnp.arange(blocks) * count, queries - count)  # the last block may overlap the one before
    found = jnp.moveaxis(jax.lax.map(jax.checkpoint(rows, prevent_cse=False), starts), 0, -3)
    before = found[..., :-1, :, :].reshape(*found.shape[:-3], -1, found.shape[-1])
    last = found[..., -1, blocks * count - queries :, :]
    return checkpoint_name(jnp.concatenate([before, last], axis=-2), NAME)


def rows_of(q: jax.Array, first: jax.Array | int, count: int) -> jax.Array:
    """The queries [first, first + count) of [..., queries, d]."""
    return q if count == q.shape[-2] else jax.lax.dynamic_slice_in_dim(q, first, count, axis=-2)


def buckets(offsets: np.ndarray, count: int, causal: bool = False) -> np.ndarray:
    """T5's buckets of offsets key - query (arXiv 1910.10683, section 2.1).

    Half of the buckets serve offsets above 0; if attention is causal, all serve offsets up to 0. Of each side, the first
    half holds one distance per bucket, and the rest grow logarithmically up to MAX_DISTANCE.

    Args:
        offsets: integers of any shape.
        count: number of buckets, even, 4 to 256.
        causal: whether there are no offsets above 0; those that are given get the bucket of 0.

    Returns:
        Integers below `count`, of the same shape.
    """
    side = count if causal else count // 2
    exact = side // 2
    distance = np.maximum(-offsets, 0) if causal else np.abs(offsets)
    span = np.log2(max(MAX_DISTANCE / exact, 1 + 1e-9))  # 256 causal buckets: MAX_DISTANCE begins the last ones
    growth = np.minimum(np.log2(np.maximum(distance, exact) / exact) * (side - exact) / span, side)
    far = np.minimum(exact + growth.astype(int), side - 1)
    return side * (offsets > 0) * (not causal) + np.where(distance < exact, distance, far)


class RelativeBias(nnx.Module):
    """The bias that each head of each layer adds to its logits, by the offset of a key from its query (as in T5).

    Parameter: `bias` [heads, 2n - 1], one per offset in the order of Toeplitz taps, or [heads, relative_buckets]. Causal
    attention has no offsets above 0, and so [heads, n].
    The default is one per offset: it fits the 96M that Table 3 prints for the Transformer without content terms, for
    which 32 buckets give 95M.
    """

    def __init__(self, spec: AttentionSpec, rngs: nnx.Rngs):
        entries, resize = (spec.length, PastTaps(repeat=True)) if spec.causal else (2 * spec.length - 1, Offsets())
        if spec.relative_buckets:
            entries, resize = spec.relative_buckets, None
        bias = nnx.initializers.normal(0.02)(rngs.params(), (spec.heads, entries), spec.param_dtype)
        self.bias = parameter(bias, decayed=False, resize=resize, max_logit_gap=math.log(max(spec.length - 1, 1)))
        self.spec = spec

    def __call__(self, tokens: int) -> jax.Array:
        """The logits' bias [heads, tokens, tokens]: for fewer than n tokens, the upper-left corner of n's.

        Raises:
            ValueError: more tokens than n, if each offset has a bias of its own.
        """
        return jax.vmap(toeplitz.expand)(self._taps(tokens))

    def rows(self, first: jax.Array | int, count: int, keys: int) -> jax.Array:
        """The bias of the queries [first, first + count) for so many keys: [heads, count, keys]. Raises as a call does."""
        return jax.vmap(lambda taps: toeplitz.rows(taps, first, count))(self._taps(keys))

    def _taps(self, tokens: int) -> jax.Array:
        """[heads, 2 tokens - 1]; of causal attention, those above offset 0 mean nothing."""
        spec, bias = self.spec, self.bias[...]
        if spec.relative_buckets:
            return bias[:, buckets(np.arange(1 - tokens, tokens), spec.relative_buckets, spec.causal)]
        if tokens > spec.length:
            raise ValueError(f"the relative bias was made for at most {spec.length} tokens and was given {tokens}")
        return toeplitz.crop(toeplitz.past_only(bias) if spec.causal else bias, tokens)


class MultiHeadAttention(nnx.Module):
    """softmax(q k^T / sqrt(d_model / heads) + bias) v in each head, the heads side by side through a projection.

    With `positions="relative_only"` the content terms are gone: the weights are softmax(bias), the same for every
    input, and there is neither q nor k (Table 3's "rel pos - attn"; a shift-invariant Random Synthesizer). If it is
    causal, the softmax runs over the keys up to each query, which may be those of `cache`.
    """

    def __init__(self, spec: AttentionSpec, rngs: nnx.Rngs):
        self.content = spec.positions != "relative_only"
        self.proj_in = Linear(spec, spec.d_model, (3 if self.content else 1) * spec.d_model, rngs)
        self.relative = RelativeBias(spec, rngs) if spec.positions.startswith("relative") else None
        self.out = Linear(spec, spec.d_model, spec.d_model, rngs, sharding=(None, FSDP))
        self.spec = spec

    def scores_and_values(self, x: jax.Array, cache: DecodeCache | None = None) -> tuple[Scores, jax.Array]:
        """[batch, tokens, d_model] to what gives scores [batch, heads, queries, keys], before the softmax, and to values
        [batch, heads, keys, d_model / heads]. Without content terms the scores have no batch. The keys are the tokens;
        with `cache` there are n."""
        batch, tokens, width = x.shape
        heads = self.proj_in(x).reshape(batch, tokens, -1, self.spec.heads, width // self.spec.heads)
        *q_and_k, v = heads.transpose(2, 0, 3, 1, 4)
        if cache is not None:
            q_and_k[1:], v = [cache.update("keys", k, axis=2) for k in q_and_k[1:]], cache.update("values", v, axis=2)

        def scores(first: jax.Array | int, count: int) -> jax.Array:
            place = first if cache is None else cache.first + first
            found = self._bias(place, count, v.shape[-2])
            if q_and_k:
                q, k = q_and_k
                found = scaled_scores(rows_of(q, first, count), k, self.spec.precise_dtype) + found
            return hide_future(found, place) if self.spec.causal else found

        return scores, v

    def _bias(self, first: jax.Array | int, count: int, keys: int) -> jax.Array:
        if self.relative is None:
            return jnp.zeros((), self.spec.precise_dtype)
        return self.relative(keys) if count == keys else self.relative.rows(first, count, keys)

    def scores(self, x: jax.Array) -> jax.Array:
        """The scores of all queries, with a batch of 1 if they have none."""
        scores, _ = self.scores_and_values(x)
        found = scores(0, x.shape[1])
        return found.reshape(-1, *found.shape[-3:])

    def __call__(
        self,
        x: jax.Array,
        padding_mask: jax.Array | None = None,
        key: jax.Array | None = None,
        cache: DecodeCache | None = None,
    ) -> jax.Array:
        """[batch, tokens, d_model] to the same; `padding_mask` as in `hide_padding`, random keys [batch] for training."""
        scores, v = self.scores_and_values(x, cache)

        def shown(first: jax.Array | int, count: int) -> jax.Array:
            return hide_padding(scores(first, count), padding_mask, heads=True)

        mixed = attend(shown, v, x.shape[1], self.spec.attention_dropout, key)
        return self.out(mixed.swapaxes(1, 2).reshape(x.shape))


class TinyAttention(nnx.Module):
    """softmax(q k^T / sqrt(d_attn)) v with one head, projected to d_out (paper, section 4.3 and Figure 6).

    The output projection starts near zero like the spatial projection that it is added to, so that a fresh gate is 1.
    """

    def __init__(self, spec: TinyAttentionSpec, d_out: int, rngs: nnx.Rngs):
        self.qkv = Linear(spec, spec.d_model, 3 * spec.d_attn, rngs)
        near_zero = nnx.initializers.normal(spec.spatial_init_std)
        self.out = Linear(spec, spec.d_attn, d_out, rngs, init=near_zero, sharding=(None, FSDP))
        self.spec = spec

    def scores_and_values(self, x: jax.Array, cache: DecodeCache | None = None) -> tuple[Scores, jax.Array]:
        """[batch, tokens, d_model] to what gives scores [batch, queries, keys], before the softmax, and to values
        [batch, keys, d_attn]; `cache` as in MultiHeadAttention."""
        q, k, v = jnp.split(self.qkv(x), 3, axis=-1)
        if cache is not None:
            k, v = cache.update("keys", k), cache.update("values", v)

        def scores(first: jax.Array | int, count: int) -> jax.Array:
            found = scaled_scores(rows_of(q, first, count), k, self.spec.precise_dtype)
            return hide_future(found, first if cache is None else cache.first + first) if self.spec.causal else found

        return scores, v

    def scores(self, x: jax.Array) -> jax.Array:
        """The scores of all queries."""
        return self.scores_and_values(x)[0](0, x.shape[1])

    def __call__(
        self,
        x: jax.Array,
        padding_mask: jax.Array | None = None,
        key: jax.Array | None = None,
        cache: DecodeCache | None = None,
    ) -> jax.Array:
        """[batch, tokens, d_model] to [batch, tokens, d_out]; arguments as in MultiHeadAttention."""
        scores, v = self.scores_and_values(x, cache)

        def shown(first: jax.Array | int, count: int) -> jax.Array:
            return hide_padding(scores(first, count), padding_mask)

        return self.out(attend(shown, v, x.shape[1], self.spec.attention_dropout, key))
