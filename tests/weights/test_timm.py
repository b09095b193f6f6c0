"""Weights of timm: the model of a file, its classes, its pixels, and its logits."""

import json

import jax
import numpy as np
import pytest
from flax import traverse_util
from numpy.testing import assert_array_equal
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
    """A tiny gMLP in place of gmlp_s16_224."""
    return states.shrink(monkeypatch, GMLP)


def noise(*shape: int) -> np.ndarray:
    """A random image of bytes."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, shape, dtype=np.uint8)


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


def test_files_are_opened_as_models(tiny, tmp_path):
    path, params = write_file(tmp_path, tiny)
    model = pretrained.load(path)
    jax.tree.map(assert_array_equal, model.params, params)
    assert model.step == 0
    assert model.folder == ""
    assert model.unaveraged is None
    assert model.classes == ("class 0", "class 1", "class 2")


def test_predictions_rank_the_classes_by_their_logits(tiny, tmp_path):
    path, params = write_file(tmp_path, tiny)
    model = pretrained.load(path)
    photo = noise(20, 24, 3)
    photo_path = tmp_path / "photo.png"
    Image.fromarray(photo).save(photo_path)
    pixels = model.transform(photo)
    logits_of_batch = model.task.apply(params, pixels[None])
    (logits,) = np.asarray(logits_of_batch)
    ((ranked,),) = model.predict([photo_path], top=3)
    names = [name for name, _ in ranked]
    order = np.argsort(-logits)
    assert names == [f"class {label}" for label in order]


def test_filters_of_files_are_drawn(tiny, tmp_path):
    path, _ = write_file(tmp_path, tiny)
    model = pretrained.load(path)
    matrices = filters.matrices(model)
    assert matrices.shape == (2, 16, 16)
    figure = filters.figure(model)
    (figure_path,) = figure_files.save({"filters": figure}, str(tmp_path))
    assert figure_path == str(tmp_path / "figures" / "filters.png")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed (extra: parity)")


def test_torch_checkpoints_of_training_scripts_are_read(torch, tiny, tmp_path):
    state, params = states.of_timm(tiny, 3)
    tensors = {}
    for name, array in state.items():
        tensors[name] = torch.tensor(array)
    path = tmp_path / f"{tiny}.pth"
    torch.save({"state_dict": tensors, "epoch": 3}, path)
    model = pretrained.load(path)
    jax.tree.map(assert_array_equal, model.params, params)


def test_torch_files_in_half_precision_are_read(torch, tiny, tmp_path):
    state, params = states.of_timm(tiny, 3)
    tensors = {}
    for name, array in state.items():
        tensors[name] = torch.tensor(array).half()
    path = tmp_path / f"{tiny}.half.pth"
    torch.save(tensors, path)
    model = pretrained.load(path)

    def assert_rounded(rounded, exact):
        half = exact.astype(np.float16)
        assert_array_equal(rounded, half.astype(np.float32))

    jax.tree.map(assert_rounded, model.params, params)


def test_models_of_a_thousand_classes_have_imagenets_names(tiny, tmp_path):
    path, params = write_file(tmp_path, tiny, classes=1000)
    model = pretrained.load(path)
    content = imagenet.class_files(1000)["classes.json"]
    synsets = json.loads(content)
    assert model.classes == tuple(synsets)
    photo = noise(16, 16, 3)
    pixels = model.transform(photo)
    batch = pixels[None]
    (logits,) = model.task.apply(params, batch)
    best = int(np.argmax(logits))
    ((ranked,),) = model.predict([photo])
    name, _ = ranked[0]
    assert name == model.predictor.names[best]


def test_unsupported_models_are_refused():
    message = raised(RunError, timm.config_for, "gmlp_s16_224.ra3_in1k")
    assert "'gmlp_s16_224'" in message
    assert "rename it" in raised(RunError, timm.config_for, "resnet50", "rename it")


@pytest.mark.parametrize("head", [{}, {"head.bias": np.zeros(0, np.float32)}])
def test_weights_without_a_head_are_refused(tiny, tmp_path, head):
    """They have the classes of ImageNet, and the head is named as missing."""
    state, _ = states.of_timm(tiny, 3)
    del state["head.weight"]
    del state["head.bias"]
    path = tmp_path / f"{tiny}.safetensors"
    states.write(path, {**state, **head})
    opened = timm.open_file(str(path))
    classes = json.loads(opened.files["classes.json"])
    assert len(classes) == 1000
    assert "head.weight" in raised(RunError, opened.read)


def test_too_many_classes_are_refused(tiny, tmp_path, monkeypatch):
    path, _ = write_file(tmp_path, tiny)
    monkeypatch.setattr(timm, "MOST_CLASSES", 2)
    message = raised(RunError, timm.open_file, str(path))
    assert "3 classes" in message
    assert str(path) in message


# The content of config.json


def open_described(folder, **values):
    """Opens a folder that timm's `save_for_hf` wrote, with these values in config.json."""
    path = str(folder / "model.safetensors")
    content = {"architecture": GMLP, "num_classes": 3, **values}
    return timm.open_described(path, content)


@pytest.fixture
def hub(tiny, tmp_path):
    """A folder with the weights of a model."""
    state, _ = states.of_timm(tiny, 3)
    states.write(tmp_path / "model.safetensors", state)
    return tmp_path


def test_config_json_sets_the_normalization(hub):
    values = {
        "mean": [0.0, 0.0, 0.0],
        "std": [1, 1, 1],
        "crop_pct": 0.9,
        "interpolation": "bicubic",
    }
    opened = open_described(hub, pretrained_cfg=values)
    assert opened.where == str(hub / "model.safetensors")
    data = opened.config.data
    assert data.mean == (0, 0, 0)
    assert data.std == (1, 1, 1)
    assert data.eval_crop == 0.9
    assert data.transform == "timm"


def test_normalisation_has_the_models_defaults(hub):
    data = open_described(hub).config.data
    assert data.mean == (0.5, 0.5, 0.5)
    assert data.std == (0.5, 0.5, 0.5)
    assert data.eval_crop == 0.875


@pytest.mark.parametrize(
    ("values", "words"),
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
def test_unsupported_config_json_is_refused(hub, values, words):
    errors = (RunError, ConfigError)
    message = raised(errors, open_described, hub, **values)
    assert words in message


# Tensors that are merged into others


def test_scales_of_branches_are_merged_into_the_layer_before():
    """As in DeiT III. Without a bias of queries, keys and values, ours is 0."""
    state = state_of(VIT)
    unscaled = converted(VIT, state)["encoder"]["blocks"]
    expected = traverse_util.flatten_dict(unscaled, sep="/")
    scale = np.float32([1, 2, 4, 8])
    for layer in range(LAYERS):
        state[f"blocks.{layer}.ls1.gamma"] = scale
        state[f"blocks.{layer}.ls2.gamma"] = np.full(4, 2, np.float32)
        del state[f"blocks.{layer}.attn.qkv.bias"]
    blocks = converted(VIT, state)["encoder"]["blocks"]
    found = traverse_util.flatten_dict(blocks, sep="/")
    for name in ("attention/out/kernel", "attention/out/bias"):
        scaled = scale * expected[name]
        assert_array_equal(found[name], scaled)
    assert_array_equal(found["attention/proj_in/bias"], 0)
    kernel = "mlp/proj_out/kernel"
    doubled = 2 * expected[kernel]
    assert_array_equal(found[kernel], doubled)


def test_positions_of_patches_add_nothing_to_cls():
    """DeiT III has no position of [CLS]."""
    state = state_of(VIT)
    positions = state["pos_embed"][:, 1:]
    state["pos_embed"] = positions
    table = converted(VIT, state)["positions"]["table"]
    assert_array_equal(table[0], 0)
    assert_array_equal(table[1:], positions[0])


@pytest.mark.parametrize(
    "odd",
    [
        {"blocks.0.ls1.gamma": np.float32(1), "cls_token": np.zeros(4, np.float32)},
        {"blocks.0.ls1.gamma": np.ones(3, np.float32)},
        {"pos_embed": np.float32(1)},
        {"cls_token": np.zeros((0,), np.float32)},
    ],
)
def test_invalid_tensors_of_a_vit_are_refused_in_one_line(odd):
    state = {**state_of(VIT), **odd}
    assert "FILE" in raised(RunError, converted, VIT, state)


# Pixels


def test_models_of_timm_have_timms_pixels(tiny, tmp_path):
    """Photographs are resized and then cropped."""
    path, _ = write_file(tmp_path, tiny)
    model = pretrained.load(path)
    photo = noise(40, 53, 3)
    record = {"image": photo, "name": "photo", "label": 0}
    view = evaluation_example(model.config)
    pixels = view(record)["image"]
    expected = views.timm_view(photo, (16, 16), 0.875)
    assert_array_equal(pixels, expected)
    assert_array_equal(pixels, model.transform(photo))
    exact = views.exact_view(photo, (16, 16), 0.875)
    differences = pixels.astype(int) - exact
    assert np.abs(differences).max() > 1


def test_runs_that_start_from_timm_have_timms_pixels(tiny, tmp_path):
    path, _ = write_file(tmp_path, tiny)
    model = pretrained.load(path)
    config = config_lib.default(task="image_classification")
    assert config.data.transform == "exact"
    start = config_lib.Start("runs/timm", model.config, {})
    resolved = config_lib.resolve(config, lambda _: start)
    assert resolved.config.data.transform == "timm"
