"""The tables between timm's state dicts and our trees, on shapes written down by hand."""

import jax
import numpy as np
import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.interop import timm
from gmlp_flax.tasks.image_classification import ImageClassification
from tests.interop import states

LAYERS, D, CLASSES, PATCH = 2, 4, 5, (3, 2, 2)  # images of 4 x 4 in patches of 2 x 2: four tokens


def dense(name, *shape):
    """Linear weights are [out, in], convolutions [out, in, h, w]."""
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def mlp(name, inner, width=D):
    return dense(f"{name}.fc1", inner, width) | dense(f"{name}.fc2", width, inner)


def affine(name):
    return {f"{name}.alpha": (1, 1, D), f"{name}.beta": (1, 1, D)}


def norm(name, width=D):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


# What timm's modules declare of each family: one block, and what is around the blocks.
GATE = norm("mlp_channels.gate.norm", 6) | dense("mlp_channels.gate.proj", 4, 4)
GMLP = norm("norm") | dense("mlp_channels.fc1", 12, D) | GATE | dense("mlp_channels.fc2", D, 6)
MIXER = norm("norm1") | norm("norm2") | mlp("mlp_channels", 12) | mlp("mlp_tokens", 3, 4)
RESMLP = affine("norm1") | affine("norm2") | mlp("mlp_channels", 12) | dense("linear_tokens", 4, 4)
ATTENTION = dense("attn.qkv", 3 * D, D) | dense("attn.proj", D, D)
HEAD, STEM = dense("head", CLASSES, D), dense("stem.proj", D, *PATCH)
BLOCKS = {
    "gmlp_ti16_224": GMLP,
    "mixer_b16_224": MIXER,
    "resmlp_12_224": RESMLP | {"ls1": (D,), "ls2": (D,)},
    "deit_tiny_patch16_224": norm("norm1") | norm("norm2") | mlp("mlp", 12) | ATTENTION,
}
OUTSIDE = dict.fromkeys(BLOCKS, STEM | HEAD | norm("norm"))
OUTSIDE["resmlp_12_224"] = STEM | HEAD | affine("norm")
TOKENS = {"cls_token": (1, 1, D), "pos_embed": (1, 5, D)}
OUTSIDE["deit_tiny_patch16_224"] = (
    HEAD | norm("norm") | dense("patch_embed.proj", D, *PATCH) | TOKENS
)


def state_of(name, seed=0):
    """A state dict of a tiny model, every number another."""
    shapes = dict(OUTSIDE[name])
    for layer in range(LAYERS):
        shapes |= {f"blocks.{layer}.{key}": shape for key, shape in BLOCKS[name].items()}
    numbers = np.random.default_rng(seed)
    return {key: numbers.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}


def like(name):
    """Shapes of our parameters for the same tiny model."""
    config = timm.config_for(name)
    config.model.update(layers=LAYERS, d_model=D, d_ffn=12, image_size=(4, 4), patch_size=PATCH[1:])
    config.model.update(
        {key: size for key, size in {"d_spatial": 3, "heads": 2}.items() if key in config.model}
    )
    return ImageClassification.without_data(config, classes=CLASSES).shapes()


def converted(name, state=None):
    state = state_of(name) if state is None else state
    return timm.from_torch(state, timm.MODELS[name].rows, like(name), "FILE")


@pytest.mark.parametrize("name", BLOCKS)
def test_there_and_back(name):
    state, params = state_of(name), converted(name)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, like(name))
    back = states.to_torch(params, timm.MODELS[name].rows)
    assert back.keys() == state.keys()
    for key, array in state.items():
        np.testing.assert_array_equal(back[key], array, strict=True)


def test_what_lies_where():
    state, params = state_of("gmlp_ti16_224"), converted("gmlp_ti16_224")
    blocks = params["encoder"]["blocks"]
    for layer in range(LAYERS):
        names = f"blocks.{layer}.mlp_channels."
        np.testing.assert_array_equal(
            blocks["proj_in"]["kernel"][layer], state[f"{names}fc1.weight"].T
        )
        np.testing.assert_array_equal(
            blocks["gate"]["spatial"]["weight"][layer], state[f"{names}gate.proj.weight"]
        )
        np.testing.assert_array_equal(
            blocks["gate"]["norm"]["scale"][layer], state[f"{names}gate.norm.weight"]
        )
    vit, params = state_of("deit_tiny_patch16_224"), converted("deit_tiny_patch16_224")
    np.testing.assert_array_equal(params["cls"], vit["cls_token"][0, 0])
    np.testing.assert_array_equal(params["positions"]["table"], vit["pos_embed"][0])
    qkv = params["encoder"]["blocks"]["attention"]["proj_in"]
    np.testing.assert_array_equal(qkv["kernel"][1], vit["blocks.1.attn.qkv.weight"].T)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("norm.bias"), r"FILE does not hold .*: 1 missing \(norm.bias\)$"),
        (lambda s: s.update(extra=np.zeros(1)), r": 1 unexpected \(extra\)$"),
        (
            lambda s: s.update({"norm.bias": np.zeros(4, int)}),
            r": 1 of a type .* \(norm.bias int64\)$",
        ),
        (
            lambda s: s.update({"norm.bias": np.zeros(3)}),
            r": 1 of another shape \(norm.bias \[3\], not \[4\]\)$",
        ),
        (
            lambda s: [s.pop(key) for key in list(s) if "fc" in key],
            r": 8 missing \(blocks.0.*fc2.bias\)$",
        ),
        (
            lambda s: [s.pop(key) for key in list(s) if "mlp" in key],
            r": 16 missing \(blocks.0.*, and 8 more\)$",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named_and_counted(change, message):
    state = state_of("gmlp_ti16_224")
    change(state)
    with pytest.raises(RunError, match=message):
        converted("gmlp_ti16_224", state)


def test_a_scaled_branch_and_positions_of_patches_alone():
    """DeiT III's tensors as those of the same function: the scale in the layer before it, and
    nothing added to cls."""
    name = "deit_tiny_patch16_224"
    state = state_of(name)
    expected = converted(name, state)["encoder"]["blocks"]
    cut = state | {"pos_embed": state["pos_embed"][:, 1:]}
    for layer in range(LAYERS):
        cut |= {
            f"blocks.{layer}.ls1.gamma": np.float32([1, 2, 4, 8]),
            f"blocks.{layer}.ls2.gamma": np.full(4, 2, "f4"),
        }
        del cut[f"blocks.{layer}.attn.qkv.bias"]
    found = converted(name, cut)
    np.testing.assert_array_equal(found["positions"]["table"][0], 0)
    np.testing.assert_array_equal(found["positions"]["table"][1:], state["pos_embed"][0, 1:])
    blocks = found["encoder"]["blocks"]
    np.testing.assert_array_equal(
        blocks["attention"]["out"]["kernel"],
        expected["attention"]["out"]["kernel"] * np.float32([1, 2, 4, 8]),
    )
    np.testing.assert_array_equal(
        blocks["attention"]["out"]["bias"],
        expected["attention"]["out"]["bias"] * np.float32([1, 2, 4, 8]),
    )
    np.testing.assert_array_equal(
        blocks["mlp"]["proj_out"]["kernel"], 2 * expected["mlp"]["proj_out"]["kernel"]
    )
    np.testing.assert_array_equal(blocks["attention"]["proj_in"]["bias"], 0)
    with pytest.raises(RunError, match="FILE is damaged"):
        converted(
            name, cut | {"blocks.0.ls1.gamma": np.float32(1), "cls_token": np.zeros(4, np.float32)}
        )
