"""The many heads of a Transformer's attention."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.attention.dot_product import Logits, attend, dot_products
from gmlp_flax.models.attention.kernels import attend_fused
from gmlp_flax.models.attention.positions import RelativeBias, rotate
from gmlp_flax.models.attention.spec import AttentionSpec
from gmlp_flax.models.attention.windowed import attend_in_windows, reads_windows
from gmlp_flax.models.layers import DecodeCache, Linear, rms_norm
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.sharding import FSDP


class _Heads(NamedTuple):
    """The queries, keys and values of all heads.

    Attributes:
        q: [batch, heads, tokens, d]; None without content terms.
        k: [batch, heads or kv_heads, keys, d]; None without content terms.
        v: [batch, heads or kv_heads, keys, d].
    """

    q: Array | None
    k: Array | None
    v: Array


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
            width_of_keys = spec.key_heads * spec.d_head
            width_in += 2 * width_of_keys
        self.proj_in = Linear(spec, spec.d_model, width_in, rngs, bias=spec.attention_bias)
        if spec.positions.startswith("relative"):
            self.relative = RelativeBias(spec, rngs)
        else:
            self.relative = None
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
        x: Array,
        dropout_keys: Array | None = None,
        padding_mask: Array | None = None,
        cache: DecodeCache | None = None,
    ) -> Array:
        """[batch, tokens, d_model] to the same; `dropout_keys` as in `mix`, `padding_mask` as in
        `hide_padding`, and a cache of the keys and values of earlier tokens."""
        spec = self.spec
        first = 0 if cache is None else cache.first
        projected = self._project(x, first)
        if cache is None and spec.positions != "relative_only":
            qkv = self._with_shared_heads(projected)
            mixed = attend_fused(spec, qkv, spec.heads, padding_mask, dropout_keys, self.relative)
            if mixed is not None:
                return self.out(mixed)
        tokens = x.shape[1]
        q, k, v = self._by_head(projected, cache)
        in_windows = cache is None and reads_windows(spec, tokens)
        if in_windows and q is not None and k is not None:
            by_head = attend_in_windows(q, k, v, spec, padding_mask, dropout_keys)
        else:
            logits = self._logits(_Heads(q, k, v), first)
            by_head = attend(logits, v, tokens, padding_mask, spec.attention_dropout, dropout_keys)
        by_token = by_head.swapaxes(1, 2)  # [batch, tokens, heads, d]
        mixed = jax.lax.collapse(by_token, 2)
        return self.out(mixed)

    def scores(self, x: Array) -> Array:
        """[batch, tokens, d_model] to the logits before the softmax, [batch, heads, tokens,
        tokens]; without content terms the batch is 1."""
        projected = self._project(x, 0)
        heads = self._by_head(projected, None)
        logits = self._logits(heads, 0)
        tokens = x.shape[1]
        scores = logits(0, tokens)
        shape_of_example = scores.shape[-3:]
        return scores.reshape(-1, *shape_of_example)

    def _project(self, x: Array, first: Array | int) -> Array:
        """Queries, keys and values side by side, [batch, tokens, (heads + 2 kv_heads) d],
        normalized and rotated as the spec says; without content terms the values alone. `first` is
        the position of the first token."""
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

    def _split(self, projected: Array) -> tuple[Array, Array, Array]:
        """What `_project` gives, as queries [batch, tokens, heads, d], and keys and values [batch,
        tokens, kv_heads, d]."""
        spec = self.spec
        batch, tokens, channels = projected.shape
        heads = channels // spec.d_head  # of queries, keys and values
        by_head = projected.reshape(batch, tokens, heads, spec.d_head)
        keys_begin = spec.heads
        values_begin = spec.heads + spec.key_heads
        q, k, v = jnp.split(by_head, [keys_begin, values_begin], axis=2)
        return q, k, v

    def _with_shared_heads(self, projected: Array) -> Array:
        """What `_project` gives, with keys and values repeated for each head of queries: [batch,
        tokens, 3 heads d]."""
        spec = self.spec
        if spec.key_heads == spec.heads:
            return projected
        q, k, v = self._split(projected)
        k = self._for_query_heads(k, axis=2)
        v = self._for_query_heads(v, axis=2)
        by_head = jnp.concatenate([q, k, v], axis=2)
        return jax.lax.collapse(by_head, 2)

    def _by_head(self, projected: Array, cache: DecodeCache | None) -> _Heads:
        """What `_project` gives, head by head: all parts have `heads` heads. With a cache, the keys
        and values are those of all n positions. The cache stores each of them once for all heads of
        queries that share it."""
        heads = self._heads_of(projected)
        k = heads.k
        v = heads.v
        if cache is not None:
            if k is not None:
                k = cache.update("keys", k, axis=2)
            v = cache.update("values", v, axis=2)
        if k is not None:
            k = self._for_query_heads(k, axis=1)
        v = self._for_query_heads(v, axis=1)
        return _Heads(heads.q, k, v)

    def _heads_of(self, projected: Array) -> _Heads:
        """What `_project` gives, head by head: keys and values have `kv_heads` heads."""
        spec = self.spec
        if spec.key_heads != spec.heads:
            q, k, v = self._split(projected)
            q = q.swapaxes(1, 2)  # [batch, heads, tokens, d]
            k = k.swapaxes(1, 2)
            v = v.swapaxes(1, 2)
            return _Heads(q, k, v)
        batch, tokens, channels = projected.shape
        parts = channels // (spec.heads * spec.d_head)
        side_by_side = projected.reshape(batch, tokens, parts, spec.heads, spec.d_head)
        parts = side_by_side.transpose(2, 0, 3, 1, 4)  # [parts, batch, heads, tokens, d]
        if spec.positions == "relative_only":
            [v] = parts
            return _Heads(None, None, v)
        q, k, v = parts
        return _Heads(q, k, v)

    def _for_query_heads(self, part: Array, axis: int) -> Array:
        """Keys or values whose heads lie along an axis, with each head repeated for the heads of
        queries that share it."""
        spec = self.spec
        if spec.key_heads == spec.heads:
            return part
        sharing = spec.heads // spec.key_heads
        return jnp.repeat(part, sharing, axis=axis)

    def _logits(self, heads: _Heads, position: Array | int) -> Logits:
        """The logits of what `_by_head` gives; `position` is that of the first query."""
        spec = self.spec
        keys = heads.v.shape[2]
        products = None
        if heads.q is not None and heads.k is not None:
            products = dot_products(heads.q, heads.k, spec, position)

        def logits(first: Array | int, count: int) -> Array:
            bias = jnp.zeros((), spec.precise_dtype)
            if self.relative is not None:
                first_position = position + first
                bias = self.relative(first_position, count, keys)
            if products is None:
                return bias
            from_content = products(first, count)
            return from_content + bias

        return logits
