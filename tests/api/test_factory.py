"""Models made anew by name, and loaded from every kind of source, unchanged or for other classes
and sizes."""

import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gmlp_flax as gf
from gmlp_flax.data.embedded import embedded_digits
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.interop import exported, timm, transformers
from gmlp_flax.io import weight_files
from gmlp_flax.models import parameters
from gmlp_flax.paper import recipes
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.training import loading, warm_start
from gmlp_flax.training.partition import Partition
from tests.failures import raised
from tests.interop import states

TINY = dict(layers=2, d_model=16, d_ffn=32)


def test_names():
    assert {"gmlp_ti", "gmlp_s", "gmlp_base", "gmlp_s16_224"} <= {*gf.list_models("gmlp*")}
    names = gf.list_models()
    assert names == sorted(names) and {"mixer", "vit", "amlp_base", "bert_base"} <= {*names}
    assert gf.list_models("nothing*") == [] and gf.list_pretrained("nothing*") == []


ASKED = {
    "books_amlp_causal": ("He did not know what to", "do"),
    "books_gmlp": ("He put his hand in his [MASK] and drew out a letter.", "hand"),
    "digits": (embedded_digits("heldout").images[0], "0"),
}


def test_models_that_ship():
    """At most 8 MB, each with a card: data, licence, scores beside baselines, the command; and no
    path of ours."""
    names, size = gf.list_pretrained(), 0
    assert names == [*ASKED]
    for name in names:
        folder = pathlib.Path(loading.shipped()[name])
        size += sum(file.stat().st_size for file in folder.iterdir())
        card = (folder / "README.md").read_text()
        assert (
            "license: apache-2.0" in card
            and "| this model |" in card
            and "Made by `scripts/pretrained.sh`" in card
        )
        assert "Data: " in card and card.count("\n| ") >= 3
        assert not re.search(r"\"/|/tmp|/home", (folder / "config.json").read_text())
        asked, answer = ASKED[name]
        [[candidates]] = gf.load(name).predict([asked], top=5)
        assert answer in [word.strip() for word, _ in candidates]
    assert size < 8 << 20


@pytest.mark.parametrize(
    "name", ["gmlp_s", "vit", "mixer", "amlp_base", "deit_tiny_patch16_224", "fnet_hybrid"]
)
def test_every_kind_is_created(name):
    options = TINY | (
        {"heads": 2} if name in ("vit", "deit_tiny_patch16_224", "fnet_hybrid") else {}
    )
    model = gf.create(name, dtype=jnp.bfloat16, seed=1, **options)
    again, other = (gf.create(name, dtype="bfloat16", seed=seed, **options) for seed in (1, 2))
    assert model.config.model.dtype == "bfloat16" and parameters.count(model.params) > 1000
    assert jax.tree.all(jax.tree.map(np.array_equal, model.params, again.params))
    assert not jax.tree.all(jax.tree.map(np.array_equal, model.params, other.params))


def test_text_models_with_a_tokenizer():
    model = gf.create("gmlp_base", length=16, tokenizer="bytes", **TINY)
    assert model.config.model.vocab_size == 261 and len(model.predict("A [MASK]", top=2)[0][0]) == 2
    classifier = gf.create("gmlp_base", classes=3, length=16, tokenizer="bytes", **TINY)
    assert (
        classifier.config.task == "text_classification"
        and len(classifier.predict("A text")[0][0]) == 3
    )


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
    ],
)
def test_bad_values_are_told_in_a_line(name, options, message):
    assert message in raised((ConfigError, RunError), gf.create, name, **TINY | options)


def test_numpys_numbers_and_names():
    """As a data set gives them."""
    named = gf.create("gmlp_s", classes=np.array(["a", "b"]), image_size=np.int64(32), **TINY)
    assert named.classes == ("a", "b") and named.config.model.image_size == (32, 32)
    assert gf.create("gmlp_s", classes=np.int32(3), image_size=32, **TINY).classes == (
        "0",
        "1",
        "2",
    )


def test_a_run_for_other_classes_and_another_size(image_run, capsys):
    model = gf.load(image_run)
    larger = gf.load(image_run, classes=["a", "b", "c"], image_size=16, dtype="bfloat16")
    assert "head/" in capsys.readouterr().err
    assert larger.classes == ("a", "b", "c") and larger.config.model.image_size == (16, 16)
    assert larger.params["head"]["kernel"].shape == (16, 3)
    np.testing.assert_array_equal(larger.params["stem"]["kernel"], model.params["stem"]["kernel"])
    old, new = (
        one.params["encoder"]["blocks"]["gate"]["spatial"]["weight"].shape
        for one in (model, larger)
    )
    assert old == (2, 16, 16) and new == (2, 64, 64)
    assert larger.logits(np.zeros((2, 16, 16, 1), np.uint8)).shape == (2, 3)
    assert larger.features(np.zeros((1, 16, 16, 1), np.uint8)).dtype == jnp.bfloat16


def test_a_language_model_becomes_a_classifier(text_run, capsys):
    model, classifier = gf.load(text_run), gf.load(text_run, classes=("no", "yes"))
    assert "initialized anew" in capsys.readouterr().err
    assert (
        classifier.config.task == "text_classification" and classifier.tokenizer == model.tokenizer
    )
    np.testing.assert_array_equal(classifier.params["embedding"], model.params["embedding"])
    assert {name for name, _ in classifier.predict("A name.")[0][0]} == {"no", "yes"}


def test_an_exported_folder(text_run, image_run, tmp_path):
    pytest.importorskip("safetensors")
    for run, given in ((text_run, "A [MASK]."), (image_run, np.full((8, 8), 99, np.uint8))):
        out = tmp_path / run.parent.name
        exported.export(gf.load(run), str(out))
        assert gf.load(out).predict(given) == gf.load(run).predict(given)
        assert gf.load(out / "model.safetensors").predict(given) == gf.load(run).predict(given)


def test_weights_of_timm(tmp_path, monkeypatch):
    pytest.importorskip("safetensors")
    small = timm.MODELS["gmlp_ti16_224"]
    small = small._replace(model=small.model | TINY | {"image_size": (32, 32)})
    monkeypatch.setattr(timm, "MODELS", {"gmlp_ti16_224": small})
    model = gf.create("gmlp_ti16_224", classes=5, seed=3)
    state = states.to_torch(jax.device_get(model.params), small.rows)
    for name in ("gmlp_ti16_224.mine.safetensors", "gmlp_ti16_224.safetensors"):
        states.write(str(tmp_path / name), state)
        found = gf.load(tmp_path / name)
        assert (
            jax.tree.all(jax.tree.map(np.array_equal, found.params, model.params))
            and len(found.classes) == 5
        )
    described = {
        "architecture": "gmlp_ti16_224",
        "num_classes": 5,
        "pretrained_cfg": {"mean": [0.1, 0.2, 0.3]},
    }
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text(json.dumps(described))
    states.write(tmp_path / "hub" / "model.safetensors", state)
    for source in (tmp_path / "hub", tmp_path / "hub" / "model.safetensors"):
        found = gf.load(source)  # with the pixels of its config.json
        assert (
            jax.tree.all(jax.tree.map(np.array_equal, found.params, model.params))
            and len(found.classes) == 5
        )
        assert found.config.data.mean == (0.1, 0.2, 0.3) and found.config.data.transform == "timm"
    states.write(str(tmp_path / "wrong.safetensors"), {"a": np.zeros(2, np.float32)})
    with pytest.raises(RunError, match="no model 'wrong'.*a file is named after its model"):
        gf.load(tmp_path / "wrong.safetensors")


@pytest.mark.parametrize("door", ["load", "init_from", "hub", "timm", "bert"])
def test_all_tensors_that_do_not_fit_are_listed(door, image_run, tmp_path, monkeypatch):
    """Missing, extra and misshapen ones in one line, of a folder, the hub, timm and Hugging Face
    alike."""
    pytest.importorskip("safetensors")
    path = tmp_path / "model.safetensors"
    if door in ("load", "init_from", "hub"):
        exported.export(gf.load(image_run), str(tmp_path))
        state = weight_files.read(str(path))
        path.unlink()
    elif door == "timm":
        small = timm.MODELS["gmlp_ti16_224"]
        small = small._replace(model=small.model | TINY | {"image_size": (32, 32)})
        monkeypatch.setitem(timm.MODELS, "gmlp_ti16_224", small)
        state = states.to_torch(
            jax.device_get(gf.create("gmlp_ti16_224", classes=5).params), small.rows
        )
        path = tmp_path / "gmlp_ti16_224.safetensors"
    else:
        config = recipes.language_model("fnet_base")
        config.model.update(
            transformers.FRAME, vocab_size=9, d_model=8, d_ffn=12, length=4, layers=1, token_types=2
        )
        shapes = MaskedLanguageModeling.without_data(config).shapes()
        params = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes)
        state = states.to_torch(params, transformers.FAMILIES["fnet"])
        (tmp_path / "config.json").write_text('{"model_type": "fnet"}')
    names = [
        name
        for name in sorted(state)
        if "word" not in name and state[name].ndim > 0 and "head" not in name
    ]
    changed = {f"extra{i}": np.ones(1, np.float32) for i in range(10)} | state
    missing, wrong = names[:2], names[2:5]
    for name in missing:
        del changed[name]
    states.write(str(path), changed | {name: np.ones((1, 2, 3, 4), np.float32) for name in wrong})
    monkeypatch.setattr(
        weight_files, "fetch", lambda repository, name, *_, **__: str(tmp_path / name)
    )
    opened = {
        "load": lambda: gf.load(tmp_path),
        "init_from": lambda: warm_start.load(
            gf.load(image_run).task, Partition.make(), loading.open_source(tmp_path)
        ),
        "hub": lambda: gf.load("hf-hub:me/it"),
        "timm": lambda: gf.load(path),
        "bert": lambda: gf.load(path),
    }
    with pytest.raises(RunError) as caught:
        opened[door]()
    message = str(caught.value)
    assert "\n" not in message and "2 missing (" in message and "3 of another shape (" in message
    assert (
        "10 unexpected (extra0, " in message
        and message.count("extra") == 8
        and ", and 2 more)" in message
    )
    assert all(f"{name} [1, 2, 3, 4], not [" in message for name in wrong) and all(
        one in message for one in missing
    )


def test_what_is_no_model_is_told(tmp_path):
    assert "create('gmlp_s') makes one" in raised(RunError, gf.load, "gmlp_s")
    assert "no run folder" in raised(RunError, gf.load, tmp_path)
    assert "did you mean 'books_gmlp'" in raised(RunError, gf.load, "books_gmpl")
    assert "no checkpoint '3'" in raised(
        RunError, gf.load, tmp_path / "gmlp_s16_224.safetensors", checkpoint=3
    )


def test_a_mesh(text_run):
    model = gf.load(text_run, mesh={"data": 1, "fsdp": 1})
    assert dict(model.partition.mesh.shape) == {"data": 1, "fsdp": 1, "tensor": 1}
    assert "config.mesh" in raised(RunError, gf.load, text_run, mesh={"fsdp": 3})


def test_a_vocabulary_that_is_guessed_about_is_told(tmp_path, capsys):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Haus", "Garten", "schön", "##e"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    model = gf.create("gmlp_base", length=16, tokenizer=str(tmp_path / "vocab.txt"), **TINY)
    assert model.tokenizer.encode("schöne") == [7, 8]
    assert (
        "vocab.txt: text is not lower-cased, accents are kept, guessed" in capsys.readouterr().err
    )
