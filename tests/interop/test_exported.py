"""Models exported as folders of plain files and pushed to the hub."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from numpy.testing import assert_array_equal
from safetensors import numpy as safetensors

import gmlp_flax
from gmlp_flax import config as gmlp_config
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.data.classes import CLASSES_FILE
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.interop import exported
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.training import pretrained
from tests import hub_server, preloaded
from tests.failures import raised
from tests.runs.command import assert_one_line_error


def assert_quiet(done):
    """A finished command wrote nothing to standard error, but for how long it took."""
    others = [line for line in done.stderr.splitlines() if not line.endswith(" s so far")]
    assert not others, done.stderr


@pytest.fixture(scope="module")
def text_export(text_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "text"
    done = preloaded.gmlp("export", f"--model={text_run}", f"--out={folder}", cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    assert_quiet(done)
    return folder


# Files that are written.


def test_plain_files_contain_the_whole_model(text_run, text_export):
    """They are read without this package."""
    names = {entry.name for entry in text_export.iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors", "tokenizer.model"}
    config = json.loads((text_export / "config.json").read_text())
    spec = config["model"]
    weights = safetensors.load_file(text_export / "model.safetensors")
    params = gmlp_flax.load(text_run).params
    embedding = weights["embedding"]
    assert embedding.shape == (spec["vocab_size"], spec["d_model"])
    kernel = weights["encoder/blocks/proj_in/kernel"]
    shape = (spec["layers"], spec["d_model"], spec["d_ffn"])
    assert kernel.shape == shape
    assert_array_equal(embedding, params["embedding"])
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    written = sum(leaf.size for leaf in weights.values())
    assert written == count
    card = (text_export / "README.md").read_text()
    assert f"{count:,} parameters" in card


def test_an_export_predicts_like_its_run(text_run, text_export):
    lines = ["the [MASK] is", "a [MASK] [MASK]"]
    run = gmlp_flax.load(text_run)
    export = gmlp_flax.load(text_export)
    expected = run.predict(lines)
    assert export.predict(lines) == expected
    done = preloaded.gmlp("predict", f"--workdir={text_export}", input=lines[0])
    assert done.returncode == 0, done.stderr
    assert_quiet(done)
    assert done.stdout.startswith(lines[0])


def test_averaged_parameters_and_class_names_are_exported(image_run, tmp_path):
    """`predict` uses the running mean of the parameters."""
    run = shutil.copytree(image_run, tmp_path / "run")
    names = [f"digit {number}" for number in range(10)]
    (run / "names.json").write_text(json.dumps(names))
    model = pretrained.open_model(run).load(unaveraged=True)
    assert model.unaveraged is not None
    folder = tmp_path / "digits"
    exported.export(model, str(folder))
    lines = MetricsFile.read(str(run / "metrics.jsonl"))
    scores = next(line["eval"] for line in lines if "eval" in line)
    top1 = 100 * scores["ema_top1"]
    card = (folder / "README.md").read_text()
    assert f"top1 {top1:.1f}%" in card
    loaded = pretrained.open_model(folder).load(unaveraged=True)
    assert loaded.unaveraged is None
    assert loaded.classes == model.classes
    assert loaded.predictor.names == tuple(names)
    jax.tree.map(assert_array_equal, loaded.params, model.params)


def assert_rounded(half, whole):
    """Fails unless an array has the values of another in bfloat16."""
    rounded = whole.astype(jnp.bfloat16)
    assert_array_equal(half, rounded.astype(whole.dtype))


def test_files_may_be_bfloat16(text_run, tmp_path):
    """Parameters are float32 in memory."""
    folder = tmp_path / "half"
    done = preloaded.gmlp("export", f"--model={text_run}", f"--out={folder}", "--dtype=bfloat16")
    assert done.returncode == 0, done.stderr
    assert_quiet(done)
    weights = safetensors.load_file(folder / "model.safetensors")
    dtypes = set()
    for leaf in weights.values():
        dtypes.add(str(leaf.dtype))
    assert dtypes == {"bfloat16"}
    loaded = gmlp_flax.load(folder)
    model = gmlp_flax.load(text_run)
    jax.tree.map(assert_rounded, loaded.params, model.params)


def test_the_config_has_no_path_of_this_machine(text_run, text_export, tmp_path):
    run = shutil.copytree(text_run, tmp_path / "run")
    config = gmlp_config.load(str(run / "config.json"))
    config.data.cache = "/home/me/cache/"
    (run / "config.json").write_text(gmlp_config.to_json(config))
    model = pretrained.load(run)
    exported.export(model, str(tmp_path / "out"))
    config_path = str(tmp_path / "out" / "config.json")
    written = gmlp_config.load(config_path)
    assert written.data.cache == "cache"


def test_the_card_has_metadata_and_scores_but_no_path(text_run, text_export):
    """Trivial models have rows, too."""
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
            _, title, *_ = line.split("|")
            rows[title.strip()] = line
    baselines = set()
    for row in result["baselines"]:
        baselines.add(row["name"])
    assert rows.keys() == {"", "this model"} | baselines
    perplexity = result["eval"]["perplexity"]
    assert f"perplexity {perplexity:.4g}" in rows["this model"]
    assert str(text_run.parent) not in card


def small_model():
    """A model of text that was not trained."""
    return gmlp_flax.create("gmlp_base", layers=1, d_model=8, d_ffn=16, length=8, vocab_size=40)


def test_the_card_of_an_untrained_model_has_no_scores(tmp_path):
    card = exported.card(small_model(), "float32", license="mit")
    assert "license: mit\n" in card
    assert "held-out" not in card
    assert "trained for" not in card


@pytest.mark.parametrize(
    ("path", "exported_name"), [("/home/me/c4/", "c4"), ("tfds:c4/en", "tfds:c4/en")]
)
def test_data_are_named_without_folders_of_this_machine(tmp_path, path, exported_name):
    model = small_model()
    config = gmlp_config.mutable_copy(model.config)
    config.data.train = path
    task = type(model.task)(config)
    trained = dataclasses.replace(model, task=task, step=3)
    folder = tmp_path / "out"
    exported.export(trained, str(folder))
    written = gmlp_config.load(str(folder / "config.json"))
    card = (folder / "README.md").read_text()
    assert written.data.train == exported_name
    assert f"trained for 3 steps on `{exported_name}`" in card


FILES = {CLASSES_FILE: json.dumps(["a", "b", "c"], indent=1).encode()}


def tiny_weights(value=0.5):
    """Parameters that all have one value, and their config."""
    config = gmlp_config.default(task="image_classification")
    config.model.update(
        layers=1, d_model=8, d_ffn=16, image_size=(8, 8), patch_size=(4, 4), channels=1
    )
    config.data.train = ""
    shapes = ImageClassification(config, FILES).shapes()
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, value, np.float32), shapes)
    return params, config


def test_written_models_are_loaded(tmp_path):
    params, config = tiny_weights()
    out = str(tmp_path / "run")
    exported.require_free(out)
    exported.write(params, config, FILES, out)
    model = pretrained.load(out)
    assert model.step == 0
    assert model.classes == ("a", "b", "c")
    jax.tree.map(assert_array_equal, model.params, params)
    assert "run holds config.json already" in raised(RunError, exported.require_free, out)


# Options and folders that are refused.


def test_unknown_dtypes_and_formats_are_refused(text_run, tmp_path):
    model = pretrained.load(text_run)
    out = str(tmp_path / "out")
    message = raised(ConfigError, exported.export, model, out, dtype="int8")
    assert "dtype is 'int8'" in message
    message = raised(ConfigError, exported.export, model, out, dtype=[8])
    assert message.startswith("dtype is [8]")
    message = raised(ConfigError, exported.export, model, out, format="tf")
    assert "format is 'tf'" in message
    assert not (tmp_path / "out").exists()


def test_folders_with_a_model_are_refused(text_run, text_export, tmp_path):
    model = pretrained.load(text_run)
    message = raised(RunError, exported.export, model, str(text_export))
    assert "holds config.json already" in message
    (tmp_path / "tokenizer.model").write_text("mine")
    message = raised(RunError, exported.export, model, str(tmp_path))
    assert "holds tokenizer.model already" in message
    assert (tmp_path / "tokenizer.model").read_text() == "mine"


def test_folders_of_data_are_refused(tmp_path):
    (tmp_path / ".DS_Store").touch()
    exported.require_free(str(tmp_path))
    (tmp_path / "cats").mkdir()
    message = raised(RunError, exported.require_free, str(tmp_path))
    assert "holds other files, such as cats: give a new or an empty folder" in message


@pytest.mark.parametrize(
    ("value", "names", "message"),
    [
        (np.nan, (), "not finite"),
        (0.5, (CLASSES_FILE,), f"holds {CLASSES_FILE} already"),
    ],
)
def test_refused_exports_do_not_change_the_folder(tmp_path, value, names, message):
    for name in names:
        (tmp_path / name).write_text("mine")
    params, config = tiny_weights(value)
    error_message = raised(RunError, exported.write, params, config, FILES, str(tmp_path))
    assert message in error_message
    contents = {}
    for path in tmp_path.iterdir():
        contents[path.name] = path.read_text()
    assert contents == dict.fromkeys(names, "mine")


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


@pytest.mark.slow
def test_pushed_runs_are_exported_and_loaded_from_the_hub(text_run, text_export, hub):
    server, settings = hub
    done = preloaded.gmlp("push", text_run, "me/run", "--license=mit", **settings)
    assert done.returncode == 0, done.stderr
    assert f"{server.url}/me/run/commit/" in done.stdout
    files = server["me/run"]
    for name in ("tokenizer.model", "model.safetensors"):
        expected_bytes = (text_export / name).read_bytes()
        assert files[name] == expected_bytes
    assert files["README.md"].startswith(b"---\nlicense: mit\n")
    line = "the [MASK] is"
    expected = preloaded.gmlp("predict", f"--workdir={text_run}", input=line, **settings)
    done = preloaded.gmlp("predict", "--workdir=hf-hub:me/run", input=line, **settings)
    assert expected.stdout
    assert done.stdout == expected.stdout


def test_pushed_folders_are_uploaded_unchanged(text_export, hub):
    server, settings = hub
    done = preloaded.gmlp("push", text_export, "me/folder", **settings)
    assert done.returncode == 0, done.stderr
    card = (text_export / "README.md").read_bytes()
    assert server["me/folder"]["README.md"] == card


def test_failed_pushes_are_one_line(text_run, text_export, hub, tmp_path):
    _, settings = hub
    bad_token = {**settings, "HF_TOKEN": "hf_bad"}
    done = preloaded.gmlp("push", text_run, "me/x", **bad_token)
    assert_one_line_error(done, "me/x", "log in")
    done = preloaded.gmlp("push", text_export, "me/x", "--dtype=bfloat16", **settings)
    assert_one_line_error(done, f"{text_export} is exported already", "dtype")
    done = preloaded.gmlp("push", tmp_path, "me/x", **settings)
    assert_one_line_error(done, "is not a run folder")
