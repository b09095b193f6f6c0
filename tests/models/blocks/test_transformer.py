import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.attention import AttentionSpec
from gmlp_flax.models.blocks.transformer import TransformerBlock
from gmlp_flax.options import options_of
from tests.models.blocks.calls import add
from tests.models.reference import in_float64, normal, params_of, quick_jit, randomized, small_spec, transformer_block

POSITIONS = options_of(AttentionSpec)["positions"].values

KINDS = pytest.mark.parametrize(
    "fields", [{"positions": name} for name in POSITIONS] + [
        {"positions": "relative", "relative_buckets": 4}, {"positions": "relative_only", "relative_buckets": 6},
    ], ids=lambda fields: "-".join(map(str, fields.values())),
)  # fmt: skip


def block(**fields):
    return TransformerBlock(small_spec(**{"block": "transformer", "heads": 3} | fields), nnx.Rngs(0))


@pytest.mark.smoke
@KINDS
@in_float64
def test_against_numpy(fields):
    module = randomized(lambda: block(**fields))
    x, count = normal(0, 2, 5, 6), fields.get("relative_buckets", 0)
    expected = [transformer_block(params_of(module), sample, 3, 5, count) for sample in x]
    np.testing.assert_allclose(quick_jit(lambda x: module(x, add))(x), expected, atol=1e-10)


@pytest.mark.parametrize("heads", [1, 2, 6])
@in_float64
def test_other_numbers_of_heads_against_numpy(heads):
    module = randomized(lambda: block(heads=heads, positions="relative"))
    x = normal(0, 5, 6)
    y = quick_jit(lambda x: module(x, add))(x[None])[0]
    np.testing.assert_allclose(y, transformer_block(params_of(module), x, heads, 5), atol=1e-10)


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
    np.testing.assert_allclose(quick_jit(lambda x: ours(x, add))(x), expected, atol=1e-10)


def test_the_order_of_tokens_matters_to_relative_positions_alone():
    x, order = jnp.asarray(normal(0, 1, 5, 6), jnp.float32), [3, 0, 4, 2, 1]
    for positions, matters in (("none", False), ("relative", True), ("relative_only", True)):
        module = randomized(lambda positions=positions: block(positions=positions, dtype="float32"))
        call = quick_jit(lambda x, module=module: module(x, add))
        assert (np.abs(call(x[:, order]) - call(x)[:, order]).max() > 1e-3) == matters


def shapes_of(**fields):
    state = nnx.state(nnx.eval_shape(lambda: block(dtype="float32", **fields)), nnx.Param)
    return jax.tree.map(lambda p: p.shape, nnx.to_pure_dict(state))


def test_parameters():
    shapes = {positions: shapes_of(positions=positions) for positions in POSITIONS}
    mlp = {"proj_in": {"kernel": (6, 8), "bias": (8,)}, "proj_out": {"kernel": (8, 6), "bias": (6,)}}
    norm, out = {"scale": (6,), "bias": (6,)}, {"kernel": (6, 6), "bias": (6,)}
    attention = {"proj_in": {"kernel": (6, 18), "bias": (18,)}, "out": out}
    absolute = {"attention_norm": norm, "mlp_norm": norm, "attention": attention, "mlp": mlp}
    assert shapes["none"] == shapes["absolute"] == absolute
    relative = {"relative": {"bias": (3, 9)}}
    assert shapes["relative"] == absolute | {"attention": attention | relative}
    assert shapes["relative_only"] == absolute | {"attention": {"proj_in": out, "out": out} | relative}
    bucketed = shapes_of(positions="relative", relative_buckets=4)
    assert bucketed["attention"]["relative"] == {"bias": (3, 4)}
