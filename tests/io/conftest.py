"""An object store for the tests of this folder."""

import pytest

from tests import buckets
from tests.data import writers
from tests.data.conftest import shared_data  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def running_store():
    if not buckets.installed():
        pytest.skip("needs gcsfs and gcp-storage-emulator")
    with buckets.store() as found:
        found.make("test")
        yield found


@pytest.fixture
def store(running_store, monkeypatch):
    """A store without faults, which this process can reach too."""
    running_store.faults()
    for name, value in running_store.environment.items():
        monkeypatch.setenv(name, value)
    return running_store


@pytest.fixture(params=["local", "remote"])
def folder(request, tmp_path):
    """The path of an empty folder, local or in fsspec's memory."""
    return str(tmp_path) if request.param == "local" else writers.remote(tmp_path)
