"""Weights of timm's: which model a file is of, its classes, its pixels, and its logits."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from gmlp_flax import config as config_lib
from gmlp_flax.analysis import figure_files, filters
from gmlp_flax.data.images import views
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.tasks.data.images import evaluation_example
from gmlp_flax.training import pretrained
from gmlp_flax.weights import imagenet, timm
from tests.failures import raised
from tests.weights import states
from tests.weights.test_timm_models import LAYERS, converted, state_of

GMLP = "gmlp_s16_224"
VIT = "deit_tiny_patch16_224"


@pytest.fixture
def tiny(monkeypatch):
    """A tiny gMLP in gmlp_s16_224's place."""
    return states.shrink(monkeypatch, GMLP)


def write_file(folder, name, classes=3):
    """A file of weights named after its model; returns its path and our parameters."""
    state, params = states.of_timm(name, classes)
    path = folder / f"{name}.safetensors"
    states.write(path, state)
    return path, params


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("gmlp_s16_224.safetensors", "gmlp_s16_224"),
        ("weights/gmlp_s16_224.ra3_in1k.pth", "gmlp_s16_224"),
        ("gs://bucket/resmlp_12_224.fb_in1k.safetensors", "resmlp_12_224"),
        ("Mixer-B_16.npz", "mixer_b16_224"),
        ("imagenet1k_Mixer-L_16.npz", "imagenet1k_Mixer-L_16"),
        ("model.safetensors", "model"),
        (".safetensors", ""),
    ],
)
def test_files_are_named_after_their_model(path, name):
    assert timm.named_after(path) == name


def test_a_file_is_a_model(tiny, tmp_path):
    """Its parameters, its classes and its answers, and what the commands draw of it."""
    path, params = write_file(tmp_path, tiny)
    model = pretrained.load(path)
    jax.tree.map(np.testing.assert_array_equal, model.params, params)
    assert model.step == 0
    assert model.folder == ""
    assert model.unaveraged is None
    assert model.classes == ("class 0", "class 1", "class 2")
    photo = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    logits = np.asarray(model.task.apply(params, model.transform(photo)[None]))[0]
    [[ranked]] = model.predict([tmp_path / "photo.png"], top=3)
    got = [name for name, _ in ranked]
    expected = [f"class {label}" for label in np.argsort(-logits)]
    assert got == expected
    assert filters.matrices(model).shape == (2, 16, 16)
    [figure] = figure_files.save({"filters": filters.figure(model)}, str(tmp_path))
    assert figure == str(tmp_path / "figures" / "filters.png")


def test_a_file_of_torch(tiny, tmp_path):
    """Also one in half precision, and within a checkpoint of a training script."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra: parity)")
    state, params = states.of_timm(tiny, 3)
    tensors = {name: torch.tensor(array) for name, array in state.items()}
    torch.save({"state_dict": tensors, "epoch": 3}, tmp_path / f"{tiny}.pth")
    model = pretrained.load(tmp_path / f"{tiny}.pth")
    jax.tree.map(np.testing.assert_array_equal, model.params, params)
    half = {name: tensor.half() for name, tensor in tensors.items()}
    torch.save(half, tmp_path / f"{tiny}.half.pth")
    model = pretrained.load(tmp_path / f"{tiny}.half.pth")

    def assert_rounded(found, whole):
        np.testing.assert_array_equal(found, whole.astype(np.float16).astype(np.float32))

    jax.tree.map(assert_rounded, model.params, params)


def test_the_words_of_imagenet(tiny, tmp_path):
    path, params = write_file(tmp_path, tiny, classes=1000)
    model = pretrained.load(path)
    synsets = json.loads(imagenet.class_files(1000)["classes.json"])
    assert model.classes == tuple(synsets)
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    seen = model.transform(pixels)
    best = int(np.argmax(model.task.apply(params, seen[None])))
    [[[(answer, _), *_]]] = model.predict([pixels])
    assert answer == model.predictor.names[best]


def test_models_that_are_not_here():
    message = raised(RunError, timm.config_for, "gmlp_s16_224.ra3_in1k")
    assert "'gmlp_s16_224'" in message
    assert "rename it" in raised(RunError, timm.config_for, "resnet50", "rename it")


@pytest.mark.parametrize("head", [{}, {"head.bias": np.zeros(0, np.float32)}])
def test_weights_without_a_head_are_not_read(tiny, tmp_path, head):
    """They have the classes of ImageNet, and the head is named as missing."""
    state, _ = states.of_timm(tiny, 3)
    del state["head.weight"], state["head.bias"]
    path = tmp_path / f"{tiny}.safetensors"
    states.write(path, {**state, **head})
    opened = timm.open_file(str(path))
    assert len(json.loads(opened.files["classes.json"])) == 1000
    assert "head.weight" in raised(RunError, opened.read)


def test_more_classes_than_there_are(tiny, tmp_path, monkeypatch):
    path, _ = write_file(tmp_path, tiny)
    monkeypatch.setattr(timm, "MOST_CLASSES", 2)
    message = raised(RunError, timm.open_file, str(path))
    assert "3 classes" in message
    assert str(path) in message


# What config.json says.


def described(folder, **more):
    """A folder as timm's `save_for_hf` writes it, opened."""
    return timm.open_described(
        str(folder / "model.safetensors"), {"architecture": GMLP, "num_classes": 3, **more}
    )


@pytest.fixture
def hub(tiny, tmp_path):
    """The folder of such a model."""
    state, _ = states.of_timm(tiny, 3)
    states.write(tmp_path / "model.safetensors", state)
    return tmp_path


def test_a_folder_says_how_pixels_are_seen(hub):
    pixels = {"mean": [0.0, 0.0, 0.0], "std": [1, 1, 1], "crop_pct": 0.9}
    opened = described(hub, pretrained_cfg={**pixels, "interpolation": "bicubic"})
    assert opened.where == str(hub / "model.safetensors")
    data = opened.config.data
    assert data.mean == (0, 0, 0)
    assert data.std == (1, 1, 1)
    assert data.eval_crop == 0.9
    assert data.transform == "timm"
    usual = described(hub).config.data
    assert usual.mean == (0.5,) * 3
    assert usual.std == (0.5,) * 3
    assert usual.eval_crop == 0.875


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model_args": {"global_pool": "max"}}, "{'global_pool': 'max'}"),
        ({"pretrained_cfg": {"crop_mode": "squash"}}, "{'crop_mode': 'squash'}"),
        ({"pretrained_cfg": {"interpolation": "nearest"}}, "{'interpolation': 'nearest'}"),
        ({"pretrained_cfg": {"mean": "red"}}, "mean"),
        ({"pretrained_cfg": {"mean": [1, 2]}}, "mean"),
        ({"pretrained_cfg": {"std": [0, 0, 0]}}, "std"),
        ({"pretrained_cfg": {"crop_pct": []}}, "config.json"),
        ({"pretrained_cfg": 3}, "config.json"),
        ({"model_args": [1]}, "config.json"),
        ({"architecture": "resnet50"}, "'resnet50'"),
        ({"architecture": None}, "'None'"),
    ],
)
def test_what_a_config_says_that_is_not_here(hub, more, words):
    assert words in raised((RunError, ConfigError), described, hub, **more)


# Tensors that our block has elsewhere.


def test_a_scaled_branch_and_positions_of_patches_alone():
    """DeiT III's tensors as those of the same function: the scale in the layer before it, and
    nothing added to cls."""
    state = state_of(VIT)
    expected = converted(VIT, state)["encoder"]["blocks"]
    scale = np.float32([1, 2, 4, 8])
    cut = {**state, "pos_embed": state["pos_embed"][:, 1:]}
    for layer in range(LAYERS):
        cut[f"blocks.{layer}.ls1.gamma"] = scale
        cut[f"blocks.{layer}.ls2.gamma"] = np.full(4, 2, np.float32)
        del cut[f"blocks.{layer}.attn.qkv.bias"]
    found = converted(VIT, cut)
    positions = found["positions"]["table"]
    np.testing.assert_array_equal(positions[0], 0)
    np.testing.assert_array_equal(positions[1:], state["pos_embed"][0, 1:])
    blocks = found["encoder"]["blocks"]
    attention = blocks["attention"]
    for name, array in expected["attention"]["out"].items():
        np.testing.assert_array_equal(attention["out"][name], array * scale)
    kernel = expected["mlp"]["proj_out"]["kernel"]
    np.testing.assert_array_equal(blocks["mlp"]["proj_out"]["kernel"], 2 * kernel)
    np.testing.assert_array_equal(attention["proj_in"]["bias"], 0)


@pytest.mark.parametrize(
    "odd",
    [
        {"blocks.0.ls1.gamma": np.float32(1), "cls_token": np.zeros(4, np.float32)},
        {"blocks.0.ls1.gamma": np.ones(3, np.float32)},
        {"pos_embed": np.float32(1)},
        {"cls_token": np.zeros((0,), np.float32)},
    ],
)
def test_odd_tensors_of_a_vit_are_one_line(odd):
    state = state_of(VIT)
    assert "FILE" in raised(RunError, converted, VIT, {**state, **odd})


# How pixels are seen.


def test_a_model_of_timm_sees_timms_pixels(tiny, tmp_path):
    """By the path of `gmlp predict`: a photograph, scaled and then cropped; and in a run that
    starts from it, too."""
    path, _ = write_file(tmp_path, tiny)
    model = pretrained.load(path)
    photo = np.random.default_rng(0).integers(0, 256, (40, 53, 3), np.uint8)
    view = evaluation_example(model.config)
    seen = view({"image": photo, "name": "photo", "label": 0})["image"]
    np.testing.assert_array_equal(seen, views.timm_view(photo, (16, 16), 0.875))
    np.testing.assert_array_equal(seen, model.transform(photo))
    exact = views.exact_view(photo, (16, 16), 0.875)
    assert np.abs(seen.astype(int) - exact).max() > 1
    config = config_lib.default(task="image_classification")
    assert config.data.transform == "exact"
    start = config_lib.Start("runs/timm", model.config, {})
    resolved = config_lib.resolve(config, lambda _: start)
    assert resolved.config.data.transform == "timm"
