"""The few layers that every block shares, with the types of the spec: linear, layer norm, activations, dropout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models import sharding
from gmlp_flax.models.matmul import add_bias, over_channels
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.resize import Resize
from gmlp_flax.models.sharding import FSDP, TENSOR
from gmlp_flax.models.spec import BlockSpec


def split_keys(keys: jax.Array, count: int) -> jax.Array:
    """[batch] random keys, one per example, to `count` new ones per example: [count, batch].

    What an example draws then depends on its own key alone, however a batch is spread over devices.
    """
    return jax.vmap(lambda key: jax.random.split(key, count), out_axes=1)(keys)


def dropout(x: jax.Array, rate: float, keys: jax.Array | None) -> jax.Array:
    """Zeroes elements with probability `rate` and scales the rest by 1 / (1 - rate); the identity without keys.

    Args:
        x: [batch, ...].
        rate: 0 to 1.
        keys: a random key per example, [batch].
    """
    if keys is None or rate == 0:
        return x
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, x.shape[1:]))(keys)
    return jnp.where(kept, x / (1 - rate), 0)


class Linear(nnx.Module):
    """A dense layer [..., d_in] to [..., d_out]: `kernel` [d_in, d_out], Glorot-uniform by default, and `bias`.

    Args:
        sharding: the mesh axes that cut the kernel's two axes. The bias is cut as the kernel's outputs are, and so are
            activations along TENSOR.
        activation: the name of the activation of the output; empty for none.
        parts: into how many equal parts the output will be split. Each is then made by a product of its own, so that
            the split copies nothing: slices of one wide array are read in strides, a sixth of gMLP's step on a CPU.
    """

    def __init__(
        self,
        spec: BlockSpec,
        d_in: int,
        d_out: int,
        rngs: nnx.Rngs,
        init: nnx.Initializer = nnx.initializers.glorot_uniform(),
        sharding: tuple[str | None, str | None] = (FSDP, None),
        activation: str = "",
        parts: int = 1,
    ):
        self.is_cut = sharding[1] == TENSOR
        bias_sharding = (TENSOR,) if self.is_cut else ()
        self.kernel = parameter(init(rngs.params(), (d_in, d_out), spec.param_dtype), sharding=sharding)
        self.bias = parameter(jnp.zeros((d_out,), spec.param_dtype), sharding=bias_sharding, decayed=False)
        self.activation, self.parts = activation, parts

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., d_in] to [..., d_out] in the type of x."""
        values = self.kernel[...].astype(x.dtype), self.bias[...]
        kernels, biases = (jnp.split(value, self.parts, axis=-1) for value in values)
        made = [self._part(x, kernel, bias) for kernel, bias in zip(kernels, biases, strict=True)]
        return jnp.concatenate(made, axis=-1) if self.parts > 1 else made[0]

    def _part(self, x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        y = add_bias(over_channels(x, kernel), bias)
        if self.is_cut:
            y = sharding.constrain(y, sharding.BATCH, *[None] * (y.ndim - 2), TENSOR)
        return activation(self.activation, y) if self.activation else y


class LayerNorm(nnx.Module):
    """Layer norm over the last axis with scale and bias, computed in float32, returned in the compute type.

    `eps` is the spec's unless given; `sharding` and `resize` are metadata of its two parameters.
    """

    def __init__(
        self,
        spec: BlockSpec,
        channels: int,
        eps: float = 0.0,
        sharding: tuple[str, ...] = (),
        resize: Resize | None = None,
    ):
        metadata = {"sharding": sharding, "resize": resize, "decayed": False}
        self.scale = parameter(jnp.ones((channels,), spec.param_dtype), **metadata)
        self.bias = parameter(jnp.zeros((channels,), spec.param_dtype), **metadata)
        self.eps, self.precise_dtype, self.dtype = eps or spec.norm_eps, spec.precise_dtype, spec.compute_dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., channels] to [..., channels]."""
        x = x.astype(self.precise_dtype)
        mean = x.mean(-1, keepdims=True)
        centred = x - mean
        variance = jnp.square(centred).mean(-1, keepdims=True)
        y = centred * jax.lax.rsqrt(variance + self.eps) * self.scale[...] + self.bias[...]
        # What a norm returns feeds matrix products, which want it whole. Fused into them instead, it is computed in
        # several layouts: 0.16 GB more per chip for gMLP-S at batch 4096 on 16 TPU v5e.
        return jax.lax.optimization_barrier(y.astype(self.dtype))


def activation(name: str, x: jax.Array) -> jax.Array:
    """The exact GELU x Phi(x), or its tanh approximation, computed in float32 and returned in the type of x.

    Phi is written with erf, as torch does: half the cost of erfc on a CPU, and an absolute error below 1e-6.
    """
    precise = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    if name == "gelu_tanh":
        return jax.nn.gelu(precise, approximate=True).astype(x.dtype)
    return (0.5 * precise * (1 + jax.lax.erf(precise * 2**-0.5))).astype(x.dtype)
