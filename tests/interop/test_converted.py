"""Run folders made from somebody else's weights; tests/interop/test_timm.py and test_transformers.py use them."""

import json

import jax
import numpy as np
import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.errors import RunError
from gmlp_flax.interop import converted
from gmlp_flax.tasks.image_classification import CLASSES_FILE, ImageClassification
from gmlp_flax.training import loading

FILES = {CLASSES_FILE: json.dumps(["a", "b", "c"], indent=1).encode()}


def tiny(value=0.5):
    """Parameters that are all one number, and their config."""
    config = config_lib.default(task="image_classification")
    config.model.update(layers=1, d_model=8, d_ffn=16, image_size=(8, 8), patch_size=(4, 4), channels=1)
    config.data.train = ""
    shapes = ImageClassification.without_data(config, classes=3).shapes()
    return jax.tree.map(lambda leaf: np.full(leaf.shape, value, np.float32), shapes), config


def test_what_is_written_is_read(tmp_path):
    params, config = tiny()
    out = str(tmp_path / "run")
    converted.require_free(out)
    converted.write(params, config, FILES, out)
    trained = loading.load(out)
    assert trained.step == 0 and trained.task.classes == ("a", "b", "c")
    jax.tree.map(np.testing.assert_array_equal, trained.params, params)
    with pytest.raises(RunError, match="run holds config.json already"):
        converted.require_free(out)


@pytest.mark.parametrize(
    ("value", "names", "message"),
    [(np.nan, (), r"not finite \(\d+ such parameters\)"), (0.5, (CLASSES_FILE,), f"holds {CLASSES_FILE} already")],
)
def test_what_is_refused_leaves_the_folder_as_it_was(tmp_path, value, names, message):
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=message):
        converted.write(*tiny(value), FILES, str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(names, "mine")


def test_what_could_not_be_written_whole_is_deleted(tmp_path, monkeypatch):
    """So the same command can run again, when there is space."""
    (tmp_path / "mine.txt").write_text("mine")
    given = *tiny(), FILES, str(tmp_path)

    def full(*_, **__):
        raise RunError("no space is left")

    with monkeypatch.context() as failing, pytest.raises(RunError, match="no space"):
        failing.setattr(converted.io_files, "write", full)
        converted.write(*given)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    converted.write(*given)
    assert loading.load(str(tmp_path)).step == 0
