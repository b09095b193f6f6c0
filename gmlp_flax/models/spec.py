"""What an encoder is made of: one frozen record, read by every block."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

GATES = ("linear", "additive", "multiplicative", "split")
SPATIAL = ("dense", "toeplitz")
TOEPLITZ = ("direct", "fft")
POSITIONS = ("none", "absolute", "relative", "relative_only")
ACTIVATIONS = ("gelu", "gelu_tanh")
REMAT = ("none", "matmuls", "full")
SURVIVAL_SCHEDULES = ("constant", "linear")
DTYPES = ("float32", "bfloat16", "float64")


@dataclasses.dataclass(frozen=True)
class EncoderSpec:
    """A stack of identical blocks on [batch, length, d_model].

    Attributes:
        block: name of the block, a row of `blocks.BLOCKS`.
        layers: number of blocks (the paper's L).
        length: number of tokens the spatial projections are made for (the paper's n).
        d_model: width of the residual stream.
        d_ffn: width after the first channel projection; of gMLP, both halves of the gate counted (section 2).
        gate: one of Table 3's four: "linear" s = f(Z), "additive" s = Z + f(Z), "multiplicative" s = Z * f(Z),
            "split" s = Z1 * f(Z2), the Spatial Gating Unit.
        spatial: "dense", an unconstrained W [n, n] (vision), or "toeplitz", 2n - 1 taps (all of the paper's text runs).
        toeplitz: the algorithm that applies the taps, "direct" (W is materialised) or "fft". Both are exact.
        spatial_init_std: standard deviation of W or of the taps at initialisation. The paper says "near zero".
        d_attn: size of the single head of tiny attention (Figure 6); 0 leaves it out (gMLP), 64 or 128 makes aMLP.
        positions: "none" (gMLP, Mixer), "absolute", a learned table added to the embeddings, "relative", a bias on the
            logits of each of the Transformer's heads, or "relative_only", that bias in place of the logits.
        heads: the Transformer's attention heads, each of d_model / heads channels.
        relative_buckets: entries of a relative bias: T5's logarithmic buckets (T5 has 32), or 0, one an offset.
        d_spatial: width of the MLP over tokens, the Mixer's and the feed-forward stack's.
        activation: "gelu", the exact one, or "gelu_tanh", its approximation. The paper does not say which.
        norm_eps: epsilon of every layer norm.
        gate_norm_eps: that of the norm inside the spatial gate, or 0, the same (timm's gMLP has 1e-5 there).
        layer_scale: what the scales of ResMLP's branches start at, one a channel (arXiv 2105.03404).
        survival: probability that a residual branch is kept for a sample (Table 1); 1 turns stochastic depth off.
        survival_schedule: "constant", every layer alike, or "linear", from 1 down to `survival` at the last layer.
        dropout: rate of dropout on the embeddings and on every residual branch.
        attention_dropout: that on the weights of attention, after their softmax.
        dtype: type of activations and matrix products. Parameters, norms, softmax and logits stay in float32.
        remat: what backward recomputes: "none" keeps all, "matmuls" keeps the products over channels and over tokens
            and recomputes the rest (also the scores of attention, O(n^2) a head and sample), "full" keeps each
            block's input alone.
    """

    layers: int
    length: int
    d_model: int
    d_ffn: int
    block: str = "gmlp"
    gate: str = "split"
    spatial: str = "toeplitz"
    toeplitz: str = "direct"
    spatial_init_std: float = 1e-6
    d_attn: int = 0
    positions: str = "none"
    heads: int = 4
    relative_buckets: int = 0
    d_spatial: int = 64
    activation: str = "gelu"
    norm_eps: float = 1e-6
    gate_norm_eps: float = 0.0
    layer_scale: float = 0.1
    survival: float = 1.0
    survival_schedule: str = "constant"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    dtype: str = "float32"
    remat: str = "matmuls"

    def __post_init__(self):
        for field, allowed in (
            ("gate", GATES), ("spatial", SPATIAL), ("toeplitz", TOEPLITZ), ("positions", POSITIONS),
            ("activation", ACTIVATIONS), ("remat", REMAT), ("survival_schedule", SURVIVAL_SCHEDULES), ("dtype", DTYPES),
        ):
            if getattr(self, field) not in allowed:
                raise ValueError(f"model.{field} is {getattr(self, field)!r}: expected one of {', '.join(allowed)}")
        for field in ("layers", "length", "d_model", "d_ffn", "heads", "d_spatial"):
            if getattr(self, field) < 1:
                raise ValueError(f"model.{field} is {getattr(self, field)}: expected at least 1")
        if self.d_attn < 0:
            raise ValueError(f"model.d_attn is {self.d_attn}: expected 0 (no attention) or the size of its head")
        if self.block == "gmlp" and self.gate == "split" and self.d_ffn % 2:
            raise ValueError(f"model.d_ffn is {self.d_ffn}: the split gate halves it, so it must be even")
        if self.block == "transformer" and self.d_model % self.heads:
            raise ValueError(f"model.d_model is {self.d_model}: model.heads, {self.heads}, must divide it")
        if self.relative_buckets and (self.relative_buckets % 2 or not 4 <= self.relative_buckets <= 256):
            raise ValueError(
                f"model.relative_buckets is {self.relative_buckets}: expected 0 (a bias an offset) or an even number "
                "from 4 to 256 (T5: 32)"
            )
        if self.gate_norm_eps < 0:
            raise ValueError(f"model.gate_norm_eps is {self.gate_norm_eps}: expected 0 (model.norm_eps) or an epsilon")
        if not self.layer_scale > 0:
            raise ValueError(f"model.layer_scale is {self.layer_scale}: expected a scale above 0 (ResMLP-S12: 0.1)")
        if not 0 < self.survival <= 1:
            raise ValueError(f"model.survival is {self.survival}: expected a probability above 0 and at most 1")
        for field in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"model.{field} is {getattr(self, field)}: expected a rate from 0 to below 1")

    @property
    def compute_dtype(self) -> jnp.dtype:
        """Type of activations and matrix products."""
        return jnp.dtype(self.dtype)

    @property
    def precise_dtype(self) -> jnp.dtype:
        """Type of norms, softmax and logits: float32, or float64 where that is the type of everything."""
        return jnp.promote_types(self.compute_dtype, jnp.float32)

    @property
    def param_dtype(self) -> jnp.dtype:
        """Type of the parameters: the precise one."""
        return self.precise_dtype

    def survival_by_layer(self) -> jax.Array:
        """Survival probability of each layer, float32 [layers]."""
        if self.survival_schedule == "constant":
            return jnp.full((self.layers,), self.survival, jnp.float32)
        return 1 - (1 - self.survival) * jnp.arange(1, self.layers + 1, dtype=jnp.float32) / self.layers
