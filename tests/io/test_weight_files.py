"""Files of weights are read, and other files are refused."""

import os
import sys

import fsspec
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax.errors import RunError, install
from gmlp_flax.io import weight_files
from tests.failures import raised
from tests.weights import states

WEIGHTS = {
    "a.weight": np.float32([[0, 1, 2], [3, 4, 5]]),
    "a.bias": np.float32([7, 8]),
}
SHAPES = {"a.weight": (2, 3), "a.bias": (2,)}


def assert_weights(found):
    assert found.keys() == WEIGHTS.keys()
    for name, array in WEIGHTS.items():
        assert_array_equal(found[name], array, strict=True)


def assert_refused(path, *words):
    """Asserts that reading fails with one line that has the path and the words."""
    message = raised(RunError, weight_files.read, str(path))
    for word in (str(path), *words):
        assert word in message, message


def test_safetensors_files_are_read(tmp_path):
    pytest.importorskip("safetensors")
    path = tmp_path / "new" / "w.safetensors"
    states.write(str(path), WEIGHTS)
    assert_weights(weight_files.read(str(path)))
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    assert_refused(path, "is damaged")


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def tensors(torch):
    """The weights as tensors of torch."""
    return {name: torch.tensor(array) for name, array in WEIGHTS.items()}


def test_torch_files_of_tensors_are_read(torch, tensors, tmp_path):
    half = {name: tensor.half() for name, tensor in tensors.items()}
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()}
    checkpoint = {"model": tensors, "epoch": 3}
    nested = {"state_dict": tensors}
    path = tmp_path / "weights.pth"
    for content in (tensors, checkpoint, nested, half, parameters):
        torch.save(content, path)
        assert_weights(weight_files.read(str(path)))


def test_truncated_torch_files_are_refused(torch, tensors, tmp_path):
    path = tmp_path / "weights.pth"
    torch.save(tensors, path)
    content = path.read_bytes()
    path.write_bytes(content[:200])
    assert_refused(path, "cannot be read by torch")


def test_torch_files_of_other_values_are_refused(torch, tensors, tmp_path):
    path = tmp_path / "weights.pth"
    sparse = {"a": tensors["a.bias"].to_sparse()}
    for content in ({"a": 1}, sparse, [1, 2]):
        torch.save(content, path)
        assert_refused(path, "holds")


class Runs:
    """An object whose pickle makes a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickled_code_is_never_run(torch, tmp_path):
    marker = tmp_path / "ran"
    path = tmp_path / "code.pth"
    torch.save({"model": Runs(marker)}, path)
    assert_refused(path, "pickled code is never run")
    assert not marker.exists()


def test_npz_files_are_read(tmp_path):
    path = tmp_path / "w.npz"
    np.savez(path, **WEIGHTS)
    assert_weights(weight_files.read(str(path)))


def test_truncated_npz_files_are_refused(tmp_path):
    path = tmp_path / "w.npz"
    np.savez(path, **WEIGHTS)
    content = path.read_bytes()
    path.write_bytes(content[:200])
    assert_refused(path, "is damaged")


def test_npz_files_of_objects_are_refused(tmp_path):
    marker = tmp_path / "ran"
    path = tmp_path / "code.npz"
    np.savez(path, a=np.array([Runs(marker)], object))
    assert_refused(path, "holds more than arrays")
    assert not marker.exists()


@pytest.mark.parametrize("suffix", [".npz", ".pth"])
def test_small_files_of_huge_arrays_are_refused(tmp_path, monkeypatch, suffix):
    """A gigabyte of zeros is a megabyte of .npz, or of a state dict."""
    if suffix == ".pth":
        pytest.importorskip("torch")
    monkeypatch.setattr(weight_files.files, "MOST", 1000)
    path = tmp_path / f"w{suffix}"
    zeros = np.zeros(1 << 16, np.float32)
    with path.open("wb") as file:
        np.savez_compressed(file, a=zeros)
    assert_refused(path, "would unpack to 262,272 bytes")


def test_missing_and_other_files_are_refused(tmp_path):
    assert_refused(tmp_path / "none.safetensors", "there is no file")
    (tmp_path / "w.h5").write_bytes(b"x")
    assert_refused(tmp_path / "w.h5", "give a .safetensors, .pth or .npz file")


def test_a_missing_library_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    path = tmp_path / "w.pth"
    path.write_bytes(b"x")
    message = raised(RunError, weight_files.read, str(path))
    assert "needs torch" in message
    assert install("parity") in message


# Shapes


def test_shapes_are_read_without_the_weights(torch, tensors, tmp_path):
    states.write(tmp_path / "w.safetensors", WEIGHTS)
    np.savez(tmp_path / "w.npz", **WEIGHTS)
    torch.save({"model": tensors}, tmp_path / "w.pth")
    for suffix in (".safetensors", ".npz", ".pth"):
        shapes = weight_files.shapes(str(tmp_path / f"w{suffix}"))
        assert shapes == SHAPES, suffix


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04 nonsense"])
def test_shapes_of_damaged_files_are_refused(tmp_path, suffix, content):
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    assert str(path) in raised(RunError, weight_files.shapes, str(path))


def test_shapes_of_pickled_objects_are_refused(tmp_path):
    marker = tmp_path / "ran"
    path = tmp_path / "code.npz"
    np.savez(path, a=np.array([Runs(marker)], object))
    assert "code.npz" in raised(RunError, weight_files.shapes, str(path))
    assert not marker.exists()


def test_remote_files_are_read(tmp_path):
    local = tmp_path / "w.safetensors"
    remote = "memory://weights/w.safetensors"
    states.write(local, WEIGHTS)
    with fsspec.open(remote, "wb") as file:
        file.write(local.read_bytes())
    assert_weights(weight_files.read(remote))
    assert weight_files.shapes(remote) == SHAPES


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
def test_weight_files_are_recognised_by_suffix(path, expected):
    assert weight_files.is_weight_file(path) == expected
