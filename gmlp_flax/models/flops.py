"""Floating point operations of a program, counted on the program itself: two for each multiply-add of a product.

Counting the traced program serves every block without a formula of its own. Elementwise work is left out, as the
paper's figures do (FLOPs of Table 1 are twice the multiply-adds of Table 2).
"""

import math
from collections.abc import Callable

import jax


def matmul_flops(function: Callable, *args) -> int:
    """Operations of all matrix products in one call of a traceable function with these arguments, arrays or shapes.

    Scanned bodies count once per iteration, and recomputation in a backward pass counts.
    """
    return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
        elif equation.primitive.name == "cond":
            # Branches of one product for different platforms: the last is the default one.
            total += _count(equation.params["branches"][-1].jaxpr)
        else:
            repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
            # Both a jaxpr and a closed one, which holds it, have equations.
            inner = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda value: hasattr(value, "eqns"))
            total += repeats * sum(_count(value) for value in inner if hasattr(value, "eqns"))
    return total
