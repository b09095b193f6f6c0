import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.blocks.gmlp import GMLPBlock
from gmlp_flax.models.gating import GateSpec
from gmlp_flax.options import options_of
from tests.models.blocks.calls import add
from tests.models.reference import (
    gelu,
    gmlp_block,
    in_float64,
    layer_norm,
    linear,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)

GATES = options_of(GateSpec)["gate"].values

ATTENTION = pytest.mark.parametrize("d_attn", [0, 3], ids=["gmlp", "amlp"])


def block(**fields):
    return GMLPBlock(small_spec(**fields), nnx.Rngs(0))


def fresh(**fields):
    """A block as it starts, made by one compiled program."""
    state = quick_jit(lambda: nnx.state(block(**fields)))()
    return nnx.merge(nnx.graphdef(nnx.eval_shape(lambda: block(**fields))), state)


def token_jacobian(module, x):
    """Largest entry of each block of the Jacobian: [output token, input token]."""
    jacobian = quick_jit(jax.jacrev(lambda x: module(x[None], add)[0]))(x)
    return np.abs(jacobian).max(axis=(1, 3))


@pytest.mark.smoke
@ATTENTION
@pytest.mark.parametrize("spatial", ["dense", "toeplitz"])
@in_float64
def test_against_numpy(d_attn, spatial):
    module = randomized(lambda: block(d_attn=d_attn, spatial=spatial))
    x = normal(0, 2, 5, 6)
    expected = [gmlp_block(params_of(module), sample) for sample in x]
    np.testing.assert_allclose(quick_jit(lambda x: module(x, add))(x), expected, atol=1e-10)


@ATTENTION
@pytest.mark.parametrize("kind", [kind for kind in GATES if kind != "split"])
@in_float64
def test_the_other_gates_against_numpy(d_attn, kind):
    module = randomized(lambda: block(d_attn=d_attn, gate=kind))
    x = normal(0, 5, 6)
    expected = gmlp_block(params_of(module), x, kind)
    np.testing.assert_allclose(quick_jit(lambda x: module(x, add))(x[None])[0], expected, atol=1e-10)


@ATTENTION
@pytest.mark.parametrize("std, largest", [(1e-6, 1e-4), (0.0, 0.0)])
@in_float64
def test_tokens_of_a_fresh_block_do_not_mix(d_attn, std, largest):
    blocks = token_jacobian(fresh(d_attn=d_attn, spatial_init_std=std), jnp.asarray(normal(0, 5, 6)))
    own = np.diag(blocks)
    others = blocks - np.diag(own)
    assert own.min() > 0.5 and others.max() <= largest * own.min()
    if std:
        assert others[~np.eye(5, dtype=bool)].min() > 0


@ATTENTION
@in_float64
def test_tokens_of_a_trained_block_do_mix(d_attn):
    blocks = token_jacobian(randomized(lambda: block(d_attn=d_attn)), jnp.asarray(normal(0, 5, 6)))
    assert blocks.min() > 1e-4


@ATTENTION
@in_float64
def test_a_fresh_block_is_a_feed_forward_network(d_attn):
    """x + V Z1, Z1 the first half of gelu(U norm(x))."""
    module = fresh(d_attn=d_attn, spatial_init_std=0.0)
    p, x = params_of(module), normal(0, 5, 6)
    z = gelu(linear(p["proj_in"], layer_norm(p["norm"], x)))
    y = quick_jit(lambda x: module(x[None], add)[0])(x)
    np.testing.assert_allclose(y, x + linear(p["proj_out"], z[:, :4]), atol=1e-12)
