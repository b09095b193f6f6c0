import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.testing import assert_array_equal

from gmlp_flax.models.blocks.resmlp import Affine, LayerScale, ResMLPBlock
from tests.models.reference import normal, params_of, randomized, small_spec


def block(**fields):
    spec = small_spec(**{"block": "resmlp"} | fields)
    return ResMLPBlock(spec, nnx.Rngs(0))


def test_fresh_blocks_scale_their_branches():
    """alpha 1, beta 0, and both gammas what the spec says."""
    params = params_of(block(dtype="float32", layer_scale=1e-5))
    ones = np.ones(6)
    zeros = np.zeros(6)
    layer_scale = np.full(6, 1e-5, np.float32)
    for name in ("token_affine", "mlp_affine"):
        affine = params[name]
        assert_array_equal(affine["scale"], ones)
        assert_array_equal(affine["bias"], zeros)
    for name in ("token_scale", "mlp_scale"):
        assert_array_equal(params[name]["scale"], layer_scale)


def bfloat16_spec():
    return small_spec(dtype="bfloat16", layer_scale=1e-6)


def test_affine_layers_compute_in_float32_and_return_the_compute_type():
    affine = randomized(lambda: Affine(bfloat16_spec(), 6))
    p = params_of(affine)
    x = jnp.asarray(normal(0, 4, 6), jnp.bfloat16)
    y = affine(x)
    exact = x.astype(jnp.float32) * p["scale"] + p["bias"]
    assert y.dtype == jnp.bfloat16
    assert affine.scale.dtype == jnp.float32
    assert_array_equal(y, exact.astype(jnp.bfloat16))


def test_layer_scales_compute_in_float32_and_return_the_compute_type():
    layer_scale = LayerScale(bfloat16_spec())
    x = jnp.asarray(normal(0, 4, 6), jnp.bfloat16)
    y = layer_scale(x)
    exact = x.astype(jnp.float32) * 1e-6
    assert y.dtype == jnp.bfloat16
    assert_array_equal(y, exact.astype(jnp.bfloat16))
