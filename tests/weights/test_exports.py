"""Exported folders, which are not trusted: their classes are not imported, and nothing is guessed."""

import json
import shutil

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal
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


def set_tokenizer(folder, path: str) -> None:
    """Sets config.data.tokenizer of an exported folder."""
    config_path = folder / "config.json"
    config = config_lib.load(str(config_path))
    config.data.tokenizer = path
    config_path.write_text(config_lib.to_json(config))


def update_json(path, **values) -> None:
    content = json.loads(path.read_text())
    content.update(values)
    path.write_text(json.dumps(content))


def test_exports_have_the_config_parameters_and_files_of_the_run(text_run, text_export):
    saved = exports.open_export(str(text_export))
    assert saved.where == str(text_export)
    vocabulary = (text_run / "tokenizer.model").read_bytes()
    assert saved.files == {"tokenizer.model": vocabulary}
    config = config_lib.load(str(text_run / "config.json"))
    assert saved.config.model == config.model
    params = pretrained.load(text_run).params
    jax.tree.map(assert_array_equal, saved.read(), params)


def test_paths_in_untrusted_configs_are_not_read(copy):
    """The tokenizer is in the folder, and the config may name any file of this machine."""
    set_tokenizer(copy, "/etc/hostname")
    model = pretrained.load(copy)
    assert model.tokenizer.vocab_size == 600
    (copy / "tokenizer.model").unlink()
    message = raised(RunError, exports.open_export, str(copy))
    assert f"{copy} has no tokenizer.model" in message


def test_unknown_tasks_are_refused_with_the_path(copy):
    """A later release may have written it."""
    path = copy / "config.json"
    update_json(path, task="diffusion")
    message = raised(ConfigError, exports.open_export, str(copy))
    assert message.startswith(f"{path}: config.task is 'diffusion'")


def test_models_of_ids_need_no_tokenizer(copy):
    set_tokenizer(copy, "none")
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
def test_weights_that_do_not_fit_are_refused(copy, change, words):
    rewrite(copy, change)
    message = raised(RunError, pretrained.load, copy)
    assert words in message
    assert str(copy) in message


def test_bfloat16_is_read_as_float32(copy, text_export):
    shutil.rmtree(copy)
    exported.export(pretrained.load(text_export), str(copy), dtype="bfloat16")
    params = exports.open_export(str(copy)).read()
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(params)}
    assert dtypes == {"float32"}


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
def test_damaged_files_are_refused_in_one_line(copy, name, content, words):
    (copy / name).write_bytes(content)
    assert words in raised(UserError, pretrained.load, copy)


def test_untrusted_blocks_are_not_imported(copy):
    path = copy / "config.json"
    model = json.loads(path.read_text())["model"]
    update_json(path, model={**model, "block": "os:system"})
    assert "os:system" in raised(ConfigError, pretrained.load, copy)


def test_untrusted_tasks_are_not_imported(copy):
    update_json(copy / "config.json", task="os:system")
    assert "os:system" in raised(ConfigError, pretrained.load, copy)


def test_packaged_models_are_folders_with_weights(text_export, monkeypatch):
    """Each folder with weights is a name."""
    (text_export.parent / "empty").mkdir()
    monkeypatch.setattr(exports, "SHIPPED", text_export.parent)
    assert exports.shipped() == {"text": str(text_export)}
