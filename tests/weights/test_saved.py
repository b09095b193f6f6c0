"""Every format of weights is opened as a `SavedModel`, which reads its weights when asked."""

import dataclasses

import pytest

from gmlp_flax.io import weight_files
from gmlp_flax.weights import exports
from gmlp_flax.weights.saved import SavedModel


def test_weights_are_read_on_demand(monkeypatch):
    """They are read each time, so that no second copy is kept in memory."""
    paths = []
    read = weight_files.read

    def count(path):
        paths.append(path)
        return read(path)

    monkeypatch.setattr(weight_files, "read", count)
    folder = exports.shipped()["digits"]
    saved = exports.open_export(folder)
    assert isinstance(saved, SavedModel)
    assert saved.where == folder
    assert saved.config.task == "image_classification"
    assert not paths
    first = saved.read()
    assert saved.read() is not first
    assert paths == [f"{folder}/model.safetensors"] * 2


def test_saved_models_cannot_be_changed():
    saved = exports.open_export(exports.shipped()["digits"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        saved.where = "elsewhere"
