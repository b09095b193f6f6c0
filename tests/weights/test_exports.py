"""Exported folders, which may be anybody's: no class of theirs is imported, and nothing is made
up."""

import json
import shutil

import jax
import numpy as np
import pytest
from safetensors import numpy as safetensors

from gmlp_flax import config as config_lib
from gmlp_flax.errors import ConfigError, RunError, UserError
from gmlp_flax.interop import exported
from gmlp_flax.training import pretrained
from gmlp_flax.weights import exports
from tests.failures import raised


@pytest.fixture(scope="module")
def text_export(text_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "text"
    exported.export(pretrained.load(text_run), str(folder))
    return folder


@pytest.fixture
def copy(text_export, tmp_path):
    return shutil.copytree(text_export, tmp_path / "copy")


def test_what_is_read(text_run, text_export):
    """The parameters that the run predicts with, its config without its paths, and its files; they
    are read when they are asked for."""
    saved = exports.open_export(str(text_export))
    assert saved.where == str(text_export)
    assert saved.files == {"tokenizer.model": (text_run / "tokenizer.model").read_bytes()}
    own = config_lib.load(str(text_run / "config.json"))
    assert saved.config.model == own.model
    params = pretrained.load(text_run).params
    jax.tree.map(np.testing.assert_array_equal, saved.read(), params)


def test_paths_of_a_stranger_are_not_followed(copy):
    """Their tokenizer is in the folder; their config may name any file of this machine."""
    config = config_lib.load(str(copy / "config.json"))
    config.data.tokenizer = "/etc/hostname"
    (copy / "config.json").write_text(config_lib.to_json(config))
    assert pretrained.load(copy).tokenizer.vocab_size == 600
    (copy / "tokenizer.model").unlink()
    message = raised(RunError, exports.open_export, str(copy))
    assert f"{copy} has no tokenizer.model" in message


def test_error_on_an_unknown_task_names_the_folder(copy):
    """A later release may have written it."""
    values = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**values, "task": "diffusion"}))
    message = raised(ConfigError, exports.open_export, str(copy))
    assert message.startswith(f"{copy / 'config.json'}: config.task is 'diffusion'")


def test_a_model_that_reads_ids_alone_needs_no_tokenizer(copy):
    config = config_lib.load(str(copy / "config.json"))
    config.data.tokenizer = "none"
    (copy / "config.json").write_text(config_lib.to_json(config))
    (copy / "tokenizer.model").unlink()
    saved = exports.open_export(str(copy))
    assert saved.files == {}
    assert "embedding" in saved.read()


def rewrite(folder, change):
    """Changes the weights in a folder."""
    path = folder / "model.safetensors"
    weights = safetensors.load_file(path)
    change(weights)
    path.unlink()
    safetensors.save_file(weights, path)


def misname(weights):
    weights["bais"] = weights.pop("bias")


def cut(weights):
    weights["embedding"] = np.ascontiguousarray(weights["embedding"][:-1])


def break_scales(weights):
    for name in weights:
        if name.endswith("scale"):
            weights[name] = np.full_like(weights[name], np.nan)


def count(weights):
    weights["bias"] = np.arange(600)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (misname, "1 missing (bias); 1 unexpected (bais)"),
        (cut, "1 of another shape (embedding [599, 16], not [600, 16])"),
        (break_scales, "scale has numbers that are not finite (3 such"),
        (count, "(bias int64)"),
        (dict.clear, "and "),
    ],
)
def test_weights_that_do_not_fit(copy, change, words):
    rewrite(copy, change)
    message = raised(RunError, pretrained.load, copy)
    assert words in message
    assert str(copy) in message


def test_bfloat16_is_read_as_float32(copy, text_export):
    shutil.rmtree(copy)
    exported.export(pretrained.load(text_export), str(copy), dtype="bfloat16")
    params = exports.open_export(str(copy)).read()
    got = {str(leaf.dtype) for leaf in jax.tree.leaves(params)}
    assert got == {"float32"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", b"\x08\0\0\0\0\0\0\0nonsense", "copy/model.safetensors"),
        ("model.safetensors", b"", "copy/model.safetensors"),
        ("tokenizer.model", b"nonsense", "tokenizer.model"),
        ("config.json", b"{", "copy/config.json"),
        ("config.json", b"[]", "copy/config.json"),
        ("config.json", b'{"task": 3}', "copy/config.json"),
        ("config.json", b'{"task": "no_such_task"}', "'no_such_task'"),
    ],
)
def test_damaged_files_are_one_line(copy, name, content, words):
    (copy / name).write_bytes(content)
    assert words in raised(UserError, pretrained.load, copy)


def test_no_class_of_a_stranger_is_imported(copy):
    described = json.loads((copy / "config.json").read_text())
    described["model"]["block"] = "os:system"
    (copy / "config.json").write_text(json.dumps(described))
    assert "os:system" in raised(ConfigError, pretrained.load, copy)
    described["task"] = "os:system"
    (copy / "config.json").write_text(json.dumps(described))
    assert "os:system" in raised(ConfigError, pretrained.load, copy)


def test_models_that_come_with_the_package(text_export, monkeypatch):
    """Each folder with weights is a name."""
    (text_export.parent / "empty").mkdir()
    monkeypatch.setattr(exports, "SHIPPED", text_export.parent)
    assert exports.shipped() == {"text": str(text_export)}
