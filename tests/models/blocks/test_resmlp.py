import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.blocks.resmlp import Affine, LayerScale, ResMLPBlock
from tests.models.reference import (
    in_float64,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)


def block(**fields):
    return ResMLPBlock(small_spec(**{"block": "resmlp"} | fields), nnx.Rngs(0))


@in_float64
def test_against_torch():
    """torch.nn.Linear on the transposed tokens, two more on the channels, and addcmul for alpha and beta."""
    torch = pytest.importorskip("torch")
    module, numbers = randomized(block), normal(1, 2, 5, 6)
    p, functional = jax.tree.map(torch.tensor, params_of(module)), torch.nn.functional
    x = torch.tensor(numbers)
    tokens = torch.addcmul(p["token_affine"]["bias"], p["token_affine"]["scale"], x).mT
    tokens = functional.linear(tokens, p["token_linear"]["weight"], p["token_linear"]["bias"]).mT
    x = x + p["token_scale"]["scale"] * tokens
    channels = torch.addcmul(p["mlp_affine"]["bias"], p["mlp_affine"]["scale"], x)
    into, out = p["mlp"]["proj_in"], p["mlp"]["proj_out"]
    hidden = functional.gelu(functional.linear(channels, into["kernel"].T, into["bias"]))
    x = x + p["mlp_scale"]["scale"] * functional.linear(hidden, out["kernel"].T, out["bias"])
    np.testing.assert_allclose(quick_jit(module)(numbers), x.numpy(), atol=1e-10)


@in_float64
def test_the_branch_across_patches_is_linear_and_leaves_channels_apart():
    """Its Jacobian does not depend on where it is taken: no activation, and no statistics of the input."""
    module = randomized(block)

    def branch(x):
        return module.token_linear(module.token_affine(x[None]))[0]

    here, there = (np.asarray(quick_jit(jax.jacrev(branch))(normal(seed, 5, 6))) for seed in (0, 1))
    np.testing.assert_allclose(here, there, atol=1e-14)
    between = np.abs(here).max(axis=(0, 2))
    assert np.diag(between).min() > 1e-3 and (between[~np.eye(6, dtype=bool)] == 0).all()


def test_a_fresh_block_scales_its_branches():
    """alpha 1, beta 0, and both gammas what the spec says."""
    params = params_of(block(dtype="float32", layer_scale=1e-5))
    for name in ("token_affine", "mlp_affine"):
        np.testing.assert_array_equal(params[name]["scale"], np.ones(6))
        np.testing.assert_array_equal(params[name]["bias"], np.zeros(6))
    for name in ("token_scale", "mlp_scale"):
        np.testing.assert_array_equal(params[name]["scale"], np.full(6, 1e-5, np.float32))


def test_scales_are_applied_in_float32_and_returned_in_the_compute_type():
    spec = small_spec(dtype="bfloat16", layer_scale=1e-6)
    x = jnp.asarray(normal(0, 4, 6), jnp.bfloat16)
    both = randomized(lambda: Affine(spec, 6))
    p = params_of(both)
    expected = x.astype(jnp.float32) * p["scale"] + p["bias"]
    assert both(x).dtype == jnp.bfloat16 and both.scale.dtype == jnp.float32
    np.testing.assert_array_equal(both(x), expected.astype(jnp.bfloat16))
    scaled = LayerScale(spec)(x)
    assert scaled.dtype == jnp.bfloat16
    np.testing.assert_array_equal(scaled, (x.astype(jnp.float32) * 1e-6).astype(jnp.bfloat16))
