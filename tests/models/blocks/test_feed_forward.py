import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.blocks.feed_forward import FeedForwardBlock
from tests.models.reference import (
    in_float64,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)


def block(**fields):
    return FeedForwardBlock(small_spec(**{"block": "feed_forward", "d_spatial": 20} | fields), nnx.Rngs(0))


@in_float64
def test_against_torch():
    """The same two layers and norm twice, the second time on the transpose."""
    torch = pytest.importorskip("torch")
    module, numbers = randomized(block), normal(1, 2, 5, 6)
    p, functional = params_of(module), torch.nn.functional

    def half(norm, weights, x):
        norm = {name: torch.tensor(leaf) for name, leaf in norm.items()}
        (w1, b1), (w2, b2) = (map(torch.tensor, pair) for pair in weights)
        normed = functional.layer_norm(x, x.shape[-1:], norm["scale"], norm["bias"], eps=1e-6)
        return x + functional.linear(functional.gelu(functional.linear(normed, w1, b1)), w2, b2)

    tokens = [(p["token_mlp"][name]["weight"], p["token_mlp"][name]["bias"]) for name in ("proj_in", "proj_out")]
    channels = [(p["mlp"][name]["kernel"].T, p["mlp"][name]["bias"]) for name in ("proj_in", "proj_out")]
    x = half(p["mlp_norm"], channels, torch.tensor(numbers))
    x = half(p["token_norm"], tokens, x.mT).mT
    np.testing.assert_allclose(quick_jit(module)(numbers), x.numpy(), atol=1e-10)
