"""Mixers of vision_transformer, from their .npz files, against arithmetic written down by hand."""

import numpy as np
import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.training import pretrained
from gmlp_flax.weights import vision_transformer
from tests.failures import raised
from tests.weights import states

LAYERS = 2
PATCH = 4
SIDE = 12  # of an image: nine patches


def weights(d=8, d_ffn=12, d_spatial=6, tokens=9, classes=5):
    """A Mixer's arrays as its .npz files have them, every number another."""
    dense = {"stem": (PATCH, PATCH, 3, d), "head": (d, classes)}
    norms = ["pre_head_layer_norm"]
    for layer in range(LAYERS):
        block = f"MixerBlock_{layer}"
        norms += [f"{block}/LayerNorm_0", f"{block}/LayerNorm_1"]
        dense[f"{block}/token_mixing/Dense_0"] = (tokens, d_spatial)
        dense[f"{block}/token_mixing/Dense_1"] = (d_spatial, tokens)
        dense[f"{block}/channel_mixing/Dense_0"] = (d, d_ffn)
        dense[f"{block}/channel_mixing/Dense_1"] = (d_ffn, d)
    shapes = {}
    for name, shape in dense.items():
        shapes[f"{name}/kernel"] = shape
    for name, shape in dense.items():
        shapes[f"{name}/bias"] = shape[-1:]
    for name in norms:
        shapes[f"{name}/scale"] = (d,)
        shapes[f"{name}/bias"] = (d,)
    numbers = np.random.default_rng(0)
    arrays = {}
    for name, shape in shapes.items():
        arrays[name] = (0.5 * numbers.normal(size=shape)).astype(np.float32)
    return arrays


def layer_norm(w, name, x):
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
    return centred / deviation * w[f"{name}/scale"] + w[f"{name}/bias"]


def mlp(w, name, x):
    """With Flax's GELU, the tanh form."""
    y = x @ w[f"{name}/Dense_0/kernel"] + w[f"{name}/Dense_0/bias"]
    y = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    return y @ w[f"{name}/Dense_1/kernel"] + w[f"{name}/Dense_1/bias"]


def slow_logits(arrays, pixels):
    """The logits of one image in [-1, 1], patch by patch and layer by layer."""
    w = {name: array.astype(np.float64) for name, array in arrays.items()}
    tokens = []
    for top in range(0, SIDE, PATCH):
        for left in range(0, SIDE, PATCH):
            patch = pixels[top : top + PATCH, left : left + PATCH]
            products = patch[..., None] * w["stem/kernel"]
            tokens.append(products.sum((0, 1, 2)))
    x = np.stack(tokens) + w["stem/bias"]
    for layer in range(LAYERS):
        block = f"MixerBlock_{layer}"
        columns = layer_norm(w, f"{block}/LayerNorm_0", x).T
        x = x + mlp(w, f"{block}/token_mixing", columns).T
        rows = layer_norm(w, f"{block}/LayerNorm_1", x)
        x = x + mlp(w, f"{block}/channel_mixing", rows)
    pooled = layer_norm(w, "pre_head_layer_norm", x).mean(0)
    return pooled @ w["head/kernel"] + w["head/bias"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    sizes = {"d_ffn": 12, "d_spatial": 6, "image_size": (SIDE, SIDE)}
    states.shrink(monkeypatch, "mixer_b16_224", **sizes)


@pytest.mark.parametrize("name", ["Mixer-B_16.npz", "imagenet21k-Mixer-B_16.npz"])
def test_the_same_logits(tmp_path, name):
    arrays = weights()
    np.savez(tmp_path / name, **arrays)
    model = pretrained.load(tmp_path / name)
    assert model.config.model.activation == "gelu_tanh"
    assert len(model.classes) == 5
    pixels = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    [found] = model.task.apply(model.params, pixels[None])
    np.testing.assert_allclose(found, slow_logits(arrays, pixels / 127.5 - 1), atol=1e-4)


def test_what_is_missing_has_timms_name(tmp_path):
    arrays = weights()
    del arrays["MixerBlock_1/token_mixing/Dense_1/bias"]
    np.savez(tmp_path / "Mixer-B_16.npz", **arrays)
    message = raised(RunError, pretrained.load, tmp_path / "Mixer-B_16.npz")
    assert "1 missing (blocks.1.mlp_tokens.fc2.bias)" in message


def test_a_mixer_of_timm_keeps_its_activation(tmp_path):
    state, _ = states.of_timm("mixer_b16_224", 3)
    states.write(tmp_path / "mixer_b16_224.safetensors", state)
    assert pretrained.config_of(tmp_path / "mixer_b16_224.safetensors").model.activation == "gelu"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("Mixer-B_16.npz", "mixer_b16_224"),
        ("gs://mixer_models/imagenet1k/Mixer-L_16.npz", "mixer_l16_224"),
        ("gsam-Mixer-S_32.npz", "mixer_s32_224"),
        ("ViT-B_16.npz", ""),
        ("Mixer-XL_16.npz", ""),
        ("mixer_b16_224.npz", ""),
    ],
)
def test_which_model_a_file_is_named_after(path, name):
    assert vision_transformer.model_of(path) == name


def test_other_arrays_are_no_mixer():
    assert vision_transformer.is_mixer(weights())
    assert not vision_transformer.is_mixer({"stem.proj.weight": np.ones(1)})
