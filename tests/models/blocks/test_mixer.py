import jax
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.blocks.mixer import MixerBlock
from tests.models.reference import (
    in_float64,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)


def block(**fields):
    return MixerBlock(small_spec(**{"block": "mixer", "d_spatial": 4} | fields), nnx.Rngs(0))


@in_float64
def test_against_torch():
    """Two torch.nn.Linear a side, the first pair on the transposed tokens."""
    torch = pytest.importorskip("torch")
    module = randomized(lambda: block())
    p, functional = params_of(module), torch.nn.functional

    def mlp(weights, x):
        (w1, b1), (w2, b2) = (map(torch.tensor, pair) for pair in weights)
        return functional.linear(functional.gelu(functional.linear(x, w1, b1)), w2, b2)

    def norm(p, x):
        return functional.layer_norm(x, (6,), torch.tensor(p["scale"]), torch.tensor(p["bias"]), eps=1e-6)

    tokens = [(p["token_mlp"][name]["weight"], p["token_mlp"][name]["bias"]) for name in ("proj_in", "proj_out")]
    channels = [(p["mlp"][name]["kernel"].T, p["mlp"][name]["bias"]) for name in ("proj_in", "proj_out")]
    numbers = normal(1, 2, 5, 6)
    x = torch.tensor(numbers)
    x = x + mlp(tokens, norm(p["token_norm"], x).mT).mT
    x = x + mlp(channels, norm(p["mlp_norm"], x))
    np.testing.assert_allclose(quick_jit(module)(numbers), x.numpy(), atol=1e-10)


@in_float64
def test_the_token_mlp_leaves_channels_apart():
    module = randomized(lambda: block()).token_mlp
    jacobian = np.abs(quick_jit(jax.jacrev(lambda x: module(x[None])[0]))(normal(0, 5, 6)))
    between = jacobian.max(axis=(0, 2))
    assert np.diag(between).min() > 1e-3 and (between[~np.eye(6, dtype=bool)] == 0).all()
