"""Floating point operations of a program, counted on the program itself: two for each multiply-add of a product.

Counting the traced program serves every block without a formula of its own. Elementwise work is left out, as the
paper's figures do (FLOPs of Table 1 are twice the multiply-adds of Table 2).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax


def matmul_flops(function: Callable, *args) -> int:
    """Operations of all matrix products in one call.

    Args:
        function: anything traceable.
        *args: its arguments, arrays or `jax.ShapeDtypeStruct`s.

    Returns:
        The count; scanned bodies count once per iteration, recomputation in a backward pass counts.
    """
    return _count(jax.make_jaxpr(function)(*args).jaxpr)


def _count(jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            total += _dot(equation)
        elif equation.primitive.name == "cond":
            # Branches of one product for different platforms: the last is the default one.
            total += _count(equation.params["branches"][-1].jaxpr)
        else:
            repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
            total += repeats * sum(_count(inner) for inner in _jaxprs(equation.params.values()))
    return total


def _dot(equation) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)


def _jaxprs(values):
    for value in values:
        if hasattr(value, "eqns"):
            yield value
        elif hasattr(value, "jaxpr"):
            yield value.jaxpr
        elif isinstance(value, (tuple, list)):
            yield from _jaxprs(value)
