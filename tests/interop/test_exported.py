"""Any run's weights as plain files, and back."""

import json
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gmlp_flax
from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.interop import exported
from gmlp_flax.training import loading, warm_start
from gmlp_flax.training.partition import Partition
from tests import preloaded

safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed (extra: weights)")


@pytest.fixture(scope="module")
def text_export(text_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "text"
    done = preloaded.gmlp("export", f"--workdir={text_run}", f"--out={folder}", cwd=folder.parent)
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
    assert weights["encoder/blocks/proj_in/kernel"].shape == (spec["layers"], spec["d_model"], spec["d_ffn"])
    np.testing.assert_array_equal(weights["embedding"], params["embedding"])
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert sum(leaf.size for leaf in weights.values()) == count
    assert f"{count:,} parameters" in (text_export / "README.md").read_text()


def test_it_is_read_as_a_run_is(text_run, text_export):
    lines = ["the [MASK] is", "a [MASK] [MASK]"]
    run, read = gmlp_flax.load(str(text_run)), gmlp_flax.load(str(text_export))
    assert read.predict(lines) == run.predict(lines)
    done = preloaded.gmlp("predict", f"--workdir={text_export}", input=lines[0])
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(lines[0]), done.stderr
    with pytest.raises(RunError, match="text holds exported weights, which have no checkpoint '12'"):
        loading.load(text_export, "12")


def test_images_and_their_running_mean(image_run, tmp_path):
    """What is written is what `predict` uses: the mean; names for people are taken along."""
    run = shutil.copytree(image_run, tmp_path / "run")
    names = [f"digit {i}" for i in range(10)]
    (run / "names.json").write_text(json.dumps(names))
    trained = gmlp_flax.load(str(run))
    assert trained.ema is not None
    exported.export(str(run), "best", str(tmp_path / "digits"))
    found = gmlp_flax.load(str(tmp_path / "digits"))
    assert found.ema is None and found.task.classes == trained.task.classes and found.task.names == tuple(names)
    jax.tree.map(np.testing.assert_array_equal, found.params, trained.ema)


def test_bfloat16_in_the_file(text_run, tmp_path):
    """Parameters are float32 in memory."""
    flags = f"--workdir={text_run}", f"--out={tmp_path / 'half'}", "--dtype=bfloat16"
    done = preloaded.gmlp("export", *flags)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    weights = safetensors.load_file(tmp_path / "half" / "model.safetensors")
    assert {str(leaf.dtype) for leaf in weights.values()} == {"bfloat16"}
    found, trained = gmlp_flax.load(str(tmp_path / "half")), gmlp_flax.load(str(text_run))
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).astype(leaf.dtype), trained.params)
    jax.tree.map(np.testing.assert_array_equal, found.params, rounded)
    with pytest.raises(ConfigError, match="dtype is 'int8'"):
        exported.export(str(text_run), "best", str(tmp_path / "other"), "int8")


def test_a_run_starts_from_it(text_run, text_export, tmp_path):
    """The same parameters as from the run itself, and its vocabulary; a run with another one is refused."""
    config = gmlp_config.load(str(text_run / "config.json"))
    config.init_from = str(text_export)
    assert warm_start.inherit(config, str(tmp_path))[1].keys() == {"tokenizer.model"}
    task = tasks.create(config, str(text_run))
    params = warm_start.load(task, Partition.make())
    jax.tree.map(np.testing.assert_array_equal, params, gmlp_flax.load(str(text_run)).params)
    task.tokenizer = SimpleNamespace(model=b"another")
    with pytest.raises(RunError, match=r"was trained with another tokenizer\.model"):
        warm_start.load(task, Partition.make())


def test_what_is_strange_is_refused(text_run, text_export, tmp_path):
    """A folder may be anybody's: no class of theirs is imported, and no weight is made up. Nor is a tokenizer, which a
    task would train on data that a stranger's config names."""
    with pytest.raises(RunError, match="holds config.json already"):
        exported.export(str(text_run), "best", str(text_export))
    with pytest.raises(RunError, match="no config.json"):
        loading.load(str(tmp_path))
    folder = shutil.copytree(text_export, tmp_path / "copy")
    (folder / "tokenizer.model").rename(tmp_path / "tokenizer.model")
    with pytest.raises(RunError, match="copy has no tokenizer.model"):
        gmlp_flax.load(str(folder))
    with pytest.raises(RunError, match="holds tokenizer.model already"):
        exported.export(str(text_run), "best", str(tmp_path))
    (tmp_path / "tokenizer.model").rename(folder / "tokenizer.model")
    weights = safetensors.load_file(folder / "model.safetensors")
    bias = weights.pop("bias")
    safetensors.save_file(weights | {"bais": bias}, folder / "model.safetensors")
    with pytest.raises(RunError, match=r"1 missing \(bias\); 1 unexpected \(bais\)$"):
        gmlp_flax.load(str(folder))
    weights["embedding"] = weights["embedding"][:-1]
    broken = {name: np.full_like(leaf, np.nan) for name, leaf in weights.items() if name.endswith("scale")}
    safetensors.save_file(weights | {"bias": bias}, folder / "model.safetensors")
    with pytest.raises(RunError, match=r"1 of another shape \(embedding \[599, 16\], not \[600, 16\]\)$"):
        gmlp_flax.load(str(folder))
    whole = safetensors.load_file(text_export / "model.safetensors")
    safetensors.save_file(whole | broken, folder / "model.safetensors")
    with pytest.raises(RunError, match=rf"numbers that are not finite \({len(broken)} such"):
        gmlp_flax.load(str(folder))
    config = json.loads((folder / "config.json").read_text())
    config["model"]["block"] = "os:system"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"os:system"):
        gmlp_flax.load(str(folder))
