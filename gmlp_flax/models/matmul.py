"""The two matrix products of every mixer, over channels and over tokens, and the sum with a bias.

The products carry a name, so that a remat policy can save exactly them, and have gradients of their own, because the
order of axes that suits accelerators costs a CPU half of its speed: the compiler transposes whole activations around
the products. On a CPU the tokens are flattened (over channels) or W is repeated for each example (over tokens), which
needs no transposition. The platform is chosen when the program is lowered; the other branch is not in the program.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import sharding

NAME = "matrix product"


@jax.custom_vjp
def _over_channels(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return x @ kernel


def _over_channels_backward(saved, g):
    x, kernel = saved
    d_kernel = jax.lax.platform_dependent(
        x,
        g,
        cpu=lambda x, g: x.reshape(-1, x.shape[-1]).T @ g.reshape(-1, g.shape[-1]),
        default=lambda x, g: jnp.einsum("...i,...o->io", x, g),
    )
    return g @ kernel.T, d_kernel


_over_channels.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), _over_channels_backward)


def over_channels(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x kernel: [..., in] and [in, out] to [..., out]."""
    return checkpoint_name(_over_channels(x, kernel), NAME)


@jax.custom_vjp
def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
    """x + bias in the type of x. The gradient of the bias is summed in float32: a sum over a batch in bfloat16 stops
    growing.

    Args:
        x: [..., a, b].
        bias: [b], or [a, 1].
    """
    return x + bias.astype(x.dtype)


def _add_bias_backward(bias, g):
    summed = [axis for axis in range(g.ndim) if axis < g.ndim - bias.ndim or bias.shape[axis - g.ndim] == 1]
    total = jnp.sum(g, summed, dtype=jnp.promote_types(g.dtype, jnp.float32))
    return g, total.reshape(bias.shape).astype(bias.dtype)


add_bias.defvjp(lambda x, bias: (add_bias(x, bias), bias), _add_bias_backward)


def _weight_times_x(weight, x):
    return jax.lax.platform_dependent(
        weight,
        x,
        cpu=lambda w, x: jnp.broadcast_to(w, (x.shape[0], *w.shape)) @ x,
        default=lambda w, x: jnp.einsum("ij,bjc->bic", w, x),
    )


def _sum_of_outer_products(g, x):
    wide = jnp.promote_types(g.dtype, jnp.float32)  # a sum over a batch in bfloat16 stops growing

    def add(total, pair):
        return total + jnp.matmul(pair[0], pair[1].T, preferred_element_type=wide), None

    total, _ = jax.lax.scan(add, jnp.zeros((g.shape[1], x.shape[1]), wide), (g, x))
    return total.astype(g.dtype)


def _over_tokens_backward(saved, g):
    weight, x = saved
    einsum = functools.partial(jnp.einsum, "bic,bjc->ij")
    # A loop over examples cannot be sharded: every device would gather the batch.
    on_cpu = einsum if sharding.compiler_axes() else _sum_of_outer_products
    d_weight = jax.lax.platform_dependent(g, x, cpu=on_cpu, default=einsum)
    return d_weight, _weight_times_x(weight.T, g)


_over_tokens = jax.custom_vjp(_weight_times_x)
_over_tokens.defvjp(lambda weight, x: (_weight_times_x(weight, x), (weight, x)), _over_tokens_backward)


def over_tokens(weight: jax.Array, x: jax.Array) -> jax.Array:
    """weight x over the token axis: [out, in] and [batch, in, channels] to [batch, out, channels]."""
    return checkpoint_name(_over_tokens(weight, x), NAME)
