"""A class is the same class in every kind of source: models trained on each kind of source score the
same images in the form of each other kind equally, or refuse them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gmlp_flax as gf
from gmlp_flax import config as config_lib
from gmlp_flax.api import examples
from gmlp_flax.errors import UserError
from gmlp_flax.tasks.data import config as data_config
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.tasks.data.images import ImageData
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.training import model as model_lib
from tests.api.class_sources import (
    COUNT,
    NUMBERS,
    SOURCES,
    WORDS,
    Images,
    arrays,
    images_of,
    numbers,
    small_config,
)
from tests.failures import raised


def perfect_model(data, folder):
    """A model with the classes of a run on these data. It answers with the class whose level is the
    brightness of an image."""
    config = small_config()
    stored = str(folder / "stored")
    keys = examples.store({"train": data}, config, stored)
    config.update_from_flattened_dict(keys)
    assets = ImageData(config, RunFiles()).assets()
    config.data.train = data_config.EMBEDDED
    resolved = config_lib.resolve(config)
    task = ImageClassification(resolved.config, assets)
    params = task.init(jax.random.key(0))
    # The states of one grey have the same norm at each level, so that each is nearest to itself.
    names = WORDS if set(task.classes) == set(WORDS) else NUMBERS
    levels = []
    for name in task.classes:
        levels.append(names.index(name))
    images = Images(names, levels)
    pixels = jnp.asarray(images.pixels)
    states = task.features(params, pixels, pool="mean")
    head = params["head"]
    head["kernel"] = jnp.asarray(states).T
    return model_lib.place(task, params)


NAMES = {"numbers": NUMBERS, "words": WORDS}


def classes_of(names, trained):
    """The classes of a model that is trained on a source, in order."""
    if trained in ("declared parquet", "datasets"):
        return NAMES[names]
    if names == "words" and trained != "arrays of numbers":
        return sorted(WORDS)
    return NUMBERS


def is_scored(names, trained, scored):
    """Positions without names equal the names of numbers, and no other names."""
    without_names = [trained, scored].count("arrays of numbers")
    return names == "numbers" or without_names in (0, 2)


def outcome(model, data):
    """The accuracy of a model, or the message of the error."""
    try:
        return gf.evaluate(model, data)["top1"]
    except UserError as error:
        return str(error)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """A function that gives the outcome of a model on held-out images from each kind of source. Equal
    models are evaluated once."""
    known = {}

    def find(model, heldout):
        key = (config_lib.to_json(model.config), *model.task.files.items(), *heldout.names)
        if key not in known:
            folder = tmp_path_factory.mktemp("heldout")
            found = {}
            for scored, source in SOURCES.items():
                found[scored] = outcome(model, source(heldout, folder / scored))
            known[key] = found
        return known[key]

    return find


@pytest.mark.slow
@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("trained", SOURCES)
def test_each_source_is_scored_by_each_other(tmp_path, outcomes, names, trained):
    images = images_of(NAMES[names], 0)
    train = SOURCES[trained](images, tmp_path / "train")
    model = perfect_model(train, tmp_path)
    expected = tuple(classes_of(names, trained))
    assert model.classes == expected
    heldout = images_of(NAMES[names], 1)
    for scored, found in outcomes(model, heldout).items():
        if is_scored(names, trained, scored):
            assert found == 1.0, scored
        else:
            assert "class" in found, scored
            assert "\n" not in found, scored
    # a consumer of logits takes their position as the class
    logits = model.logits(heldout.pixels)
    predicted = np.asarray(logits).argmax(-1)
    if is_scored(names, trained, "folders"):
        predicted_names = []
        for position in predicted:
            predicted_names.append(model.classes[position])
        assert predicted_names == heldout.named()


def test_labels_shifted_by_one_are_refused(tmp_path):
    """Classes 1 to 12 and labels 0 to 11: most would be scored as their neighbor."""
    names = []
    for number in range(1, COUNT + 1):
        names.append(str(number))
    images = images_of(names, 0)
    config = small_config()
    data = {"train": arrays(images, tmp_path)}
    stored = str(tmp_path / "stored")
    keys = examples.store(data, config, stored)
    config.update_from_flattened_dict(keys)
    assets = ImageData(config, RunFiles()).assets()
    config.data.train = data_config.EMBEDDED
    resolved = config_lib.resolve(config).config
    task = ImageClassification(resolved, assets)
    params = task.init(jax.random.key(0))
    model = model_lib.place(task, params)
    message = raised(UserError, gf.evaluate, model, numbers(images, tmp_path))
    assert "'0'" in message
    assert "'1', '2', '3'" in message
