"""The tables between timm's state dicts and our trees, on shapes written down by hand."""

from __future__ import annotations

import numpy as np
import pytest
from flax import traverse_util
from hypothesis import given, settings
from hypothesis import strategies as st

from gmlp_flax.errors import RunError
from gmlp_flax.interop import timm_names
from gmlp_flax.models.image import cut_patches
from gmlp_flax.tasks.image_classification import ImageClassification

LAYERS, D, CLASSES, PATCH = 2, 4, 5, (3, 2, 4)  # images of 4 x 8 in patches of 2 x 4: four tokens
AROUND = {"head.weight": (CLASSES, D), "head.bias": (CLASSES,), "norm.weight": (D,), "norm.bias": (D,)}
STEM = {"stem.proj.weight": (D, *PATCH), "stem.proj.bias": (D,)}


def mlp(name, inner):
    return {
        f"{name}.fc1.weight": (inner, D),
        f"{name}.fc1.bias": (inner,),
        f"{name}.fc2.weight": (D, inner),
        f"{name}.fc2.bias": (D,),
    }


def affine(name):
    return {f"{name}.alpha": (1, 1, D), f"{name}.beta": (1, 1, D)}


def norm(name):
    return {f"{name}.weight": (D,), f"{name}.bias": (D,)}


# One block of each family as timm's modules declare it: Linear weights are [out, in], convolutions [out, in, h, w].
BLOCKS = {
    "gmlp_ti16_224": norm("norm")
    | {
        "mlp_channels.fc1.weight": (12, D),
        "mlp_channels.fc1.bias": (12,),
        "mlp_channels.gate.norm.weight": (6,),
        "mlp_channels.gate.norm.bias": (6,),
        "mlp_channels.gate.proj.weight": (4, 4),
        "mlp_channels.gate.proj.bias": (4,),
        "mlp_channels.fc2.weight": (D, 6),
        "mlp_channels.fc2.bias": (D,),
    },
    "mixer_b16_224": norm("norm1")
    | norm("norm2")
    | mlp("mlp_channels", 12)
    | {
        "mlp_tokens.fc1.weight": (3, 4),
        "mlp_tokens.fc1.bias": (3,),
        "mlp_tokens.fc2.weight": (4, 3),
        "mlp_tokens.fc2.bias": (4,),
    },
    "resmlp_12_224": affine("norm1")
    | affine("norm2")
    | mlp("mlp_channels", 12)
    | {
        "linear_tokens.weight": (4, 4),
        "linear_tokens.bias": (4,),
        "ls1": (D,),
        "ls2": (D,),
    },
    "deit_tiny_patch16_224": norm("norm1")
    | norm("norm2")
    | mlp("mlp", 12)
    | {
        "attn.qkv.weight": (3 * D, D),
        "attn.qkv.bias": (3 * D,),
        "attn.proj.weight": (D, D),
        "attn.proj.bias": (D,),
    },
}
OUTSIDE = dict.fromkeys(BLOCKS, STEM | AROUND)
OUTSIDE["resmlp_12_224"] = STEM | AROUND | affine("norm")
del OUTSIDE["resmlp_12_224"]["norm.weight"], OUTSIDE["resmlp_12_224"]["norm.bias"]
OUTSIDE["deit_tiny_patch16_224"] = AROUND | {
    "patch_embed.proj.weight": (D, *PATCH),
    "patch_embed.proj.bias": (D,),
    "cls_token": (1, 1, D),
    "pos_embed": (1, 5, D),
}


def state_of(name, seed=0):
    """A state dict of a tiny model, every number another."""
    shapes = dict(OUTSIDE[name])
    for layer in range(LAYERS):
        shapes |= {f"blocks.{layer}.{key}": shape for key, shape in BLOCKS[name].items()}
    numbers = np.random.default_rng(seed)
    return {key: numbers.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}


def like(name):
    """Shapes of our parameters for the same tiny model."""
    config = timm_names.config_for(name)
    config.model.update(layers=LAYERS, d_model=D, d_ffn=12, image_size=(4, 8), patch_size=PATCH[1:])
    config.model.update({key: size for key, size in {"d_spatial": 3, "heads": 2}.items() if key in config.model})
    return ImageClassification.without_data(config, CLASSES).shapes()


def converted(name, state=None):
    state = state_of(name) if state is None else state
    return timm_names.from_torch(state, timm_names.MODELS[name].rows, like(name), PATCH, "FILE")


@pytest.mark.parametrize("name", BLOCKS)
def test_there_and_back(name):
    state, params = state_of(name), converted(name)
    back = timm_names.to_timm(params, timm_names.MODELS[name].rows, PATCH)
    assert back.keys() == state.keys()
    for key, array in state.items():
        np.testing.assert_array_equal(back[key], array, strict=True)
        assert back[key].flags.c_contiguous  # as safetensors writes them


@pytest.mark.parametrize("name", BLOCKS)
def test_every_parameter_is_given_once(name):
    shapes = traverse_util.flatten_dict(like(name), sep="/")
    flat = traverse_util.flatten_dict(converted(name), sep="/")
    assert {path: leaf.shape for path, leaf in shapes.items()} == {path: leaf.shape for path, leaf in flat.items()}
    ours = np.sort(np.concatenate([leaf.ravel() for leaf in flat.values()]))
    np.testing.assert_array_equal(ours, np.sort(np.concatenate([array.ravel() for array in state_of(name).values()])))


def test_what_lies_where():
    state, params = state_of("gmlp_ti16_224"), converted("gmlp_ti16_224")
    blocks = params["encoder"]["blocks"]
    for layer in range(LAYERS):
        names = f"blocks.{layer}.mlp_channels."
        np.testing.assert_array_equal(blocks["proj_in"]["kernel"][layer], state[f"{names}fc1.weight"].T)
        np.testing.assert_array_equal(blocks["gate"]["spatial"]["weight"][layer], state[f"{names}gate.proj.weight"])
        np.testing.assert_array_equal(blocks["gate"]["norm"]["scale"][layer], state[f"{names}gate.norm.weight"])
    vit, params = state_of("deit_tiny_patch16_224"), converted("deit_tiny_patch16_224")
    np.testing.assert_array_equal(params["cls"], vit["cls_token"][0, 0])
    np.testing.assert_array_equal(params["positions"]["table"], vit["pos_embed"][0])
    qkv = params["encoder"]["blocks"]["attention"]["proj_in"]
    np.testing.assert_array_equal(qkv["kernel"][1], vit["blocks.1.attn.qkv.weight"].T)


@settings(max_examples=20, deadline=None)
@given(
    channels=st.sampled_from([1, 3]),
    patch=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    grid=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 99),
)
def test_the_stem_is_their_convolution(channels, patch, grid, seed):
    numbers = np.random.default_rng(seed)
    weight = numbers.normal(size=(D, channels, *patch)).astype(np.float32)
    image = numbers.normal(size=(1, grid[0] * patch[0], grid[1] * patch[1], channels)).astype(np.float32)
    expected = np.zeros((grid[0] * grid[1], D))
    for token, (row, column) in enumerate(np.ndindex(grid)):
        for d, c, y, x in np.ndindex(weight.shape):
            expected[token, d] += weight[d, c, y, x] * image[0, row * patch[0] + y, column * patch[1] + x, c]
    kernel = weight.transpose(timm_names.CONVOLUTION.axes).reshape(-1, D)
    assert timm_names.CONVOLUTION.shape(kernel.shape, (channels, *patch)) == weight.shape
    np.testing.assert_allclose(np.asarray(cut_patches(image, patch)[0]) @ kernel, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("norm.bias"), r"FILE does not hold .*: 1 missing \(norm.bias\)$"),
        (lambda s: s.update(extra=np.zeros(1)), r": 1 unexpected \(extra\)$"),
        (
            lambda s: s.update({"norm.bias": np.zeros(4, int)}),
            r": 1 of a type that is no weight's \(norm.bias int64\)$",
        ),
        (lambda s: s.update({"norm.bias": np.zeros(3)}), r": 1 of another shape \(norm.bias \[3\], not \[4\]\)$"),
        (
            lambda s: [s.pop(key) for key in list(s) if "fc1" in key],
            r": 4 missing \(blocks.0.mlp_channels.fc1.weight, blocks.1.mlp_channels.fc1.weight, .*, \.\.\.\)$",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named_and_counted(change, message):
    state = state_of("gmlp_ti16_224")
    change(state)
    with pytest.raises(RunError, match=message):
        converted("gmlp_ti16_224", state)


@pytest.mark.parametrize(
    ("name", "parameters"),
    # In millions, as timm counts its own (test_parity.py compares each tensor where timm is installed).
    [
        ("gmlp_ti16_224", 5.87),
        ("gmlp_s16_224", 19.42),
        ("gmlp_b16_224", 73.08),
        ("mixer_b16_224", 59.88),
        ("mixer_s32_224", 19.10),
        ("mixer_l16_224", 208.2),
        ("resmlp_12_224", 15.35),
        ("resmlp_24_224", 30.02),
        ("resmlp_36_224", 44.69),
        ("resmlp_big_24_224", 129.14),
        ("deit_tiny_patch16_224", 5.72),
        ("deit_small_patch16_224", 22.05),
        ("vit_base_patch16_224", 86.57),
        ("vit_large_patch16_224", 304.33),
    ],
)
def test_sizes(name, parameters):
    """Every row of the table is a model of timm's size, and its tensors are all of the model."""
    config = timm_names.config_for(name)
    shapes = traverse_util.flatten_dict(ImageClassification.without_data(config, 1000).shapes(), sep="/")
    shapes_alone = {path: leaf.shape for path, leaf in shapes.items()}
    places = timm_names.places(timm_names.MODELS[name].rows, shapes_alone, timm_names.patch_shape(config))
    count = sum(int(np.prod(place.shape)) for place in places)
    assert count == sum(int(np.prod(leaf.shape)) for leaf in shapes.values())
    assert count / 1e6 == pytest.approx(parameters, rel=1e-3)
