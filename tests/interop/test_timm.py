"""Weights of timm's as folders of models."""

import json
import sys

import jax
import numpy as np
import pytest
from PIL import Image

from gmlp_flax import config as config_lib
from gmlp_flax.analysis import figure_files, filters
from gmlp_flax.benchmarks.beside_torch import import_beside_torch
from gmlp_flax.data.images import views
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.interop import timm
from gmlp_flax.io import weight_files
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.training import evaluation, loading, warm_start
from tests.failures import raised
from tests.interop import states

TINY = {"layers": 2, "d_model": 8, "d_ffn": 16, "image_size": (16, 16), "patch_size": (4, 4)}


@pytest.fixture
def tiny(monkeypatch):
    """A tiny gMLP as a row of the table, in gmlp_s16_224's place."""
    model = timm.MODELS["gmlp_s16_224"]
    monkeypatch.setitem(timm.MODELS, "gmlp_s16_224", model._replace(model=model.model | TINY))
    return "gmlp_s16_224"


def random_state(name, classes, seed=0):
    """A state dict for a row of the table, and our parameters with the same numbers."""
    config = timm.config_for(name)
    shapes = ImageClassification.without_data(config, classes=classes).shapes()
    numbers = np.random.default_rng(seed)
    params = jax.tree.map(
        lambda leaf: (0.3 * numbers.normal(size=leaf.shape)).astype(np.float32), shapes
    )
    return states.to_torch(params, timm.MODELS[name].rows), params


def write_image(path, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def converted(tiny, tmp_path):
    """The folder of a converted model of three classes that evaluates on four images, and its
    parameters."""
    state, params = random_state(tiny, 3)
    for number, label in enumerate((0, 1, 2, 2)):
        write_image(tmp_path / "images" / f"class {label}" / f"{number}.png", number)
    config = timm.config_for(tiny)
    config.data.heldout = str(tmp_path / "images")
    states.write_timm(state, config, tiny, str(tmp_path / "run"))
    return tmp_path / "run", params


def test_a_converted_folder_is_a_run_folder(converted, tmp_path):
    run, params = converted
    trained = loading.load(str(run), "best")
    assert trained.step == 0 and trained.task.classes == trained.task.names == (
        "class 0",
        "class 1",
        "class 2",
    )
    jax.tree.map(np.testing.assert_array_equal, trained.params, params)
    path = tmp_path / "images" / "class 1" / "1.png"
    pixels = trained.task.evaluation_example({"image": path.read_bytes(), "name": "1", "label": 1})[
        "image"
    ]
    logits = np.asarray(trained.task.apply(params, pixels[None]))[0]
    ((ranked,),) = trained.task.predict(trained.weights, [str(path)], top=3)
    assert [name for name, _ in ranked] == [f"class {label}" for label in np.argsort(-logits)]
    metrics, _ = evaluation.Evaluator(trained.task, trained.partition)(trained.params, trained.ema)
    assert metrics["examples"] == 4 and metrics["top5"] == 1
    assert filters.matrices(trained).shape == (2, 16, 16)
    [path] = figure_files.save({"filters": filters.figure(trained)}, str(run))
    assert path == str(run / "figures" / "filters.png")


def test_imagenets_classes(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm.data", None)  # as if timm were not installed
    files = timm.class_files(1000)
    synsets = json.loads(files.pop("classes.json"))
    assert not files
    assert len(set(synsets)) == 1000 and synsets == sorted(synsets)
    assert (synsets[0], synsets[207], synsets[999]) == ("n01440764", "n02099601", "n15075141")
    assert json.loads(timm.class_files(2)["classes.json"]) == ["class 0", "class 1"]


def test_imagenets_words(tiny, tmp_path):
    try:
        theirs = import_beside_torch("timm").data.ImageNetInfo()
    except RunError as error:
        pytest.skip(str(error))
    files = timm.class_files(1000)
    assert json.loads(files["classes.json"]) == theirs.label_names()
    assert json.loads(files["names.json"])[207] == "golden retriever"
    state, params = random_state(tiny, 1000)
    states.write_timm(state, timm.config_for(tiny), tiny, str(tmp_path / "run"))
    trained = loading.load(str(tmp_path / "run"))
    pixels = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3), dtype=np.uint8)
    # cropped, as predict does
    best = int(np.argmax(trained.task.apply(params, trained.task.encode([*pixels]))))
    assert trained.task.predict(trained.weights, [*pixels])[0][0][0][
        0
    ] == theirs.index_to_description(best)


def test_unknown_models():
    with pytest.raises(RunError, match="'gmlp_s16_224.ra3_in1k' here; did you mean 'gmlp_s16_224'"):
        timm.config_for("gmlp_s16_224.ra3_in1k")


def test_a_folder_says_how_pixels_are_seen(tmp_path):
    """As timm's `save_for_hf` writes it."""
    folder = str(tmp_path)
    states.write(tmp_path / "model.safetensors", {"a": np.ones(1, np.float32)})

    def opened(described):
        (tmp_path / "config.json").write_text(json.dumps(described))
        return timm.from_folder(folder)

    pixels = {"mean": [0.0, 0.0, 0.0], "std": [1, 1, 1], "crop_pct": 0.9}
    described = {"architecture": "mixer_b16_224", "num_classes": 5, "pretrained_cfg": pixels}
    state, config, name, where = opened(described)
    assert ([*state], name, where) == (["a"], "mixer_b16_224", f"{folder}/model.safetensors")
    assert (config.data.mean, config.data.std, config.data.eval_crop) == ((0, 0, 0), (1, 1, 1), 0.9)
    for other in (
        {"model_args": {"global_pool": "max"}},
        {"pretrained_cfg": pixels | {"crop_mode": "squash"}},
    ):
        with pytest.raises(
            RunError, match=r"has {'(global_pool|crop_mode)': '(max|squash)'}: give its file, named"
        ):
            opened(described | other)
    for odd in ({"mean": "red"}, {"mean": [1, 2]}, {"std": [0, 0, 0]}, {"crop_pct": []}):
        with pytest.raises((RunError, ConfigError), match="std|mean|config.json"):
            opened(described | {"pretrained_cfg": odd})
    assert "there is no model 'resnet50' here" in raised(
        RunError, opened, {"architecture": "resnet50"}
    )


def flax_mixer(layers=2, d=8, d_ffn=12, d_spatial=6, patch=4, tokens=9, classes=5):
    """A Mixer's arrays as vision_transformer's .npz files have them, every number another."""
    dense = {"stem": (patch, patch, 3, d), "head": (d, classes)}
    norms = ["pre_head_layer_norm"]
    for layer in range(layers):
        block = f"MixerBlock_{layer}"
        norms += [f"{block}/LayerNorm_0", f"{block}/LayerNorm_1"]
        dense |= {
            f"{block}/token_mixing/Dense_0": (tokens, d_spatial),
            f"{block}/token_mixing/Dense_1": (d_spatial, tokens),
        }
        dense |= {
            f"{block}/channel_mixing/Dense_0": (d, d_ffn),
            f"{block}/channel_mixing/Dense_1": (d_ffn, d),
        }
    shapes = {f"{name}/kernel": shape for name, shape in dense.items()}
    shapes |= {f"{name}/bias": shape[-1:] for name, shape in dense.items()}
    shapes |= {f"{name}/{part}": (d,) for name in norms for part in ("scale", "bias")}
    numbers = np.random.default_rng(0)
    return {
        name: (0.5 * numbers.normal(size=shape)).astype(np.float32)
        for name, shape in shapes.items()
    }


def flax_mixer_logits(w, pixels, patch=4):
    """Its logits for one image in [-1, 1], patch by patch and layer by layer, with Flax's GELU, the
    tanh form."""

    def norm(name, x):
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}/scale"]
            + w[f"{name}/bias"]
        )

    def mlp(name, x):
        y = x @ w[f"{name}/Dense_0/kernel"] + w[f"{name}/Dense_0/bias"]
        y = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        return y @ w[f"{name}/Dense_1/kernel"] + w[f"{name}/Dense_1/bias"]

    w, corners = (
        {name: array.astype(np.float64) for name, array in w.items()},
        range(0, len(pixels), patch),
    )
    patches = [
        pixels[top : top + patch, left : left + patch] for top in corners for left in corners
    ]
    x = (
        np.stack([(part[..., None] * w["stem/kernel"]).sum((0, 1, 2)) for part in patches])
        + w["stem/bias"]
    )
    for block in (f"MixerBlock_{layer}" for layer in range(2)):
        x = x + mlp(f"{block}/token_mixing", norm(f"{block}/LayerNorm_0", x).T).T
        x = x + mlp(f"{block}/channel_mixing", norm(f"{block}/LayerNorm_1", x))
    return norm("pre_head_layer_norm", x).mean(0) @ w["head/kernel"] + w["head/bias"]


def test_a_mixer_of_vision_transformer(tmp_path):
    """Its .npz file by the command's own path, against arithmetic written down by hand."""
    weights, config = flax_mixer(), timm.config_for("mixer_b16_224")
    np.savez(tmp_path / "Mixer.npz", **weights)
    config.model.update(
        layers=2, d_model=8, d_ffn=12, d_spatial=6, patch_size=(4, 4), image_size=(12, 12)
    )
    state = weight_files.read(str(tmp_path / "Mixer.npz"))
    states.write_timm(state, config, "mixer_b16_224", str(tmp_path / "run"))
    trained = loading.load(str(tmp_path / "run"))
    assert trained.config.model.activation == "gelu_tanh" and len(trained.task.classes) == 5
    pixels = np.random.default_rng(1).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    found = trained.task.apply(trained.params, pixels[None])[0]
    np.testing.assert_allclose(found, flax_mixer_logits(weights, pixels / 127.5 - 1), atol=1e-4)
    del state["MixerBlock_1/token_mixing/Dense_1/bias"]
    with pytest.raises(RunError, match=r"1 missing \(blocks.1.mlp_tokens.fc2.bias\)"):
        timm.read(state, config, "mixer_b16_224", "FILE")


def test_an_imported_model_sees_timms_pixels(tiny, tmp_path):
    """By the path of `gmlp predict`: a photograph, scaled and then cropped; and a run that starts
    from it, too."""
    state, _ = random_state(tiny, 3)
    states.write_timm(state, timm.config_for(tiny), tiny, str(tmp_path / "run"))
    trained, photo = (
        loading.load(str(tmp_path / "run")),
        np.random.default_rng(0).integers(0, 256, (40, 53, 3), np.uint8),
    )
    seen = trained.task.evaluation_example({"image": photo, "name": "photo", "label": 0})["image"]
    np.testing.assert_array_equal(seen, views.timm_view(photo, (16, 16), 0.875))
    assert np.abs(seen.astype(int) - views.evaluation_view(photo, (16, 16), 0.875)).max() > 1
    config = config_lib.default(task="image_classification")
    assert config.data.transform == "exact"
    inherited = warm_start.inherit_keys(config, trained.config, ImageClassification.inherited_keys)
    assert inherited.data.transform == "timm"
