"""Runs in Python: on data of the program, from a model, with an optimizer and callbacks of its
own."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import jax
import numpy as np
import optax
import pytest
from PIL import Image

import gmlp_flax as gf
from gmlp_flax import config as config_lib
from gmlp_flax.api import runs
from gmlp_flax.checkpoints import RUN_FILE
from gmlp_flax.data import embedded
from gmlp_flax.data.images.sources import open_side
from gmlp_flax.data.splits import Side
from gmlp_flax.errors import DataError, RunError, UserError
from tests.failures import raised

SHORT = {"steps": 4, "batch_size": 4, "log.every": 2, "checkpoint.every": 4, "eval.batch_size": 8}
TINY = dict(layers=1, d_model=8, d_ffn=16)


@pytest.fixture(scope="module")
def digits():
    source = embedded.embedded_digits("heldout")
    return source.images[:40], source.labels[:40]


def images_config():
    config = config_lib.from_file("quickstart_image")
    config.model.update(TINY)
    return config


def test_arrays_an_optimizer_and_callbacks(digits, tmp_path):
    images, labels = digits
    seen, out = [], tmp_path / "run"
    data = {"train": {"image": images, "label": labels}, "test": (images[:8], labels[:8])}
    options = SHORT | {"eval.every": 2}

    def run():  # in a thread, which no signal reaches
        call = lambda step, values: seen.append((step, *sorted(values)))  # noqa: E731
        return gf.train(
            images_config(),
            out,
            data=data,
            optimizer=optax.sgd(0.1),
            callbacks=[call],
            options=options,
        )

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(run).result()
    assert result["step"] == 4 and result["eval"]["examples"] == 8
    assert [step for step, *_ in seen] == [2, 2, 4, 4]
    assert (
        seen[0][1:] == ("train/accuracy", "train/grad_norm", "train/loss")
        and "eval/top1" in seen[1]
    )
    model = gf.load(out)
    assert {*model.classes} == {*map(str, labels)} and model.predict(images[0])
    # it is done
    again = gf.train(images_config(), out, data=data, optimizer=optax.sgd(0.1), options=options)
    assert again["eval"] == result["eval"]
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    assert all("learning_rate" not in line for line in lines)  # our optimizers alone have one


def test_the_optimizer_is_the_one_that_was_given(digits, tmp_path):
    images, labels = digits
    start = gf.create(
        "gmlp", classes=[*map(str, range(10))], image_size=8, patch_size=(2, 2), channels=1, **TINY
    )
    options = SHORT | {"steps": 1, "checkpoint.every": 1}
    given = dict(init=start, data=(images, labels), options=options)
    gf.train(images_config(), tmp_path / "still", optimizer=optax.set_to_zero(), **given)
    gf.train(images_config(), tmp_path / "moved", **given)
    still, moved = (gf.load(tmp_path / name, "latest").params for name in ("still", "moved"))
    body = start.params["encoder"]
    assert jax.tree.all(jax.tree.map(np.array_equal, still["encoder"], body))
    assert not jax.tree.all(jax.tree.map(np.array_equal, moved["encoder"], body))


def test_texts_of_a_program_finetune_a_language_model(text_run, tmp_path, capsys):
    model = gf.load(text_run)
    texts = [
        (f"The value {word} of a call.", "no" if word in ("a", "b") else "yes")
        for word in "abcdefgh"
    ]
    data = {
        "train": iter(texts),
        "heldout": [{"text": text, "label": label} for text, label in texts],
    }
    result = gf.train("finetune_glue:own", tmp_path / "run", init=model, data=data, options=SHORT)
    assert result["eval"]["examples"] == 8
    tuned = gf.load(tmp_path / "run")
    assert {*tuned.classes} == {"no", "yes"} and tuned.tokenizer == model.tokenizer
    assert tuned.config.model.d_model == model.config.model.d_model
    scores = gf.evaluate(tuned, texts)
    assert (
        scores["accuracy"] == pytest.approx(result["eval"]["accuracy"]) and scores["examples"] == 8
    )
    assert "initialized anew" in capsys.readouterr().err


def test_evaluation_of_own_and_other_data(image_run, text_run):
    model, source = gf.load(image_run, "latest"), embedded.embedded_digits("heldout")
    whole = gf.evaluate(model, batch_size=64)
    same = gf.evaluate(model, (source.images, source.labels))
    assert same["examples"] == len(source.labels) == whole["examples"]
    assert same["top1"] == pytest.approx(whole["top1"]) and same["loss"] == pytest.approx(
        whole["loss"], rel=1e-4
    )
    few = gf.evaluate(
        model,
        [(image, label) for image, label in zip(source.images[:5], source.labels, strict=False)],
    )
    assert few["examples"] == 5
    text = gf.evaluate(gf.load(text_run), ["The value of a name is the value of its object. " * 20])
    assert text["perplexity"] > 1


def test_a_dataset_of_hugging_face_and_one_of_grain(digits, tmp_path):
    """Both as examples: the columns of one, the tuples of the other."""
    grain = pytest.importorskip("grain")
    images, labels = digits
    pairs = [*zip(images, labels, strict=True)]
    rows = grain.MapDataset.source([{"image": image, "label": label} for image, label in pairs])

    class Feature:
        names = tuple("abcdefghij")

    # what is read of a datasets.Dataset: its rows, and the names of its labels
    class Dataset(list):
        features = {"img": object(), "label": Feature()}

    named = Dataset({"img": image[..., 0], "label": int(label)} for image, label in pairs)
    gf.train(images_config(), tmp_path / "run", data={"train": rows, "test": rows}, options=SHORT)
    gf.train(
        images_config(), tmp_path / "named", data={"train": named, "test": named}, options=SHORT
    )
    assert gf.load(tmp_path / "named").classes == Feature.names
    assert {*gf.load(tmp_path / "run").classes} == {*map(str, labels)}


def test_data_of_a_start_that_took_no_step_are_written_anew_and_others_never_lost(tmp_path):
    """Neither is what a start before was given read in silence, nor a folder of the user's own
    deleted."""
    texts, folder = [("good", "yes"), ("bad", "no")], tmp_path / "run" / "data"
    config = config_lib.open_config("finetune_glue:own")

    def written(given):
        lines = Path(runs.store(given, config, str(folder))["data.train"]).read_text().splitlines()
        return [json.loads(line)["text"] for line in lines]

    with pytest.raises(DataError):  # an example that does not fit, after others
        written([*texts, (3, "no")])
    assert written(texts) == ["good", "bad"] and written([("new", "yes")]) == ["new"]
    (tmp_path / "run" / RUN_FILE).write_text("{}")  # the first step is taken
    assert written(texts) == ["new"]
    (tmp_path / "mine" / "data").mkdir(parents=True)
    (tmp_path / "mine" / "data" / "thesis.txt").write_text("mine")
    assert "another workdir" in raised(
        RunError, gf.train, "finetune_glue:own", tmp_path / "mine", data=texts
    )
    assert (tmp_path / "mine" / "data" / "thesis.txt").read_text() == "mine"


def test_a_table_in_memory_is_read_by_its_columns(tmp_path):
    """As pandas' DataFrame, which gives the names of its columns where its rows are expected."""

    class Table:
        def keys(self):
            return ["text", "label"]

        def __getitem__(self, name):
            return {"text": ["good", "bad"], "label": ["yes", "no"]}[name]

        def __iter__(self):
            return iter(self.keys())

    assert [*runs.examples(Table(), [])] == [(("good",), "yes"), (("bad",), "no")]


def test_images_that_are_files_stay_and_remote_ones_are_copied(tmp_path):
    local, remote = str(tmp_path / "a.png"), "memory://own_images/b.png"
    for path, level in ((local, 10), (remote, 200)):
        with fsspec.open(path, "wb") as file:
            Image.new("L", (8, 8), level).save(file, "PNG")
    keys = runs.store([(local, "dark"), (remote, "light")], images_config(), str(tmp_path / "data"))
    source = open_side(keys["data.train"], Side("train"), order=["dark", "light"])
    assert not (tmp_path / "data" / "train" / "0.png").exists() and source.labels.tolist() == [0, 1]
    assert [np.asarray(Image.open(io.BytesIO(source[i]["image"])))[0, 0] for i in (0, 1)] == [
        10,
        200,
    ]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {}, "no examples"),
        ([{"id": 3, "label": 1}], {}, "no input: it has id, label"),
        ([(np.zeros((8, 8)), None)], {}, "label None"),
        ("no/such/folder", {}, "no/such/folder"),
        (None, {"step": 3}, "did you mean 'steps'"),
    ],
)
def test_mistakes_are_told_in_a_line(data, options, message, tmp_path):
    given = {"data": data, "options": SHORT | options}
    assert message in raised(UserError, gf.train, images_config(), tmp_path / "run", **given)
