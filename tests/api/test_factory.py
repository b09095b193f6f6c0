"""Models created by name, and loaded from every kind of source, unchanged or for other classes and
sizes."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import gmlp_flax as gf
from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.errors import RunError, UserError
from gmlp_flax.models import parameters
from gmlp_flax.weights import exports
from tests.failures import raised

TINY = {"layers": 2, "d_model": 16, "d_ffn": 32}


def test_names():
    gmlps = gf.list_models("gmlp*")
    assert {"gmlp_ti", "gmlp_s", "gmlp_base", "gmlp_s16_224"} <= set(gmlps)
    names = gf.list_models()
    assert names == sorted(names)
    assert {"mixer", "vit", "amlp_base", "bert_base"} <= set(names)
    assert gf.list_models("nothing*") == []
    assert gf.list_pretrained("nothing*") == []


PARTS_OF_A_CARD = (
    "license: apache-2.0",
    "| this model |",
    "Made by `scripts/pretrained.sh`",
    "Data: ",
)
# An input for each shipped model, and a word that is among its answers.
INPUTS = {
    "books_amlp_causal": ("He did not know what to", "do"),
    "books_gmlp": ("He put his hand in his [MASK] and drew out a letter.", "hand"),
    "digits": (embedded_digits("heldout").examples.images[0], "0"),
}


def test_shipped_models_are_listed():
    """They have at most 8 MB, and each has a card: data, license, scores with baselines, the command;
    and no absolute path."""
    names = gf.list_pretrained()
    assert names == list(INPUTS)
    size = 0
    for name in names:
        folder = pathlib.Path(exports.shipped()[name])
        for file in folder.iterdir():
            size += file.stat().st_size
        card = (folder / "README.md").read_text()
        for part in PARTS_OF_A_CARD:
            assert part in card, name
        assert card.count("\n| ") >= 3
        config = (folder / "config.json").read_text()
        assert not re.search(r"\"/|/tmp|/home", config)
    assert size < 8 * 2**20


@pytest.mark.parametrize("name", INPUTS)
def test_answers_of_shipped_models(name):
    input, expected = INPUTS[name]
    model = gf.load(name)
    [predictions] = model.predict([input], top=5)
    [candidates] = predictions
    words = []
    for word, _ in candidates:
        words.append(word.strip())
    assert expected in words


@pytest.mark.parametrize(
    "name", ["gmlp_s", "vit", "mixer", "amlp_base", "deit_tiny_patch16_224", "fnet_hybrid"]
)
def test_each_kind_is_created(name):
    options = dict(TINY)
    if name in ("vit", "deit_tiny_patch16_224", "fnet_hybrid"):
        options["heads"] = 2
    model = gf.create(name, dtype=jnp.bfloat16, seed=1, **options)
    again = gf.create(name, dtype="bfloat16", seed=1, **options)
    other = gf.create(name, dtype="bfloat16", seed=2, **options)
    assert model.config.model.dtype == "bfloat16"
    assert parameters.count(model.params) > 1000
    with_same_seed = jax.tree.map(np.array_equal, model.params, again.params)
    assert jax.tree.all(with_same_seed)
    with_other_seed = jax.tree.map(np.array_equal, model.params, other.params)
    assert not jax.tree.all(with_other_seed)


def test_text_models_with_a_tokenizer():
    model = gf.create("gmlp_base", length=16, tokenizer="bytes", **TINY)
    assert model.config.model.vocab_size == 261
    [[ranked]] = model.predict("A [MASK]", top=2)
    assert len(ranked) == 2
    classifier = gf.create("gmlp_base", classes=3, length=16, tokenizer="bytes", **TINY)
    assert classifier.config.task == "text_classification"
    [[ranked]] = classifier.predict("A text")
    names = {name for name, _ in ranked}
    assert names == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gmlp_x", {}, "did you mean 'gmlp_"),
        ("gmlp_s", {"classes": 0}, "classes is 0"),
        ("gmlp_s", {"classes": ("a", "a")}, "different names"),
        ("gmlp_s", {"image_size": 50}, "do not tile"),
        ("gmlp_base", {"image_size": 32}, "image_size"),
        ("gmlp_s", {"mesh": {"rows": 2}}, "an axis 'rows'"),
        ("gmlp_s", {"num_classes": 10}, "no option 'num_classes': did you mean 'classes'"),
        ("gmlp_s", {"dtype": 3}, "dtype is 3"),
        ("gmlp_s", {"dtype": "float16"}, "float16"),
        ("gmlp_s", {"layer": 2}, "layer"),
        ("gmlp_base", {"tokenizer": "no/such/file"}, "no/such/file"),
        ("gmlp_s16_224", {"pretrained": True}, "load takes trained weights"),
        ("digits", {}, "load('digits')"),
        ("gmlp_s", {"mesh": "fsdp"}, "mesh is 'fsdp'"),
    ],
)
def test_create_refuses_invalid_arguments(name, options, message):
    error_message = raised(UserError, gf.create, name, **TINY, **options)
    assert message in error_message


def test_numpy_numbers_and_names_are_accepted():
    """As data sets contain them."""
    names = np.array(["a", "b"])
    size = np.int64(32)
    named = gf.create("gmlp_s", classes=names, image_size=size, **TINY)
    assert named.classes == ("a", "b")
    assert named.config.model.image_size == (32, 32)
    count = np.int32(3)
    counted = gf.create("gmlp_s", classes=count, image_size=32, **TINY)
    assert counted.classes == ("0", "1", "2")


def spatial_of(model):
    """The spatial weights of a model, [layers, tokens, tokens]."""
    gate = model.params["encoder"]["blocks"]["gate"]
    return gate["spatial"]["weight"]


def test_run_is_loaded_for_other_classes_and_another_size(image_run, capsys):
    model = gf.load(image_run)
    larger = gf.load(image_run, classes=["a", "b", "c"], image_size=16, dtype="bfloat16")
    assert "head/" in capsys.readouterr().err
    assert larger.classes == ("a", "b", "c")
    assert larger.config.model.image_size == (16, 16)
    assert model.step == 12
    assert larger.step == 12
    head = larger.params["head"]
    assert head["kernel"].shape == (16, 3)
    stem = model.params["stem"]
    larger_stem = larger.params["stem"]
    assert_array_equal(larger_stem["kernel"], stem["kernel"])
    assert spatial_of(model).shape == (2, 16, 16)
    assert spatial_of(larger).shape == (2, 64, 64)
    pixels = np.zeros((2, 16, 16, 1), np.uint8)
    assert larger.logits(pixels).shape == (2, 3)
    features = larger.features(pixels[:1])
    assert features.dtype == jnp.bfloat16


def test_language_model_becomes_a_classifier(text_run, capsys):
    model = gf.load(text_run)
    classifier = gf.load(text_run, classes=("no", "yes"))
    assert "newly initialized" in capsys.readouterr().err
    assert classifier.config.task == "text_classification"
    assert classifier.tokenizer == model.tokenizer
    embedding = model.params["embedding"]
    assert_array_equal(classifier.params["embedding"], embedding)
    [[ranked]] = classifier.predict("A name.")
    names = {name for name, _ in ranked}
    assert names == {"no", "yes"}


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("gmlp_s", {}, "create('gmlp_s') makes one"),
        ("books_gmpl", {}, "did you mean 'books_gmlp'"),
        ("gmlp_s16_224.safetensors", {"checkpoint": 3}, "no checkpoint '3'"),
        ("books_gmlp", {"image_size": 32}, "masked_lm with gmlp has no model.image_size"),
        ("digits", {"classes": 2.5}, "classes is 2.5"),
        ("digits", {"dtype": "int8"}, "int8"),
        ("digits", {"mesh": "fsdp"}, "mesh is 'fsdp'"),
        ("digits", {"mesh": {"rows": 2}}, "an axis 'rows'"),
        ("digits", {"mesh": {"fsdp": 3}}, "config.mesh"),
    ],
)
def test_load_refuses_invalid_arguments(source, options, words):
    message = raised(UserError, gf.load, source, **options)
    assert words in message


def test_folder_named_like_an_architecture_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gmlp_s").mkdir()
    assert "gmlp_s is not a run folder" in raised(RunError, gf.load, "gmlp_s")


def test_model_on_a_mesh(text_run):
    sizes = {"data": 1, "fsdp": 1}
    devices = jax.make_mesh((1, 1), ("data", "fsdp"))
    for mesh in (sizes, devices):
        model = gf.load(text_run, mesh=mesh)
        assert dict(model.partition.mesh.shape) == {"data": 1, "fsdp": 1, "tensor": 1}


def test_vocabulary_reading_is_reported(tmp_path, capsys):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Haus", "Garten", "schön", "##e"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    vocabulary = str(tmp_path / "vocab.txt")
    model = gf.create("gmlp_base", length=16, tokenizer=vocabulary, **TINY)
    assert model.tokenizer.encode("schöne") == [7, 8]
    stderr = capsys.readouterr().err
    assert "vocab.txt: text is not lower-cased, accents are kept" in stderr
