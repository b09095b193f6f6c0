"""The package's names are imported lazily, and print nothing in a user's program."""

import subprocess
import sys

import pytest

import gmlp_flax
from tests import preloaded


def python(code: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=preloaded.ROOT,
        check=False,
        timeout=120,
    )
    return done.stdout, done.stderr


def test_importing_imports_nothing_else():
    code = "import sys, gmlp_flax; print('jax' in sys.modules, 'load' in dir(gmlp_flax), gmlp_flax.__all__ != [])"
    assert python(code) == ("False True True\n", "")


def test_every_name_exists_and_has_a_docstring():
    for name in gmlp_flax.__all__:
        assert getattr(gmlp_flax, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        gmlp_flax.lod  # noqa: B018


@pytest.mark.slow
def test_nothing_else_is_printed(text_run):
    """Outside of our commands, in a fresh process: neither Orbax's warnings nor libtpu's."""
    code = f"import gmlp_flax; print(len(gmlp_flax.load({str(text_run)!r}).predict(['A [MASK].'])))"
    assert python(code) == ("1\n", "")
