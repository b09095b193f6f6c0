"""The MLPs of Transformers and Mixers, over channels and over tokens."""

import dataclasses

import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.layers.activations import activation
from gmlp_flax.models.layers.linear import Linear
from gmlp_flax.models.matmul import add_bias, over_tokens
from gmlp_flax.models.parameters import OverPatches, parameter
from gmlp_flax.models.sharding import FSDP, TENSOR
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import SIZE, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChannelMLPSpec(BlockSpec):
    """Options of the MLP over channels."""

    d_ffn: int = option(
        768, "width inside the MLP over channels", SIZE, architecture=True, scaled=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenMLPSpec(ChannelMLPSpec):
    """Options of both MLPs."""

    d_spatial: int = option(64, "width inside the MLP over tokens", SIZE, architecture=True)


class ChannelMLP(nnx.Module):
    """Two linear layers on the channels of each token, d_model to d_ffn to d_model, with the
    activation between."""

    def __init__(self, spec: ChannelMLPSpec, rngs: nnx.Rngs):
        self.proj_in = Linear(
            spec,
            spec.d_model,
            spec.d_ffn,
            rngs,
            sharding=(FSDP, TENSOR),
            activation=spec.activation,
            bias=spec.biases,
        )
        self.proj_out = Linear(
            spec, spec.d_ffn, spec.d_model, rngs, sharding=(TENSOR, FSDP), bias=spec.biases
        )

    def __call__(self, x: Array) -> Array:
        """[batch, tokens, d_model] to the same."""
        hidden = self.proj_in(x)
        return self.proj_out(hidden)


class GatedMLP(nnx.Module):
    """proj_out(act(gate(x)) * proj_in(x)), with linear layers from d_model to d_ffn and back (Shazeer,
    arXiv 2002.05202).

    Args:
        activation: that of the gate: the spec's in GeGLU, `silu` in SwiGLU.
    """

    def __init__(self, spec: ChannelMLPSpec, rngs: nnx.Rngs, activation: str):
        width = spec.d_ffn
        wide = (FSDP, TENSOR)
        biases = spec.biases
        self.gate = Linear(
            spec, spec.d_model, width, rngs, sharding=wide, activation=activation, bias=biases
        )
        self.proj_in = Linear(spec, spec.d_model, width, rngs, sharding=wide, bias=biases)
        self.proj_out = Linear(
            spec, width, spec.d_model, rngs, sharding=(TENSOR, FSDP), bias=biases
        )

    def __call__(self, x: Array) -> Array:
        """[batch, tokens, d_model] to the same."""
        gate = self.gate(x)
        values = self.proj_in(x)
        hidden = gate * values
        return self.proj_out(hidden)


def check_tokens(x: Array, tokens: int) -> None:
    """Raises ValueError unless x [batch, tokens, channels] has the number of tokens that a layer
    was made for."""
    if x.shape[-2] != tokens:
        raise ValueError(
            f"the layer over tokens was made for exactly {tokens} tokens "
            f"and was given {x.shape[-2]}"
        )


class TokenLinear(nnx.Module):
    """W Z + b over the token axis, the same for all channels: `weight` [out, in], Glorot-uniform,
    and `bias` [out].

    `resize` says which of the weight's two axes are the n tokens. These are not sharded, because n
    is seldom divisible by the number of devices.
    """

    def __init__(
        self, spec: BlockSpec, tokens_in: int, tokens_out: int, rngs: nnx.Rngs, resize: OverPatches
    ):
        init = nnx.initializers.glorot_uniform()
        shape = (tokens_out, tokens_in)
        weight = init(rngs.params(), shape, spec.param_dtype)
        output_axis = FSDP
        bias_resize = None
        if resize.outputs:
            output_axis = None
            bias_resize = OverPatches(outputs=-1)
        input_axis = None if resize.inputs else FSDP
        self.weight = parameter(weight, sharding=(output_axis, input_axis), resize=resize)
        bias = jnp.zeros((tokens_out,), spec.param_dtype)
        self.bias = parameter(bias, decayed=False, resize=bias_resize)

    def __call__(self, x: Array) -> Array:
        """[batch, in, channels] to [batch, out, channels] in the type of x; ValueError for another
        number of tokens."""
        _, tokens = self.weight.shape
        check_tokens(x, tokens)
        weight = self.weight[...]
        weight = weight.astype(x.dtype)
        mixed = over_tokens(weight, x)  # [batch, out, channels]
        bias = self.bias[:, None]
        return add_bias(mixed, bias)


class TokenMLP(nnx.Module):
    """Two linear layers on the tokens of each channel, n to d_spatial to n, with the activation
    between."""

    def __init__(self, spec: TokenMLPSpec, rngs: nnx.Rngs):
        over_inputs = OverPatches(inputs=-1)
        over_outputs = OverPatches(outputs=-2)
        self.proj_in = TokenLinear(spec, spec.length, spec.d_spatial, rngs, over_inputs)
        self.proj_out = TokenLinear(spec, spec.d_spatial, spec.length, rngs, over_outputs)
        self.activation = spec.activation

    def __call__(self, x: Array) -> Array:
        """[batch, n, channels] to the same; ValueError for another number of tokens."""
        hidden = self.proj_in(x)  # [batch, d_spatial, channels]
        hidden = activation(self.activation, hidden)
        return self.proj_out(hidden)
