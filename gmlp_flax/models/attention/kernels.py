"""Which kernel computes attention: Pallas's on TPUs, cuDNN's on GPUs, or none."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import sharding
from gmlp_flax.models.attention.dot_product import visible_keys
from gmlp_flax.models.attention.positions import RelativeBias
from gmlp_flax.models.attention.spec import AttentionSpec, ContentAttentionSpec
from gmlp_flax.models.attention.windowed import reads_windows
from gmlp_flax.models.matmul import NAME
from gmlp_flax.models.sharding import TENSOR


def attend_fused(
    spec: ContentAttentionSpec,
    qkv: Array,
    heads: int,
    padding_mask: Array | None,
    dropout_keys: Array | None,
    relative: RelativeBias | None = None,
) -> Array | None:
    """softmax(q k^T / sqrt(d) + bias) v of each head by a kernel of the platform.

    Args:
        qkv: [batch, tokens, 3 heads d].
        heads: number of heads.
        padding_mask: as in `hide_padding`.
        dropout_keys: as in `mix`.
        relative: gives the bias; None for none.

    Returns:
        [batch, tokens, heads d]; None if the platform has no kernel for these shapes, for dropout on
        the weights, or at all.
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
    qkv: Array,
    heads: int,
    padding_mask: Array | None,
    relative: RelativeBias | None,
) -> Array | None:
    """`attend_fused` by `fused.attention`, which has no masks of documents."""
    from gmlp_flax.models.attention import fused  # here, because it imports Pallas

    tokens = qkv.shape[1]
    width = qkv.shape[2] // 3
    by_document = padding_mask is not None and padding_mask.dtype != jnp.bool_
    if by_document or not fused.serves(tokens, width, heads):
        return None
    bias = None
    if relative is not None:
        bias = relative(0, tokens, tokens)
    return fused.attention(
        qkv, bias, padding_mask, heads=heads, causal=spec.causal, window=spec.window
    )


def _attend_on_gpu(
    qkv: Array,
    heads: int,
    causal: bool,
    padding_mask: Array | None,
    relative: RelativeBias | None,
) -> Array | None:
    """`attend_fused` by cuDNN's kernel, for activations of half precision."""
    batch, tokens, width_of_three = qkv.shape
    width = width_of_three // 3
    d = width // heads
    # cuDNN would need both as one array [batch, heads, tokens, tokens]
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

    def on_shard(batched: tuple[Array, Array | None], bias: Array | None) -> Array:
        by_head, mask = batched
        q, k, v = jnp.moveaxis(by_head, 2, 0)  # each [batch, tokens, heads, d]
        return jax.nn.dot_product_attention(
            q, k, v, bias, mask, is_causal=causal, implementation="cudnn"
        )

    by_head = qkv.reshape(batch, tokens, 3, heads, d)
    mixed = sharding.map_shards(on_shard, (by_head, mask), bias)  # [batch, tokens, heads, d]
    return mixed.reshape(batch, tokens, width)


def _cudnn_serves(dtype: jnp.dtype, tokens: int, d: int) -> bool:
    """Whether cuDNN's kernel supports heads of d channels of this type, and this number of
    tokens."""
    is_half = dtype in (jnp.bfloat16, jnp.float16)
    has_width = d % 8 == 0 and d <= 128
    return is_half and has_width and tokens % 64 == 0


def served_by(spec: AttentionSpec, platform: str) -> str:
    """What computes attention of n tokens on a platform, "tpu", "gpu" or "cpu", in words. It holds
    without a mask of documents, without dropout on weights, and if heads are not sharded."""
    is_auto = spec.attention == "auto" and spec.positions != "relative_only"
    width = spec.heads * spec.d_head
    if is_auto and platform == "tpu":
        from gmlp_flax.models.attention import fused  # here, because it imports Pallas

        if fused.serves(spec.length, width, spec.heads):
            return "the attention kernel"
    may_be_cudnn = is_auto and platform == "gpu" and not spec.window
    if may_be_cudnn and _cudnn_serves(spec.compute_dtype, spec.length, spec.d_head):
        return "cuDNN"
    if reads_windows(spec, spec.length):
        return "XLA, in blocks that read two windows of keys"
    return "XLA, with all keys"
