"""The structures of the matrices, and small mixers of each."""

import dataclasses

import jax
import pytest
from flax import nnx

from gmlp_flax.models.blocks.hydra import HydraMixer
from tests.models.reference import randomized, small_spec

COMPUTED = ("quasiseparable", "toeplitz", "low_rank", "attention")
COMPUTED_KINDS = [(kind, True) for kind in COMPUTED]
LEARNED_KINDS = [(kind, False) for kind in COMPUTED]
WITH_FAST_FORM = [*COMPUTED_KINDS, *LEARNED_KINDS]
KINDS = [*WITH_FAST_FORM, ("dense", False)]
EVERY = pytest.mark.parametrize(("kind", "computed"), KINDS)
FAST = pytest.mark.parametrize(("kind", "computed"), WITH_FAST_FORM)


def spec_of(kind="quasiseparable", computed=True, **fields):
    """The spec of a small Hydra with this matrix, computed from the input or learned."""
    options = {
        "block": "hydra",
        "matrix": kind,
        "input_dependent": computed,
        "d_state": 4,
        "kernel_width": 4,
    }
    return small_spec(**options | fields)


def mixer(*args, **fields):
    spec = spec_of(*args, **fields)
    return randomized(lambda: HydraMixer(spec, nnx.Rngs(0)))


def with_form(module, form):
    """A mixer with the same parameters and another form."""
    spec = dataclasses.replace(module.spec, form=form)
    other = nnx.eval_shape(lambda: HydraMixer(spec, nnx.Rngs(0)))
    nnx.update(other, nnx.state(module, nnx.Param))
    return other


def shapes(*args, **fields):
    """The shapes of a matrix's parameters."""
    spec = spec_of(*args, **fields)
    module = nnx.eval_shape(lambda: HydraMixer(spec, nnx.Rngs(0)))
    params = nnx.to_pure_dict(nnx.state(module))
    matrix = params["matrix"]
    return jax.tree.map(lambda leaf: leaf.shape, matrix)
