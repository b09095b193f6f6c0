"""A model with other classes, image sizes or dtypes."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from gmlp_flax import config as config_lib
from gmlp_flax.api import changes
from gmlp_flax.api.changes import Changes
from gmlp_flax.errors import ConfigError
from tests.failures import raised
from tests.training import tiny


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (2, ["0", "1"]),
        (np.int32(3), ["0", "1", "2"]),
        (["cat", "dog"], ["cat", "dog"]),
        (("cat",), ["cat"]),
        (np.array(["a", "b"]), ["a", "b"]),
        (range(5, 7), ["5", "6"]),
        ((str(number) for number in range(2)), ["0", "1"]),
    ],
)
def test_class_names_are_changed(classes, expected):
    assert changes.class_names(classes, "create") == expected


@pytest.mark.parametrize("classes", [0, -1, 2.5, "cat", [], ["a", "a"], [1, "1"], None])
def test_invalid_names_are_refused(classes):
    message = raised(ConfigError, changes.class_names, classes, "load('x')")
    assert message.startswith("load('x'): classes is ")


def test_change_without_arguments_copies_the_model():
    config = tiny.image_config()
    task = changes.changed_task(config, {"names.json": b"[]"}, Changes(), "load")
    assert task.files == {"names.json": b"[]"}
    changed = config_lib.differences(config, task.config)
    assert changed.keys() <= {"model.toeplitz", "mesh.data"}


def test_other_classes_image_sizes_and_dtypes():
    config = tiny.image_config()
    other = Changes(["cat", "dog"], 16, jnp.bfloat16, {"layers": 3})
    task = changes.changed_task(config, {}, other, "load")
    assert json.loads(task.files["classes.json"]) == ["cat", "dog"]
    model = task.config.model
    assert model.image_size == (16, 16)
    assert model.dtype == "bfloat16"
    assert model.layers == 3
    assert config.model.image_size == (8, 8)  # the config itself does not change
    assert config.model.layers == 2


def test_language_model_becomes_a_classifier(tmp_path):
    config = tiny.text_config(tmp_path)
    task = changes.changed_task(config, {}, Changes(("no", "yes")), "load")
    assert task.config.task == "text_classification"
    assert tuple(task.class_names) == ("no", "yes")
    assert task.config.model.d_model == config.model.d_model


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Changes(dtype="float16"), "float16"),
        (Changes(dtype=3), "dtype is 3"),
        (Changes(dtype=object()), "dtype is"),
        (Changes(image_size=0), "image_size"),
        (Changes(image_size=(8, 9)), "image_size"),
        (Changes(image_size="8"), "image_size"),
        (Changes(options={"layer": 3}), "layer"),
        (Changes(options={"layers": "three"}), "layers"),
        (Changes(options={"layers": -1}), "layers"),
    ],
)
def test_invalid_values_are_refused(change, words):
    config = tiny.image_config()
    message = raised(ConfigError, changes.changed_task, config, {}, change, "load('x')")
    assert words in message


def test_task_without_classes_is_refused():
    config = config_lib.default(task="tests.training.tiny:Line")
    message = raised(ConfigError, changes.changed_task, config, {}, Changes(2), "load('x')")
    assert "tests.training.tiny:Line" in message
