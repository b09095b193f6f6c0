"""Every kind of trained model: how it is named, what is read of it, and what is refused."""

import json
import os
import shutil
import socket

import fsspec
import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

import gmlp_flax
from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import RunError, UserError
from gmlp_flax.interop import exported
from gmlp_flax.training import pretrained, warm_start
from gmlp_flax.training.partition import Partition
from gmlp_flax.weights import exports
from tests import hub_server, preloaded
from tests.failures import raised
from tests.runs.command import assert_one_line_error
from tests.training import sources
from tests.weights import states


@pytest.fixture(scope="module")
def folder(image_run, text_run, tmp_path_factory):
    """A folder with a model in each form."""
    pytest.importorskip("tokenizers", reason="the extra `wordpiece` is not installed")
    made = tmp_path_factory.mktemp("sources")
    with pytest.MonkeyPatch.context() as patched:
        sources.shrink(patched)
        sources.write(made, image_run, text_run)
        yield made


ALL = pytest.mark.parametrize("form", sources.FORMS)


def input_for(model):
    """An input that a model accepts."""
    if model.transform is None:
        return "the [MASK] of"
    return np.full((8, 8), 99, np.uint8)


# Every kind of source, for everything that takes one.


@ALL
def test_each_form_is_loaded(folder, form):
    """Its parameters fit its config, and it answers."""
    path = sources.path(folder, form)
    opened = pretrained.open_model(path)
    model = opened.load()
    model_input = input_for(model)
    [predictions] = model.predict([model_input], top=2)
    assert len(predictions[0]) == 2
    differences = gmlp_config.differences(model.config, opened.config)
    assert differences == {}
    assert opened.where.startswith(str(folder))
    is_run = form in ("run", "checkpoint", "run of text")
    step = 12 if is_run else 0
    assert opened.step == step
    assert model.step == step
    has_folder = is_run or form in ("export", "exported weights")
    assert bool(opened.folder) == has_folder


@ALL
def test_config_is_read_without_weights(folder, form, monkeypatch):
    """No weight is read, and no device is touched."""
    source = sources.path(folder, form)
    expected = pretrained.open_model(source).config
    monkeypatch.setattr(Partition, "make", None)
    found = pretrained.config_of(source)
    assert gmlp_config.differences(found, expected) == {}


@pytest.mark.slow
@ALL
def test_each_form_is_exported(folder, form, tmp_path):
    """The model that is read back predicts the same."""
    source = sources.path(folder, form)
    model = pretrained.load(source)
    exported.export(model, str(tmp_path / "out"))
    again = pretrained.load(tmp_path / "out")
    jax.tree.map(assert_array_equal, again.params, model.params)
    inputs = [input_for(model)]
    answers = model.predict(inputs)
    assert again.predict(inputs) == answers


@ALL
def test_run_starts_from_each_form(folder, form):
    """It has the parameters of the source, and the config and files that `gmlp train` and `gmlp plan`
    inherit."""
    source = sources.path(folder, form)
    model = pretrained.load(source)
    config = pretrained.config_of(source)
    config.init_from = source
    start = warm_start.read_start(config)
    shared = model.task.inheritance.shared
    model_files = model.task.files
    expected = {name: model_files[name] for name in shared}
    assert start.files == expected
    resolved = gmlp_config.resolve(config, warm_start.read_start)
    kind = type(model.task)
    task = kind(resolved.config, model.task.files)
    params = warm_start.load(task, Partition.make())
    jax.tree.map(assert_array_equal, params, model.params)


@ALL
def test_path_may_end_in_a_slash_or_be_relative(folder, form, monkeypatch):
    path = sources.path(folder, form)
    expected = pretrained.config_of(path)
    monkeypatch.chdir(folder)
    name = sources.FORMS[form]
    for relative in (name, f"./{name}"):
        found = pretrained.config_of(relative)
        assert gmlp_config.differences(found, expected) == {}
    if os.path.isdir(path):
        found = pretrained.config_of(f"{path}/")
        assert gmlp_config.differences(found, expected) == {}


@pytest.mark.parametrize("form", ["export", "exported weights", "folder of bert", "file of timm"])
def test_paths_that_are_not_local(folder, form):
    """As in a bucket."""
    remote = "memory://sources"
    files = fsspec.filesystem("memory")
    if not files.exists(remote):
        files.put(str(folder), remote, recursive=True)
    path = sources.FORMS[form]
    model = pretrained.load(f"{remote}/{path}")
    local_path = sources.path(folder, form)
    here = pretrained.load(local_path)
    jax.tree.map(assert_array_equal, model.params, here.params)


# A run.


def test_checkpoint_of_a_run(text_run):
    opened = pretrained.open_model(text_run, "6")
    assert opened.step == 6
    assert opened.where == f"{text_run}/checkpoints/6"
    named = pretrained.open_model(f"{text_run}/checkpoints/6")
    assert named.step == 6
    assert named.where == f"{text_run}/checkpoints/6"
    opened_step = pretrained.open_model(f"{text_run}/checkpoints/6", "6")
    assert opened_step.step == 6
    assert pretrained.open_model(text_run, "latest").step == 12
    first = opened.load().params
    second = pretrained.load(text_run, "latest").params
    is_same = np.array_equal(first["embedding"], second["embedding"])
    assert not is_same


def test_best_checkpoint_follows_its_metric(text_run):
    lines = (text_run / "metrics.jsonl").read_text().splitlines()
    perplexities = {}
    for line in lines:
        record = json.loads(line)
        if "eval" in record:
            perplexities[record["step"]] = record["eval"]["perplexity"]
    best = min(perplexities, key=perplexities.get)
    assert pretrained.open_model(text_run).step == best


def test_ema_and_raw_parameters(image_run):
    opened = pretrained.open_model(image_run)
    assert opened.load().unaveraged is None
    model = opened.load(unaveraged=True)
    loaded = opened.load()
    jax.tree.map(assert_array_equal, model.params, loaded.params)
    is_same = jax.tree.map(np.array_equal, model.params, model.unaveraged)
    assert not jax.tree.all(is_same)


def test_run_without_ema(text_run):
    model = pretrained.open_model(text_run).load(unaveraged=True)
    assert model.unaveraged is None


def test_error_for_a_damaged_checkpoint_names_the_others(text_run, tmp_path):
    run = shutil.copytree(text_run, tmp_path / "run")
    opened = pretrained.open_model(run, "12")
    checkpoint = run / "checkpoints" / "12"
    shutil.rmtree(checkpoint / "state")
    for function in (opened.load, lambda: pretrained.load(run, "12")):
        message = raised(RunError, function)
        assert f"{run}/checkpoints/12" in message
        assert message.endswith("the run also has checkpoint 6")
    shutil.rmtree(run / "checkpoints" / "6")
    assert raised(RunError, opened.load).endswith("it is the only one")


def test_config_may_be_overridden(image_run):
    """By keys that change no shape; those that do are refused."""
    opened = pretrained.open_model(image_run)
    config = gmlp_config.mutable_copy(opened.config)
    config.eval.batch_size = 7
    assert opened.load(config).config.eval.batch_size == 7
    config.model.d_model = 12
    message = raised(RunError, opened.load, config)
    assert opened.where in message
    assert "[16" in message


# A model object.


def test_model_object_is_accepted(image_run):
    model = pretrained.open_model(image_run).load(unaveraged=True)
    opened = pretrained.open_model(model)
    again = opened.load(unaveraged=True)
    assert again.step == model.step
    assert again.folder == model.folder
    assert again.classes == model.classes
    jax.tree.map(assert_array_equal, again.params, model.params)
    jax.tree.map(assert_array_equal, again.unaveraged, model.unaveraged)
    made = gmlp_flax.create("gmlp_s", layers=1, d_model=8, d_ffn=16, classes=2)
    loaded = pretrained.open_model(made).load(unaveraged=True)
    assert loaded.unaveraged is None


# Names.


def test_models_shipped_with_the_package(folder, tmp_path, monkeypatch):
    """The name of a folder of the package is accepted; an existing path comes first."""
    monkeypatch.setattr(exports, "SHIPPED", folder)
    monkeypatch.chdir(tmp_path)
    assert exports.shipped().keys() == {"bert", "exported", "fnet", "timm"}
    assert gmlp_flax.list_pretrained("exp*") == ["exported"]
    opened = pretrained.open_model("exported")
    assert opened.where == str(folder / "exported")
    assert pretrained.exported_folder("exported") == str(folder / "exported")
    (tmp_path / "exported").mkdir()
    new_exported = str(tmp_path / "exported")
    assert pretrained.find("exported").folder == new_exported
    message = raised(RunError, pretrained.open_model, "exported")
    assert str(tmp_path / "exported") in message


@ALL
def test_exported_folders_are_recognized(folder, form):
    found = pretrained.exported_folder(sources.path(folder, form))
    expected = ""
    if form in ("export", "exported weights"):
        expected = str(folder / "exported")
    assert found == expected


# What is refused, each in one line.


def test_folder_with_two_kinds_is_refused(folder, tmp_path):
    """A run with exported weights in its folder: either can be read by a longer name."""
    run = shutil.copytree(folder / "digits", tmp_path / "run")
    shutil.copy(folder / "exported" / "model.safetensors", run)
    message = raised(RunError, pretrained.open_model, run)
    assert "a run and exported weights" in message
    assert str(run) in message
    checkpoint = pretrained.open_model(run / "checkpoints" / "12")
    assert checkpoint.step == 12
    assert pretrained.open_model(run / "model.safetensors").step == 0


def test_config_of_two_libraries(folder, tmp_path):
    both = {**sources.DESCRIBED, **states.DESCRIBED["bert"]}
    shutil.copy(folder / "timm" / "model.safetensors", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(both))
    for source in (tmp_path, tmp_path / "model.safetensors"):
        message = raised(RunError, pretrained.open_model, source)
        assert "a model of timm and a model of transformers" in message


CONFIG = '{"task": "masked_lm"}'
TIMM = json.dumps(sources.DESCRIBED)
FAMILY = json.dumps(states.DESCRIBED["fnet"])


@pytest.mark.parametrize(
    ("files", "name", "words"),
    [
        ({}, "", "is not a run folder"),
        ({}, "none", "none is not a run folder"),
        ({}, "checkpoints/3", "config.json"),
        ({}, "gmlp_s16_224.safetensors", "gmlp_s16_224.safetensors"),
        ({}, "gmlp_s16.safetensors", "'gmlp_s16_224'"),
        ({"wrong.safetensors": "x"}, "wrong.safetensors", "named after its model"),
        ({"gmlp_s16_224.pth": "x"}, "gmlp_s16_224.pth", "gmlp_s16_224.pth"),
        ({"gmlp_s16_224.safetensors": "x"}, "gmlp_s16_224.safetensors", "is damaged"),
        ({"Mixer-B_16.npz": "x"}, "Mixer-B_16.npz", "is damaged"),
        ({"config.json": "{"}, "", "config.json"),
        ({"config.json": "[]"}, "", "config.json"),
        ({"config.json": "\x00"}, "", "config.json"),
        ({"config.json": "{}"}, "", "is not a run folder"),
        ({"config.json": '{"id": 3}'}, "", "describes no model"),
        ({"config.json": '{"model_type": "t5"}'}, "", "that gmlp_flax has (model_type 't5'): "),
        ({"config.json": '{"model_type": ["bert"]}'}, "", "describes no model"),
        ({"config.json": CONFIG}, "", "no checkpoint in"),
        ({"config.json": CONFIG, "checkpoints/note": ""}, "", "no checkpoint in"),
        ({"config.json": TIMM}, "", "no model.safetensors and no pytorch_model.bin"),
        ({"config.json": TIMM, "model.safetensors": "x"}, "", "is damaged"),
        ({"config.json": TIMM, "pytorch_model.bin": "x"}, "", "pytorch_model.bin"),
        ({"config.json": FAMILY}, "", "no model.safetensors and no pytorch_model.bin"),
        ({"config.json": FAMILY, "model.safetensors": "x"}, "", "is damaged"),
        ({"config.json": '{"architecture": 3}', "model.safetensors": "x"}, "", "'3'"),
    ],
)
def test_invalid_paths_are_refused(tmp_path, files, name, words):
    for file, content in files.items():
        path = tmp_path / "it" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    source = str(tmp_path / "it" / name) if name else str(tmp_path / "it")
    message = raised(UserError, pretrained.load, source)
    assert words in message
    assert str(tmp_path) in message
    config = gmlp_config.default(task="text_classification")
    config.init_from = source
    assert f"config.init_from is {source}: " in raised(UserError, warm_start.read_start, config)


@pytest.mark.parametrize(
    ("form", "checkpoint"),
    [
        ("export", "12"),
        ("exported weights", "3"),
        ("file of timm", "last"),
        ("folder of bert", "0"),
        ("run", "7"),
        ("run", "last"),
        ("checkpoint", "6"),
    ],
)
def test_missing_checkpoint_is_refused(folder, form, checkpoint):
    path = sources.path(folder, form)
    message = raised(RunError, pretrained.open_model, path, checkpoint)
    assert checkpoint in message


def test_missing_step_is_refused(text_run):
    message = raised(RunError, pretrained.open_model, f"{text_run}/checkpoints/7")
    assert "'7'" in message
    assert "6, 12" in message


# A hub on this machine, and real commands.


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "images" / "a.png"
    path.parent.mkdir()
    Image.new("L", (8, 8), 100).save(path)
    return path


@pytest.fixture
def hub():
    pytest.importorskip(
        "huggingface_hub", reason="huggingface_hub is not installed (extra: weights)"
    )
    with hub_server.serve() as server:
        yield server


def predict(image, model, cache, endpoint, **variables):
    settings = {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    return preloaded.gmlp("predict", f"--workdir={model}", image, **settings, **variables)


@pytest.mark.slow
def test_hub_model_is_cached_for_offline_use(folder, image, hub, tmp_path):
    """The second time, no server answers: the client's cache has all files of one commit."""
    files = {file.name: file.read_bytes() for file in (folder / "exported").iterdir()}
    hub["me/digits"] = files
    commit = hub.commit("me/digits")
    online = predict(image, "hf-hub:me/digits", tmp_path, hub.url)
    assert online.returncode == 0, online.stderr
    assert online.stdout.startswith(f"{image}: ")
    for offline in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:1"}):
        settings = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path), **offline}
        again = preloaded.gmlp("predict", "--workdir=hf-hub:me/digits", image, **settings)
        assert again.stdout == online.stdout, again.stderr
    snapshot = tmp_path / "models--me--digits" / "snapshots" / commit
    names = {file.name for file in snapshot.iterdir()}
    assert "README.md" in files
    assert names == {"config.json", "model.safetensors", "classes.json"}


@pytest.mark.slow
def test_repositories_without_a_model_are_refused(image, hub, tmp_path):
    hub["me/other"] = {"README.md": b"#"}
    hub["me/config"] = {"config.json": b'{"id": 3}'}
    hub["me/weights"] = {"config.json": TIMM.encode()}
    words_of_errors = {
        "me/none": ("config.json of hf-hub:me/none", "check the name"),
        "me/other": ("config.json of hf-hub:me/other", "check the name"),
        "a/b/c": ("hf-hub:a/b/c",),
        "me/config": ("hf-hub:me/config describes no model",),
        "me/weights": ("pytorch_model.bin of hf-hub:me/weights",),
    }
    for name, words in words_of_errors.items():
        done = predict(image, f"hf-hub:{name}", tmp_path, hub.url)
        assert_one_line_error(done, *words)


@pytest.mark.slow
def test_unreachable_hub_is_one_line(image, tmp_path):
    """A refused connection, and a server that never answers, on which it gives up after seconds."""
    pytest.importorskip(
        "huggingface_hub", reason="huggingface_hub is not installed (extra: weights)"
    )
    done = predict(image, "hf-hub:me/x", tmp_path, "http://127.0.0.1:1")
    assert_one_line_error(done, "hf-hub:me/x", "the network")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = predict(image, "hf-hub:me/x", tmp_path, url)
    assert_one_line_error(done, "hf-hub:me/x", "the network")
