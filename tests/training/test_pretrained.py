"""Models from the Hugging Face hub and from its client's cache: a hub on this machine, and real
commands."""

import socket

import pytest
from PIL import Image

import gmlp_flax
from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import RunError
from gmlp_flax.interop import exported
from gmlp_flax.training import loading
from tests import hub_server, preloaded
from tests.failures import raised
from tests.runs.command import assert_one_line_error

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (extra: weights)")


@pytest.fixture(scope="module")
def digits(image_run, tmp_path_factory):
    """An exported classifier of digits."""
    folder = tmp_path_factory.mktemp("exports") / "digits"
    exported.export(loading.load(image_run, "best"), str(folder), dtype="bfloat16")
    return folder


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "a.png"
    Image.new("L", (8, 8), 100).save(path)
    return path


def predict(image, model, cache, endpoint, **variables):
    settings = {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    return preloaded.gmlp("predict", f"--workdir={model}", image, **settings, **variables)


def test_the_hub_and_then_its_cache_alone(digits, image, tmp_path):
    """The second time, nobody answers: the client's cache has all files, of one commit."""
    with hub_server.serve() as hub:
        hub["me/digits"] = {file.name: file.read_bytes() for file in digits.iterdir()}
        online = predict(image, "hf-hub:me/digits", tmp_path, hub.url)
        commit = hub.commit("me/digits")
    assert online.returncode == 0 and online.stdout.startswith(f"{image}: "), online.stderr
    for offline in ({"HF_HUB_OFFLINE": "1"}, {}):
        again = predict(image, "hf-hub:me/digits", tmp_path, hub.url, **offline)
        assert again.stdout == online.stdout, again.stderr
    names = {
        file.name for file in (tmp_path / "models--me--digits" / "snapshots" / commit).iterdir()
    }
    # not all that the repository has
    assert names == {"config.json", "model.safetensors", "classes.json"}


def test_no_such_model(image, tmp_path):
    with hub_server.serve() as hub:
        hub["me/other"] = {"README.md": b"#"}
        for name, words in (
            ("me/none", "config.json of hf-hub:me/none"),
            ("me/other", "config.json of hf-hub:me/other"),
        ):
            assert_one_line_error(
                predict(image, f"hf-hub:{name}", tmp_path, hub.url), words, "check the name"
            )
        assert_one_line_error(predict(image, "hf-hub:a/b/c", tmp_path, hub.url), "hf-hub:a/b/c")


def test_a_hub_that_does_not_answer(image, tmp_path):
    """Refused connections, and one that is silent: it gives up after a few seconds."""
    assert_one_line_error(
        predict(image, "hf-hub:me/x", tmp_path, "http://127.0.0.1:1"), "hf-hub:me/x", "the network"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        done = predict(image, "hf-hub:me/x", tmp_path, url)
        assert_one_line_error(done, "hf-hub:me/x", "the network")


def test_paths_of_a_stranger_are_not_read(text_run, tmp_path):
    """Their tokenizer is in the folder; their config may name any file of this machine."""
    exported.export(loading.load(text_run, "best"), str(tmp_path / "text"))
    config = gmlp_config.load(str(tmp_path / "text" / "config.json"))
    config.data.tokenizer = "/etc/hostname"
    (tmp_path / "text" / "config.json").write_text(gmlp_config.to_json(config))
    assert loading.open_task(str(tmp_path / "text")).tokenizer.vocab_size == 600
    (tmp_path / "text" / "tokenizer.model").unlink()
    assert "text has no tokenizer.model" in raised(
        RunError, loading.open_task, str(tmp_path / "text")
    )


def test_models_that_come_with_the_package(digits, tmp_path, monkeypatch):
    """A folder of the package is a name; a path that exists comes first."""
    monkeypatch.setattr(loading, "SHIPPED", digits.parent)
    monkeypatch.chdir(tmp_path)
    assert loading.shipped() == {"digits": str(digits)} and gmlp_flax.list_pretrained() == [
        "digits"
    ]
    assert loading.locate("digits") == str(digits)
    assert gmlp_flax.load("digits").classes == gmlp_flax.load(digits).classes
    assert loading.open_source("digits").where == str(digits)
    (tmp_path / "digits").mkdir()
    assert loading.locate("digits") == str(tmp_path / "digits")
