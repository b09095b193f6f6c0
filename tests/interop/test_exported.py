"""Any run's weights as plain files, and back."""

import json
import shutil

import jax
import numpy as np
import pytest

import gmlp_flax
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.interop import exported
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


def test_a_run_folder_again(text_run, text_export, tmp_path):
    again = tmp_path / "again"
    done = preloaded.gmlp("import", "--model=exported", f"--checkpoint={text_export}", f"--out={again}", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    lines = ["the [MASK] is", "a [MASK] [MASK]"]
    assert gmlp_flax.load(str(again)).predict(lines) == gmlp_flax.load(str(text_run)).predict(lines)


def test_images_and_their_running_mean(image_run, tmp_path):
    """What is written is what `predict` uses: the mean, of which the run made of it keeps no other; names for people
    are taken along."""
    run, again = shutil.copytree(image_run, tmp_path / "run"), tmp_path / "again"
    names = [f"digit {i}" for i in range(10)]
    (run / "names.json").write_text(json.dumps(names))
    trained = gmlp_flax.load(str(run))
    assert trained.ema is not None
    exported.export(str(run), "best", str(tmp_path / "digits"))
    exported.convert(str(tmp_path / "digits"), str(again))
    found = gmlp_flax.load(str(again))
    assert found.ema is None and found.task.classes == trained.task.classes and found.task.names == tuple(names)
    jax.tree.map(np.testing.assert_array_equal, found.params, trained.ema)


def test_what_is_strange_is_refused(text_run, text_export, tmp_path):
    """A folder may be anybody's: no class of theirs is imported, and no weight is made up. Nor is a tokenizer, which a
    task would train on data that a stranger's config names."""
    with pytest.raises(RunError, match="holds config.json already"):
        exported.export(str(text_run), "best", str(text_export))
    with pytest.raises(RunError, match="has no config.json"):
        exported.convert(str(tmp_path), str(tmp_path / "run"))
    folder = shutil.copytree(text_export, tmp_path / "copy")
    (folder / "tokenizer.model").rename(tmp_path / "tokenizer.model")
    with pytest.raises(RunError, match="copy has no tokenizer.model"):
        exported.convert(str(folder), str(tmp_path / "run"))
    with pytest.raises(RunError, match="holds tokenizer.model already"):
        exported.export(str(text_run), "best", str(tmp_path))
    (tmp_path / "tokenizer.model").rename(folder / "tokenizer.model")
    weights = safetensors.load_file(folder / "model.safetensors")
    bias = weights.pop("bias")
    safetensors.save_file(weights | {"bais": bias}, folder / "model.safetensors")
    with pytest.raises(RunError, match=r"1 missing \(bias\); 1 unexpected"):
        exported.convert(str(folder), str(tmp_path / "run"))
    config = json.loads((folder / "config.json").read_text())
    config["model"]["block"] = "os:system"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"os:system"):
        exported.convert(str(folder), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
