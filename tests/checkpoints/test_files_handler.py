"""Orbax's handler of the files of a checkpoint."""

import subprocess
import sys

import pytest

from gmlp_flax.checkpoints.files_handler import FilesHandler, SaveFiles


def test_the_handler_reads_the_files_that_it_wrote(tmp_path):
    """Here it is called without Orbax's manager."""
    files = {"a.txt": b"\0\n\xff", "b.json": b"{}"}
    handler = FilesHandler()
    args = SaveFiles(files)
    handler.save(tmp_path, args)
    assert handler.restore(tmp_path, args) == files
    (tmp_path / "b.json").unlink()
    with pytest.raises(FileNotFoundError):
        handler.restore(tmp_path, args)


@pytest.mark.slow
def test_packaged_models_are_loaded_without_orbax():
    """Importing it takes a tenth of a second."""
    code = """
import sys, gmlp_flax
gmlp_flax.load("books_gmlp")
print("orbax.checkpoint" in sys.modules, "jax.experimental.pallas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
