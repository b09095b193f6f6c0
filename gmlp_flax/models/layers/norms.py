"""Layer norm and RMS norm, as pure functions and as the module that owns their parameters."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.matmul import saving_only_inputs
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.spec import BlockSpec


class LayerNorm(nnx.Module):
    """Layer norm over the last axis with scale and bias, computed in float32, returned in the
    compute type, or in the residual stream's if the norm stands in the stream itself (`post`).

    `eps` is the spec's unless given; `metadata` are of its two parameters (`ParamMetadata`). If the
    spec has no `biases`, there is the scale alone; with `norm_type="rms"` the norm divides by the
    root of the mean square and subtracts no mean (Zhang and Sennrich, arXiv 1910.07467).
    """

    def __init__(
        self, spec: BlockSpec, channels: int, eps: float = 0.0, post: bool = False, **metadata: Any
    ):
        ones = jnp.ones((channels,), spec.param_dtype)
        self.scale = parameter(ones, decayed=False, **metadata)
        self.is_rms = spec.norm_type == "rms"
        if spec.biases and not self.is_rms:
            zeros = jnp.zeros((channels,), spec.param_dtype)
            self.bias = parameter(zeros, decayed=False, **metadata)
        else:
            self.bias = None
        self.eps = eps or spec.norm_eps
        self.precise_dtype = spec.precise_dtype
        self.post = post
        self.compute_dtype = spec.compute_dtype
        self.dtype = spec.stream_dtype if post else spec.compute_dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., channels] to [..., channels]."""
        scale = self.scale[...]
        if self.is_rms:
            y = rms_norm(x, scale, self.eps, self.dtype)
        elif self.bias is None:
            no_bias = jnp.zeros_like(scale)
            y = layer_norm(x, scale, no_bias, self.eps, self.dtype)
        else:
            y = layer_norm(x, scale, self.bias[...], self.eps, self.dtype)
        # The output feeds matrix products. Without the barrier the compiler fuses the norm into
        # each of them and computes it in several layouts, which takes more memory on a TPU.
        return jax.lax.optimization_barrier(y)


def moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of x over its last axis, [..., 1]."""
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    squares = jnp.square(centred)
    variance = squares.mean(-1, keepdims=True)
    return mean, variance


def moments_in_one_pass(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`moments`, reading x once: from sums of x less its first entry. A large mean therefore costs
    the squares no precision. The first entry, at most sqrt(n) deviations from the mean of n, costs
    n roundings at most."""
    first = x[..., :1]
    shifted_mean = (x - first).mean(-1, keepdims=True)  # of x - first
    squares = jnp.square(x - first)
    mean_square = squares.mean(-1, keepdims=True)
    variance = mean_square - jnp.square(shifted_mean)
    mean = first + shifted_mean
    return mean, jnp.maximum(variance, 0)


def _statistics(x: jax.Array, eps: float) -> tuple[jax.Array, jax.Array]:
    """Mean and 1 / deviation over the last axis of x, [..., 1]. XLA reads x twice for `moments` on
    a GPU; on a TPU one pass moves more bytes (docs/developers/measurements.md)."""
    mean, variance = jax.lax.platform_dependent(x, cuda=moments_in_one_pass, default=moments)
    inverse = jax.lax.rsqrt(variance + eps)
    return mean, inverse


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float, dtype: jnp.dtype
) -> jax.Array:
    """(x - mean) / deviation * scale + bias over the last axis of x [..., channels], computed in
    the type of `scale` [channels], returned in `dtype`.

    The derivative is written out: it keeps x alone of the forward pass, and needs fewer passes over
    memory.
    """
    x = x.astype(scale.dtype)
    mean, inverse = _statistics(x, eps)
    centred = x - mean
    normed = centred * inverse
    y = normed * scale + bias
    return y.astype(dtype)


@layer_norm.defjvp
def _layer_norm_jvp(eps: float, dtype: jnp.dtype, primals, tangents):
    x, scale, bias = primals

    @saving_only_inputs
    def derivative(x, scale, d_x, d_scale, d_bias):
        """The tangent of the output, linear in the tangents d_x, d_scale and d_bias."""
        x = x.astype(scale.dtype)
        # With the barrier they are computed first. Without it a GPU writes what follows in float32
        # before it sums that.
        statistics = jax.lax.optimization_barrier(_statistics(x, eps))
        mean, inverse = statistics
        centred = x - mean
        normed = centred * inverse
        d_x = d_x.astype(scale.dtype)
        d_mean = d_x.mean(-1, keepdims=True)
        d_centred = d_x - d_mean
        products = normed * d_x
        along_normed = products.mean(-1, keepdims=True)
        across_normed = d_centred - normed * along_normed
        d_normed = inverse * across_normed
        from_normed = d_normed * scale
        from_scale = normed * d_scale
        d_y = from_normed + from_scale + d_bias
        return d_y.astype(dtype)

    y = layer_norm(x, scale, bias, eps, dtype)
    d_y = derivative(x, scale, *tangents)
    return y, d_y


def rms_norm(x: jax.Array, scale: jax.Array, eps: float, dtype: jnp.dtype) -> jax.Array:
    """x / sqrt(mean of x^2 + eps) * scale over the last axis of x [..., channels], computed in the
    type of `scale` [channels], returned in `dtype`."""
    x = x.astype(scale.dtype)
    squares = jnp.square(x)
    mean_square = squares.mean(-1, keepdims=True)
    inverse = jax.lax.rsqrt(mean_square + eps)
    y = x * inverse * scale
    return y.astype(dtype)
