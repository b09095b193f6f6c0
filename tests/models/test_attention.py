import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.attention import TinyAttention
from tests.models.reference import in_float64, normal, params_of, program, randomized, small_spec, tiny_attention


def attention(**fields):
    return TinyAttention(small_spec(**{"d_attn": 3} | fields), 4, nnx.Rngs(0))


@pytest.mark.parametrize("d_attn", [1, 3, 16])
@in_float64
def test_against_loops(d_attn):
    """With d_attn 16 and large numbers the scale of the scores, d_attn ** -0.5, decides."""
    module = randomized(lambda: attention(d_attn=d_attn), std=1.0)
    x = normal(0, 2, 5, 6)
    np.testing.assert_allclose(module(x), [tiny_attention(params_of(module), sample) for sample in x], atol=1e-12)


def test_shapes():
    params = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: attention(dtype="float32")), nnx.Param))
    shapes = jax.tree.map(lambda p: p.shape, params)
    assert shapes == {"qkv": {"kernel": (6, 9), "bias": (9,)}, "out": {"kernel": (3, 4), "bias": (4,)}}


@pytest.mark.parametrize("std, bound", [(1e-6, 1e-4), (0.0, 0.0)])
def test_starts_near_zero(std, bound):
    y = attention(dtype="float32", spatial_init_std=std)(jnp.asarray(normal(0, 2, 5, 6), jnp.float32))
    assert y.shape == (2, 5, 4) and np.abs(y).max() <= bound


@in_float64
def test_order_of_tokens_does_not_matter():
    module, x, order = randomized(lambda: attention()), normal(0, 1, 5, 6), [3, 0, 4, 2, 1]
    np.testing.assert_allclose(module(x[:, order]), module(x)[:, order], atol=1e-13)


def test_softmax_runs_in_float32():
    module = randomized(lambda: attention(dtype="bfloat16"))
    x = jnp.asarray(normal(0, 2, 5, 6), jnp.bfloat16)
    assert jax.eval_shape(module, x).dtype == jnp.bfloat16
    exponentials = [e for e in program(module, x) if e.primitive.name == "exp"]
    assert [e.outvars[0].aval.dtype for e in exponentials] == [jnp.float32]


@in_float64
def test_large_scores_do_not_overflow():
    module = randomized(lambda: attention(), std=30.0)
    x = 30 * normal(0, 1, 5, 6)
    np.testing.assert_allclose(module(x)[0], tiny_attention(params_of(module), x[0]), rtol=1e-9)
