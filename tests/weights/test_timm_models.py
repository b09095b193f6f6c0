"""The tables between timm's state dicts and our parameters, with shapes written by hand."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.weights import imagenet, timm
from tests.weights import states

LAYERS = 2
D = 4
CLASSES = 5
PATCH = (3, 2, 2)  # images of 4 x 4 in patches of 2 x 2: four tokens


def dense(name, *shape):
    """Linear weights are [out, in], convolutions [out, in, h, w]."""
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def mlp(name, inner, width=D):
    first = dense(f"{name}.fc1", inner, width)
    second = dense(f"{name}.fc2", width, inner)
    return first | second


def affine(name):
    return {f"{name}.alpha": (1, 1, D), f"{name}.beta": (1, 1, D)}


def norm(name, width=D):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


# The parameters of timm's modules in each family: those of a block, and those outside the blocks.
HEAD = dense("head", CLASSES, D)
STEM = dense("stem.proj", D, *PATCH)
BLOCKS = {
    "gmlp_ti16_224": {
        **norm("norm"),
        **dense("mlp_channels.fc1", 12, D),
        **norm("mlp_channels.gate.norm", 6),
        **dense("mlp_channels.gate.proj", 4, 4),
        **dense("mlp_channels.fc2", D, 6),
    },
    "mixer_b16_224": {
        **norm("norm1"),
        **norm("norm2"),
        **mlp("mlp_channels", 12),
        **mlp("mlp_tokens", 3, 4),
    },
    "resmlp_12_224": {
        **affine("norm1"),
        **affine("norm2"),
        **mlp("mlp_channels", 12),
        **dense("linear_tokens", 4, 4),
        "ls1": (D,),
        "ls2": (D,),
    },
    "deit_tiny_patch16_224": {
        **norm("norm1"),
        **norm("norm2"),
        **mlp("mlp", 12),
        **dense("attn.qkv", 3 * D, D),
        **dense("attn.proj", D, D),
    },
}
OUTSIDE = {
    "gmlp_ti16_224": {**STEM, **HEAD, **norm("norm")},
    "mixer_b16_224": {**STEM, **HEAD, **norm("norm")},
    "resmlp_12_224": {**STEM, **HEAD, **affine("norm")},
    "deit_tiny_patch16_224": {
        **HEAD,
        **norm("norm"),
        **dense("patch_embed.proj", D, *PATCH),
        "cls_token": (1, 1, D),
        "pos_embed": (1, 5, D),
    },
}


def state_of(name, seed=0):
    """A random state dict of a tiny model."""
    shapes = dict(OUTSIDE[name])
    for layer in range(LAYERS):
        for key, shape in BLOCKS[name].items():
            shapes[f"blocks.{layer}.{key}"] = shape
    rng = np.random.default_rng(seed)
    state = {}
    for key, shape in shapes.items():
        numbers = rng.normal(size=shape)
        state[key] = numbers.astype(np.float32)
    return state


def like(name):
    """Shapes of our parameters for the same tiny model."""
    config = timm.config_for(name)
    _, *patch_size = PATCH
    config.model.update(layers=LAYERS, d_model=D, d_ffn=12)
    config.model.update(image_size=(4, 4), patch_size=tuple(patch_size))
    if "d_spatial" in config.model:
        config.model.d_spatial = 3
    if "heads" in config.model:
        config.model.heads = 2
    task = ImageClassification(config, imagenet.class_files(CLASSES))
    return task.shapes()


def converted(name, state):
    return timm.from_timm(state, name, like(name), "FILE")


@pytest.mark.parametrize("name", BLOCKS)
def test_converting_to_torch_restores_the_state_dict(name):
    state = state_of(name)
    params = converted(name, state)
    shapes = jax.tree.map(np.shape, params)
    expected = jax.tree.map(np.shape, like(name))
    assert shapes == expected
    rows = timm.MODELS[name].rows
    restored = states.to_torch(params, rows)
    assert restored.keys() == state.keys()
    for key, array in state.items():
        assert_array_equal(restored[key], array, strict=True)


def test_parameters_of_a_gmlp_are_those_of_timms_layers():
    state = state_of("gmlp_ti16_224")
    blocks = converted("gmlp_ti16_224", state)["encoder"]["blocks"]
    for layer in range(LAYERS):
        channels = f"blocks.{layer}.mlp_channels"
        kernel = blocks["proj_in"]["kernel"][layer]
        fc1 = state[f"{channels}.fc1.weight"]
        assert_array_equal(kernel, fc1.T)
        spatial_weights = blocks["gate"]["spatial"]["weight"]
        spatial = spatial_weights[layer]
        assert_array_equal(spatial, state[f"{channels}.gate.proj.weight"])
        scales = blocks["gate"]["norm"]["scale"]
        scale = scales[layer]
        assert_array_equal(scale, state[f"{channels}.gate.norm.weight"])


def test_parameters_of_a_vit_are_those_of_timms_layers():
    state = state_of("deit_tiny_patch16_224")
    params = converted("deit_tiny_patch16_224", state)
    cls_token = state["cls_token"][0, 0]
    assert_array_equal(params["cls"], cls_token)
    table = params["positions"]["table"]
    assert_array_equal(table, state["pos_embed"][0])
    attention = params["encoder"]["blocks"]["attention"]
    kernel_of_second_layer = attention["proj_in"]["kernel"][1]
    weight = state["blocks.1.attn.qkv.weight"]
    assert_array_equal(kernel_of_second_layer, weight.T)


def test_stem_kernels_read_rows_of_pixels():
    """Torch's convolution is [out, channel, row, column], our kernel [row * column * channel,
    out]."""
    state = state_of("mixer_b16_224")
    kernel = converted("mixer_b16_224", state)["stem"]["kernel"]
    for row in range(2):
        for column in range(2):
            for channel in range(3):
                pixel = row * 2 + column
                index = pixel * 3 + channel
                weights = state["stem.proj.weight"][:, channel, row, column]
                assert_array_equal(kernel[index], weights)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gmlp_s16_224", (30, 256, 1536, (16, 16), (224, 224))),
        ("mixer_b32_224", (12, 768, 3072, (32, 32), (224, 224))),
        ("resmlp_big_24_224", (24, 768, 3072, (8, 8), (224, 224))),
        ("deit3_base_patch16_384", (12, 768, 3072, (16, 16), (384, 384))),
        ("vit_so400m_patch14_siglip_gap_224", (27, 1152, 4304, (14, 14), (224, 224))),
    ],
)
def test_models_have_their_published_sizes(name, sizes):
    """They are those of their papers and of timm."""
    model = timm.config_for(name).model
    found = (model.layers, model.d_model, model.d_ffn, model.patch_size, model.image_size)
    assert found == sizes
