"""The structures of the matrices, and small mixers of each."""

import dataclasses

import jax
import pytest
from flax import nnx

from gmlp_flax.models.blocks.hydra import HydraMixer
from tests.models.reference import randomized, small_spec

COMPUTED = ("quasiseparable", "toeplitz", "low_rank", "attention")
KINDS = [(kind, True) for kind in COMPUTED] + [(kind, False) for kind in (*COMPUTED, "dense")]
EVERY = pytest.mark.parametrize(("kind", "computed"), KINDS)
FAST = pytest.mark.parametrize(
    ("kind", "computed"), [(kind, computed) for kind, computed in KINDS if kind != "dense"]
)


def spec_of(kind="quasiseparable", computed=True, **fields):
    options = {"matrix": kind, "input_dependent": computed, "d_state": 4, "kernel_width": 4}
    return small_spec(**{"block": "hydra"} | options | fields)


def mixer(*args, **fields):
    spec = spec_of(*args, **fields)
    return randomized(lambda: HydraMixer(spec, nnx.Rngs(0)))


def with_form(module, form):
    """The same parameters, applied in a form."""
    spec = dataclasses.replace(module.spec, form=form)
    made = nnx.eval_shape(lambda: HydraMixer(spec, nnx.Rngs(0)))
    nnx.update(made, nnx.state(module, nnx.Param))
    return made


def shapes(*args, **fields):
    """The shapes of a matrix's parameters."""
    spec = spec_of(*args, **fields)
    made = nnx.eval_shape(lambda: HydraMixer(spec, nnx.Rngs(0)))
    params = nnx.to_pure_dict(nnx.state(made))
    return jax.tree.map(lambda leaf: leaf.shape, params)["matrix"]
