"""The Spatial Gating Unit (paper, Equation 4) and the three other gates of Table 3."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.decode_cache import DecodeCache
from gmlp_flax.models.layers import LayerNorm
from gmlp_flax.models.sharding import TENSOR
from gmlp_flax.models.spatial import SpatialProjection, SpatialSpec
from gmlp_flax.options import AT_LEAST_0, SIZE, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class GateSpec(SpatialSpec):
    """Options of the gate."""

    d_ffn: int = option(768, "width after the first projection, both halves counted", SIZE, architecture=True)
    gate: str = option(
        "split",
        "Table 3's gate; split is the Spatial Gating Unit",
        ("linear", "additive", "multiplicative", "split"),
        architecture=True,
    )
    gate_norm_eps: float = option(
        0.0, "epsilon of the norm inside the gate (timm: 1e-5); 0: norm_eps", AT_LEAST_0, architecture=True
    )

    def check(self) -> None:
        """Raises ValueError if the channels cannot be halved."""
        super().check()
        if self.gate == "split" and self.d_ffn % 2:
            raise ValueError(f"model.d_ffn is {self.d_ffn}: the split gate halves it, so it must be even")


def gate_width(spec: GateSpec) -> int:
    """Channels that leave the gate: half of d_ffn for the split gate, all of it for the others."""
    return spec.d_ffn // 2 if spec.gate == "split" else spec.d_ffn


class SpatialGate(nnx.Module):
    """s(Z) with f(Z) = W norm(Z) + b: f(Z), Z + f(Z), Z * f(Z) or Z1 * f(Z2).

    The last is the Spatial Gating Unit: Z1, the first half of the channels, passes; Z2 makes the gate. The caption of
    Table 3 puts the norm inside f for all four. W starts near zero; b starts at 1 where f multiplies, so that s(Z) is
    Z (or Z1), and at 0 where it does not, so that the additive s(Z) is Z and the linear one 0.
    """

    def __init__(self, spec: GateSpec, rngs: nnx.Rngs):
        self.norm = LayerNorm(spec, gate_width(spec), spec.gate_norm_eps, sharding=(TENSOR,))
        self.spatial = SpatialProjection(spec, bias=float(spec.gate in ("multiplicative", "split")), rngs=rngs)
        self.gate = spec.gate

    def __call__(self, z: jax.Array, attention: jax.Array | None = None, cache: DecodeCache | None = None) -> jax.Array:
        """Gates a block's channels.

        Args:
            z: [batch, tokens, d_ffn].
            attention: tiny attention's output [batch, tokens, gate_width], added to f(Z) (Figure 6).
            cache: of a causal model, the tokens before these; None if there are none.

        Returns:
            [batch, tokens, gate_width].
        """
        z1, z2 = jnp.split(z, 2, axis=-1) if self.gate == "split" else (z, z)
        f = self.spatial(self.norm(z2), cache)
        if attention is not None:
            f = f + attention
        if self.gate == "linear":
            return f
        return z1 + f if self.gate == "additive" else z1 * f
