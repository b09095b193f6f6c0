"""Any run's weights as plain files, and back."""

import json
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from safetensors import numpy as safetensors

import gmlp_flax
from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.interop import exported
from gmlp_flax.tasks.image_classification import CLASSES_FILE, ImageClassification
from gmlp_flax.training import loading, warm_start
from gmlp_flax.training.partition import Partition
from tests import hub_server, preloaded
from tests.failures import raised
from tests.runs.command import assert_one_line_error


@pytest.fixture(scope="module")
def text_export(text_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "text"
    done = preloaded.gmlp("export", f"--model={text_run}", f"--out={folder}", cwd=folder.parent)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return folder


def test_plain_files_hold_the_whole_model(text_run, text_export):
    """Read without this package: the names, the layer axis and what the README says of them."""
    weights = safetensors.load_file(text_export / "model.safetensors")
    params = gmlp_flax.load(str(text_run)).params
    spec = json.loads((text_export / "config.json").read_text())["model"]
    names = {entry.name for entry in text_export.iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors", "tokenizer.model"}
    assert weights["embedding"].shape == (spec["vocab_size"], spec["d_model"])
    assert weights["encoder/blocks/proj_in/kernel"].shape == (
        spec["layers"],
        spec["d_model"],
        spec["d_ffn"],
    )
    np.testing.assert_array_equal(weights["embedding"], params["embedding"])
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert sum(leaf.size for leaf in weights.values()) == count
    assert f"{count:,} parameters" in (text_export / "README.md").read_text()


def test_it_is_read_as_a_run_is(text_run, text_export):
    lines = ["the [MASK] is", "a [MASK] [MASK]"]
    run, read = gmlp_flax.load(str(text_run)), gmlp_flax.load(str(text_export))
    assert read.predict(lines) == run.predict(lines)
    done = preloaded.gmlp("predict", f"--workdir={text_export}", input=lines[0])
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(lines[0]), (
        done.stderr
    )
    with pytest.raises(
        RunError, match="text holds exported weights, which have no checkpoint '12'"
    ):
        loading.load(text_export, "12")


def test_images_and_their_running_mean(image_run, tmp_path):
    """What is written is what `predict` uses: the mean; names for people are taken along."""
    run = shutil.copytree(image_run, tmp_path / "run")
    names = [f"digit {i}" for i in range(10)]
    (run / "names.json").write_text(json.dumps(names))
    trained = loading.load(str(run), "best")
    assert trained.ema is not None
    exported.export(trained, str(tmp_path / "digits"))
    scores = next(line for line in MetricsFile.read(str(run / "metrics.jsonl")) if "eval" in line)[
        "eval"
    ]
    assert (
        f"top1 {100 * scores['ema_top1']:.1f}%" in (tmp_path / "digits" / "README.md").read_text()
    )
    found = loading.load(str(tmp_path / "digits"))
    assert (
        found.ema is None
        and found.task.classes == trained.task.classes
        and found.task.names == tuple(names)
    )
    jax.tree.map(np.testing.assert_array_equal, found.params, trained.ema)


def test_bfloat16_in_the_file(text_run, tmp_path):
    """Parameters are float32 in memory."""
    flags = f"--model={text_run}", f"--out={tmp_path / 'half'}", "--dtype=bfloat16"
    done = preloaded.gmlp("export", *flags)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    weights = safetensors.load_file(tmp_path / "half" / "model.safetensors")
    assert {str(leaf.dtype) for leaf in weights.values()} == {"bfloat16"}
    found, trained = gmlp_flax.load(str(tmp_path / "half")), gmlp_flax.load(str(text_run))
    rounded = jax.tree.map(
        lambda leaf: leaf.astype(jnp.bfloat16).astype(leaf.dtype), trained.params
    )
    jax.tree.map(np.testing.assert_array_equal, found.params, rounded)
    with pytest.raises(ConfigError, match="dtype is 'int8'"):
        exported.export(loading.load(text_run, "best"), str(tmp_path / "other"), dtype="int8")


def test_a_run_starts_from_it(text_run, text_export, tmp_path):
    """The same parameters as from the run itself, and its vocabulary; a run with another one is
    refused."""
    config = gmlp_config.load(str(text_run / "config.json"))
    config.init_from = str(text_export)
    assert warm_start.inherit(config, str(tmp_path))[1].keys() == {"tokenizer.model"}
    task = tasks.create(config, str(text_run))
    params = warm_start.load(task, Partition.make())
    jax.tree.map(np.testing.assert_array_equal, params, gmlp_flax.load(str(text_run)).params)
    task.tokenizer = SimpleNamespace(model=b"another")
    assert "was trained with another tokenizer.model" in raised(
        RunError, warm_start.load, task, Partition.make()
    )


def test_what_is_strange_is_refused(text_run, text_export, tmp_path):
    """A folder may be anybody's: no class of theirs is imported, and no weight is made up. Nor is a
    tokenizer, which a task would train on data that a stranger's config names."""
    with pytest.raises(RunError, match="holds config.json already"):
        exported.export(loading.load(text_run, "best"), str(text_export))
    assert "no config.json" in raised(RunError, loading.load, str(tmp_path))
    folder = shutil.copytree(text_export, tmp_path / "copy")
    (folder / "tokenizer.model").rename(tmp_path / "tokenizer.model")
    assert "copy has no tokenizer.model" in raised(RunError, gmlp_flax.load, str(folder))
    with pytest.raises(RunError, match="holds tokenizer.model already"):
        exported.export(loading.load(text_run, "best"), str(tmp_path))
    (tmp_path / "tokenizer.model").rename(folder / "tokenizer.model")
    weights = safetensors.load_file(folder / "model.safetensors")
    bias = weights.pop("bias")
    safetensors.save_file(weights | {"bais": bias}, folder / "model.safetensors")
    assert raised(RunError, gmlp_flax.load, str(folder)).endswith(
        "1 missing (bias); 1 unexpected (bais)"
    )
    weights["embedding"] = weights["embedding"][:-1]
    broken = {
        name: np.full_like(leaf, np.nan) for name, leaf in weights.items() if name.endswith("scale")
    }
    safetensors.save_file(weights | {"bias": bias}, folder / "model.safetensors")
    with pytest.raises(
        RunError, match=r"1 of another shape \(embedding \[599, 16\], not \[600, 16\]\)$"
    ):
        gmlp_flax.load(str(folder))
    whole = safetensors.load_file(text_export / "model.safetensors")
    safetensors.save_file(whole | broken, folder / "model.safetensors")
    assert f"numbers that are not finite ({len(broken)} such" in raised(
        RunError, gmlp_flax.load, str(folder)
    )
    config = json.loads((folder / "config.json").read_text())
    config["model"]["block"] = "os:system"
    (folder / "config.json").write_text(json.dumps(config))
    assert "os:system" in raised(ConfigError, gmlp_flax.load, str(folder))


def test_the_card(text_run, text_export):
    """The hub's block of metadata, scores of this checkpoint beside those of trivial models, and no
    path of ours."""
    card = (text_export / "README.md").read_text()
    _, block, text = card.split("---\n", 2)
    metadata = yaml.safe_load(block)
    assert metadata["pipeline_tag"] == "fill-mask" and metadata["library_name"] == "gmlp_flax"
    assert metadata["tags"] == ["jax", "flax", "gmlp"] and metadata["metrics"] == [
        "perplexity",
        "accuracy",
        "loss",
    ]
    result = json.loads((text_run / "result.json").read_text())
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    assert rows.keys() == {"", "this model", *(row["name"] for row in result["baselines"])}
    assert f"perplexity {result['eval']['perplexity']:.4g}" in rows["this model"]
    assert str(text_run.parent) not in card and "license" not in metadata


def test_push_and_use(text_run, text_export, tmp_path):
    """A run is exported first, a folder is uploaded as it is; a token that the hub refuses is one
    line."""
    pytest.importorskip(
        "huggingface_hub", reason="huggingface_hub is not installed (extra: weights)"
    )
    with hub_server.serve() as hub:
        settings = {
            "HF_ENDPOINT": hub.url,
            "HF_HUB_CACHE": str(tmp_path),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        settings |= {"HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_good"}
        done = preloaded.gmlp("push", text_run, "me/run", "--license=mit", **settings)
        assert done.returncode == 0 and f"{hub.url}/me/run/commit/" in done.stdout, done.stderr
        done = preloaded.gmlp("push", text_export, "me/folder", **settings)
        assert done.returncode == 0, done.stderr
        for name, file in (
            ("run", "tokenizer.model"),
            ("run", "model.safetensors"),
            ("folder", "README.md"),
        ):
            assert hub[f"me/{name}"][file] == (text_export / file).read_bytes()
        assert hub["me/run"]["README.md"].startswith(b"---\nlicense: mit\n")
        line = "the [MASK] is"
        used = [
            preloaded.gmlp("predict", f"--workdir={model}", input=line, **settings).stdout
            for model in ("hf-hub:me/run", text_run)
        ]
        assert used[0] == used[1] != ""
        assert_one_line_error(
            preloaded.gmlp("push", text_run, "me/x", **settings | {"HF_TOKEN": "hf_bad"}),
            "me/x",
            "log in",
        )
    assert_one_line_error(preloaded.gmlp("push", tmp_path, "me/x", **settings), "is no run folder")


FILES = {CLASSES_FILE: json.dumps(["a", "b", "c"], indent=1).encode()}


def tiny_weights(value=0.5):
    """Parameters that are all one number, and their config."""
    config = gmlp_config.default(task="image_classification")
    config.model.update(
        layers=1, d_model=8, d_ffn=16, image_size=(8, 8), patch_size=(4, 4), channels=1
    )
    config.data.train = ""
    shapes = ImageClassification.without_data(config, classes=3).shapes()
    return jax.tree.map(lambda leaf: np.full(leaf.shape, value, np.float32), shapes), config


def test_what_is_written_is_read(tmp_path):
    params, config = tiny_weights()
    out = str(tmp_path / "run")
    exported.require_free(out)
    exported.write(params, config, FILES, out)
    trained = loading.load(out)
    assert trained.step == 0 and trained.task.classes == ("a", "b", "c")
    jax.tree.map(np.testing.assert_array_equal, trained.params, params)
    assert "run holds config.json already" in raised(RunError, exported.require_free, out)


@pytest.mark.parametrize(
    ("value", "names", "message"),
    [
        (np.nan, (), r"not finite \(\d+ such parameters\)"),
        (0.5, (CLASSES_FILE,), f"holds {CLASSES_FILE} already"),
    ],
)
def test_what_is_refused_leaves_the_folder_as_it_was(tmp_path, value, names, message):
    for name in names:
        (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=message):
        exported.write(*tiny_weights(value), FILES, str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        names, "mine"
    )
