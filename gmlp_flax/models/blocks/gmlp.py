"""The gMLP block (paper, Figures 1 and 2) and, with tiny attention, the aMLP block (Figure 6); with
a depthwise convolution in the gate, the cgMLP of Branchformer (arXiv 2207.02971).

Read from the top, as Figure 2's pseudo-code: the block, its spatial gate, the spatial projection
inside the gate.
"""

import dataclasses
from typing import Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import depthwise, toeplitz
from gmlp_flax.models.attention.dot_product import attend, dot_products
from gmlp_flax.models.attention.kernels import attend_fused
from gmlp_flax.models.attention.spec import ContentAttentionSpec
from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.layers import EVALUATION, DecodeCache, LayerNorm, LayerRng, Linear, add_branch
from gmlp_flax.models.matmul import NAME, add_bias, over_tokens
from gmlp_flax.models.padding import zero_padding
from gmlp_flax.models.parameters import PAST_TAPS, TAPS, TOKEN_BIAS, OverPatches, parameter
from gmlp_flax.models.sharding import FSDP, TENSOR
from gmlp_flax.options import AT_LEAST_0, SIZE, Range, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class GMLPSpec(ContentAttentionSpec):
    """Options of gMLP and aMLP. The paper's images have a dense W, all of its text a Toeplitz
    one."""

    spatial: str = option(
        "toeplitz",
        "the spatial projection: [n, n], 2n - 1 taps (causal: n), or a kernel for each channel",
        ("toeplitz", "dense", "depthwise"),
        architecture=True,
    )
    gate_kernel: int = option(
        31, "tokens that a depthwise kernel reads (Branchformer: 31)", SIZE, architecture=True
    )
    toeplitz: str = option(
        "auto",
        "how taps are applied: as a matrix, in blocks, by FFT, or the fastest for n "
        "(causal: direct)",
        ("auto", *toeplitz.FORMS),
        may_change=True,
    )
    spatial_init_std: float = option(
        1e-6, "standard deviation of spatial weights at the start (paper: near zero)", AT_LEAST_0
    )
    d_ffn: int = option(
        768,
        "width after the first projection, both halves counted",
        SIZE,
        architecture=True,
        scaled=True,
    )
    gate: str = option(
        "split",
        "Table 3's gate; split is the Spatial Gating Unit",
        ("linear", "additive", "multiplicative", "split"),
        architecture=True,
    )
    gate_norm_eps: float = option(
        0.0,
        "epsilon of the norm inside the gate (timm: 1e-5); 0: norm_eps",
        AT_LEAST_0,
        architecture=True,
    )
    d_attn: int = option(
        0,
        "head size of tiny attention: 0 for gMLP, 64 or 128 for aMLP",
        Range("0 (no attention) or the size of its head", 0, SIZE.most),
        architecture=True,
    )

    # whether padding is hidden from the spatial projection too: in predictions, not in training
    hide_padding: bool = False

    def check(self) -> None:
        """Raises ValueError for channels that the gate cannot halve, for a causal W in a form whose
        rounding depends on later tokens, and for a kernel wider than the tokens."""
        super().check()
        if self.gate == "split" and self.d_ffn % 2:
            raise ValueError(
                f"model.d_ffn is {self.d_ffn}: the split gate halves it, so it must be even"
            )
        if self.causal and self.form(self.length) != "direct":
            raise ValueError(
                f"model.toeplitz is {self.toeplitz!r}, whose rounding depends on later tokens: "
                "use 'direct'"
            )
        if self.spatial == "depthwise":
            self._check_kernel()

    def _check_kernel(self) -> None:
        """Every entry of the kernel must read some token."""
        widest = self.length if self.causal else 2 * self.length - 1
        if self.gate_kernel > widest:
            raise ValueError(
                f"model.gate_kernel is {self.gate_kernel}, too wide for {self.length} tokens: "
                f"expected at most {widest}"
            )

    def form(self, tokens: int) -> str:
        """How W is applied to this number of tokens: a key of `toeplitz.FORMS`."""
        if self.spatial != "toeplitz":
            return "direct"
        if self.toeplitz != "auto":
            return self.toeplitz
        return "direct" if self.causal else toeplitz.fastest_form(tokens)

    @property
    def gate_width(self) -> int:
        """Channels that leave the gate: half of d_ffn for the split gate, all of it for the
        others."""
        if self.gate == "split":
            return self.d_ffn // 2
        return self.d_ffn

    def hiding_padding(self) -> Self | None:
        """See `BlockSpec`. A Toeplitz W, whose rows do not depend on n, hides padding only in
        predictions. A depthwise convolution always does. A dense W cannot: it was trained on n
        tokens."""
        if self.spatial == "dense":
            return None
        if self.spatial == "depthwise":
            return self
        return dataclasses.replace(self, hide_padding=True)

    def supports_length(self, tokens: int) -> bool:
        """See `BlockSpec`: at most n tokens; exactly n with a dense W that is not causal; any number
        with a depthwise convolution, unless there are learned positions."""
        if self.spatial == "depthwise" and self.positions == "none":
            return True
        if self.spatial == "dense" and not self.causal:
            return tokens == self.length
        return tokens <= self.length


class GMLPBlock(Block):
    """x + V s(gelu(U norm(x))), where s is the spatial gate (paper, Equation 1). Tiny attention
    reads norm(x), and the gate adds its output to f(Z)."""

    Spec = GMLPSpec
    mixes_at_start = False
    can_be_causal = True
    torch_reader = "modeling_gmlp.py"

    def __init__(self, spec: GMLPSpec, rngs: nnx.Rngs):
        d_model = spec.d_model
        width = spec.gate_width
        self.norm = LayerNorm(spec, d_model)
        self.proj_in = Linear(
            spec,
            d_model,
            spec.d_ffn,
            rngs,
            sharding=(FSDP, TENSOR),
            activation=spec.activation,
            parts=spec.d_ffn // width,  # Z1 and Z2 of the split gate are separate products
        )
        self.gate = SpatialGatingUnit(spec, rngs)
        self.attention = TinyAttention(spec, width, rngs) if spec.d_attn else None
        self.proj_out = Linear(spec, width, d_model, rngs, sharding=(TENSOR, FSDP))

    def __call__(
        self,
        x: Array,
        rng: LayerRng = EVALUATION,
        padding_mask: Array | None = None,
        cache: DecodeCache | None = None,
    ) -> Array:
        """See `Block`."""
        shortcut = x
        x = self.norm(x)
        attention = None
        if self.attention is not None:
            attention = self.attention(x, rng.mixing_keys, padding_mask, cache)
        z = self.proj_in(x)  # gelu(U x), [batch, tokens, d_ffn]
        z = self.gate(z, attention, cache, padding_mask)  # s(Z), [batch, tokens, gate_width]
        y = self.proj_out(z)  # V s(Z), [batch, tokens, d_model]
        return add_branch(shortcut, y, rng)

    def spatial_matrix(self) -> Array:
        """See `Block`; with a depthwise convolution, whose channels differ, their mean."""
        return self.gate.spatial.matrix()

    def attention_scores(self, x: Array) -> Array | None:
        """See `Block`: the one head of tiny attention."""
        if self.attention is None:
            return None
        scores = self.attention.scores(self.norm(x))  # [batch, tokens, tokens]
        return scores[:, None]


class SpatialGatingUnit(nnx.Module):
    """s(Z) with f(Z) = W norm(Z) + b: f(Z), Z + f(Z), Z * f(Z) or Z1 * f(Z2), the four gates of
    Table 3.

    The last (`split`) is the paper's Spatial Gating Unit (Equation 4): Z1 is the first half of the
    channels, Z2 the second. The caption of Table 3 puts the norm inside f for all four. W starts
    near zero. b starts at 1 if f multiplies, so that s(Z) is Z (or Z1), and at 0 otherwise, so that
    the additive s(Z) is Z and the linear one 0.
    """

    def __init__(self, spec: GMLPSpec, rngs: nnx.Rngs):
        self.norm = LayerNorm(spec, spec.gate_width, spec.gate_norm_eps, sharding=(TENSOR,))
        multiplies = spec.gate in ("multiplicative", "split")
        bias = 1.0 if multiplies else 0.0
        is_depthwise = spec.spatial == "depthwise"
        make_spatial = DepthwiseProjection if is_depthwise else SpatialProjection
        self.spatial = make_spatial(spec, bias=bias, rngs=rngs)
        self.gate = spec.gate
        self.hide_padding = spec.hide_padding or is_depthwise

    def __call__(
        self,
        z: Array,
        attention: Array | None = None,
        cache: DecodeCache | None = None,
        padding_mask: Array | None = None,
    ) -> Array:
        """The gate s(Z).

        Args:
            z: [..., tokens, d_ffn].
            attention: output of tiny attention, which is added to f(Z) (Figure 6), [..., tokens,
                gate_width]; None for none.
            cache: as in `Block`.
            padding_mask: bool [..., tokens], False for padding, which counts as zeros if the spec
                has `hide_padding`, and with a depthwise convolution.

        Returns:
            [..., tokens, gate_width] in the type of z.
        """
        z1 = z
        z2 = z
        if self.gate == "split":
            z1, z2 = jnp.split(z, 2, axis=-1)
        normed = self.norm(z2)
        if self.hide_padding:
            normed = zero_padding(normed, padding_mask)
        f = self.spatial(normed, cache)  # f(Z2), [..., tokens, gate_width]
        if attention is not None:
            f = f + attention
        if self.gate == "linear":
            return f
        if self.gate == "additive":
            return z1 + f
        return z1 * f


class SpatialProjection(nnx.Module):
    """f(Z) = W Z + b over the token axis (Equation 2): one W for all channels, one bias per token.

    Parameters: `weight` [n, n] (spec.spatial == "dense") or `taps` [2n - 1] ("toeplitz"), and
    `bias` [n]. For fewer than n tokens, W is cropped to its upper-left corner (its central taps),
    and b to its first entries.

    A causal W is 0 above its diagonal: it has `taps` [n], for the offsets 1 - n to 0, or ignores
    that part of `weight`.
    """

    def __init__(self, spec: GMLPSpec, bias: float, rngs: nnx.Rngs):
        n = spec.length
        dtype = spec.param_dtype
        near_zero = nnx.initializers.normal(spec.spatial_init_std)
        bias_resize = TOKEN_BIAS
        if spec.spatial == "dense":
            weight = near_zero(rngs.params(), (n, n), dtype)
            resize = OverPatches(outputs=-2, inputs=-1)
            self.weight = parameter(weight, resize=resize)
            bias_resize = OverPatches(outputs=-1)
        elif spec.causal:
            taps = near_zero(rngs.params(), (n,), dtype)
            self.taps = parameter(taps, resize=PAST_TAPS)
        else:
            taps = near_zero(rngs.params(), (2 * n - 1,), dtype)
            self.taps = parameter(taps, resize=TAPS)
        biases = jnp.full((n,), bias, dtype)
        self.bias = parameter(biases, decayed=False, resize=bias_resize)
        self.spec = spec

    def __call__(self, z: Array, cache: DecodeCache | None = None) -> Array:
        """[..., tokens, channels] to the same. With a cache, W's rows for these tokens sum over the
        earlier ones too. Raises ValueError for a number of tokens that `spec.supports_length`
        refuses."""
        tokens = z.shape[-2]
        self._check_length(tokens)
        first = 0
        if cache is not None:
            first = cache.first
            z = cache.update("gate", z)
        form = self.spec.form(tokens)
        if form == "direct":
            columns = z.shape[-2]
            weight = self._rows(first, tokens, columns, z.dtype)
            mixed = over_tokens(weight, z)  # W Z
        else:
            taps = self.taps[...]
            taps = toeplitz.crop(taps, tokens)
            apply_taps = toeplitz.FORMS[form]
            mixed = apply_taps(taps, z)
        biases = self.bias[...]
        bias = jax.lax.dynamic_slice_in_dim(biases, first, tokens)  # [tokens]
        return add_bias(mixed, bias[:, None])

    def _check_length(self, tokens: int) -> None:
        if not self.spec.supports_length(tokens):
            words = "at most" if self.spec.supports_length(1) else "exactly"
            raise ValueError(
                f"the spatial projection was made for {words} {self.spec.length} tokens and was "
                f"given {tokens}"
            )

    def matrix(self) -> Array:
        """W [n, n]; rows are outputs."""
        n = self.spec.length
        return self._rows(0, n, n, self.spec.param_dtype)

    def _rows(self, first: Array | int, count: int, columns: int, dtype: jnp.dtype) -> Array:
        """Rows [first, first + count) and the first columns of W: [count, columns]."""
        if self.spec.spatial == "dense":
            weight = self.weight[...]
            if self.spec.causal:
                weight = jnp.tril(weight)
            rows = jax.lax.dynamic_slice(weight, (first, 0), (count, columns))
            return rows.astype(dtype)
        taps = self.taps[...]
        if self.spec.causal:
            taps = toeplitz.pad_future(taps)
        taps = toeplitz.crop(taps, columns)
        taps = taps.astype(dtype)
        return toeplitz.rows(taps, first, count)


class DepthwiseProjection(nnx.Module):
    """f(Z) as a depthwise convolution over tokens: the Convolutional Spatial Gating Unit of the
    cgMLP (Branchformer, arXiv 2207.02971, section 3.2.2; E-Branchformer, arXiv 2210.00077).

    Parameters: `taps` [gate_kernel, channels], near zero at the start, and one `bias` [channels],
    as in its authors' code (ESPnet's `ConvolutionalSpatialGatingUnit`). The kernel is centered, or
    ends with the token itself if the model is causal. Before the first and after the last token it
    reads zeros.
    """

    def __init__(self, spec: GMLPSpec, bias: float, rngs: nnx.Rngs):
        width = spec.gate_kernel
        channels = spec.gate_width
        near_zero = nnx.initializers.normal(spec.spatial_init_std)
        shape = (width, channels)
        taps = near_zero(rngs.params(), shape, spec.param_dtype)
        self.taps = parameter(taps, sharding=(None, TENSOR))
        biases = jnp.full((channels,), bias, spec.param_dtype)
        self.bias = parameter(biases, sharding=(TENSOR,), decayed=False)
        others = width - 1  # tokens that an output reads besides its own
        self.before = others if spec.causal else others // 2
        self.length = spec.length

    def __call__(self, z: Array, cache: DecodeCache | None = None) -> Array:
        """[..., tokens, channels] to the same, any number of tokens. With a cache the kernels read
        the earlier tokens too."""
        taps = self.taps[...]
        if cache is None:
            mixed = depthwise.convolve(z, taps, self.before)
        else:
            whole = cache.with_earlier("gate", z, self.before)
            mixed = depthwise.convolve_valid(whole, taps)
        mixed = checkpoint_name(mixed, NAME)
        bias = self.bias[...]
        return add_bias(mixed, bias)

    def matrix(self) -> Array:
        """The mean over the channels of their matrices [n, n]; rows are outputs."""
        n = self.length
        taps_of_channels = self.taps[...]
        mean = taps_of_channels.mean(axis=1)  # [gate_kernel]
        after = mean.size - 1 - self.before
        largest = n - 1  # distance between two tokens
        zeros_before = largest - self.before
        zeros_after = largest - after
        taps = jnp.pad(mean, (zeros_before, zeros_after))
        return toeplitz.expand(taps)


class TinyAttention(nnx.Module):
    """softmax(q k^T / sqrt(d_attn)) v with one head, projected to d_out (section 4.3, Figure 6).

    The output projection starts near zero, like the spatial projection that its output is added to:
    a fresh gate is 1.
    """

    def __init__(self, spec: GMLPSpec, d_out: int, rngs: nnx.Rngs):
        d_attn = spec.d_attn
        near_zero = nnx.initializers.normal(spec.spatial_init_std)
        self.qkv = Linear(spec, spec.d_model, 3 * d_attn, rngs)
        self.out = Linear(spec, d_attn, d_out, rngs, init=near_zero, sharding=(None, FSDP))
        self.spec = spec

    def __call__(
        self,
        x: Array,
        keys: Array | None = None,
        padding_mask: Array | None = None,
        cache: DecodeCache | None = None,
    ) -> Array:
        """[..., tokens, d_model] to [..., tokens, d_out]. `keys` [batch] are for dropout on the
        weights."""
        tokens = x.shape[-2]
        qkv = self.qkv(x)  # [..., tokens, 3 d_attn]
        if cache is None:
            mixed = attend_fused(self.spec, qkv, 1, padding_mask, keys)
            if mixed is not None:
                return self.out(mixed)
        q, k, v = jnp.split(qkv, 3, axis=-1)
        first = 0
        if cache is not None:
            first = cache.first
            k = cache.update("keys", k)
            v = cache.update("values", v)
        logits = dot_products(q, k, self.spec, first)
        rate = self.spec.attention_dropout
        mixed = attend(logits, v, tokens, padding_mask, rate, keys)  # [..., tokens, d_attn]
        return self.out(mixed)

    def scores(self, x: Array) -> Array:
        """[batch, tokens, d_model] to the logits before the softmax, [batch, tokens, tokens]."""
        tokens = x.shape[1]
        qkv = self.qkv(x)
        q, k, _ = jnp.split(qkv, 3, axis=-1)
        logits = dot_products(q, k, self.spec)
        return logits(0, tokens)
