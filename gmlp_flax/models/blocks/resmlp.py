"""The ResMLP block (arXiv 2105.03404, section 2): one linear layer across patches, no statistics of
activations."""

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.layers import (
    EVALUATION,
    ChannelMLP,
    ChannelMLPSpec,
    LayerRng,
    TokenLinear,
    add_branch,
)
from gmlp_flax.models.parameters import OverPatches, parameter
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import ABOVE_0, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResMLPSpec(ChannelMLPSpec):
    """Options of ResMLP."""

    layer_scale: float = option(
        0.1,
        "scale of fresh branches (S12 0.1, S24 1e-5, S36 and B24 1e-6)",
        ABOVE_0,
        architecture=True,
    )


class Affine(nnx.Module):
    """alpha x + beta per channel, in place of a norm (the paper's Aff). Computed in float32,
    returned in the compute type.

    Parameters: `scale` [channels], the paper's alpha, 1 at the start, and `bias` [channels], its
    beta, 0 at the start.
    """

    def __init__(self, spec: BlockSpec, channels: int):
        ones = jnp.ones((channels,), spec.param_dtype)
        zeros = jnp.zeros((channels,), spec.param_dtype)
        self.scale = parameter(ones, decayed=False)
        self.bias = parameter(zeros, decayed=False)
        self.precise_dtype = spec.precise_dtype
        self.dtype = spec.compute_dtype

    def __call__(self, x: Array) -> Array:
        """[..., channels] to [..., channels]."""
        precise = x.astype(self.precise_dtype)
        scaled = precise * self.scale[...]
        y = scaled + self.bias[...]
        return y.astype(self.dtype)


class LayerScale(nnx.Module):
    """gamma x: `scale` [d_model], `layer_scale` at the start, so that a deep stack starts near the
    identity."""

    def __init__(self, spec: ResMLPSpec):
        scale = jnp.full((spec.d_model,), spec.layer_scale, spec.param_dtype)
        self.scale = parameter(scale, decayed=False)
        self.precise_dtype = spec.precise_dtype

    def __call__(self, x: Array) -> Array:
        """[..., d_model] to the same, in the type of x."""
        precise = x.astype(self.precise_dtype)
        y = precise * self.scale[...]
        return y.astype(x.dtype)


class ResMLPBlock(Block):
    """x + gamma1 A(affine(x)), then x + gamma2 mlp(affine(x)), A a linear layer over the n patches,
    with bias."""

    Spec = ResMLPSpec
    final_norm = Affine

    def __init__(self, spec: ResMLPSpec, rngs: nnx.Rngs):
        self.token_affine = Affine(spec, spec.d_model)
        n = spec.length
        resize = OverPatches(outputs=-2, inputs=-1)
        self.token_linear = TokenLinear(spec, n, n, rngs, resize)
        self.token_scale = LayerScale(spec)
        self.mlp_affine = Affine(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)
        self.mlp_scale = LayerScale(spec)

    def __call__(
        self, x: Array, rng: LayerRng = EVALUATION, padding_mask: Array | None = None
    ) -> Array:
        """See `Block`."""
        branch = self.token_affine(x)
        branch = self.token_linear(branch)
        branch = self.token_scale(branch)
        x = add_branch(x, branch, rng, 0)
        branch = self.mlp_affine(x)
        branch = self.mlp(branch)
        branch = self.mlp_scale(branch)
        return add_branch(x, branch, rng, 1)

    def spatial_matrix(self) -> Array:
        """See `Block`: A."""
        return self.token_linear.weight[...]
