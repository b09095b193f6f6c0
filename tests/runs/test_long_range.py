"""Long Range Arena's configs, tiny, from files to predictions; and one line for each mistake in its files."""

from __future__ import annotations

import io
import itertools

import jax
import numpy as np
import pytest
from PIL import Image

from gmlp_flax import config as config_lib
from gmlp_flax import tasks
from gmlp_flax.data.listops import folder as listops_folder
from gmlp_flax.data.listops import trees
from gmlp_flax.errors import ConfigError, DataError, RunError
from gmlp_flax.paper import long_range
from gmlp_flax.training import loading, loop
from tests.runs.command import assert_only_one_line

QUICK = {"layers": 1, "d_model": 8, "d_ffn": 16}


def tiny(name: str, data, model: str = "gmlp", **options):
    """A config of a few steps."""
    config = config_lib.from_file(f"configs/lra_{name}.py", f"{model},scale=small")
    config.model.update(QUICK | options)
    config.steps, config.batch_size, config.optimizer.warmup, config.log.every = 3, 4, 1, 1
    config.eval.every = config.eval.batch_size = 0
    config.data.train = str(data)
    return config


@pytest.fixture(scope="module")
def listops(tmp_path_factory):
    path = tmp_path_factory.mktemp("listops")
    listops_folder.make(str(path / "made"), (40, 12, 8), trees.Grammar(3, 40))
    return path / "made"


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    path = tmp_path_factory.mktemp("reviews") / "reviews.tsv"
    path.write_text(
        "text\tlabel\n" + "".join(f"{'good' if i % 2 else 'bad'} film number {i}\t{i % 2}\n" for i in range(40))
    )
    return path


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    path = tmp_path_factory.mktemp("papers")
    for part, count in (("train", 24), ("eval", 9)):
        lines = (
            f"{i % 2}.0\tP{i}\tQ{i}\tabout parsing {i}\tabout {'parsing' if i % 2 else 'speech'} {i}\n"
            for i in range(count)
        )
        (path / f"new_aan_pairs.{part}.tsv").write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Images of 8 x 8 in Pathfinder's layout."""
    path, rng = tmp_path_factory.mktemp("paths"), np.random.default_rng(0)
    (path / "metadata").mkdir()
    (path / "imgs" / "0").mkdir(parents=True)
    for i in range(30):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(file, "PNG")
        (path / "imgs" / "0" / f"sample_{i}.png").write_bytes(file.getvalue())
    (path / "metadata" / "0.npy").write_text("".join(f"imgs/0 sample_{i}.png {i} {i % 2} 1 14\n" for i in range(30)))
    return path


def test_listops_from_trees_to_values(listops, tmp_path):
    config = tiny("listops", listops, length=48)
    result = loop.train(config, str(tmp_path))
    assert result["eval"]["examples"] == 12 and result["eval"]["loss"] == pytest.approx(np.log(10), rel=0.2)
    trained = loading.load(str(tmp_path))
    found = trained.task.predict(trained.params, ["[MAX 4 3 [MIN 2 3 ] 1 0 ]", "( ( ( [SM 2 ) 3 ) ] )"], top=10)
    for (ranked,) in found:
        assert {name for name, _ in ranked} == set("0123456789") and sum(share for _, share in ranked) == pytest.approx(
            1, abs=1e-5
        )
    with pytest.raises(DataError, match="the symbol 'MAX'; expected one of"):
        trained.task.predict(trained.params, ["MAX 1 2"])


@pytest.mark.parametrize("model", ["gmlp", pytest.param("transformer", marks=pytest.mark.slow)])
def test_pairs_of_papers(papers, tmp_path, model):
    """Read apart; the order in the pair counts, what else stands in the batch does not."""
    result = loop.train(tiny("retrieval", papers, model, length=32), str(tmp_path))
    assert result["eval"]["examples"] == 9 and 0.5 < result["eval"]["loss"] < 2
    trained = loading.load(str(tmp_path))
    assert trained.params["head"]["first"]["kernel"].shape == (32, 32) and "segments" not in trained.params
    task = trained.task
    assert task.examples("train")[0]["tokens"].shape == (2, 32) == task.example_shapes()["tokens"][0]
    ids = task.examples("train")[1]["tokens"]
    assert [task.tokenizer.decode(row) for row in ids] == ["about parsing 1", "about parsing 1"]
    one, two = (task.predict(trained.params, [line])[0][0] for line in ("a\tb", "b\ta"))
    assert dict(one) != dict(two)
    with pytest.raises(RunError, match="the line has 1 text.s., the task reads 2: put a tab between"):
        task.predict(trained.params, ["one text"])


def test_paths_in_pixels(paths, tmp_path):
    config = tiny("pathfinder", paths, image_size=(8, 8))
    result = loop.train(config, str(tmp_path))
    assert 3 <= result["eval"]["examples"] <= 12 and set(result["eval"]) >= {"top1", "loss"}
    trained = loading.load(str(tmp_path))
    assert trained.params["stem"]["table"].shape == (256, 8)
    ((ranked,),) = trained.task.predict(trained.params, [str(paths / "imgs" / "0" / "sample_3.png")])
    assert {name for name, _ in ranked} == {"apart", "joined"}


@pytest.mark.slow
def test_models_learn_from_bytes(reviews, tmp_path):
    """The words that tell classes apart are learned in 60 steps."""
    for model in ("amlp", "mixer", "fnet_hybrid", "convolution"):
        config = tiny("text", reviews, model, length=64, d_model=16, layers=2)
        config.steps, config.optimizer.learning_rate = 60, 5e-3
        assert loop.train(config, str(tmp_path / model))["eval"]["loss"] < 0.5, model


@pytest.mark.slow
@pytest.mark.parametrize("name", ["retrieval", "image"])
def test_every_model_has_gradients_on_pairs_and_on_pixels(name):
    for model in long_range.MODELS:
        config = config_lib.from_file(f"configs/lra_{name}.py", f"{model},scale=small")
        config.model.update(
            {"d_model": 8, "d_ffn": 16} | ({"length": 32} if name == "retrieval" else {"image_size": (8, 8)})
        )
        task = tasks.find(config.task).without_data(config)
        rng = np.random.default_rng(0)
        batch = {
            key: rng.integers(0, 2, (4, *shape)).astype(kind) for key, (shape, kind) in task.example_shapes().items()
        }
        batch["key"] = jax.random.split(jax.random.key(0), 4)
        call = jax.jit(jax.value_and_grad(task.loss, has_aux=True))
        (loss, _), gradient = call(task.init(jax.random.key(1)), batch)
        assert np.isfinite(loss) and all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient)), model


def test_another_length_than_a_fixed_one(reviews, tmp_path):
    """A Mixer is made for n tokens: one that starts from a run of another n is told before anything is compiled."""
    loop.train(tiny("text", reviews, "mixer", length=32), str(tmp_path / "a"))
    config = tiny("text", reviews, "mixer", length=48)
    config.init_from = str(tmp_path / "a")
    with pytest.raises((ConfigError, RunError)) as caught:
        loop.train(config, str(tmp_path / "b"))
    assert "made for 32 tokens and this config has 48: set as many" in str(caught.value)
    assert "\n" not in str(caught.value) and "token_mlp" in str(caught.value)


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("image", {"channels": 3}, "set config.model.channels=1 and config.model.patch_size=(1,1)"),
        ("image", {"patch_size": (2, 2)}, "set config.model.channels=1 and config.model.patch_size=(1,1)"),
        ("listops", {"pairs": "apart"}, "the task listops has no pairs: set it to 'joined'"),
        ("retrieval", {"pooler": True}, "whose head has other layers: set model.pooler to False"),
    ],
)
def test_options_that_contradict_each_other(task, change, message):
    config = config_lib.from_file(f"configs/lra_{task}.py", "gmlp,scale=small")
    config.model.update(change)
    with pytest.raises(ConfigError) as caught:
        config_lib.validate(config)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_mixed_pixels_have_no_vector():
    config = config_lib.from_file("configs/lra_image.py", "gmlp,scale=small")
    config.augment.cutmix = 1.0
    with pytest.raises(ConfigError, match="mixed pixels have none: set config.augment.mixup=0 and cutmix=0"):
        config_lib.validate(config)


def test_mistakes_in_files_are_one_line(commands, tmp_path):
    """Before a device is used, and with the line of the file."""
    counter = itertools.count()

    def run(name, data):
        return commands(
            f"--config=lra_{name}:gmlp,scale=small",
            f"--config.data.train={data}",
            f"--workdir={tmp_path}/{next(counter)}",
        )

    (tmp_path / "trees.tsv").write_text("Source\tTarget\n[MAX 1 2 ]\t2\n[AVG 1 2 ]\t1\n")
    assert_only_one_line(
        run("listops", tmp_path / "trees.tsv"), "trees.tsv, line 3: the symbol '[AVG'; expected one of"
    )
    (tmp_path / "pairs.tsv").write_text("1.0\tP\tQ\tone\ttwo\n0.0\tP\tQ\tone\n")
    assert_only_one_line(
        run("retrieval", tmp_path / "pairs.tsv"), "pairs.tsv, line 2: 4 columns", "where 5 were expected"
    )
    (tmp_path / "reviews.tsv").write_bytes(b"text\tlabel\nb\xe4d\tneg\n")
    assert_only_one_line(run("text", tmp_path / "reviews.tsv"), "reviews.tsv, line 2: not UTF-8 (byte 0xe4)")
    (tmp_path / "paths" / "metadata").mkdir(parents=True)
    (tmp_path / "paths" / "metadata" / "0.npy").write_text("imgs/0 sample_0.png 0 1 1\n")
    assert_only_one_line(
        run("pathfinder", tmp_path / "paths"),
        "config.data.train: ",
        "1 of the 1 images that metadata names are missing",
    )
    assert_only_one_line(run("pathfinder", tmp_path / "nowhere"), "no images at")
