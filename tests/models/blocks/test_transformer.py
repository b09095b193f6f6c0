import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.blocks.transformer import TransformerBlock
from tests.models.reference import in_float64, normal, params_of, quick_jit, randomized, small_spec


def block(**fields):
    return TransformerBlock(small_spec(**{"block": "transformer", "heads": 3} | fields), nnx.Rngs(0))


@in_float64
def test_against_torch():
    """Weight for weight with torch's own layer: kernels transpose, q, k and v lie side by side in both."""
    torch = pytest.importorskip("torch")
    width, heads, hidden, tokens = 12, 3, 20, 7
    theirs = torch.nn.TransformerEncoderLayer(
        width,
        heads,
        hidden,
        dropout=0.0,
        activation="gelu",
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=True,
        dtype=torch.float64,
    ).eval()
    ours = randomized(lambda: block(d_model=width, d_ffn=hidden, heads=heads, length=tokens), std=0.3)
    p = params_of(ours)
    layers = {
        "self_attn.in_proj_": p["attention"]["proj_in"],
        "self_attn.out_proj.": p["attention"]["out"],
        "linear1.": p["mlp"]["proj_in"],
        "linear2.": p["mlp"]["proj_out"],
        "norm1.": p["attention_norm"],
        "norm2.": p["mlp_norm"],
    }
    weights = {}
    for name, leaf in layers.items():
        weights[f"{name}bias"] = torch.tensor(leaf["bias"])
        weights[f"{name}weight"] = torch.tensor(leaf["kernel"].T if "kernel" in leaf else leaf["scale"])
    theirs.load_state_dict(weights)
    x = normal(1, 2, tokens, width)
    expected = theirs(torch.tensor(x)).detach().numpy()  # with gradients on, torch does not take its fused path
    np.testing.assert_allclose(quick_jit(lambda x: ours(x))(x), expected, atol=1e-10)


def test_the_order_of_tokens_matters_to_relative_positions_alone():
    x, order = jnp.asarray(normal(0, 1, 5, 6), jnp.float32), [3, 0, 4, 2, 1]
    for positions, matters in (("none", False), ("relative", True), ("relative_only", True)):
        module = randomized(lambda positions=positions: block(positions=positions, dtype="float32"))
        call = quick_jit(lambda x, module=module: module(x))
        assert (np.abs(call(x[:, order]) - call(x)[:, order]).max() > 1e-3) == matters
