"""The two matrix products of every mixer, over channels and over tokens; the sum with a bias; and the
number of operations in all products of a program.

The products carry a name, so that a remat policy can save exactly them, and have derivatives of
their own, because the order of axes that suits TPUs costs a CPU half of its speed: the compiler
transposes whole activations around the products. On a CPU the tokens are flattened (over channels)
or W is repeated for each example (over tokens, on NVIDIA's GPUs too), which needs no transposition.
The platform is chosen when the program is lowered. The other branches are not in the program.

Each derivative is a linear function of a tangent (`jax.custom_jvp`), which JAX transposes for
gradients: forward and reverse mode nest in any order. With `saving_only_inputs`, only its factors
are kept for the backward pass. Otherwise JAX would keep what the branch of each platform needs.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import sharding

NAME = "matrix product"
saving_only_inputs = functools.partial(
    jax.checkpoint, prevent_cse=False, policy=jax.checkpoint_policies.nothing_saveable
)


def _matmul_on_cpu(x: Array, y: Array) -> Array:
    """x y: [..., a, b] and [..., b, c] to [..., a, c]. Products of bfloat16 are summed in float32
    and rounded once: before jax 0.12, XLA uses a CPU's instructions for them (AVX512_BF16, AMX) only
    in this form. JAX's derivatives of this form multiply in float32."""
    dtype = jnp.result_type(x, y)
    if dtype != jnp.bfloat16:
        return x @ y
    sums = jnp.matmul(x, y, preferred_element_type=jnp.float32)
    return sums.astype(dtype)


@jax.custom_jvp
def _over_channels(x: Array, kernel: Array) -> Array:
    if x.dtype != jnp.bfloat16:
        return x @ kernel
    return jax.lax.platform_dependent(x, kernel, cpu=_matmul_on_cpu, default=jnp.matmul)


@_over_channels.defjvp
def _over_channels_jvp(primals, tangents):
    x, kernel = primals
    d_x, d_kernel = tangents
    y = _over_channels(x, kernel)
    by_x = d_x @ kernel
    by_kernel = _in_rows(x, d_kernel)
    return y, by_x + by_kernel


@saving_only_inputs
def _in_rows(x: Array, kernel: Array) -> Array:
    """x kernel, for a gradient of the kernel that transposes no activations."""

    def flattened(x: Array, kernel: Array) -> Array:
        *leading, d_in = x.shape
        d_out = kernel.shape[1]
        rows = x.reshape(-1, d_in)  # [batch tokens, in]
        products = rows @ kernel  # [batch tokens, out]
        return products.reshape(*leading, d_out)

    return jax.lax.platform_dependent(x, kernel, cpu=flattened, default=jnp.matmul)


def over_channels(x: Array, kernel: Array) -> Array:
    """x kernel: [..., in] and [in, out] to [..., out]."""
    product = _over_channels(x, kernel)
    return checkpoint_name(product, NAME)


@jax.custom_jvp
def add_bias(x: Array, bias: Array) -> Array:
    """x + bias in the type of x. The gradient of the bias is summed in float32: a sum over a batch
    in bfloat16 stops growing.

    Args:
        x: [..., a, b].
        bias: [b], or [a, 1].
    """
    rounded = bias.astype(x.dtype)
    return x + rounded


@add_bias.defjvp
def _add_bias_jvp(primals, tangents):
    x, bias = primals
    d_x, d_bias = tangents
    precise = jnp.promote_types(x.dtype, jnp.float32)
    y = add_bias(x, bias)
    precise_d_x = d_x.astype(precise)
    precise_d_bias = d_bias.astype(precise)
    d_y = precise_d_x + precise_d_bias
    return y, d_y.astype(x.dtype)


@jax.custom_jvp
def over_tokens_unnamed(weight: Array, x: Array) -> Array:
    """`over_tokens` without the name by which a remat policy saves the product."""
    return jax.lax.platform_dependent(
        weight, x, cpu=_repeated_on_cpu, cuda=_repeated, default=_einsum
    )


@over_tokens_unnamed.defjvp
def _over_tokens_jvp(primals, tangents):
    weight, x = primals
    d_weight, d_x = tangents
    y = over_tokens_unnamed(weight, x)
    by_x = _linear_in_x(weight, d_x)
    by_weight = _linear_in_weight(x, d_weight)
    return y, by_x + by_weight


def _repeated(weight: Array, x: Array) -> Array:
    weights = _repeat(weight, x)
    return weights @ x


def _repeated_on_cpu(weight: Array, x: Array) -> Array:
    """`_repeated` by `_matmul_on_cpu`."""
    weights = _repeat(weight, x)
    return _matmul_on_cpu(weights, x)


def _repeat(weight: Array, x: Array) -> Array:
    """A weight [out, in] for each example of x [..., in, channels]: [..., out, in]."""
    examples = x.shape[:-2]
    shape = (*examples, *weight.shape)
    weights = jnp.broadcast_to(weight, shape)
    return sharding.shard_as(weights, x, len(examples))


def _einsum(weight: Array, x: Array) -> Array:
    return jnp.einsum("ij,...jc->...ic", weight, x)


@saving_only_inputs
def _linear_in_x(weight: Array, x: Array) -> Array:
    """weight x, where only the derivative by x is needed."""
    return jax.lax.platform_dependent(weight, x, cpu=_repeated, cuda=_repeated, default=_einsum)


@saving_only_inputs
def _linear_in_weight(x: Array, weight: Array) -> Array:
    """weight x, for a gradient of the weight that is added up over examples in float32: a sum over
    a batch in bfloat16 stops growing."""
    # A loop over examples cannot be sharded: every device would gather the batch.
    is_sharded = sharding.compiler_axes() or sharding.is_sharded_explicitly(x)
    on_cpu = _einsum if is_sharded else _in_turn
    return jax.lax.platform_dependent(
        weight, x, cpu=on_cpu, cuda=_repeated_in_float32, default=_einsum
    )


def _in_turn(weight: Array, x: Array) -> Array:
    """weight x in float32, one example after another."""
    precise = jnp.promote_types(x.dtype, jnp.float32)
    precise_weight = weight.astype(precise)

    def product(example: Array) -> Array:
        precise_example = example.astype(precise)
        y = precise_weight @ precise_example
        return y.astype(x.dtype)

    *leading, tokens, channels = x.shape
    examples = x.reshape(-1, tokens, channels)
    products = jax.lax.map(product, examples)  # [examples, out, channels]
    out_tokens = len(weight)
    return products.reshape(*leading, out_tokens, channels)


def _repeated_in_float32(weight: Array, x: Array) -> Array:
    """weight x, with a float32 weight for each example, so that their gradients add up in
    float32."""
    precise = jnp.promote_types(x.dtype, jnp.float32)
    precise_weight = weight.astype(precise)
    precise_weights = _repeat(precise_weight, x)  # [..., out, in]
    weights = precise_weights.astype(x.dtype)
    return weights @ x


def over_tokens(weight: Array, x: Array) -> Array:
    """weight x over the token axis: [out, in] and [..., in, channels] to [..., out, channels]."""
    product = over_tokens_unnamed(weight, x)
    return checkpoint_name(product, NAME)


def matmul_flops(function: Callable, *args) -> int:
    """Operations of all matrix products in one call of a traceable function with these arguments,
    which may be shapes: two for each multiply-add.

    They are counted in the traced program. The body of a scan counts once per iteration, and
    recomputation in a backward pass counts. Elementwise work does not, as in the paper's figures
    (the FLOPs of Table 1 are twice the multiply-adds of Table 2).
    """
    traced = jax.make_jaxpr(function)(*args)
    return _flops(traced.jaxpr)


def _flops(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            total += _product_flops(equation)
        elif name == "cond":
            # Branches of one product for different platforms: the last is the default one.
            default_branch = equation.params["branches"][-1]
            total += _flops(default_branch.jaxpr)
        elif name == "scan":
            total += equation.params["length"] * _inner_flops(equation)
        else:
            total += _inner_flops(equation)
    return total


def _product_flops(equation) -> int:
    """Operations of one `dot_general`."""
    contracted_axes, _ = equation.params["dimension_numbers"]
    left_axes, _ = contracted_axes
    left = equation.invars[0].aval
    product = equation.outvars[0].aval
    contracted = [left.shape[axis] for axis in left_axes]
    terms = math.prod(contracted)
    outputs = math.prod(product.shape)
    return 2 * terms * outputs


def _inner_flops(equation) -> int:
    """Operations of the programs that an equation calls, such as the body of a scan."""

    def is_program(value) -> bool:
        # Both a jaxpr and a closed one, which holds it, have equations.
        return hasattr(value, "eqns")

    values = list(equation.params.values())
    leaves = jax.tree.leaves(values, is_leaf=is_program)
    total = 0
    for leaf in leaves:
        if is_program(leaf):
            total += _flops(leaf)
    return total
