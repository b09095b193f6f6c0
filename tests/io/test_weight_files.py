"""Files of weights: what is read, what is refused, and in which words."""

import os
import re
import sys

import fsspec
import numpy as np
import pytest

from gmlp_flax.errors import RunError, install
from gmlp_flax.io import weight_files
from tests.failures import raised
from tests.weights import states

WEIGHTS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "a.bias": np.float32([7, 8])}


def assert_weights(found):
    assert found.keys() == WEIGHTS.keys()
    for name, array in WEIGHTS.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def refused(path, *words):
    """Reading ends in one line with the words."""
    told = raised(RunError, weight_files.read, str(path))
    for word in (str(path), *words):
        assert word in told, told


def test_safetensors_round_trip(tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "new" / "w.safetensors"
    states.write(str(path), WEIGHTS)
    assert_weights(weight_files.read(str(path)))
    path.write_bytes(path.read_bytes()[:-5])
    refused(path, "is damaged")


def test_torch_files_of_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.tensor(array) for name, array in WEIGHTS.items()}
    half = {name: tensor.half() for name, tensor in tensors.items()}
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}
    checkpoint = {"model": tensors, "epoch": 3}
    nested = {"state_dict": tensors}
    path = tmp_path / "weights.pth"
    for content in (tensors, checkpoint, nested, half, parameters):
        torch.save(content, path)
        assert_weights(weight_files.read(str(path)))
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    refused(path, "cannot be read by torch")
    sparse = {"a": tensors["a.bias"].to_sparse()}
    for content in ({"a": 1}, sparse, [1, 2]):
        torch.save(content, path)
        refused(path, "holds")


class Runs:
    """Pickled, this is a command for whoever loads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickled_code_is_never_run(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"model": Runs(tmp_path / "ran")}, tmp_path / "code.pth")
    refused(tmp_path / "code.pth", "pickled code is never run")
    assert not (tmp_path / "ran").exists()


def test_numpys_files_of_arrays(tmp_path):
    np.savez(tmp_path / "w.npz", **WEIGHTS)
    assert_weights(weight_files.read(str(tmp_path / "w.npz")))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "w.npz").read_bytes()[:200])
    refused(tmp_path / "cut.npz", "is damaged")
    np.savez(tmp_path / "code.npz", a=np.array([Runs(tmp_path / "ran")], object))
    refused(tmp_path / "code.npz", "holds more than arrays")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", [".npz", ".pth"])
def test_small_files_of_huge_arrays(tmp_path, monkeypatch, suffix):
    """Zeros of a gigabyte are a megabyte of .npz, or of a state dict."""
    if suffix == ".pth":
        pytest.importorskip("torch")
    monkeypatch.setattr(weight_files.files, "MOST", 1000)
    path = tmp_path / f"w{suffix}"
    with path.open("wb") as file:
        np.savez_compressed(file, a=np.zeros(1 << 16, np.float32))
    refused(path, "would unpack to 262,272 bytes")


def test_other_files(tmp_path):
    refused(tmp_path / "none.safetensors", "there is no file")
    (tmp_path / "w.h5").write_bytes(b"x")
    refused(tmp_path / "w.h5", "give a .safetensors, .pth or .npz file")


def test_a_reader_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "w.pth").write_bytes(b"x")
    with pytest.raises(RunError, match=rf"needs torch.*{re.escape(install('parity'))}"):
        weight_files.read(str(tmp_path / "w.pth"))


# Shapes alone.


def test_shapes_are_read_without_the_weights(tmp_path):
    torch = pytest.importorskip("torch")
    states.write(tmp_path / "w.safetensors", WEIGHTS)
    np.savez(tmp_path / "w.npz", **WEIGHTS)
    tensors = {name: torch.tensor(array) for name, array in WEIGHTS.items()}
    torch.save({"model": tensors}, tmp_path / "w.pth")
    for suffix in (".safetensors", ".npz", ".pth"):
        shapes = weight_files.shapes(str(tmp_path / f"w{suffix}"))
        assert shapes == {"a.weight": (2, 3), "a.bias": (2,)}, suffix


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 nonsense"])
def test_shapes_of_damaged_files(tmp_path, suffix, content):
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    assert str(path) in raised(RunError, weight_files.shapes, str(path))


def test_shapes_of_pickled_objects(tmp_path):
    np.savez(tmp_path / "code.npz", a=np.array([Runs(tmp_path / "ran")], object))
    assert "code.npz" in raised(RunError, weight_files.shapes, str(tmp_path / "code.npz"))
    assert not (tmp_path / "ran").exists()


def test_a_remote_file_is_copied(tmp_path):
    states.write(tmp_path / "w.safetensors", WEIGHTS)
    with fsspec.open("memory://weights/w.safetensors", "wb") as file:
        file.write((tmp_path / "w.safetensors").read_bytes())
    assert_weights(weight_files.read("memory://weights/w.safetensors"))
    shapes = weight_files.shapes("memory://weights/w.safetensors")
    assert shapes == {"a.weight": (2, 3), "a.bias": (2,)}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.safetensors", True),
        ("gs://b/a.npz", True),
        ("a.pth", True),
        ("pytorch_model.bin", True),
        ("a.h5", False),
        ("run", False),
    ],
)
def test_suffixes(path, expected):
    assert weight_files.is_weight_file(path) == expected
