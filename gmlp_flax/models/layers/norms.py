"""Layer norm and RMS norm, as pure functions and as the module that owns their parameters."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.matmul import saving_only_inputs
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.spec import BlockSpec


class LayerNorm(nnx.Module):
    """Layer norm over the last axis (Ba et al., arXiv 1607.06450), computed in float32.

    Parameters: `scale` [channels], 1 at the start, and `bias` [channels], 0 at the start. If the
    spec has no `biases`, there is the scale alone. With `norm_type="rms"` the norm has no bias,
    divides by the root of the mean square, and subtracts no mean (Zhang and Sennrich, arXiv
    1910.07467).

    Args:
        channels: size of the last axis.
        eps: added to the variance; 0 for the spec's `norm_eps`.
        post: whether the norm stands in the residual stream itself, as in post-norm blocks. It then
            returns the stream's type, and otherwise the compute type.
        metadata: of the parameters (`ParamMetadata`).
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

    def __call__(self, x: Array) -> Array:
        """[..., channels] to [..., channels]."""
        scale = self.scale[...]
        if self.is_rms:
            y = rms_norm(x, scale, self.eps, self.dtype)
        elif self.bias is None:
            no_bias = jnp.zeros_like(scale)
            y = layer_norm(x, scale, no_bias, self.eps, self.dtype)
        else:
            bias = self.bias[...]
            y = layer_norm(x, scale, bias, self.eps, self.dtype)
        # The output feeds matrix products. Without the barrier the compiler fuses the norm into
        # each of them and computes it in several layouts, which takes more memory on a TPU.
        return jax.lax.optimization_barrier(y)


def moments(x: Array) -> tuple[Array, Array]:
    """Mean and variance of x [..., n] over its last axis, each [..., 1]."""
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    squares = jnp.square(centred)
    variance = squares.mean(-1, keepdims=True)
    return mean, variance


def moments_in_one_pass(x: Array) -> tuple[Array, Array]:
    """`moments` from one pass over x: with x_0 the first entry, var(x) is mean((x - x_0)^2) -
    mean(x - x_0)^2.

    Without x_0 the difference would lose the variance of numbers whose mean is far larger than their
    deviation. As x_0 is at most sqrt(n) deviations from the mean of n numbers, the mean square is at
    most n + 1 times the variance: the difference loses at most that factor in precision.
    """
    first = x[..., :1]
    shifted = x - first
    shifted_mean = shifted.mean(-1, keepdims=True)
    squares = jnp.square(shifted)
    mean_square = squares.mean(-1, keepdims=True)
    square_of_mean = jnp.square(shifted_mean)
    variance = mean_square - square_of_mean
    mean = first + shifted_mean
    not_negative = jnp.maximum(variance, 0)  # rounding may make it negative
    return mean, not_negative


def _statistics(x: Array, eps: float) -> tuple[Array, Array]:
    """Mean and 1 / sqrt(variance + eps) over the last axis of x, each [..., 1]. On a GPU, XLA reads
    x twice for `moments`; on a TPU, one pass moves more bytes (docs/developers/measurements.md)."""
    mean, variance = jax.lax.platform_dependent(x, cuda=moments_in_one_pass, default=moments)
    inverse = jax.lax.rsqrt(variance + eps)
    return mean, inverse


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def layer_norm(x: Array, scale: Array, bias: Array, eps: float, dtype: jnp.dtype) -> Array:
    """(x - mean) / sqrt(variance + eps) * scale + bias over the last axis of x [..., channels], with
    `scale` and `bias` [channels]: computed in the type of `scale`, returned in `dtype`.

    The derivative is written out. It keeps nothing but x of the forward pass, and needs fewer passes
    over memory than JAX's.
    """
    x = x.astype(scale.dtype)
    mean, inverse = _statistics(x, eps)
    centred = x - mean
    normed = centred * inverse
    scaled = normed * scale
    y = scaled + bias
    return y.astype(dtype)


@layer_norm.defjvp
def _layer_norm_jvp(eps: float, dtype: jnp.dtype, primals, tangents):
    x, scale, bias = primals

    @saving_only_inputs
    def derivative(x, scale, d_x, d_scale, d_bias):
        """The tangent of the output, linear in the tangents d_x, d_scale and d_bias.

        d_y = d_normed scale + normed d_scale + d_bias, where normed is (x - mean) inverse and
        d_normed is inverse (d_x - mean(d_x) - normed mean(normed d_x)).
        """
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
        projection = products.mean(-1, keepdims=True)
        along_normed = normed * projection  # changes the variance alone
        across_normed = d_centred - along_normed
        d_normed = inverse * across_normed
        from_normed = d_normed * scale
        from_scale = normed * d_scale
        d_y = from_normed + from_scale + d_bias
        return d_y.astype(dtype)

    y = layer_norm(x, scale, bias, eps, dtype)
    d_y = derivative(x, scale, *tangents)
    return y, d_y


def rms_norm(x: Array, scale: Array, eps: float, dtype: jnp.dtype) -> Array:
    """x / sqrt(mean of x^2 + eps) * scale over the last axis of x [..., channels], computed in the
    type of `scale` [channels], returned in `dtype`."""
    x = x.astype(scale.dtype)
    squares = jnp.square(x)
    mean_square = squares.mean(-1, keepdims=True)
    inverse = jax.lax.rsqrt(mean_square + eps)
    normed = x * inverse
    y = normed * scale
    return y.astype(dtype)
