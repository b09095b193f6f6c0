"""Files of the Hugging Face hub, from one commit and from the client's cache."""

import sys

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.io import hub
from tests import hub_server
from tests.failures import raised

FILES = {"config.json": b"{}", "pytorch_model.bin": b"weights"}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub with the repository me/it, which the client uses."""
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
def test_names_of_repositories_have_a_prefix(name, repository):
    assert hub.repository_of(name) == repository


def test_a_missing_client_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    message = raised(RunError, hub.fetch, "timm/x.y", "config.json")
    assert "huggingface_hub" in message
    assert "hf-hub:timm/x.y" in message


def test_files_are_fetched_with_their_commit(server):
    path = hub.fetch("me/it", "config.json")
    with open(path, "rb") as file:
        assert file.read() == b"{}"
    assert hub.commit_of(path) == server.commit("me/it")


def test_the_first_existing_file_is_fetched(server):
    commit = server.commit("me/it")
    path = hub.fetch_first("me/it", ("model.safetensors", "pytorch_model.bin"), commit)
    assert path.endswith("pytorch_model.bin")
    message = raised(RunError, hub.fetch_first, "me/it", ("a.bin", "b.bin"), commit)
    assert message.startswith("b.bin of hf-hub:me/it")


def test_optional_files_may_be_missing(server):
    commit = server.commit("me/it")
    assert hub.fetch("me/it", "vocab.txt", commit, optional=True) == ""
    assert "vocab.txt" in raised(RunError, hub.fetch, "me/it", "vocab.txt", commit)


def test_cached_commits_need_no_request(server):
    first = hub.fetch("me/it", "config.json")
    commit = hub.commit_of(first)
    del server["me/it"]
    assert hub.fetch("me/it", "config.json", commit) == first
