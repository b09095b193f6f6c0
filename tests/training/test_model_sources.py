"""Which files the name of a trained model stands for."""

import pytest

from gmlp_flax.errors import DataError
from gmlp_flax.training.model_sources import find
from tests.failures import raised


@pytest.mark.parametrize("name", ["run", "run/"])
def test_folder_is_found(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"task": "masked_lm"}')
    source = find(name)
    assert source.folder == str(tmp_path / "run")
    assert source.described == {"task": "masked_lm"}
    assert source.has("config.json")
    assert not source.has("weights")
    assert source.file == ""
    assert source.step == ""
    assert source.repository == ""


def test_checkpoint_is_found(tmp_path):
    source = find(str(tmp_path / "run" / "checkpoints" / "12"))
    assert source.folder == str(tmp_path / "run")
    assert source.step == "12"


def test_numbered_folder_outside_checkpoints_is_a_folder(tmp_path):
    source = find(str(tmp_path / "runs" / "12"))
    assert source.folder == str(tmp_path / "runs" / "12")
    assert source.step == ""


def test_file_of_weights_is_found(tmp_path):
    file = tmp_path / "gmlp_s16_224.safetensors"
    file.touch()
    source = find(str(file))
    assert source.folder == str(tmp_path)
    assert source.file == file.name


def test_damaged_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    assert "config.json" in raised(DataError, find, str(tmp_path))
