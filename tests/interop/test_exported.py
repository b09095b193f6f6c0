"""Any model as a folder of plain files, on the hub, too."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from safetensors import numpy as safetensors

import gmlp_flax
from gmlp_flax import config as gmlp_config
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.interop import exported
from gmlp_flax.tasks.image_classification import CLASSES_FILE, ImageClassification
from gmlp_flax.training import pretrained
from tests import hub_server, preloaded
from tests.failures import raised
from tests.runs.command import assert_one_line_error


@pytest.fixture(scope="module")
def text_export(text_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "text"
    done = preloaded.gmlp("export", f"--model={text_run}", f"--out={folder}", cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    return folder


# What is written.


def test_plain_files_hold_the_whole_model(text_run, text_export):
    """Read without this package: the names, the layer axis and what the README says of them."""
    weights = safetensors.load_file(text_export / "model.safetensors")
    params = gmlp_flax.load(text_run).params
    spec = json.loads((text_export / "config.json").read_text())["model"]
    names = {entry.name for entry in text_export.iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors", "tokenizer.model"}
    assert weights["embedding"].shape == (spec["vocab_size"], spec["d_model"])
    kernel = weights["encoder/blocks/proj_in/kernel"]
    assert kernel.shape == (spec["layers"], spec["d_model"], spec["d_ffn"])
    np.testing.assert_array_equal(weights["embedding"], params["embedding"])
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert sum(leaf.size for leaf in weights.values()) == count
    assert f"{count:,} parameters" in (text_export / "README.md").read_text()


def test_it_is_read_as_a_run_is(text_run, text_export):
    lines = ["the [MASK] is", "a [MASK] [MASK]"]
    run = gmlp_flax.load(text_run)
    read = gmlp_flax.load(text_export)
    assert read.predict(lines) == run.predict(lines)
    done = preloaded.gmlp("predict", f"--workdir={text_export}", input=lines[0])
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    assert done.stdout.startswith(lines[0])


def test_images_and_their_running_mean(image_run, tmp_path):
    """What is written is what `predict` uses: the mean; names for people are taken along."""
    run = shutil.copytree(image_run, tmp_path / "run")
    names = [f"digit {number}" for number in range(10)]
    (run / "names.json").write_text(json.dumps(names))
    model = pretrained.open_model(run).load(unaveraged=True)
    assert model.unaveraged is not None
    exported.export(model, str(tmp_path / "digits"))
    lines = MetricsFile.read(str(run / "metrics.jsonl"))
    scores = next(line["eval"] for line in lines if "eval" in line)
    card = (tmp_path / "digits" / "README.md").read_text()
    assert f"top1 {100 * scores['ema_top1']:.1f}%" in card
    found = pretrained.open_model(tmp_path / "digits").load(unaveraged=True)
    assert found.unaveraged is None
    assert found.classes == model.classes
    assert found.predictor.names == tuple(names)
    jax.tree.map(np.testing.assert_array_equal, found.params, model.params)


def test_bfloat16_in_the_file(text_run, tmp_path):
    """Parameters are float32 in memory."""
    flags = f"--model={text_run}", f"--out={tmp_path / 'half'}", "--dtype=bfloat16"
    done = preloaded.gmlp("export", *flags)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    weights = safetensors.load_file(tmp_path / "half" / "model.safetensors")
    assert {str(leaf.dtype) for leaf in weights.values()} == {"bfloat16"}
    found = gmlp_flax.load(tmp_path / "half")
    model = gmlp_flax.load(text_run)

    def assert_rounded(half, whole):
        np.testing.assert_array_equal(half, whole.astype(jnp.bfloat16).astype(whole.dtype))

    jax.tree.map(assert_rounded, found.params, model.params)


def test_the_config_has_no_path_of_this_machine(text_run, text_export, tmp_path):
    run = shutil.copytree(text_run, tmp_path / "run")
    config = gmlp_config.load(str(run / "config.json"))
    config.data.cache = "/home/me/cache/"
    (run / "config.json").write_text(gmlp_config.to_json(config))
    exported.export(pretrained.load(run), str(tmp_path / "out"))
    written = gmlp_config.load(str(tmp_path / "out" / "config.json"))
    assert written.data.cache == "cache"


def test_the_card(text_run, text_export):
    """The hub's block of metadata, scores of this checkpoint beside those of trivial models, and no
    path of ours."""
    card = (text_export / "README.md").read_text()
    _, block, text = card.split("---\n", 2)
    metadata = yaml.safe_load(block)
    assert metadata == {
        "library_name": "gmlp_flax",
        "pipeline_tag": "fill-mask",
        "tags": ["jax", "flax", "gmlp"],
        "metrics": ["perplexity", "accuracy", "loss"],
    }
    result = json.loads((text_run / "result.json").read_text())
    rows = {}
    for line in text.splitlines():
        if line.startswith("| "):
            rows[line.split("|")[1].strip()] = line
    expected = {"", "this model", *(row["name"] for row in result["baselines"])}
    assert rows.keys() == expected
    assert f"perplexity {result['eval']['perplexity']:.4g}" in rows["this model"]
    assert str(text_run.parent) not in card


def test_the_card_of_a_model_that_was_never_scored(tmp_path):
    model = gmlp_flax.create("gmlp_base", layers=1, d_model=8, d_ffn=16, length=8, vocab_size=40)
    card = exported.card(model, "float32", license="mit")
    assert "license: mit\n" in card
    assert "held-out" not in card
    assert "trained for" not in card


@pytest.mark.parametrize(
    ("path", "written"), [("/home/me/c4/", "c4"), ("tfds:c4/en", "tfds:c4/en")]
)
def test_the_names_of_data_are_without_folders_of_this_machine(tmp_path, path, written):
    model = gmlp_flax.create("gmlp_base", layers=1, d_model=8, d_ffn=16, length=8, vocab_size=40)
    config = gmlp_config.mutable_copy(model.config)
    config.data.train = path
    model = dataclasses.replace(model, task=type(model.task)(config), step=3)
    exported.export(model, str(tmp_path / "out"))
    assert gmlp_config.load(str(tmp_path / "out" / "config.json")).data.train == written
    assert f"trained for 3 steps on `{written}`" in (tmp_path / "out" / "README.md").read_text()


FILES = {CLASSES_FILE: json.dumps(["a", "b", "c"], indent=1).encode()}


def tiny_weights(value=0.5):
    """Parameters that are all one number, and their config."""
    config = gmlp_config.default(task="image_classification")
    config.model.update(
        layers=1, d_model=8, d_ffn=16, image_size=(8, 8), patch_size=(4, 4), channels=1
    )
    config.data.train = ""
    shapes = ImageClassification(config, FILES).shapes()
    return jax.tree.map(lambda leaf: np.full(leaf.shape, value, np.float32), shapes), config


def test_what_is_written_is_read(tmp_path):
    params, config = tiny_weights()
    out = str(tmp_path / "run")
    exported.require_free(out)
    exported.write(params, config, FILES, out)
    model = pretrained.load(out)
    assert model.step == 0
    assert model.classes == ("a", "b", "c")
    jax.tree.map(np.testing.assert_array_equal, model.params, params)
    assert "run holds config.json already" in raised(RunError, exported.require_free, out)


# What is refused.


def test_options_that_are_not_there(text_run, tmp_path):
    model = pretrained.load(text_run)
    out = str(tmp_path / "out")
    message = raised(ConfigError, exported.export, model, out, dtype="int8")
    assert "dtype is 'int8'" in message
    message = raised(ConfigError, exported.export, model, out, dtype=[8])
    assert message.startswith("dtype is [8]")
    message = raised(ConfigError, exported.export, model, out, format="tf")
    assert "format is 'tf'" in message
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_taken(text_run, text_export, tmp_path):
    model = pretrained.load(text_run)
    message = raised(RunError, exported.export, model, str(text_export))
    assert "holds config.json already" in message
    (tmp_path / "tokenizer.model").write_text("mine")
    message = raised(RunError, exported.export, model, str(tmp_path))
    assert "holds tokenizer.model already" in message
    assert (tmp_path / "tokenizer.model").read_text() == "mine"


@pytest.mark.parametrize(
    ("value", "names", "words"),
    [
        (np.nan, (), "not finite"),
        (0.5, (CLASSES_FILE,), f"holds {CLASSES_FILE} already"),
    ],
)
def test_what_is_refused_leaves_the_folder_as_it_was(tmp_path, value, names, words):
    for name in names:
        (tmp_path / name).write_text("mine")
    params, config = tiny_weights(value)
    assert words in raised(RunError, exported.write, params, config, FILES, str(tmp_path))
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == dict.fromkeys(names, "mine")


# The hub.


@pytest.fixture
def hub(tmp_path):
    """A hub, and the environment of commands that use it."""
    pytest.importorskip(
        "huggingface_hub", reason="huggingface_hub is not installed (extra: weights)"
    )
    with hub_server.serve() as server:
        settings = {
            "HF_ENDPOINT": server.url,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": "hf_good",
        }
        yield server, settings


def test_push_and_use(text_run, text_export, hub):
    """A run is exported first, a folder is uploaded as it is."""
    server, settings = hub
    done = preloaded.gmlp("push", text_run, "me/run", "--license=mit", **settings)
    assert done.returncode == 0, done.stderr
    assert f"{server.url}/me/run/commit/" in done.stdout
    done = preloaded.gmlp("push", text_export, "me/folder", **settings)
    assert done.returncode == 0, done.stderr
    for name, file in (
        ("run", "tokenizer.model"),
        ("run", "model.safetensors"),
        ("folder", "README.md"),
    ):
        assert server[f"me/{name}"][file] == (text_export / file).read_bytes()
    assert server["me/run"]["README.md"].startswith(b"---\nlicense: mit\n")
    line = "the [MASK] is"
    used = []
    for model in ("hf-hub:me/run", text_run):
        done = preloaded.gmlp("predict", f"--workdir={model}", input=line, **settings)
        used.append(done.stdout)
    assert used[0] == used[1] != ""


def test_what_the_hub_refuses_is_one_line(text_run, text_export, hub, tmp_path):
    _, settings = hub
    done = preloaded.gmlp("push", text_run, "me/x", **{**settings, "HF_TOKEN": "hf_bad"})
    assert_one_line_error(done, "me/x", "log in")
    done = preloaded.gmlp("push", text_export, "me/x", "--dtype=bfloat16", **settings)
    assert_one_line_error(done, f"{text_export} is exported already", "dtype")
    done = preloaded.gmlp("push", tmp_path, "me/x", **settings)
    assert_one_line_error(done, "is not a run folder")
