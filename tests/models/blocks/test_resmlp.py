import jax.numpy as jnp
import numpy as np
from flax import nnx

from gmlp_flax.models.blocks.resmlp import Affine, LayerScale, ResMLPBlock
from tests.models.reference import normal, params_of, randomized, small_spec


def block(**fields):
    return ResMLPBlock(small_spec(**{"block": "resmlp"} | fields), nnx.Rngs(0))


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
    assert both(x).dtype == jnp.bfloat16
    assert both.scale.dtype == jnp.float32
    np.testing.assert_array_equal(both(x), expected.astype(jnp.bfloat16))
    scaled = LayerScale(spec)(x)
    assert scaled.dtype == jnp.bfloat16
    np.testing.assert_array_equal(scaled, (x.astype(jnp.float32) * 1e-6).astype(jnp.bfloat16))
