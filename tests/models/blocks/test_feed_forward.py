import jax
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.blocks.feed_forward import FeedForwardBlock
from tests.models.blocks.calls import add, branches
from tests.models.reference import (
    channel_mlp,
    feed_forward_block,
    in_float64,
    layer_norm,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)


def block(**fields):
    return FeedForwardBlock(small_spec(**{"block": "feed_forward", "d_spatial": 20} | fields), nnx.Rngs(0))


@pytest.mark.smoke
@pytest.mark.parametrize("d_spatial", [1, 20])
@in_float64
def test_against_numpy(d_spatial):
    module = randomized(lambda: block(d_spatial=d_spatial))
    x = normal(0, 2, 5, 6)
    expected = [feed_forward_block(params_of(module), sample) for sample in x]
    np.testing.assert_allclose(quick_jit(lambda x: module(x, add))(x), expected, atol=1e-10)


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
    np.testing.assert_allclose(quick_jit(lambda x: module(x, add))(numbers), x.numpy(), atol=1e-10)


@in_float64
def test_channels_come_first():
    module, x = randomized(block), normal(0, 1, 5, 6)
    _, [(_, channels), _] = branches(module, x)
    p = params_of(module)
    np.testing.assert_allclose(channels[0], channel_mlp(p["mlp"], layer_norm(p["mlp_norm"], x[0])), atol=1e-12)


@in_float64
def test_the_second_norm_is_over_tokens():
    """Without what the channels' MLP adds, scaling one channel of the input changes nothing of the second branch."""
    module, branches = randomized(block), []
    for factor in (1, 3):
        x = normal(0, 1, 5, 6)
        x[..., 2] *= factor
        module(x, lambda shortcut, branch: branches.append(branch) or shortcut)
    np.testing.assert_allclose(branches[3], branches[1], atol=1e-4)
    assert np.abs(branches[2] - branches[0]).max() > 0.1


def test_parameters():
    params = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: block(dtype="float32")), nnx.Param))
    assert jax.tree.map(lambda p: p.shape, params) == {
        "token_norm": {"scale": (5,), "bias": (5,)},
        "mlp_norm": {"scale": (6,), "bias": (6,)},
        "token_mlp": {"proj_in": {"weight": (20, 5), "bias": (20,)}, "proj_out": {"weight": (5, 20), "bias": (5,)}},
        "mlp": {"proj_in": {"kernel": (6, 8), "bias": (8,)}, "proj_out": {"kernel": (8, 6), "bias": (6,)}},
    }
