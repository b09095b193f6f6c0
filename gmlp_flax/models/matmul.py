"""The two matrix products of every mixer, over channels and over tokens, the sum with a bias, and
the operations of all products of a program.

The products carry a name, so that a remat policy can save exactly them, and have derivatives of
their own, because the order of axes that suits TPUs costs a CPU half of its speed: the compiler
transposes whole activations around the products. On a CPU the tokens are flattened (over channels)
or W is repeated for each example (over tokens, on NVIDIA's GPUs too), which needs no transposition.
The platform is chosen when the program is lowered; the other branches are not in the program.

Each derivative is a linear function of a tangent (`jax.custom_jvp`), which JAX transposes for
gradients: forward and reverse mode nest in any order. `keeping_inputs` keeps its factors alone for
the backward pass, as of a choice of platforms JAX would keep what every branch needs.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import sharding

NAME = "matrix product"
keeping_inputs = functools.partial(
    jax.checkpoint, prevent_cse=False, policy=jax.checkpoint_policies.nothing_saveable
)


@jax.custom_jvp
def _over_channels(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return x @ kernel


@_over_channels.defjvp
def _over_channels_jvp(primals, tangents):
    (x, kernel), (d_x, d_kernel) = primals, tangents
    return _over_channels(x, kernel), _over_channels(d_x, kernel) + _in_rows(x, d_kernel)


@keeping_inputs
def _in_rows(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x kernel, for a gradient of the kernel that transposes no activations."""

    def flattened(x: jax.Array, kernel: jax.Array) -> jax.Array:
        rows = x.reshape(-1, x.shape[-1])
        products = rows @ kernel
        return products.reshape(*x.shape[:-1], -1)

    return jax.lax.platform_dependent(x, kernel, cpu=flattened, default=jnp.matmul)


def over_channels(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x kernel: [..., in] and [in, out] to [..., out]."""
    return checkpoint_name(_over_channels(x, kernel), NAME)


@jax.custom_jvp
def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
    """x + bias in the type of x. The gradient of the bias is summed in float32: a sum over a batch
    in bfloat16 stops growing.

    Args:
        x: [..., a, b].
        bias: [b], or [a, 1].
    """
    return x + bias.astype(x.dtype)


@add_bias.defjvp
def _add_bias_jvp(primals, tangents):
    (x, bias), (d_x, d_bias) = primals, tangents
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return add_bias(x, bias), (d_x.astype(wide) + d_bias.astype(wide)).astype(x.dtype)


@jax.custom_jvp
def nameless_over_tokens(weight: jax.Array, x: jax.Array) -> jax.Array:
    """`over_tokens` for what no policy is to save."""
    return jax.lax.platform_dependent(weight, x, cpu=_repeated, cuda=_repeated, default=_einsum)


@nameless_over_tokens.defjvp
def _over_tokens_jvp(primals, tangents):
    (weight, x), (d_weight, d_x) = primals, tangents
    return nameless_over_tokens(weight, x), _of_x(weight, d_x) + _of_weight(x, d_weight)


def _repeated(weight: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.broadcast_to(weight, (*x.shape[:-2], *weight.shape)) @ x


def _einsum(weight: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.einsum("ij,...jc->...ic", weight, x)


@keeping_inputs
def _of_x(weight: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.platform_dependent(weight, x, cpu=_repeated, cuda=_repeated, default=_einsum)


@keeping_inputs
def _of_weight(x: jax.Array, weight: jax.Array) -> jax.Array:
    """weight x, for a gradient of the weight that is added up over examples in float32: a sum over
    a batch in bfloat16 stops growing."""
    wide = jnp.promote_types(x.dtype, jnp.float32)

    def in_turn(weight: jax.Array, x: jax.Array) -> jax.Array:
        """One example after another."""
        precise = weight.astype(wide)

        def of_example(example: jax.Array) -> jax.Array:
            return (precise @ example.astype(wide)).astype(x.dtype)

        examples = x.reshape(-1, *x.shape[-2:])
        products = jax.lax.map(of_example, examples)
        return products.reshape(*x.shape[:-2], *products.shape[-2:])

    def repeated(weight: jax.Array, x: jax.Array) -> jax.Array:
        weights = jnp.broadcast_to(weight.astype(wide), (*x.shape[:-2], *weight.shape))
        return weights.astype(x.dtype) @ x

    # A loop over examples cannot be sharded: every device would gather the batch.
    on_cpu = _einsum if sharding.compiler_axes() else in_turn
    return jax.lax.platform_dependent(weight, x, cpu=on_cpu, cuda=repeated, default=_einsum)


def over_tokens(weight: jax.Array, x: jax.Array) -> jax.Array:
    """weight x over the token axis: [out, in] and [..., in, channels] to [..., out, channels]."""
    return checkpoint_name(nameless_over_tokens(weight, x), NAME)


def matmul_flops(function: Callable, *args) -> int:
    """Operations of all matrix products in one call of a traceable function with these arguments,
    arrays or shapes: two for each multiply-add.

    They are counted on the traced program. Scanned bodies count once per iteration, and
    recomputation in a backward pass counts. Elementwise work is left out, as the paper's figures do
    (FLOPs of Table 1 are twice the multiply-adds of Table 2).
    """
    return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            results = math.prod(equation.outvars[0].aval.shape)
            terms = math.prod(left[axis] for axis in contracted)
            total += 2 * results * terms
        elif equation.primitive.name == "cond":
            # Branches of one product for different platforms: the last is the default one.
            total += _count(equation.params["branches"][-1].jaxpr)
        else:
            repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
            # Both a jaxpr and a closed one, which holds it, have equations.
            inner = jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda value: hasattr(value, "eqns")
            )
            total += repeats * sum(_count(value) for value in inner if hasattr(value, "eqns"))
    return total
