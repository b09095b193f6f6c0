"""Fixtures of the data tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gmlp_flax.data.embedded import embedded_text
from gmlp_flax.data.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """The default folder of tokenizers and indexes, so that tests do not use the cache of the user
    who runs them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gmlp_flax"


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """A tokenizer of 600 pieces, trained on the embedded text."""
    return Tokenizer.train(embedded_text("heldout"), 600)


@pytest.fixture
def shared_data() -> Callable[[str], str]:
    """Returns the path of a real data file next to the repository, or skips the test with the name of
    the file."""

    def find(name: str) -> str:
        path = ROOT.parent / "shared" / "data" / name
        if not path.exists():
            pytest.skip(f"no ../shared/data/{name}")
        return str(path)

    return find
