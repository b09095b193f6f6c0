"""Files of the Hugging Face hub: of one commit, from the client's cache if it has them."""

import sys

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.io import hub
from tests import hub_server
from tests.failures import raised

FILES = {"config.json": b"{}", "pytorch_model.bin": b"weights"}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub with the repository me/it, which the client asks."""
    constants = pytest.importorskip(
        "huggingface_hub.constants", reason="huggingface_hub is not installed (extra: weights)"
    )
    with hub_server.serve() as found:
        found["me/it"] = dict(FILES)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        url = found.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        yield found


@pytest.mark.parametrize(
    ("name", "repository"),
    [("hf-hub:me/it", "me/it"), ("me/it", ""), ("hf-hub", ""), ("/hf-hub:me/it", "")],
)
def test_names_of_repositories(name, repository):
    assert hub.repository_of(name) == repository


def test_without_the_hubs_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = raised(RunError, hub.fetch, "timm/x.y", "config.json")
    assert "huggingface_hub" in message
    assert "hf-hub:timm/x.y" in message


def test_a_file_and_its_commit(server):
    path = hub.fetch("me/it", "config.json")
    with open(path, "rb") as file:
        assert file.read() == b"{}"
    assert hub.commit_of(path) == server.commit("me/it")


def test_the_first_of_some_files(server):
    commit = server.commit("me/it")
    path = hub.fetch_first("me/it", ("model.safetensors", "pytorch_model.bin"), commit)
    assert path.endswith("pytorch_model.bin")
    message = raised(RunError, hub.fetch_first, "me/it", ("a.bin", "b.bin"), commit)
    assert message.startswith("b.bin of hf-hub:me/it")


def test_an_optional_file(server):
    commit = server.commit("me/it")
    assert hub.fetch("me/it", "vocab.txt", commit, optional=True) == ""
    assert "vocab.txt" in raised(RunError, hub.fetch, "me/it", "vocab.txt", commit)


def test_a_commit_in_the_cache_is_not_asked_for(server):
    first = hub.fetch("me/it", "config.json")
    commit = hub.commit_of(first)
    del server["me/it"]
    assert hub.fetch("me/it", "config.json", commit) == first
