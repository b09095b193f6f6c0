"""The MLPs of Transformers and Mixers: over the channels of a token, and over the tokens of a channel."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.layers import Linear, activation
from gmlp_flax.models.matmul import add_bias, over_tokens
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.resize import OverPatches
from gmlp_flax.models.sharding import FSDP, TENSOR
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import SIZE, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChannelMLPSpec(BlockSpec):
    """Options of the MLP over channels."""

    d_ffn: int = option(768, "width inside the MLP over channels", SIZE, architecture=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenMLPSpec(ChannelMLPSpec):
    """Options of both MLPs."""

    d_spatial: int = option(64, "width inside the MLP over tokens", SIZE, architecture=True)


class ChannelMLP(nnx.Module):
    """Two linear layers on the channels of each token, d_model to d_ffn to d_model, with the activation between."""

    def __init__(self, spec: ChannelMLPSpec, rngs: nnx.Rngs):
        self.proj_in = Linear(spec, spec.d_model, spec.d_ffn, rngs, sharding=(FSDP, TENSOR), activation=spec.activation)
        self.proj_out = Linear(spec, spec.d_ffn, spec.d_model, rngs, sharding=(TENSOR, FSDP))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to the same."""
        return self.proj_out(self.proj_in(x))


def check_tokens(x: jax.Array, tokens: int) -> None:
    """Raises ValueError unless x [batch, tokens, channels] has the number of tokens that a layer was made for."""
    if x.shape[-2] != tokens:
        raise ValueError(f"the layer over tokens was made for exactly {tokens} tokens and was given {x.shape[-2]}")


class TokenLinear(nnx.Module):
    """W Z + b over the token axis, the same for all channels: `weight` [out, in], Glorot-uniform, and `bias` [out].

    `resize` says which of the weight's two axes are the n tokens. They are not sharded, as n is seldom divisible.
    """

    def __init__(self, spec: BlockSpec, tokens_in: int, tokens_out: int, rngs: nnx.Rngs, resize: OverPatches):
        weight = nnx.initializers.glorot_uniform()(rngs.params(), (tokens_out, tokens_in), spec.param_dtype)
        sharding = None if resize.outputs else FSDP, None if resize.inputs else FSDP
        self.weight = parameter(weight, sharding=sharding, resize=resize)
        bias_resize = OverPatches(outputs=-1) if resize.outputs else None
        self.bias = parameter(jnp.zeros((tokens_out,), spec.param_dtype), decayed=False, resize=bias_resize)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, in, channels] to [batch, out, channels] in the type of x; ValueError for another number of tokens."""
        check_tokens(x, self.weight.shape[1])
        return add_bias(over_tokens(self.weight[...].astype(x.dtype), x), self.bias[:, None])


class TokenMLP(nnx.Module):
    """Two linear layers on the tokens of each channel, n to d_spatial to n, with the activation between."""

    def __init__(self, spec: TokenMLPSpec, rngs: nnx.Rngs):
        self.proj_in = TokenLinear(spec, spec.length, spec.d_spatial, rngs, OverPatches(inputs=-1))
        self.proj_out = TokenLinear(spec, spec.d_spatial, spec.length, rngs, OverPatches(outputs=-2))
        self.activation = spec.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, n, channels] to the same; ValueError for another number of tokens."""
        return self.proj_out(activation(self.activation, self.proj_in(x)))
