"""Mixers in .npz files of vision_transformer, compared with a slow version of the model."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gmlp_flax.errors import RunError
from gmlp_flax.training import pretrained
from gmlp_flax.weights import vision_transformer
from tests.failures import raised
from tests.weights import states

LAYERS = 2
PATCH = 4
SIDE = 12  # of an image: nine patches


def weights(d=8, d_ffn=12, d_spatial=6, tokens=9, classes=5):
    """Random arrays of a Mixer, as its .npz files have them."""
    stem_shape = (PATCH, PATCH, 3, d)
    dense = {"stem": stem_shape, "head": (d, classes)}
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
        *_, outputs = shape
        shapes[f"{name}/kernel"] = shape
        shapes[f"{name}/bias"] = (outputs,)
    for name in norms:
        shapes[f"{name}/scale"] = (d,)
        shapes[f"{name}/bias"] = (d,)
    rng = np.random.default_rng(0)
    arrays = {}
    for name, shape in shapes.items():
        values = 0.5 * rng.normal(size=shape)
        arrays[name] = values.astype(np.float32)
    return arrays


def layer_norm(w, name, x):
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    variance = (centred**2).mean(-1, keepdims=True)
    deviation = np.sqrt(variance + 1e-6)
    normalized = centred / deviation
    scaled = normalized * w[f"{name}/scale"]
    return scaled + w[f"{name}/bias"]


def dense(w, name, x):
    return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]


def gelu(x):
    """Flax's GELU, the tanh form."""
    cubic = x + 0.044715 * x**3
    factor = np.sqrt(2 / np.pi)
    tanh = np.tanh(factor * cubic)
    return x / 2 * (1 + tanh)


def mlp(w, name, x):
    hidden = gelu(dense(w, f"{name}/Dense_0", x))
    return dense(w, f"{name}/Dense_1", hidden)


def slow_logits(arrays, pixels):
    """The logits of one image in [-1, 1], patch by patch and layer by layer."""
    w = {}
    for name, array in arrays.items():
        w[name] = array.astype(np.float64)
    tokens = []
    for top in range(0, SIDE, PATCH):
        for left in range(0, SIDE, PATCH):
            patch = pixels[top : top + PATCH, left : left + PATCH]
            products = patch[..., None] * w["stem/kernel"]
            tokens.append(products.sum((0, 1, 2)))
    stacked = np.stack(tokens)
    x = stacked + w["stem/bias"]
    for layer in range(LAYERS):
        block = f"MixerBlock_{layer}"
        normed = layer_norm(w, f"{block}/LayerNorm_0", x)
        columns = normed.T
        mixed = mlp(w, f"{block}/token_mixing", columns)
        x = x + mixed.T
        rows = layer_norm(w, f"{block}/LayerNorm_1", x)
        x = x + mlp(w, f"{block}/channel_mixing", rows)
    normalized = layer_norm(w, "pre_head_layer_norm", x)
    pooled = normalized.mean(0)
    return dense(w, "head", pooled)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    sizes = {"d_ffn": 12, "d_spatial": 6, "image_size": (SIDE, SIDE)}
    states.shrink(monkeypatch, "mixer_b16_224", **sizes)


@pytest.mark.parametrize("name", ["Mixer-B_16.npz", "imagenet21k-Mixer-B_16.npz"])
def test_mixers_have_the_logits_of_the_slow_reference(tmp_path, name):
    arrays = weights()
    np.savez(tmp_path / name, **arrays)
    model = pretrained.load(tmp_path / name)
    assert model.config.model.activation == "gelu_tanh"
    assert len(model.classes) == 5
    rng = np.random.default_rng(1)
    shape = (SIDE, SIDE, 3)
    pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    batch = pixels[None]
    (logits,) = model.task.apply(model.params, batch)
    expected = slow_logits(arrays, pixels / 127.5 - 1)
    assert_allclose(logits, expected, atol=1e-4)


def test_missing_arrays_are_reported_with_timms_names(tmp_path):
    arrays = weights()
    del arrays["MixerBlock_1/token_mixing/Dense_1/bias"]
    path = tmp_path / "Mixer-B_16.npz"
    np.savez(path, **arrays)
    message = raised(RunError, pretrained.load, path)
    assert "1 missing (blocks.1.mlp_tokens.fc2.bias)" in message


def test_mixers_of_timm_keep_their_activation(tmp_path):
    state, _ = states.of_timm("mixer_b16_224", 3)
    path = tmp_path / "mixer_b16_224.safetensors"
    states.write(path, state)
    config = pretrained.config_of(path)
    assert config.model.activation == "gelu"


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
def test_files_are_named_after_their_model(path, name):
    assert vision_transformer.model_of(path) == name


def test_mixers_are_recognised_by_their_arrays():
    assert vision_transformer.is_mixer(weights())
    assert not vision_transformer.is_mixer({"stem.proj.weight": np.ones(1)})
